#!/bin/busybox sh
# The first program of a guest of ours. It makes a machine of what the kernel unpacked and runs the agent where the machine has its port;
# else /etc/tombolo/start, or a shell where there is none. When that ends, the machine is switched off.

export PATH=/usr/sbin:/usr/bin HOME=/root

if [ "$1" != moved ]; then
    # The kernel's first root can't be pivoted away from, which container runtimes do. A view of it on top can; nothing is copied.
    busybox mount --bind / /mnt
    cd /mnt
    busybox mount --move . /
    exec busybox chroot . /init moved
fi

busybox mount -t proc -o nosuid,nodev,noexec proc /proc
busybox --install -s 2>/dev/null
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o nosuid dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 shm /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
mount -t tmpfs -o nosuid,nodev,mode=755 run /run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 var /var/lib
mount -t cgroup2 -o nosuid,nodev,noexec cgroup /sys/fs/cgroup

while read -r module; do
    insmod "$module" || echo "init: can't load $module" >&2
done </etc/tombolo/modules

hostname -F /etc/hostname
ip link set lo up

cd /root
# A console of virtio (its number is 3, by the standard) is a port, or several; the agent finds its own, or says that it has none.
if grep -qsx 0x0003 /sys/bus/virtio/devices/*/device; then
    tombolo agent
    # It switches the machine off itself. If it came to another end, so does the machine: its kernel panics, and the node hears of it.
    code=$?
    echo "init: the agent ended with exit code $code" >&2
    sync
    exit "$code"
elif [ -x /etc/tombolo/start ]; then
    /etc/tombolo/start
else
    echo "tombolo guest, kernel $(uname -r): leave the shell to switch it off"
    setsid -c sh -l
fi
sync
poweroff -f
