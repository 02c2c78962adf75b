#!/bin/bash
# The main job, shown: isolated domains without a network use one directory service. `make demo` runs it.
#
#   KEEP=1 leaves it all up and says how to look around.
#   TOMBOLO=/path/to/tombolo shows another build than the one of this checkout.
#
# It can be run again at any time, also after it was killed, and leaves other distributed containers of this node alone.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
. "$here/../common.sh"
state_dir=${TOMBOLO_STATE_DIR:-/var/lib/tombolo}
cd "$here/../.."

want_root CARGO_TARGET_DIR,KEEP,TOMBOLO_RUN_DIR,TOMBOLO_STATE_DIR "$@"
PATH=$(dirname "$TOMBOLO"):$PATH

daemon_before=$(daemon_of "$state_dir")

# A virtual machine needs QEMU and a kernel for guests. `make deps` has unpacked one; the node looks for it below its state directory.
unpacked_kernel=$(readlink -f "${CARGO_TARGET_DIR:-target}/debian/kernel" || true)
linked_kernel=
no_machine_because() {
    command -v qemu-system-x86_64 >/dev/null || { echo 'there is no QEMU (apt-get install qemu-system-x86)'; return; }
    [ -e "$state_dir/kernel" ] && return
    [ -e "$unpacked_kernel/boot" ] || { echo 'there is no kernel for guests (make deps unpacks one)'; return; }
    mkdir -p "$state_dir"
    ln -s "$unpacked_kernel" "$state_dir/kernel"
}

tear_down() {
    local code=$?
    trap - EXIT INT TERM
    if [ "$code" != 0 ]; then
        tell_failure "$code" "$state_dir/daemon.log"
    fi
    if [ "${KEEP:-}" = 1 ] && [ "$code" = 0 ]; then
        say 'It stays up (KEEP=1). To look around:' \
            "    export PATH=$(dirname "$TOMBOLO"):\$PATH" \
            '    tombolo exec -it web -- bash       a shell in a domain; try: ls -l /srv/dns, cat /srv/self/about.json' \
            '    tombolo logs nameserver            what the name server printed' \
            '    tombolo inspect                    everything there is to know' \
            'To end it:' \
            '    tombolo down --all'
        exit 0
    fi
    say 'Tear it down.'
    show 'tombolo down quickstart' || code=1
    # Where it is up still: it was interrupted.
    tombolo ps 2>/dev/null | grep -q '^hello ' && { show 'tombolo down hello' || code=1; }
    [ -z "$linked_kernel" ] || rm -f "$state_dir/kernel"
    # The daemon stays for others; if this demo started it, it ends with it.
    if [ -z "$daemon_before" ]; then end_daemon "$state_dir"; fi
    exit "$code"
}
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say '1. Bring up what the file says.' \
    'A name server, a directory service that asks it, and three containers that have no network.'
show 'tombolo up examples/quickstart/topology.toml'
show 'tombolo ps'

say '2. The containers have no network: only lo.'
show 'tombolo exec web -- cat /proc/net/dev'

say '3. Unmodified programs resolve names all the same.' \
    'getent, by the C library:'
show 'tombolo exec web -- getent hosts www.quickstart.test'
echo
echo 'Python, over a shared-memory channel to the service, by LD_PRELOAD:'
show "tombolo exec robot -- python3 -c 'import socket; print(socket.getaddrinfo(\"camera.quickstart.test\", 80))'"
echo
echo 'A statically linked program, which asks a DNS server in its own namespace:'
show 'tombolo exec camera -- busybox nslookup www.quickstart.test'

say '4. The service is a file.' \
    'A shell that knows nothing of DNS writes a name and reads the answer:'
show "tombolo exec web -- bash -c 'exec 3<>/srv/dns/query; echo www.quickstart.test >&3; cat <&3'"
echo
echo 'Other questions, and the errors of files for names that are not there:'
show "tombolo exec web -- bash -c 'exec 3<>/srv/dns/query; echo SRV _camera._tcp.quickstart.test >&3; cat <&3'"
show_failing "tombolo exec web -- bash -c 'exec 3<>/srv/dns/query; echo nobody.quickstart.test >&3; cat <&3'"

say '5. What there is to see.'
show 'tombolo service ls'
echo
echo 'Any part of the state tree (without a path: all of it):'
show 'tombolo inspect dc/quickstart/services/dns/settings'
show 'tombolo inspect dc/quickstart/domains/camera/frontend/entrances'
echo
echo 'A domain sees its own part as files:'
show 'tombolo exec web -- cat /srv/dns/status'

say '6. Where the time of one request goes.'
show 'tombolo trace dns www.quickstart.test --domain web'

say '7. Programs of two domains speak by name, as far as their file lets them.' \
    'One answers; it is the command line itself. The other one may ask it, and the first may not ask back.'
show 'tombolo up examples/endpoint/topology.toml'
show "tombolo endpoint call planner 'where to?' --wait 10s --domain desk"
show_failing "tombolo endpoint call planner 'where to?' --domain brain"
show 'tombolo endpoint show planner'
show 'tombolo down hello'

say '8. A virtual machine is a domain like any other.' \
    'It has a kernel of its own, no network card, and the same files.'
kernel_before=$(readlink "$state_dir/kernel" 2>/dev/null || true)
why=$(no_machine_because)
if [ -n "$why" ]; then
    echo "This part is left out: $why."
else
    [ "$(readlink "$state_dir/kernel" 2>/dev/null || true)" = "$kernel_before" ] || linked_kernel=yes
    echo 'Another file with one more domain takes its place: of all that is up, nothing is started anew.'
    echo 'The first time, the node makes a small system for the guest; and where KVM does not run guests, it is emulated. Both take some seconds.'
    show 'tombolo up --replace examples/quickstart/with-machine.toml'
    show 'tombolo ps'
    show 'tombolo exec edge -- uname -r'
    show 'tombolo exec edge -- nslookup www.quickstart.test'
    echo
    echo 'The same question in the container and in the guest, to the same file:'
    show "tombolo exec web -- sh -c 'exec 3<>/srv/dns/query; echo shop.quickstart.test >&3; cat <&3'"
    show "tombolo exec edge -- sh -c 'exec 3<>/srv/dns/query; echo shop.quickstart.test >&3; cat <&3'"
    show 'tombolo logs edge'
fi
