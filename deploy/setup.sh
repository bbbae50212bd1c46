#!/bin/sh
# Makes the keyring and one secret per sample endpoint where they are missing. What exists stays as it is.
set -eu
umask 077

dir=/var/lib/weir
mkdir -p "$dir/secrets"

if [ ! -e "$dir/keyring.json" ]; then
	weir keyring create "$dir/keyring.json"
fi

# secret FILE PREFIX: 32 random bytes in base64 behind the prefix of the provider's scheme. Written under another name
# first, so that an interrupted setup leaves no half secret.
secret() {
	if [ ! -e "$dir/secrets/$1" ]; then
		printf '%s%s\n' "$2" "$(head -c 32 /dev/urandom | base64 | tr -d '\n')" >"$dir/secrets/$1.new"
		mv "$dir/secrets/$1.new" "$dir/secrets/$1"
		echo "made the secret of endpoint $1; read it with: docker compose run --rm --entrypoint cat setup $dir/secrets/$1"
	fi
}

secret stripe whsec_
secret github ''
secret standard whsec_
