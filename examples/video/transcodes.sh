#!/bin/sh
# Two transcodes that take what they get of one processor: transcodes.sh PROCESSOR CLIP
for _ in 1 2; do
    taskset -c "$1" ffmpeg -nostdin -loglevel error -threads 1 -stream_loop -1 -i "$2" -an -threads 1 -c:v mpeg4 -mbd rd -f null - &
done
wait
