"""Asks one open /srv/dns/query for names until its standard input ends, then says how it went, as JSON."""

import errno
import json
import os
import select
import sys
import time

asked = failed = 0
errors = {}
longest = 0.0
query = os.open("/srv/dns/query", os.O_RDWR)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    number = asked % 200
    started = time.monotonic()
    asked += 1
    try:
        os.write(query, b"A alias%d.tombolo.example\n" % number)
        answer = os.read(query, 65536)
        if number % 3 != 1 and b"192.0.2.%d" % (number % 250) not in answer:
            failed += 1
            errors["wrong answer: %r" % answer] = 1
    except OSError as error:
        if not (error.errno == errno.ENODATA and number % 3 == 1):
            failed += 1
            name = errno.errorcode.get(error.errno, str(error.errno))
            errors[name] = errors.get(name, 0) + 1
    longest = max(longest, time.monotonic() - started)
os.close(query)
print(json.dumps({"asked": asked, "failed": failed, "errors": errors, "longest_s": round(longest, 3)}))
