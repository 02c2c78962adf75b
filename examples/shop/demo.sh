#!/bin/bash
# Four programs that speak sockets, each in a container that has only `lo`: nginx, a Python application, redis and PostgreSQL.
# `make demo-sockets` runs it.
#
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
#
# It runs a daemon of its own in a folder of its own, and takes everything away at the end, also when it is broken off.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
. "$here/../common.sh"
want_root CARGO_TARGET_DIR "$@"
PATH=$(dirname "$TOMBOLO"):$PATH
debian=$(readlink -f "${CARGO_TARGET_DIR:-$here/../../target}/debian")
for name in nginx redis postgresql; do
    [ -e "$debian/$name/.complete" ] || fail "there is no $debian/$name; run 'make deps' first"
done
command -v curl >/dev/null || fail "there is no curl; run 'make deps' first"

folder=$(mktemp -d /tmp/tombolo-shop-XXXXXX)
export TOMBOLO_RUN_DIR=$folder/run TOMBOLO_STATE_DIR=$folder/state

tear_down() {
    local code=$?
    trap - EXIT INT TERM
    if [ "$code" != 0 ]; then
        tell_failure "$code" "$TOMBOLO_STATE_DIR/daemon.log"
    fi
    tombolo down --all >/dev/null 2>&1 || code=1
    end_daemon "$TOMBOLO_STATE_DIR"
    rm -rf "$folder"
    exit "$code"
}
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A port of the node that nobody has.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$folder/data"
chown nobody "$folder/data"
chmod 755 "$folder"
postgres=$(echo "$debian"/postgresql/usr/lib/postgresql/*/bin)
sed -e "s|@DEBIAN@|$debian|g" -e "s|@HERE@|$here|g" -e "s|@POSTGRES@|$postgres|g" -e "s|@DATA@|$folder/data|g" -e "s|@PORT@|$port|g" \
    "$here/shop.toml" >"$folder/shop.toml"

say '1. Bring up nginx, an application, redis and PostgreSQL, as examples/shop/shop.toml says.' \
    'Each is in a container of its own. No bridge is made, no address given out; one port of the node leads to nginx.'
show "tombolo up $folder/shop.toml"
show 'tombolo ps'

say '2. None of them has a network: only lo.'
for domain in front app redis postgres; do
    printf '%s: ' "$domain"
    tombolo exec "$domain" -- bash -c 'tail -n +3 /proc/net/dev | cut -d: -f1 | xargs'
done

say '3. A request goes through all four.' \
    'nginx asks the application over TCP, that counts in redis over TCP, and writes to PostgreSQL through a Unix socket.'
for item in tea tea salt; do
    show "curl -fsS http://127.0.0.1:$port/$item"
done

say '4. Who is not named in the file reaches nobody.' \
    'nginx has no way to redis: nobody listens there in its lo.'
show_failing "tombolo exec front -- bash -c 'exec 3<>/dev/tcp/127.0.0.1/6379' 2>&1"

say '5. redis is restarted: the application is served by the next one, and is told nothing.'
show 'tombolo restart redis'
show "curl -fsS --retry 9 --retry-all-errors http://127.0.0.1:$port/tea"

say '6. Who was connected, and how much went through.'
show 'tombolo inspect dc/shop/domains/app/sockets/relay'
say 'All of it is taken away again.'
