#!/bin/bash
# Three nodes on this one machine, shown: a container that spans them, a node that dies, one that is drained. `make demo-cluster` runs it.
#
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
nodes=(alpha beta gamma)
. "$here/../common.sh"
. "$here/nodes.sh"

resolves() {
    tombolo alpha exec web -- getent hosts www.islands.test | grep -q 192.0.2.7
}

elsewhere() {
    local now
    now=$(where_is "$1" counter)
    [ -n "$now" ] && [ "$now" != "$2" ]
}

say "Three nodes on this machine" \
    "alpha, beta and gamma are network namespaces on a bridge, each with processes, a daemon and an etcd member of its own."
switch_all_on

say "One of them begins a cluster, and lets the others in" "A token is good for one machine, once. From then on each node has a certificate."
make_cluster
show_on beta node ls

say "A container that spans the nodes" "It is brought up on alpha, and looked at on gamma. \`archive\` went where the label is, north and south keep apart."
show_on alpha up "$here/topology.toml"
show_on gamma ps
show_on beta exec archive -- sh -c 'echo "this is $(hostname), asked for on beta"'

say "A service that crosses nodes" \
    "web, on alpha, has no network but \`lo\`. It asks for a name in a file below /srv/dns, or by the C library; the service's server is on beta, and" \
    "the name server that knows the answer on gamma. Questions go over the link between alpha and beta, encrypted; neither program knows."
show_on alpha exec web -- getent hosts www.islands.test
show_on alpha link ls
show_on alpha link set beta --transport quic --compression zstd
await "the name is resolved over the other transport" resolves
show_on alpha exec web -- getent hosts www.islands.test
show_on alpha link show beta

lost=$(where_is alpha counter)
for witness in "${nodes[@]}"; do [ "$witness" = "$lost" ] || break; done
say "A node dies" "$lost runs the counter, and is now switched off as by pulling its plug. The counter's file says \`elsewhere = true\`."
print_command "(kill -9 of everything on $lost)"
kill -9 "${first[$lost]}"
begun=$(date +%s%N)
await "the counter runs elsewhere" elsewhere "$witness" "$lost"
printf 'The counter runs elsewhere after %s ms.\n' $((($(date +%s%N) - begun) / 1000000))
show_on "$witness" node ls
show_on "$witness" ps

say "That is all" "Everything is taken away again. Next: docs/clusters.md, and docs/topology.md for \`node\`, \`labels\` and \`elsewhere\`."
