# SPDX-License-Identifier: MIT OR Apache-2.0
"""Publishes a reading each millisecond, for as many seconds as it is told; then the last one, and how many it published and how many periods it
missed because it came too late."""

import json
import math
import os
import random
import sys
import time

PERIOD_NS = 1_000_000

name, seconds = sys.argv[1], float(sys.argv[2])
noise = random.Random(name)
phase = noise.random() * math.tau
pub = os.open("/srv/events/readings/pub", os.O_WRONLY)
begun = time.monotonic_ns()
due, published, missed = begun, 0, 0
while due < begun + seconds * 1e9:
    wait_ns = due - time.monotonic_ns()
    if wait_ns > 0:
        time.sleep(wait_ns / 1e9)
    temperature = 60 + 25 * math.sin(phase + (due - begun) / 4e8) + noise.gauss(0, 1)
    os.write(pub, json.dumps({"sensor": name, "n": published, "temperature": round(temperature, 1)}).encode())
    published += 1
    due += PERIOD_NS
    late = (time.monotonic_ns() - due) // PERIOD_NS
    if late > 0:
        missed += late
        due += late * PERIOD_NS
os.write(pub, json.dumps({"sensor": name, "last": True}).encode())
print(name, published, missed)
