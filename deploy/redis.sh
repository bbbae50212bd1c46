#!/bin/sh
# Gets redis-server for the tests, if the machine has neither it nor valkey-server.
set -eu

for name in redis-server valkey-server; do
	if path=$(command -v "$name"); then
		echo "Redis: $path"
		exit 0
	fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -q -y --no-install-recommends redis-server
	exit 0
fi
echo "redis-server is missing and the tests need it; run: sudo apt-get install redis-server (macOS: brew install redis)" >&2
exit 1
