"""Writes numbers to a volume by NBD, and notes each one that was acknowledged; before that, proves that none that anybody noted is lost.

    ledger.py SOCKET FOLDER NAME FIRST_SLOT

FOLDER/NAME.acked gets a line "SLOT VALUE TIME_NS" for each acknowledged write; FOLDER/NAME.verdict gets a line "fine COUNT" or "lost ..." for each
start. A connection that breaks is made anew, and what was not acknowledged on it is forgotten.
"""

import glob
import os
import socket
import struct
import sys
import time

SLOTS = 64
# In an extent of its own each, and in the middle of it.
STRIDE = 64 << 10
INSIDE = 4096
BYTES = 512
IN_FLIGHT = 8


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.take(18)
        self.socket.sendall(struct.pack(">I", 3))
        name = b"volume"
        data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.socket.sendall(struct.pack(">8sII", b"IHAVEOPT", 7, len(data)) + data)
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            self.take(length)
            if kind == 1:
                break
            if kind & 1 << 31:
                raise ConnectionError("no such export")

    def take(self, count):
        taken = b""
        while len(taken) < count:
            more = self.socket.recv(count - len(taken))
            if not more:
                raise ConnectionError("the volume hung up")
            taken += more
        return taken

    def send(self, command, cookie, offset, length, data=b""):
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, cookie, offset, length) + data)

    def reply(self):
        _, error, cookie = struct.unpack(">IIQ", self.take(16))
        if error:
            raise ConnectionError(f"error {error}")
        return cookie


def place(slot):
    return slot * STRIDE + INSIDE


def read(client, slot):
    client.send(0, slot, place(slot), BYTES)
    client.reply()
    return int.from_bytes(client.take(BYTES)[:8], "big")


def noted(folder):
    last = {}
    for path in glob.glob(f"{folder}/*.acked"):
        with open(path) as file:
            for line in file:
                words = line.split()
                if len(words) == 3 and line.endswith("\n"):
                    slot, value = int(words[0]), int(words[1])
                    last[slot] = max(last.get(slot, 0), value)
    return last


def say(folder, name, line):
    with open(f"{folder}/{name}.verdict", "a") as file:
        file.write(line + "\n")


def verify(path, folder, name):
    """The highest value of all."""
    # Before it is read: what others write meanwhile is newer.
    last = noted(folder)
    client = Client(path)
    for slot, value in last.items():
        found = read(client, slot)
        if found < value:
            say(folder, name, f"lost slot {slot}: {value} was acknowledged, {found} is there")
    say(folder, name, f"fine {len(last)}")
    return max(last.values(), default=0)


def write(path, folder, name, first, value):
    client = Client(path)
    with open(f"{folder}/{name}.acked", "a") as acked:
        while True:
            begun = {}
            for _ in range(IN_FLIGHT):
                value += 1
                slot = first + value % SLOTS
                begun[value] = slot
                client.send(1, value, place(slot), BYTES, value.to_bytes(8, "big") * (BYTES // 8))
            for _ in range(IN_FLIGHT):
                cookie = client.reply()
                acked.write(f"{begun[cookie]} {cookie} {now_ns()}\n")
                acked.flush()


def main():
    path, folder, name, first = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    verified = False
    value = 0
    while True:
        try:
            if not verified:
                value = verify(path, folder, name)
                verified = True
            # What was sent and not acknowledged may be there: no number is used twice.
            value += 10 * IN_FLIGHT
            write(path, folder, name, first, value)
        except (ConnectionError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
            value = max([value, *noted(folder).values()])
            time.sleep(0.05)


main()
