#!/bin/sh
# Four viewers' streams, one beside the other: streams.sh PROCESSOR CLIP SIZE ADDRESS PORT
here=$(dirname "$0")
for stream in 0 1 2 3; do
    "$here/stream.sh" "$1" "$2" "$3" "$4" $(($5 + 2 * stream)) &
done
wait
