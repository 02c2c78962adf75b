#!/bin/sh
# Streams a clip as RTP until it is ended: MPEG-2 of 1,214 kbit/s, 25 frames/s, each frame decoded and encoded anew on one processor.
#   stream.sh PROCESSOR CLIP SIZE ADDRESS PORT
exec taskset -c "$1" ffmpeg -nostdin -loglevel error -threads 1 -re -stream_loop -1 -i "$2" -an -threads 1 -s "$3" \
    -c:v mpeg2video -mbd rd -cmp 2 -subcmp 2 -g 600 -b:v 1214k -minrate 1214k -maxrate 1214k -bufsize 98k \
    -f rtp "rtp://$4:$5?pkt_size=1400" >/dev/null
