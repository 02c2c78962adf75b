# SPDX-License-Identifier: MIT OR Apache-2.0
"""The control loop: takes each reading of four sensors, opens or closes a valve where it has to, and notes how old the reading was when that was
done. Ends when each sensor has said its last; then prints a line for each reading: sensor, when it was published in ns, its age in us."""

import json
import os
import struct
import sys
import time

HOT = 80.0
SENSORS = 4

sub = os.open("/srv/events/readings/sub", os.O_RDWR)
valves = os.open("/srv/events/valves/pub", os.O_WRONLY)
os.write(sub, b"framing binary\n")
open_valves, ended, lost, readings = set(), set(), 0, []
while len(ended) < SENSORS:
    record = os.read(sub, 65536)
    _, _, _, published_ns, lost, length, _ = struct.unpack_from("<QQQQQII", record)
    reading = json.loads(record[48 : 48 + length])
    sensor = reading["sensor"]
    if "last" in reading:
        ended.add(sensor)
        continue
    hot = reading["temperature"] > HOT
    if hot != (sensor in open_valves):
        (open_valves.add if hot else open_valves.discard)(sensor)
        os.write(valves, json.dumps({"valve": sensor, "open": hot}).encode())
    readings.append((sensor, published_ns, (time.time_ns() - published_ns) // 1000))
for sensor, published_ns, age_us in readings:
    print(sensor, published_ns, age_us)
print(f"lost {lost}", file=sys.stderr)
