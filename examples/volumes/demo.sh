#!/bin/bash
# A PostgreSQL on a volume with two replicas: its node is lost under load, and not one acknowledged transaction with it. `make demo-volumes` runs it.
#
#   TRANSACTIONS=1000 are acknowledged before the node is lost, and as many afterwards; 200 where nothing is said.
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
#
# The database is in a virtual machine, which is emulated where KVM does not work: then each start of it takes some seconds.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
nodes=(alpha beta gamma)
declare -A labels=([alpha]=role=server [beta]=role=server)
. "$here/../common.sh"
. "$here/../cluster/nodes.sh"
transactions=${TRANSACTIONS:-200}
# A machine may have to be emulated, on processors that have much else to do.
patience=300

debian=$(readlink -f "${CARGO_TARGET_DIR:-$here/../../target}/debian")
for name in kernel postgresql; do
    [ -e "$debian/$name/.complete" ] || fail "there is no $debian/$name; run 'make deps' first"
done
for program in qemu-system-x86_64 qemu-storage-daemon mke2fs busybox python3 ldd; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || fail "there is no $program; run 'make deps' first"
done

# A program at its place in the root's tree, with the libraries that it needs in one folder.
add_program() {
    local program=$1 place=$2
    install -D "$program" "$tree/$place"
    ldd "$program" | awk '$2 == "=>" { print $3 } $1 ~ /^\/lib64/ { print $1 }' | while read -r library; do
        [ -e "$tree/lib/${library##*/}" ] || cp -L "$library" "$tree/lib/"
    done
}

# The root of the guest: busybox, PostgreSQL, and a new database, which the first start copies to the volume. Nothing is mounted for it.
make_root() {
    local tree=$folder/tree program version=$debian/postgresql/usr/lib/postgresql/15
    mkdir -p "$tree"/{bin,dev,data,etc,lib,lib64,proc,run,srv,sys,tmp}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    for program in awk basename cat chown cp dirname id ls mkdir mount od rm sh sleep su sync touch tr umount; do
        ln -s busybox "$tree/bin/$program"
    done
    printf 'root:x:0:0::/:/bin/sh\npostgres:x:999:999::/data:/bin/sh\n' >"$tree/etc/passwd"
    printf 'root:x:0:\npostgres:x:999:\n' >"$tree/etc/group"
    install "$here/database.sh" "$tree/database.sh"
    export LD_LIBRARY_PATH=$debian/postgresql/usr/lib/x86_64-linux-gnu
    add_program "$version/bin/postgres" usr/lib/postgresql/15/bin/postgres
    for library in plpgsql dict_snowball; do add_program "$version/lib/$library.so" "usr/lib/postgresql/15/lib/$library.so"; done
    mkdir -p "$tree/usr/share/postgresql"
    cp -r "$debian/postgresql/usr/share/postgresql/15" "$tree/usr/share/postgresql/15"
    # A server that runs as root refuses to; nobody else has to be able to read what it makes.
    mkdir -m 700 "$folder/new"
    chown nobody "$folder/new"
    chmod 711 "$folder"
    setpriv --reuid nobody --regid nogroup --clear-groups \
        "$version/bin/initdb" -D "$folder/new/postgres" -U bank -A trust --locale=C --encoding=UTF8 --wal-segsize=1 --no-sync >"$folder/initdb.log"
    unset LD_LIBRARY_PATH
    # The one time zone that needs no file.
    sed -i "s/^\\(log_timezone\\|timezone\\) = .*/\\1 = 'GMT'/" "$folder/new/postgres/postgresql.conf"
    mv "$folder/new/postgres" "$tree/new"
    add_program "$(PATH=$PATH:/usr/sbin command -v mke2fs)" bin/mke2fs
    mv "$tree"/lib/ld-linux-x86-64.so.2 "$tree/lib64/"
    PATH=$PATH:/usr/sbin mke2fs -q -t ext4 -d "$tree" "$folder/root.raw" 160M >/dev/null
    rm -rf "$tree" "$folder/new"
}

