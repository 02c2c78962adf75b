# Installs the packages of the folder $1 in a root that has never seen Tombolo, uses them, and purges them: below the folder $2.
# A root is this machine's, with all that is written in a layer of its own; what stays in that layer in the end is a trace.
set -eu
packages=$1 base=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root"
root=$base/root
for folder in dev proc sys; do mount --rbind "/$folder" "$root/$folder"; done
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/run/packages" "$root/run/layer" "$root/run/old"
mount --bind "$packages" "$root/run/packages"
mount --bind "$base/upper" "$root/run/layer"
cd "$root"
pivot_root . run/old
umount -l /run/old
rmdir /run/old
unset PYTHONPATH LD_LIBRARY_PATH CPATH LIBRARY_PATH
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

# All that is not a folder, nor what the package manager, the loader, man(1) and groupadd(8) keep for themselves.
own='var/(lib/dpkg|cache/ldconfig|cache/man|log)/|etc/(ld\.so\.cache|\.pwd\.lock|g(roup|shadow)-?)$'
written() {
    (cd /run/layer && find . ! -type d | grep -Ev "^\./($own)") || true
}
cat /etc/group /etc/gshadow >/tmp/groups

echo "== install"
dpkg --force-unsafe-io -i /run/packages/*.deb
[ "$(readlink -f "$(command -v tombolo)")" = /usr/lib/tombolo/tombolo ]
getent group tombolo tombolo-admin
tombolo --version
zcat /usr/share/man/man1/tombolo-up.1.gz | grep -q 'Bring up'
bash -c '. /usr/share/bash-completion/completions/tombolo && complete -p tombolo'
tombolo bench | grep -qx channel
tombolo doctor --json >/tmp/doctor.json
python3 -c 'import json; print(len(json.load(open("/tmp/doctor.json"))), "findings")'

echo "== a program in C, and one in Python"
cat >/tmp/peer.c <<'C'
#include <tombolo/channel.h>
int main(void) { return 0; }
C
cc -o /tmp/peer /tmp/peer.c -Wl,--no-as-needed -L"$(sed -n 's/^libdir=//p' "$(dpkg -L libtombolo-dev | grep tombolo.pc)")" -ltombolo
/tmp/peer
python3 -c 'import tombolo, tombolo.service; print(tombolo.__file__)'

echo "== a node"
# Directories of its own: the control groups of the usual ones may be those of a node of this machine.
export TOMBOLO_RUN_DIR=/run/test-$$ TOMBOLO_STATE_DIR=/tmp/state
cat >/tmp/shop.toml <<'T'
name = "shop"
[domain.web]
kind = "container"
root = "host"
command = ["sleep", "infinity"]
T
end_daemon() {
    pid=$(cat "$TOMBOLO_RUN_DIR/lock")
    kill "$1" "$pid"
    tail --pid="$pid" -f /dev/null
}
tombolo up /tmp/shop.toml
tombolo exec web -- sh -c 'echo "inside: $(ls /run/tombolo)"'

echo "== an upgrade, under a domain that runs"
before=$(tombolo ps --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["pid"])')
dpkg --force-unsafe-io -i /run/packages/*.deb >/dev/null
end_daemon -TERM
tombolo up /tmp/shop.toml
after=$(tombolo ps --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["pid"])')
[ "$before" = "$after" ]
echo "the domain runs on"

echo "== a power cut"
# All processes end but this first one of its PID namespace, and what is in memory is gone; what was up comes up by the daemon alone.
kill -KILL -1
wait
umount -l "$TOMBOLO_RUN_DIR"/* 2>/dev/null || true
rm -rf "$TOMBOLO_RUN_DIR"
mkfifo /tmp/said /tmp/happened
tombolo daemon 2>/tmp/said &
exec 8<>/tmp/said
grep -q -m 1 'takes requests' <&8
tombolo events -f >/tmp/happened &
grep -q -m 1 'shop/web running' /tmp/happened
tombolo exec web -- echo 'the domain is back'
tombolo down --all
end_daemon -TERM

echo "== purge"
dpkg --force-unsafe-io --purge python3-tombolo tombolo-bench tombolo libtombolo-dev libtombolo0
[ ! -e /var/lib/tombolo ]
cat /etc/group /etc/gshadow | diff /tmp/groups -
echo "== traces"
written
