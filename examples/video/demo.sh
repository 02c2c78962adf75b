#!/bin/bash
# The papers' video on demand, for real: five streams, transcodes that want the processor and a flood that wants the link, with and
# without promises. `make demo-video` runs it; it takes ten minutes, and writes a report.
#
#   TOMBOLO=/path/to/tombolo   another build than the one of this checkout
#   REPORT=/path/to/file.html  where the report goes (target/video.html)
#   ARM_SECONDS=60 LAST_SECONDS=270   how long the arms are, and the last one
#   IN_MEMORY=/dev/shm         where its files are meanwhile
#
# All of it happens in network namespaces without a way out, and everything is taken away at the end, also when it is broken off.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
. "$here/../common.sh"
want_root CARGO_TARGET_DIR,REPORT,ARM_SECONDS,LAST_SECONDS,IN_MEMORY "$@"
PATH=$(dirname "$TOMBOLO"):$PATH:/usr/sbin:/sbin
target=$(readlink -f "${CARGO_TARGET_DIR:-$here/../../target}")
for program in ffmpeg python3 ip tc unshare nsenter taskset; do
    command -v "$program" >/dev/null || fail "there is no $program; run 'make deps' first"
done
report=$(readlink -m "${REPORT:-$target/video.html}")

# In memory, where that is possible: a disk that is busy is no part of what is measured.
in_memory=${IN_MEMORY:-/dev/shm}
[ -w "$in_memory" ] || in_memory=/tmp
folder=$(mktemp -d "$in_memory/tombolo-video-XXXXXX")
export FOLDER=$folder TOMBOLO_RUN_DIR=$folder/run TOMBOLO_STATE_DIR=$folder/state
experiment=

tear_down() {
    local code=$?
    trap '' INT TERM PIPE
    trap - EXIT
    # It takes its own away.
    if [ -n "$experiment" ] && kill -TERM "$experiment" 2>/dev/null; then
        wait "$experiment" || true
    fi
    [ "$code" = 0 ] || [ "$code" = 130 ] || tell_failure "$code" "$TOMBOLO_STATE_DIR/daemon.log"
    tombolo down --all >/dev/null 2>&1 || true
    end_daemon "$TOMBOLO_STATE_DIR"
    rm -rf "$folder"
    exit "$code"
}
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Whoever reads what it says may go.
trap 'exit 141' PIPE

say 'Video on demand: five arms, and then a report.' \
    'Four streams of 25 frames/s and 1.2 Mbit/s each go over a link of 10 Mbit/s; halfway a fifth one arrives. Beside them two transcodes want' \
    'the same processor, and iperf3 wants the whole link. The arms differ in what the streams are promised.'
# With job control off, a process in the background ignores SIGINT: it is ended by tear_down alone.
unshare --net sh -c 'ip link set lo up && exec "$@"' sh python3 -B "$here/experiment.py" "$report" --debian "$target/debian" \
    --seconds "${ARM_SECONDS:-60}" --last "${LAST_SECONDS:-270}" &
experiment=$!
wait "$experiment"
experiment=
say "The report: $report"
