# SPDX-License-Identifier: MIT OR Apache-2.0
"""Looks names up, calls a program and takes a lock, again and again, for as many seconds as it is told: then the longest pause of each, the errors
that it saw, and what was done twice."""

import os
import sys
import threading
import time

import tombolo

end = time.monotonic() + float(sys.argv[1])
patience = end + 60


class Caller(threading.Thread):
    """Does one thing again and again. Where it fails, it is an error, and done again."""

    def __init__(self, name, once):
        super().__init__(name=name, daemon=True)
        self.once, self.calls, self.errors, self.twice, self.longest, self.why = once, 0, 0, 0, 0.0, ""

    def run(self):
        while time.monotonic() < end:
            begun = time.monotonic()
            while True:
                try:
                    self.twice += self.once(self.calls + 1)
                    break
                except OSError as error:
                    self.errors += 1
                    self.why = f"{type(error).__name__}: {error}"
                    if time.monotonic() > patience:
                        return
                    time.sleep(0.05)
            self.calls += 1
            self.longest = max(self.longest, time.monotonic() - begun)
            time.sleep(0.005)


def look_up(_):
    with open("/srv/dns/query", "r+b", 0) as query:
        query.write(b"A www.harbour.test\n")
        answer = query.read(4096)
    if b"192.0.2.7" not in answer:
        raise OSError(f"no address in {answer!r}")
    return 0


me = tombolo.Endpoint()


def moved():
    """How many boxes the crane has moved, by its key."""
    try:
        with open("/srv/sync/ctl", "r+b", 0) as ctl:
            ctl.write(b"get kv/moved\n")
            return int(ctl.read(4096).split()[1])
    except FileNotFoundError:
        return 0


# Somebody may have called it before.
before = moved()


def call(number):
    """Has one box more moved. The crane answers with how many it has moved: more of them than were asked for were moved twice."""
    return int(me.ask("crane", str(before + number).encode(), timeout=30).data) != before + number


highest = 0


def lock(_):
    """Tokens only grow: the same one twice would be two holders."""
    global highest
    held = os.open("/srv/sync/locks/quay", os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        token = int(os.read(held, 64))
    finally:
        os.close(held)
    is_old = token <= highest
    highest = max(highest, token)
    return is_old


callers = [Caller("look-ups", look_up), Caller("calls", call), Caller("locks", lock)]
for one in callers:
    one.start()
for one in callers:
    one.join(max(0.0, patience - time.monotonic()))
print(f"{'':10} {'done':>6} {'longest pause':>14} {'errors':>7} {'done twice':>11}")
for one in callers:
    print(f"{one.name:10} {one.calls:>6} {one.longest * 1000:>11.0f} ms {one.errors:>7} {one.twice:>11}")
for one in callers:
    if one.why:
        print(f"the last error of {one.name}: {one.why}")
done = moved() - before
print(f"boxes: {callers[1].calls} asked for, {done} moved")
is_good = done == callers[1].calls and all(one.calls > 0 and one.twice == 0 and not one.is_alive() for one in callers)
sys.stdout.flush()
os._exit(0 if is_good else 1)
