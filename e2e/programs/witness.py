"""Writes down over and over that it lives, INSTANCE NANOSECONDS a line, by the clock that all nodes of a bed share."""

import os
import sys
import time
import uuid

instance = uuid.uuid4().hex
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
print("up", flush=True)
while True:
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(out, b"%s %d\n" % (instance.encode(), now))
    time.sleep(0.02)
