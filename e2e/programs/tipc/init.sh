#!/bin/busybox sh
# First program of a guest whose kernel has TIPC. It makes two nodes of it: this network namespace, `near`, and another, `far`, with a cable between
# them and a bearer at each end. What runs on the near one says on the second serial port what came of it.
export PATH=/usr/sbin:/usr/bin
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /usr/bin 2>/dev/null
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
    case $module in
    */tipc.ko*) tipc=$module ;;
    *) insmod "$module" || echo "can't load $module" ;;
    esac
done </etc/tombolo/modules
stty -F /dev/ttyS1 raw
exec >/dev/ttyS1 2>&1
up() {
    read -r now rest </proc/uptime
    echo "$now s up: $1"
}
up "it begins"

# The shell has an `ip` of its own, which makes no cables. A node's network lives as long as a process is in it.
unshare -n sh -c 'echo there; exec sleep 100000' >/tmp/there &
far=$!
until grep -q there /tmp/there; do :; done
far() {
    nsenter -t "$far" -n "$@"
}
/usr/sbin/ip link add eth0 mtu 9000 type veth peer name eth0 mtu 9000 netns "$far"
/usr/sbin/ip link set lo up
far /usr/sbin/ip link set lo up
/usr/sbin/ip address add 10.78.0.1/24 dev eth0
far /usr/sbin/ip address add 10.78.0.2/24 dev eth0
/usr/sbin/ip link set eth0 up
far /usr/sbin/ip link set eth0 up

up "a cable is there"
tipc_peer missing module
insmod "$tipc" || echo "can't load $tipc"
tipc_peer missing bearer
for on in "" far; do
    $on tipc bearer enable media eth device eth0 || echo "no bearer on eth0"
    # An emulated machine is late now and then, and not lost.
    $on tipc bearer set tolerance 10000 media eth device eth0
done
up "both have a bearer"
nsenter -t "$far" -n tipc_peer far >/tmp/far 2>&1 &
tipc_peer near
cat /tmp/far
tipc node list
tipc link list
up "the bench begins"
tipc_peer bench
up "it ends"
poweroff -f
