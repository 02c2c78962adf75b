"""Uses the service `counter` until a file is there: each call has to succeed, each number to follow the one before. Prints one line of JSON."""

import json
import os
import sys
import time

until = sys.argv[1]
calls, longest, wrong = 0, 0.0, None
with open("/srv/counter/count", "r+b", buffering=0) as count, open("/srv/counter/log", "wb", buffering=0) as log:
    print("begun", flush=True)
    while wrong is None and not os.path.exists(until):
        calls += 1
        begun = time.monotonic()
        try:
            count.write(b"next\n")
            number = int(count.read(64))
            wrong = None if number == calls else f"call {calls} was answered with {number}"
            log.write(b"%d\n" % calls)
        except OSError as error:
            wrong = f"call {calls}: {error}"
        longest = max(longest, time.monotonic() - begun)
print(json.dumps({"calls": calls, "longest_ms": longest * 1000, "wrong": wrong}), flush=True)
