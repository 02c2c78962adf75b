#!/bin/bash
# Three nodes on this one machine, of which one is lost while look-ups, calls and locks go on. `make demo-failover` runs it.
#
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
nodes=(alpha beta gamma)
declare -A labels=([beta]=role=server [gamma]=role=server)
. "$here/../common.sh"
. "$here/../cluster/nodes.sh"

# How long the callers call, in seconds: some before the loss, and after it as long as the takeover may take.
seconds=${SECONDS_OF_CALLS:-20}

is_up() {
    [ -n "$(where_is alpha "$1")" ]
}
is_elsewhere() {
    local now
    now=$(where_is alpha "$1")
    [ -n "$now" ] && [ "$now" != "$lost" ]
}
answers() {
    tombolo alpha exec callers -- python3 /app/callers.py 0.1
}

say "Three nodes on this machine" "alpha, beta and gamma are network namespaces on a bridge, each with processes, a daemon and an etcd member of its own."
switch_all_on
make_cluster

say "Servers that may be lost" \
    "A server of names, one of keys and locks, and a program that is called, the crane: each on beta or gamma, with \`elsewhere = true\` in the file. The" \
    "callers are on alpha, in a container without a network."
show_on alpha up "$here/topology.toml"
for domain in resolver keeper crane; do await "$domain runs" is_up "$domain"; done
await "all three are answered" answers
show_on alpha ps
# One of them is to be lost for sure, and perhaps all.
lost=$(where_is alpha keeper)
on_it=$(tombolo alpha ps | awk -v node="$lost" '$3 == node { printf "%s ", $2 }')

say "The callers begin, and $lost is lost" \
    "They look up, call and lock for $seconds s. In the midst of it $lost is switched off as by pulling its plug. It runs: $on_it"
tombolo alpha exec callers -- python3 /app/callers.py "$seconds" >"$folder/callers" &
callers=$!
# Time for calls before the loss; that it passes is the point.
sleep 3
print_command "(kill -9 of everything on $lost)"
kill -9 "${first[$lost]}"
begun=$(date +%s%N)
for domain in $on_it; do
    await "$domain runs elsewhere" is_elsewhere "$domain"
    printf '%s runs on %s, %s ms after the loss.\n' "$domain" "$(where_is alpha "$domain")" $((($(date +%s%N) - begun) / 1000000))
done

say "What the callers have seen" \
    "Look-ups and locks wait, and are answered late. A call that the crane had received when it was lost is told as an error, because nobody knows" \
    "whether it was done; it is made again, and the key in which the crane counts says that no box was moved twice."
status=0
wait "$callers" || status=$?
cat "$folder/callers"
[ "$status" = 0 ] || fail "a caller was given up, or something was done twice"

say "That is all" "Everything is taken away again. Next: docs/clusters.md, docs/coordination.md and docs/movement.md."
