#!/bin/bash
# The shop on three nodes of this one machine, and its application moved from one to another while `wrk` asks for pages.
# `make demo-sockets` runs it after demo.sh.
#
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
nodes=(alpha beta gamma)
. "$here/../common.sh"
. "$here/../cluster/nodes.sh"
debian=$(readlink -f "${CARGO_TARGET_DIR:-$here/../../target}/debian")
for name in nginx redis postgresql wrk; do
    [ -e "$debian/$name/.complete" ] || fail "there is no $debian/$name; run 'make deps' first"
done

# The file of demo.sh, with a node for each domain but the application, and one more domain that asks.
write_file() {
    mkdir "$folder/data"
    chown nobody "$folder/data"
    chmod 755 "$folder"
    local postgres
    postgres=$(echo "$debian"/postgresql/usr/lib/postgresql/*/bin)
    sed -e "s|@DEBIAN@|$debian|g" -e "s|@HERE@|$here|g" -e "s|@POSTGRES@|$postgres|g" -e "s|@DATA@|$folder/data|g" \
        -e '/^\[publish\]/,$d' \
        -e '/^\[domain\.front\]/a node = "alpha"' -e '/^\[domain\.\(redis\|postgres\)\]/a node = "beta"' \
        -e '/^\[domain\.app\]/a restart = { policy = "always", elsewhere = true }\nstop = { signal = "INT" }' "$here/shop.toml" >"$folder/shop.toml"
    cat >>"$folder/shop.toml" <<FILE
[domain.load]
kind = "container"
node = "alpha"
command = ["sleep", "infinity"]
environment = { LD_LIBRARY_PATH = "$debian/wrk/usr/lib/x86_64-linux-gnu" }
mounts = [{ source = "$debian", target = "$debian" }]
services = { front = { at = "tcp:80" } }

[service.front]
kind = "socket"
domain = "front"
to = "tcp:8080"
allow = [{ domains = ["load"], verbs = ["connect"] }]
FILE
}

moved() {
    local now
    now=$(where_is alpha app)
    [ -n "$now" ] && [ "$now" != "$before" ]
}

page() {
    tombolo alpha exec load -- curl -fsS -m 10 "http://127.0.0.1/$1"
}

say "Three nodes on this machine, and the shop on them" \
    "alpha, beta and gamma are network namespaces with daemons of their own. nginx is on alpha, redis and PostgreSQL are on beta," \
    "the application may be anywhere. No container has more than lo, and the file says nothing of how they reach each other."
switch_all_on
make_cluster >/dev/null
write_file
show_on alpha up "$folder/shop.toml"
show_on alpha ps
await "a page is answered" page ready
show_on alpha exec load -- curl -fsS http://127.0.0.1/tea

before=$(where_is alpha app)
say "The application moves while wrk asks" \
    "It runs on $before. wrk asks nginx for pages, 4 at a time, for 10 s. After 3 s $before is drained."
print_command 'alpha# tombolo exec load -- wrk -t1 -c4 -d10s http://127.0.0.1/tea &'
tombolo alpha exec load -- "$debian/wrk/usr/bin/wrk" -t1 -c4 -d10s --timeout 10s http://127.0.0.1/tea >"$folder/wrk" &
wrk=$!
sleep 3
show_on alpha node drain "$before"
begun=$(date +%s%N)
await "the application runs elsewhere" moved
printf 'It runs on %s after %s ms.\n' "$(where_is alpha app)" $((($(date +%s%N) - begun) / 1000000))
wait "$wrk" || fail "wrk failed: $(cat "$folder/wrk")"

say "What its clients saw" \
    "While nothing served, connections to the application were refused or reset, as over TCP, and nginx answered 502 (\"Non-2xx\"): also those" \
    "four that the application had in hand when it was told to stop. New ones reach it where it runs now."
cat "$folder/wrk"
await "a page is answered" page ready
show_on alpha exec load -- curl -fsS http://127.0.0.1/salt

say "That is all" "Everything is taken away again. Next: docs/sockets.md and docs/clusters.md."
