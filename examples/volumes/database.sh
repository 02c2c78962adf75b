#!/bin/sh
# Runs in the guest: finds the volume's disk by its name, and starts PostgreSQL on it. The first start makes the file system and the database.
set -eu
for serial in /sys/block/*/serial; do
    [ "$(cat "$serial")" = data ] && disk=/dev/$(basename "$(dirname "$serial")")
done
# The magic number of ext4: an empty volume has none.
[ "$(od -An -tx2 -j1080 -N2 "$disk" | tr -d ' ')" = ef53 ] || /bin/mke2fs -q -t ext4 "$disk"
mount -t ext4 "$disk" /data
if [ ! -e /data/complete ]; then
    echo 'the database is new'
    rm -rf /data/postgres
    cp -a /new /data/postgres
    chown -R postgres /data/postgres
    sync
    touch /data/complete
    sync
fi
echo 'the database starts'
# Safe against the loss of power, as PostgreSQL is unless somebody says otherwise: a commit is on the disk before it is acknowledged.
exec su -s /bin/sh postgres -c 'exec /usr/lib/postgresql/15/bin/postgres -D /data/postgres -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=on -c synchronous_commit=on \
    -c dynamic_shared_memory_type=mmap -c shared_buffers=16MB -c max_connections=20'
