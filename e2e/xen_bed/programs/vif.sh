#!/bin/busybox sh
# Called by xl when a guest's network card comes or goes: each has an address of its own, and dom0 passes packets on between them.
export PATH=/usr/sbin:/usr/bin:/usr/lib/xen-4.17/bin
case $1 in
online)
    domain=${vif#vif}
    domain=${domain%.*}
    ip address add "10.77.$domain.1/24" dev "$vif"
    ip link set "$vif" up
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
    ;;
esac
