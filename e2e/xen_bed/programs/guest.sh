#!/bin/busybox sh
# First program of a guest: it does what the controller in dom0 says.
export PATH=/usr/sbin:/usr/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /usr/bin 2>/dev/null
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "$module" || echo "guest: can't load $module"
done </etc/tombolo/modules
ip link set lo up
domain=$(xenstore-read domid)
ip address add "10.77.$domain.2/24" dev eth0
ip link set eth0 up
ip route add default via "10.77.$domain.1"
exec /usr/bin/xen_peer agent
