#!/bin/sh
# Runs in a guest that has cgroup version 2 alone: what a user does, once under each container runtime. Each check is one
# line on the second serial port: `ok RUNTIME.NAME`, or `not ok RUNTIME.NAME: why`; the last line is `done COUNT`.

report=/dev/ttyS1
stty -F $report raw 2>/dev/null || stty raw <$report
topology=/etc/tombolo/topology.toml
shared=/run/shared
# How long a condition is waited for that gives no event of its own, in seconds.
patience=40
checks=0

say() { echo "$*" >$report; }

# check NAME COMMAND...: what it prints is the reason if it fails.
check() {
    name=$1
    shift
    checks=$((checks + 1))
    begin=$(cut -d' ' -f1 /proc/uptime)
    if why=$("$@" 2>&1); then
        say "ok $runtime.$name"
    else
        say "not ok $runtime.$name: $(echo "$why" | tail -n 12 | tr '\n\t\r' '|  ' | cut -c 1-1500)"
    fi
    echo "$runtime.$name: uptime $begin to $(cut -d' ' -f1 /proc/uptime)"
    echo "$why" | tail -n 20
}

now_s() { cut -d. -f1 /proc/uptime; }
until_true() {
    deadline=$(($(now_s) + patience))
    until "$@" >/dev/null 2>&1; do
        [ "$(now_s)" -lt $deadline ] || { echo "gave up waiting until: $*"; return 1; }
        sleep 0.1
    done
}

# Reads one answer, and tells a failed read by its own errno, which busybox's head and cat do not.
read_one='dd bs=65536 count=1 <&3 2>/shared/said || { cat /shared/said; exit 1; }'
inside() { tombolo exec web -- /bin/sh -c "$1"; }
# is WANTED FOUND
is() { [ "$1" = "$2" ] || { echo "wanted '$1', found '$2'"; return 1; }; }
# has WANTED TEXT
has() { case $2 in *"$1"*) ;; *) echo "no '$1' in: $2"; return 1 ;; esac; }
pid_at() { tombolo inspect "dc/guest/$1" 2>/dev/null; }
a_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }
another_pid() { now=$(pid_at "$1"); a_number "$now" && [ "$now" != "$2" ]; }
# The limits sit on the domain's own cgroup, of which its payload is a part.
cgroup_of() { sed -n 's/^0:://p' "/proc/$(pid_at "domains/$1/pid")/cgroup" | sed "s:/$1/.*:/$1:"; }
limit() { cat "/sys/fs/cgroup$web_cgroup/$1"; }

version_two_alone() {
    has memory "$(cat /sys/fs/cgroup/cgroup.controllers)" && ! grep -q ' - cgroup ' /proc/self/mountinfo
}

up() { tombolo up $topology; }
up_again() { has "nothing to do" "$(tombolo up $topology)"; }

the_runtime() {
    found=$(tombolo inspect node/host --json) || return 1
    has "\"$runtime\"" "$found" && has '"cgroup_v2": true' "$found" || return 1
    case $found in *\"$other\"*) echo "$other is there, too: $found"; return 1 ;; esac
    has "\"/usr/sbin/$runtime\"" "$(cat "$TOMBOLO_RUN_DIR/dc/guest/web/status.json")"
}

# As a file, by the stub, and one that is not there.
names() {
    found=$(inside "exec 3<>/srv/dns/query; echo A www.quickstart.test >&3; $read_one; nslookup robot.quickstart.test
        echo A nobody.quickstart.test >&3; $read_one")
    is 1 $? && has 192.0.2.10 "$found" && has 192.0.2.20 "$found" && has "No such file or directory" "$found"
}

exit_codes() {
    inside 'exit 42'; is 42 $? || return 1
    tombolo exec web -- /no/such/program; is 127 $? || return 1
    tombolo exec web -- /etc/passwd; is 126 $?
}

# Of the program that the domain runs, and of one that came by exec.
isolation() {
    found=$(inside 'for pid in 1 self; do cat /proc/$pid/status; done; tail -n +3 /proc/net/dev | cut -d: -f1' | tr '\t' ' ')
    for wanted in "NoNewPrivs: 1" "Seccomp: 2" "CapEff: 0000000000000000"; do
        is 2 "$(echo "$found" | grep -c "^$wanted")" || { echo "$wanted"; return 1; }
    done
    is "    lo" "$(echo "$found" | tail -n 1)" || is lo "$(echo "$found" | tail -n 1 | tr -d ' ')"
}

# crun has no option for further groups: it says so, and runs the command without them.
groups() {
    found=$(tombolo exec --user tenant web -- /bin/id -G 2>/tmp/said) || return 1
    if [ $runtime = runc ]; then
        is "1000 2000" "$found"
    else
        is 1000 "$found" && has "no supplementary groups" "$(cat /tmp/said)" && has 2000 "$(cat /tmp/said)"
    fi
}

limits_are_set() {
    has /guest/web "$web_cgroup" && is "200000 100000" "$(limit cpu.max)" && is 67108864 "$(limit memory.max)" && is 64 "$(limit pids.max)"
}

limits_change() {
    sed 's/cpu = 2/cpu = 1.5/' $topology >$topology.edited
    before=$(pid_at domains/web/pid)
    said=$(tombolo up --replace $topology.edited) || { echo "$said"; return 1; }
    is "150000 100000" "$(limit cpu.max)" && is "$before" "$(pid_at domains/web/pid)" && has "1 step" "$said" && tombolo up --replace $topology
}

# Those that came to be hold nothing of ours open, are killed, and the domain's first process reaps them.
too_many_processes() {
    said=$(inside 'i=0; while [ $i -lt 80 ]; do sleep 7777 </dev/null >/dev/null 2>&1 & i=$((i+1)); done; echo all of them' 2>&1)
    for pid in $(find "/sys/fs/cgroup$web_cgroup" -name cgroup.procs | xargs cat); do
        grep -qs 7777 "/proc/$pid/cmdline" && kill -9 "$pid"
    done
    case $said in *"all of them"*) echo "80 processes within 64: $said"; return 1 ;; esac
    has ork "$said" && until_true few_processes
}
few_processes() { [ "$(limit pids.current)" -lt 16 ]; }