# Every node has a kernel for guests; the small system that is made of it serves all of them.
give_kernels() {
    local node
    mkdir "$folder/guests"
    for node in "${nodes[@]}"; do
        mkdir -p "$folder/$node/state"
        ln -s "$debian/kernel" "$folder/$node/state/kernel"
        ln -s "$folder/guests" "$folder/$node/state/guests"
    done
}

write_file() {
    local postgres
    postgres=$(echo "$debian"/postgresql/usr/lib/postgresql/*/bin)
    mkdir "$folder/ledger"
    sed -e "s|@DEBIAN@|$debian|g" -e "s|@HERE@|$here|g" -e "s|@POSTGRES@|$postgres|g" -e "s|@DISK@|$folder/root.raw|g" \
        -e "s|@LEDGER@|$folder/ledger|g" "$here/topology.toml" >"$folder/topology.toml"
}

# Runs something in the clients' domain.
client() {
    tombolo gamma exec clients -- "$@"
}
answers() {
    client psql -h 127.0.0.1 -U bank -d postgres -XAtqc 'SELECT 1'
}
acknowledged() {
    wc -l 2>/dev/null <"$folder/ledger/acknowledged" || echo 0
}
has_acknowledged() {
    [ "$(acknowledged)" -ge "$1" ]
}
# Whether the node that serves the volume says that both replicas are current.
both_current() {
    [ "$(tombolo "$1" volume show data | grep -c 'is current')" = 2 ]
}
runs_elsewhere() {
    local now
    now=$(where_is gamma db)
    [ -n "$now" ] && [ "$now" != "$lost" ]
}
since() {
    echo $((($(date +%s%N) - $1) / 1000000)) ms
}

say "Three nodes on this machine" "alpha, beta and gamma are network namespaces on a bridge, each with processes, a daemon and an etcd member of its own."
make_root
give_kernels
switch_all_on
make_cluster
write_file

say "PostgreSQL in a machine, its disk a volume with two replicas" \
    "The machine may run on alpha and on beta, each of which has a replica. The clients are on gamma, in a container without a network." \
    "Waiting until the machine is up: it makes a file system on the empty volume, and the database in it."
show_on alpha up "$folder/topology.toml"
await "the database answers" answers
lost=$(where_is gamma db)
await "both replicas are current" both_current "$lost"
show_on "$lost" volume show data

say "The clients begin" \
    "Four clients insert numbers, each in a transaction of its own, and note those that the database has acknowledged." \
    "Waiting for $transactions of them."
client python3 /app/clients.py until /ledger/stop /ledger/acknowledged &
clients=$!
await "$transactions transactions are acknowledged" has_acknowledged "$transactions"
echo "$(acknowledged) transactions are acknowledged."

say "$lost is lost" \
    "It is switched off as by pulling its plug, while the clients go on: the daemon, the machine, the volume's engine and replica, its member of etcd." \
    "Waiting until the machine runs elsewhere, on the other replica, and its database answers."
print_command "(kill -9 of everything on $lost)"
kill -9 "${first[$lost]}"
begun=$(date +%s%N)
before=$(acknowledged)
await "the machine runs elsewhere" runs_elsewhere
echo "The machine runs on $(where_is gamma db), $(since "$begun") after the loss."
await "$transactions more transactions are acknowledged" has_acknowledged $((before + transactions))
echo "$(($(acknowledged) - before)) transactions more are acknowledged, $(since "$begun") after the loss."
show_on "$(where_is gamma db)" volume show data

say "What was acknowledged, and what is there" "The clients end, and compare what they have noted with the table."
touch "$folder/ledger/stop"
wait "$clients" || fail "the clients have failed"
client python3 /app/clients.py compare /ledger/acknowledged || fail "an acknowledged transaction is lost"

say "That is all" "Everything is taken away again. Next: docs/volumes.md and docs/virtual-machines.md."
