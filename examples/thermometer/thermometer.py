# SPDX-License-Identifier: MIT OR Apache-2.0
"""The service `thermometer`: a file of each behaviour. In its domain: python3 thermometer.py. Anywhere, without a daemon:
python3 thermometer.py ./thermometer.sock, and whoever may open that path is a consumer."""

import errno
import sys
import threading
import time
from pathlib import Path

from tombolo.service import MemoryFolder, Service

thermometer = Service("thermometer")
samples = thermometer.stream("samples", verb="read", history=100)
offset = 0.0


def celsius():
    """What the machine's own sensor says, or 20 degrees where it has none."""
    zones = sorted(Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    return (int(zones[0].read_text()) / 1000 if zones else 20.0) + offset


@thermometer.text("reading", verb="read")
def reading(call):
    return f"{celsius():.1f}\n"


@thermometer.control("ctl", verb="calibrate")
def ctl(call, line):
    global offset
    try:
        word, degrees = line.split()
        value = float(degrees)
    except ValueError:
        raise OSError(errno.EINVAL, "offset DEGREES") from None
    if word != b"offset" or not abs(value) <= 10:
        raise OSError(errno.EINVAL, "offset DEGREES, 10 at the most")
    offset = value
    print(f"offset {value} by {call.caller.domain or call.caller.peer}", flush=True)


@ctl.reader
def settings(call):
    return f"offset {offset}\n"


@thermometer.session("convert", verb="read", idempotent=True)
def convert(session, line):
    if line in (b"celsius", b"fahrenheit"):
        session.state["unit"] = line
        # The next server of this file finds it in session.capsule.
        session.keep(line)
        return b"ok\n"
    try:
        value = float(line)
    except ValueError:
        raise OSError(errno.EINVAL, "a number, celsius or fahrenheit") from None
    if session.state.get("unit") == b"celsius":
        return f"{(value - 32) / 1.8:.1f}\n"
    return f"{value * 1.8 + 32:.1f}\n"


@convert.opened
def opened(session):
    if session.capsule in (b"celsius", b"fahrenheit"):
        session.state["unit"] = session.capsule


@thermometer.folder("notes", verb="read", change="calibrate")
class Notes(MemoryFolder):
    most_bytes = 1024 * 1024


def measure():
    while True:
        samples.publish(f"{time.time():.3f} {celsius():.1f}\n".encode())
        time.sleep(0.1)


if __name__ == "__main__":
    threading.Thread(target=measure, daemon=True).start()
    thermometer.run(at=sys.argv[1] if len(sys.argv) > 1 else None)
