#!/bin/sh
# Runs at each boot of a guest whose power is cut when it says `cut REASON` on the second serial port. The disk has the node's state and knows
# how many boots there were. Checks are lines, `ok NAME` or `not ok NAME: why`; the last line is `done COUNT`.

report=/dev/ttyS1
stty -F $report raw 2>/dev/null || stty raw <$report
say() { echo "$*" >$report; }
# check NAME COMMAND...: what it prints is the reason if it fails.
check() {
    name=$1
    shift
    if why=$("$@" 2>&1); then
        say "ok $name"
    else
        say "not ok $name: $(echo "$why" | tail -n 12 | tr '\n\t\r' '|  ' | cut -c 1-1500)"
    fi
    echo "$name: $why" | tail -n 20
}
# Who asked for the cut waits for it.
cut_now() {
    say "cut $1"
    sleep 1000
}

mkdir -p /disk
# The journal is written each second, so that names reach the disk long before the content of files does that nobody asks to be written.
mount -t ext4 -o commit=1 /dev/vda /disk || say "not ok mount: no disk"
export TOMBOLO_STATE_DIR=/disk/state TOMBOLO_RUN_DIR=/run/tombolo
images=/disk/state/images
boot=$(cat /disk/boot 2>/dev/null || echo 0)
boot=$((boot + 1))
echo $boot >/disk/boot
sync
topology=/etc/tombolo/topology.toml

named() { ls $images | grep -q '^sha256-'; }
unpacking() { ls -a $images 2>/dev/null | grep -q '^\.unpacking-'; }
listed() { tombolo image ls | grep whole; }
whole() { cd $images/sha256-*/tree && sha256sum -c /sums >/tmp/sums 2>&1 || { grep -v ': OK' /tmp/sums | head -n 5; return 1; }; }
whole_or_absent() { ! named || whole; }
inside() { tombolo exec web -- /bin/sh -c 'cd / && sha256sum -c sums >/tmp/found || { tail -n 5 /tmp/found; exit 1; }; echo $FLAVOUR' | grep whole; }
identity() { stat -c %i $images/sha256-*; }
unpacked_once() { [ "$(identity)" = "$(cat /disk/identity)" ]; }

case $boot in
1)
    # Whoever was told that an image is there has it after a cut at once.
    check imported tombolo image import /image.tar --name whole:1
    cut_now "an image is imported"
    ;;
2)
    check import_is_kept listed
    tombolo up $topology >/dev/console 2>&1 &
    until unpacking; do sleep 0.02; done
    cut_now "an image is half unpacked"
    ;;
3)
    check half_is_not_trusted whole_or_absent
    tombolo up $topology >/dev/console 2>&1 &
    until named; do sleep 0.02; done
    identity >/disk/identity
    sync /disk/identity
    # The journal has the name now, and only a sync would have written the files' content.
    sleep 3
    cut_now "an image has its name"
    ;;
*)
    check named_is_whole whole
    check comes_up tombolo up $topology
    check unpacked_once unpacked_once
    check runs_whole inside
    check goes_down tombolo down power
    tail -n 40 /disk/state/daemon.log
    say "done 8"
    ;;
esac
