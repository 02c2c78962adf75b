# Nodes on this one machine, for demos: a demo says `nodes=(alpha beta gamma)` and `here`, reads common.sh, and then this file.
#
# Each node is a network namespace on a bridge, with processes of its own and an etcd member beside. Nothing of it is seen from
# outside, and nothing is left: neither at the end, nor when it is broken off.

want_root CARGO_TARGET_DIR "$@"
etcd=${CARGO_TARGET_DIR:-$here/../../target}/debian/etcd/usr/bin/etcd
[ -x "$etcd" ] || etcd=$(command -v etcd) || fail "there is no etcd; run 'make deps' first"
for program in ip unshare nsenter setpriv curl; do
    command -v "$program" >/dev/null || fail "there is no $program; run 'make deps' first"
done

folder=$(mktemp -d /tmp/tombolo-nodes-XXXXXX)
net=td$$
declare -A first
declare -p labels >/dev/null 2>&1 || declare -A labels=([gamma]=disk=large)

cleanup() {
    local node group hierarchy
    for node in "${nodes[@]}"; do
        # The kernel ends whatever ran in a pid namespace when its first process is killed.
        [ -z "${first[$node]:-}" ] || kill -9 "${first[$node]}" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    for node in "${nodes[@]}"; do
        group=$(cat "$folder/$node/run/cgroup" 2>/dev/null) || group=
        [ -z "$group" ] || for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
            [ ! -d "$hierarchy/$group" ] || find "$hierarchy/$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        done
        ip netns del "$net-$node" 2>/dev/null || true
    done
    ip netns del "$net-switch" 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Runs something on a node.
on() {
    local node=$1
    shift
    nsenter --target "${first[$node]}" --pid --mount --net -- "$@"
}

# `tombolo ...` on a node.
tombolo() {
    local node=$1
    shift
    on "$node" "$TOMBOLO" --run-dir "$folder/$node/run" --state-dir "$folder/$node/state" "$@"
}

# Shows a command on a node and what it prints.
show_on() {
    local node=$1
    shift
    print_command "$node# tombolo $*"
    tombolo "$node" "$@"
}

address() {
    case $1 in alpha) echo 10.78.0.1 ;; beta) echo 10.78.0.2 ;; *) echo 10.78.0.3 ;; esac
}

# Waits for a condition, for 20 s at the most, or as long as the demo says (`patience`, in seconds).
await() {
    local what=$1 tries=$((${patience:-20} * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((tries -= 1)) -gt 0 ] || fail "gave up waiting until $what; $(tail -n 5 "$folder"/*/daemon.log 2>/dev/null)"
        sleep 0.1
    done
}

switch_on() {
    local node=$1 parent
    nsenter --net="/run/netns/$net-$node" setpriv --pdeathsig KILL \
        unshare --pid --mount --fork --kill-child --mount-proc sh -c 'while :; do sleep 3600 & wait $!; done' 2>/dev/null &
    parent=$!
    await "$node is switched on" grep -q . "/proc/$parent/task/$parent/children"
    first[$node]=$(tr -d ' ' <"/proc/$parent/task/$parent/children")
    await "$node has processes of its own" pid_is_first "${first[$node]}"
    local members
    members="alpha=http://$(address alpha):2380,beta=http://$(address beta):2380,gamma=http://$(address gamma):2380"
    local me="http://$(address "$node")"
    # A node that is killed leaves what it has written to the kernel, so nothing has to wait for this machine's disk.
    on "$node" "$etcd" --name "$node" --unsafe-no-fsync --data-dir "$folder/$node/etcd" --initial-cluster "$members" \
        --listen-client-urls "$me:2379" --advertise-client-urls "$me:2379" \
        --listen-peer-urls "$me:2380" --initial-advertise-peer-urls "$me:2380" >"$folder/$node/etcd.log" 2>&1 &
    mkdir -p "$folder/$node/state"
    tombolo "$node" daemon >"$folder/$node/daemon.log" 2>&1 &
}

pid_is_first() {
    grep -q '^NSpid:.*[[:space:]]1$' "/proc/$1/status" && grep -q '^sh' "/proc/$1/comm"
}

wire() {
    local node
    ip netns add "$net-switch"
    ip -n "$net-switch" link add br0 type bridge forward_delay 0
    ip -n "$net-switch" link set br0 up
    for node in "${nodes[@]}"; do
        mkdir -p "$folder/$node"
        ip netns add "$net-$node"
        ip -n "$net-switch" link add "$node" type veth peer name eth0 netns "$net-$node"
        ip -n "$net-switch" link set "$node" master br0 up
        ip -n "$net-$node" link set lo up
        ip -n "$net-$node" address add "$(address "$node")/24" dev eth0
        ip -n "$net-$node" link set eth0 up
    done
}

# Switches all nodes on, and waits until their daemons and etcd answer.
switch_all_on() {
    local node
    wire
    for node in "${nodes[@]}"; do switch_on "$node"; done
    for node in "${nodes[@]}"; do await "the daemon of $node answers" tombolo "$node" ps; done
    await "etcd answers" on alpha curl --silent --fail "http://$(address alpha):2379/health"
}

# alpha begins a cluster, the others join it, with the labels that the demo says (`declare -A labels`); else gamma has the label disk=large.
make_cluster() {
    local endpoints node token label
    endpoints="http://$(address alpha):2379,http://$(address beta):2379,http://$(address gamma):2379"
    label=()
    [ -z "${labels[alpha]:-}" ] || label=(--label "${labels[alpha]}")
    show_on alpha node init --name alpha --address "$(address alpha)" --etcd "$endpoints" --insecure-etcd "${label[@]}"
    for node in beta gamma; do
        token=$(tombolo alpha node token --json | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')
        label=()
        [ -z "${labels[$node]:-}" ] || label=(--label "${labels[$node]}")
        print_command "$node# tombolo node join $(address alpha) TOKEN --name $node ${label[*]}"
        tombolo "$node" node join "$(address alpha)" "$token" --name "$node" --address "$(address "$node")" --insecure-etcd "${label[@]}"
    done
}

# The node on which a domain runs, as a node tells it.
where_is() {
    tombolo "$1" ps | awk -v domain="$2" '$2 == domain && /  running/ { print $3 }'
}