hungry_ended() { tombolo ps | grep -q 'hungry.*out of memory'; }
out_of_memory() {
    touch $shared/eat
    until_true hungry_ended || { tombolo ps; return 1; }
    has '"last_exit": "signal 9, out of memory"' "$(tombolo ps --json)"
}

usage_is_told() {
    for what in memory pids cpu_ns; do
        has "$what" "$(tombolo inspect dc/guest/domains/web/usage --json)" || return 1
    done
    ! tombolo ps --json | tr -d '\n' | grep -o '"domain": "web"[^}]*' | grep -q '"\(memory_bytes\|processes\|cpu_us\)": null'
}

# One descriptor, opened before a fault: it asks for a name and reads, waits until the fault is over, asks for another name, and
# reads twice: an answer that a failed read did not get stays for the next one.
begin_load() {
    rm -f $shared/asked $shared/over
    inside "read_one() { $read_one; }
        exec 3<>/srv/dns/query; echo A www.quickstart.test >&3; (read_one); touch /shared/asked
        while [ ! -e /shared/over ]; do sleep 0.1; done
        echo A robot.quickstart.test >&3; read_one; read_one" >/tmp/found 2>&1 &
    load=$!
}
end_load() {
    touch $shared/over
    wait $load
}

backend_dies() {
    old=$(pid_at services/dns/server_pid)
    a_number "$old" || { echo "no pid of the server: $old"; return 1; }
    begin_load
    until_true [ -e $shared/asked ] && kill -9 "$old" && until_true another_pid services/dns/server_pid "$old"
    end_load
    has 192.0.2.10 "$(cat /tmp/found)" && has 192.0.2.20 "$(cat /tmp/found)"
}

a_call_waits() {
    waiting=$(tombolo inspect dc/guest/domains/web/frontend/state/counters/parked_calls) && [ "$waiting" -gt 0 ]
}

# This kernel sends nothing again: the call that waits ends with EIO, and everything else goes on: the open file, and what was asked.
frontend_dies() {
    is false "$(tombolo inspect dc/guest/domains/web/frontend/state/fuse/resend)" || return 1
    old=$(pid_at domains/web/frontend/pid)
    server=$(pid_at domains/nameserver/pid)
    kill -STOP "$server"
    begin_load
    until_true a_call_waits && kill -9 "$old" && until_true [ -e $shared/asked ]
    kill -CONT "$server"
    end_load
    is "dd: standard input: Input/output error" "$(head -n 1 /tmp/found)" || return 1
    has 192.0.2.10 "$(cat /tmp/found)" && has 192.0.2.20 "$(cat /tmp/found)"
}

# A command that never rests, with 8 ms in each 40 kept by $1; it is process $job, in the cgroup $job_cgroup.
promise() {
    tombolo reserve run --name "$1" --budget 8ms --period 40ms --enforce "$1" -- /bin/sh -c 'while :; do :; done' >"/tmp/said.$1" 2>&1 &
    job=$!
    until_true kept "$1" || { cat "/tmp/said.$1"; tombolo reserve show "run/$1"; return 1; }
    job_cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$job/cgroup)
    has "/$1" "$job_cgroup"
}
kept() { has "\"kept_by\": \"$1\"" "$(tombolo reserve show "run/$1" --json)" && has '"in_force": true' "$(tombolo reserve show "run/$1" --json)"; }
# The scheduling class, as sched(7) numbers them, and the ticks that it has had.
class_is() { is "$1" "$(cut -d' ' -f41 /proc/$job/stat)"; }
ticks() { cut -d' ' -f14 /proc/$job/stat; }
ran_since() { [ "$(ticks)" -gt "$1" ]; }
runs() { until_true ran_since "$(ticks)"; }
role() {
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q " $1 $TOMBOLO_RUN_DIR"; then echo "${process#/proc/}"; fi
    done
}
no_dispatcher() { [ -z "$(role internal-dispatcher)$(role internal-guardian)" ] && [ ! -e "$TOMBOLO_RUN_DIR/enforce" ]; }
# With its last process the promise is over, and nothing of it is left.
taken_down() {
    kill -9 $job
    wait $job
    until_true [ ! -e "$job_cgroup" ] && until_true no_dispatcher
}

