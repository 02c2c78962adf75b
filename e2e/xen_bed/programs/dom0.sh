#!/bin/busybox sh
# First program of dom0: what a distribution's services do to make a node of it, and then the controller.
export PATH=/usr/sbin:/usr/bin:/usr/lib/xen-4.17/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /usr/bin 2>/dev/null
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/lock
mount -t devpts devpts /dev/pts
ln -s /run /var/run
ln -s /run/lock /var/lock
mkdir -p /run/xen /var/lib/xenstored /var/lib/xen /var/log/xen
ulimit -c 0
while read -r module; do
    insmod "$module" || echo "dom0: can't load $module"
done </etc/tombolo/modules
mount -t xenfs xenfs /proc/xen
xenstored --pid-file=/run/xenstored.pid
xen-init-dom0
xenconsoled --pid-file=/run/xenconsoled.pid --log=guest --log-dir=/var/log/xen
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
stty -F /dev/ttyS1 raw
/usr/bin/xen_peer controller "$TOMBOLO_XEN_WHAT" >/dev/ttyS1
echo "dom0: the controller has ended with $?"
xl dmesg | tail -n 20
for log in /var/log/xen/*; do
    echo "--- $log"
    tail -n 40 "$log"
done
poweroff -f
