"""A service that moves: `count` numbers the lines of an open file, in its capsule; `log` is written once and never twice; `numbers` is a stream."""

import sys
import time

from tombolo.service import Service

counter = Service("counter")
logged = open(sys.argv[1], "a", buffering=1)


@counter.session("count", verb="count")
def count(session, line):
    session.state["count"] += 1
    session.keep(str(session.state["count"]).encode())
    return "{count}\n".format(**session.state)


@count.opened
def opened(session):
    session.state["count"] = int(session.capsule or b"0")


@counter.control("log", verb="log")
def log(call, line):
    # Whoever writes waits long enough to be under way when the service is moved.
    time.sleep(0.001)
    logged.write(line.decode() + "\n")


@log.reader
def name(call):
    return sys.argv[2] + "\n"


counter.run()
