#!/bin/sh
# Builds versitygw, the S3-compatible server of the tests, into .weir/bin. It takes a few minutes once and needs Go alone.
set -eu
cd "$(dirname "$0")/.."

version=v1.8.0
binary=.weir/bin/versitygw

if [ -x "$binary" ] && go version -m "$binary" | grep -q "github.com/versity/versitygw[[:space:]]$version[[:space:]]"; then
	echo "versitygw: $binary"
	exit 0
fi
mkdir -p .weir/bin
began=$(date +%s)
GOBIN="$PWD/.weir/bin" GOFLAGS= CGO_ENABLED=0 go install -trimpath "github.com/versity/versitygw/cmd/versitygw@$version"
echo "versitygw: $binary (built in $(($(date +%s) - began)) s)"
