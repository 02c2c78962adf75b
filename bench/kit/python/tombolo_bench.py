"""The adapter kit of `tombolo bench` for Python: docs/spec/bench-adapter.md is the protocol.

An adapter gives two functions and runs:

    import tombolo_bench

    def serve(task):                 # the follower
        ...                          # make the server
        yield place                  # say where it is found: a word without blanks
        ...                          # answer each request with itself, until the client is gone;
                                     # call task.work() for each, before the answer

    def connect(task):               # the leader
        ...                          # connect to task.place
        return ask                   # ask(request: bytes) -> answer: bytes, or None where none came

    tombolo_bench.main(serve, connect)

The kit keeps the schedule, the clock, numbers and checksums, and the lines.
"""

import random
import struct
import sys
import time
import zlib

PROTOCOL = "ready tombolo-bench-1"
# An open loop sleeps until so long before a request is due, and then looks at the clock.
AWAKE_BEFORE_NS = 150_000
# Number and checksum at the beginning of each payload.
HEADER = struct.Struct("<QI")
SAMPLES_MAX = 1 << 20


class Task:
    """What one repetition asks for; the names are those of the protocol."""

    def __init__(self, line):
        words = line.split()
        if not words or words[0] != "task":
            raise SystemExit(f"expected a task, found {line!r}")
        fields = dict(word.split("=", 1) for word in words[1:])
        self.role = fields["role"]
        self.bytes = int(fields["bytes"])
        self.work_ns = int(fields["work_ns"])
        self.loop = fields["loop"]
        self.interval_ns = int(fields["interval_ns"])
        self.window_ns = int(fields["window_ns"])
        self.seed = int(fields["seed"])
        self.address = fields["address"]
        self.folder = fields["folder"]
        self.place = fields.get("place", "")

    def work(self):
        """Computes for as long as the server is to compute for each request."""
        until = time.monotonic_ns() + self.work_ns
        while time.monotonic_ns() < until:
            pass

    def payloads(self):
        """Requests: a number and a checksum of number, seed and body, then the body."""
        body = bytes(at & 0xFF for at in range(self.bytes - HEADER.size))
        number = 0
        while True:
            number += 1
            yield HEADER.pack(number, checksum(number, self.seed, body)) + body

    def is_right(self, request):
        """Whether a request is whole."""
        if len(request) != self.bytes:
            return False
        number, found = HEADER.unpack_from(request)
        return found == checksum(number, self.seed, request[HEADER.size:])

    def due(self):
        """Instants in ns from the beginning, or None for a closed loop: due when the one before was answered."""
        chance = random.Random(self.seed)
        at = 0.0
        while True:
            yield None if self.loop == "closed" else int(at)
            at += self.interval_ns if self.loop == "periodic" else chance.expovariate(1.0) * self.interval_ns


def checksum(number, seed, body):
    return zlib.crc32(body, (number ^ seed) & 0xFFFF_FFFF)


def say(line):
    print(line, flush=True)


def hear():
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    return line.rstrip("\n")


def wait_until(instant_ns):
    left = instant_ns - time.monotonic_ns()
    if left > AWAKE_BEFORE_NS:
        time.sleep((left - AWAKE_BEFORE_NS) / 1e9)
    while time.monotonic_ns() < instant_ns:
        pass


def lead(task, connect):
    ask = connect(task)
    payloads, samples, unanswered, wrong = task.payloads(), [], 0, 0
    say("primed")
    hear()
    used, begin = time.process_time_ns(), time.monotonic_ns()
    free = begin
    for offset in task.due():
        due = free if offset is None else begin + offset
        if due >= begin + task.window_ns or len(samples) >= SAMPLES_MAX:
            break
        wait_until(due)
        request = next(payloads)
        sent = time.monotonic_ns()
        answer = ask(request)
        free = time.monotonic_ns()
        if answer is None:
            unanswered += 1
        elif answer != request:
            wrong += 1
        else:
            samples.append((free - (sent if offset is None else due), free - sent))
    used = time.process_time_ns() - used
    lines = [f"sample {latency} {uncorrected}\n" for latency, uncorrected in samples]
    sys.stdout.write("".join(lines))
    say(f"done unanswered={unanswered} wrong={wrong} elapsed_ns={free - begin} processor_ns={used}")
    return ask


def follow(task, serve):
    server = serve(task)
    say(f"waiting {next(server)}")
    say("primed")
    hear()
    used = time.process_time_ns()
    wrong = sum(0 if task.is_right(request) else 1 for request in server)
    say(f"done wrong={wrong} processor_ns={time.process_time_ns() - used}")


def main(serve, connect):
    """Leads the conversation. `serve` yields its place, then each request after having answered it."""
    say(PROTOCOL)
    task = Task(hear())
    if task.role == "follow":
        follow(task, serve)
    else:
        ask = lead(task, connect)
        # The server ends when the connection does.
        del ask