throttled() { [ "$(sed -n 's/^nr_throttled //p' "$job_cgroup/cpu.stat")" -gt 0 ]; }
kept_by_quota() {
    promise bandwidth && is "8000 40000" "$(cat "$job_cgroup/cpu.max")" && until_true throttled && runs && taken_down
}
kept_by_deadline() { promise deadline && until_true class_is 6 && runs && taken_down; }
frozen() { is 1 "$(cat "$job_cgroup/cgroup.freeze")"; }
kept_by_table() { promise table && until_true class_is 2 && until_true frozen && runs && taken_down; }

# Linux before 6.6 has no server for ordinary threads beside deadlines: who reclaims what the class leaves goes before everybody. So nobody reclaims.
outside_by_deadline() {
    for outside in idle fair; do
        refused=$(tombolo reserve run --name "$outside" --budget 4ms --period 40ms --enforce deadline --outside $outside -- /bin/true 2>&1) && return 1
        has 'say outside = "held"' "$refused" || return 1
    done
    promise deadline && until_true class_is 6 || return 1
    before=$(ticks)
    # Of a second, in hundredths: it wants all, and has a fifth.
    sleep 3
    used=$(($(ticks) - before))
    [ "$used" -gt 0 ] && [ "$used" -le 120 ] || { echo "it used $used ticks of 300"; return 1; }
    taken_down
}

is_free() { class_is 0 && ! frozen; }
# Nobody stays held, and the next daemon has it kept again.
keepers_die() {
    promise table && until_true class_is 2 || return 1
    dispatcher=$(role internal-dispatcher)
    a_number "$dispatcher" || { echo "no dispatcher: $dispatcher"; return 1; }
    kill -9 "$dispatcher" "$(tombolo inspect node/pid)"
    until_true is_free && runs || { cat "$job_cgroup/cgroup.freeze" /proc/$job/stat; return 1; }
    has "nothing to do" "$(tombolo up $topology)" && until_true kept table && until_true class_is 2 && runs && taken_down
}

daemon_dies() {
    before=$(pid_at domains/web/pid)
    kill -9 "$(tombolo inspect node/pid)"
    has "nothing to do" "$(tombolo up $topology)" && is "$before" "$(pid_at domains/web/pid)" && names
}

traces() {
    ! { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -o "[^ ]*$TOMBOLO_RUN_DIR[^ ]*"
        grep "$TOMBOLO_RUN_DIR/" /proc/self/mountinfo
        grep 'fuse' /proc/self/mountinfo | grep -v fusectl
        find /sys/fs/cgroup -type d -path '*guest*'; } | grep .
}
nothing_left() {
    daemon=$(tombolo inspect node/pid)
    tombolo down || return 1
    found=$(find /sys/fs/cgroup -mindepth 1 -type d -name 'guest')
    is "" "$found" && is "" "$(pidof dnsmasq)" && kill "$daemon" && until_true [ ! -e "/proc/$daemon" ] || return 1
    until_true traces || traces
}

ulimit -c 0
for runtime in runc crun; do
    other=crun
    [ $runtime = runc ] || other=runc
    export TOMBOLO_RUN_DIR=/run/$runtime TOMBOLO_STATE_DIR=/var/lib/$runtime
    # The only one that is installed.
    rm -f /usr/sbin/$other
    ln -sf /opt/$runtime /usr/sbin/$runtime
    rm -rf $shared
    mkdir -p $shared
    chmod 1777 $shared
    check version_two_alone version_two_alone
    check up up
    web_cgroup=$(cgroup_of web)
    check the_runtime the_runtime
    check up_again up_again
    check names names
    check exit_codes exit_codes
    check isolation isolation
    check groups groups
    check limits_are_set limits_are_set
    check limits_change limits_change
    check too_many_processes too_many_processes
    check out_of_memory out_of_memory
    check usage_is_told usage_is_told
    check backend_dies backend_dies
    check frontend_dies frontend_dies
    if [ $runtime = runc ]; then
        # Of these no runtime knows.
        check kept_by_quota kept_by_quota
        check kept_by_deadline kept_by_deadline
        check outside_by_deadline outside_by_deadline
        check kept_by_table kept_by_table
        check keepers_die keepers_die
    fi
    check daemon_dies daemon_dies
    tombolo ps
    tail -n 40 $TOMBOLO_STATE_DIR/daemon.log
    check nothing_left nothing_left
done
say "done $checks"
