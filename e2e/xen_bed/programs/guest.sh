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
exec /usr/bin/xen_peer agent
