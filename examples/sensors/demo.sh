#!/bin/bash
# Four sensors publish a thousand readings a second each; a control loop deals with every one, and a recorder gets the alarms. `make demo-sensors`
# runs it.
#
#   SECONDS_OF_SENSORS=10              how long the sensors measure
#   SENSORS_SVG=/path/to/latencies.svg  where the drawing goes
#   TOMBOLO=/path/to/tombolo           shows another build than the one of this checkout.
#
# It runs a daemon of its own in a folder of its own, and takes everything away at the end, also when it is broken off; the drawing stays.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
. "$here/../common.sh"
want_root CARGO_TARGET_DIR,SECONDS_OF_SENSORS,SENSORS_SVG "$@"
PATH=$(dirname "$TOMBOLO"):$PATH

seconds=${SECONDS_OF_SENSORS:-10}
svg=${SENSORS_SVG:-$PWD/latencies.svg}
# A reading that is older when the control loop has dealt with it is too late, in us.
deadline_us=5000
folder=$(mktemp -d /tmp/tombolo-sensors-XXXXXX)
export TOMBOLO_RUN_DIR=$folder/run TOMBOLO_STATE_DIR=$folder/state

tear_down() {
    local code=$?
    trap - EXIT INT TERM
    if [ "$code" != 0 ]; then
        cat "$folder"/*.errors >&2 2>/dev/null || true
        tell_failure "$code" "$TOMBOLO_STATE_DIR/daemon.log"
    fi
    tombolo down --all >/dev/null 2>&1 || code=1
    end_daemon "$TOMBOLO_STATE_DIR"
    rm -rf "$folder"
    exit "$code"
}
trap tear_down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Waits until a command succeeds, and says for what.
await() {
    local what=$1 tries=600
    shift
    printf 'Waiting until %s ...' "$what"
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo; fail "it took too long until $what"; }
        sleep 0.1
    done
    echo ' it is so.'
}
subscribers() {
    [ "$(tombolo events ls --json | python3 -c \
        'import json, sys; print(next(row["subscribers"] for row in json.load(sys.stdin) if row["channel"] == "readings"))')" = "$1" ]
}

say '1. Bring up four sensors, a control loop and a recorder.' \
    'Each is in a container that has no network. The sensors may publish, and not read what the others publish; the recorder may read alone.'
show "tombolo up $here/topology.toml"
show 'tombolo ps'
await 'the channel is there' tombolo exec control -- cat /srv/events/readings/stats

say '2. The control loop and the recorder subscribe.' \
    "The control loop gets each reading. The recorder's filter lets alarms through; it runs where the events are, so the others never reach it."
print_command '$ tombolo exec control -- python3 /app/control.py &'
tombolo exec control -- python3 /app/control.py >"$folder/ages" 2>"$folder/control.errors" &
control=$!
print_command "$ tombolo events record readings alarms.jsonl --filter 'temperature > 84 || last' --domain recorder &"
tombolo events record readings "$folder/alarms.jsonl" --filter 'temperature > 84 || last' --domain recorder 2>"$folder/recorder.errors" &
recorder=$!
await 'both have subscribed' subscribers 2
show "tombolo exec control -- grep filter /srv/events/readings/stats"

say "3. The sensors measure for $seconds s." \
    'Each publishes a reading each millisecond: a write to a file, which returns when the event is in the channel.'
sensors=()
for sensor in north east south west; do
    print_command "$ tombolo exec $sensor -- python3 /app/sensor.py $sensor $seconds &"
    tombolo exec "$sensor" -- python3 /app/sensor.py "$sensor" "$seconds" >"$folder/$sensor" 2>"$folder/$sensor.errors" &
    sensors+=($!)
done
echo 'Waiting for the sensors to end ...'
for pid in "${sensors[@]}"; do wait "$pid" || fail 'a sensor has failed'; done
for sensor in north east south west; do
    read -r name published missed <"$folder/$sensor"
    printf '%-6s has published %6d readings, and came too late for %d.\n' "$name" "$published" "$missed"
done
echo 'Waiting for the control loop to deal with the last of them ...'
wait "$control" || fail 'the control loop has failed'
cat "$folder/control.errors"

say '4. What the recorder has.' 'Nothing below 84 degrees, but the last words of the sensors, by which it knows that it has everything:'
all_recorded() {
    [ "$(grep -c '\\"last\\"' "$folder/alarms.jsonl")" = 4 ]
}
await 'it has all alarms' all_recorded
kill "$recorder" 2>/dev/null || true
wait "$recorder" 2>/dev/null || true
printf '%d alarms, of which the first is\n' "$(grep -c temperature "$folder/alarms.jsonl")"
head -n 1 "$folder/alarms.jsonl"
python3 - "$folder/alarms.jsonl" <<'PYTHON' || fail 'the recorder has got what its filter does not let through'
import json, sys

readings = [json.loads(json.loads(line)["text"]) for line in open(sys.argv[1])]
sys.exit(any(reading.get("temperature", 99) <= 84 for reading in readings))
PYTHON
show 'tombolo exec control -- cat /srv/events/valves/last'
echo

say "5. How old each reading was when the control loop had dealt with it, and each that was older than $((deadline_us / 1000)) ms." \
    'On a machine that does much else, there are violations: the processors are shared. docs/reservations.md is about promises.'
python3 "$here/chart.py" "$folder/ages" "$deadline_us" "$svg"
printf '\nDrawn: %s\n' "$svg"

say 'That is all' 'Everything is taken away again, but the drawing. Next: docs/events.md and docs/reservations.md.'
