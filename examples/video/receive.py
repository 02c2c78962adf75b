# SPDX-License-Identifier: MIT OR Apache-2.0
"""Receives RTP at several ports and measures loss and jitter as RFC 3550 says (A.1, A.3, A.8).

    receive.py ADDRESS PORT...     receives; commands come in on the standard input, a line each
    receive.py --packets FILE      measures what is written down, a packet a line: `ARRIVAL_US SEQUENCE TIMESTAMP MARKER`

Commands: `await N` answers `ok` when packets have come to N ports; `begin` forgets what has come; `end` prints the measurements as
JSON and ends. An arrival is when the kernel received the packet, so this program's own delays are no part of it.
"""

import json
import os
import selectors
import socket
import struct
import sys

CLOCK_HZ = 90_000  # of RTP timestamps of video (RFC 3551)
PACKET_MAX = 2048
RECEIVE_BUFFER_BYTES = 4 << 20
SO_TIMESTAMPNS = 35
SO_RXQ_OVFL = 40
# Beside the payload of UDP a packet has a header of UDP, IPv4 and Ethernet.
HEADERS_BYTES = 8 + 20 + 14


class Stream:
    """What one receiver has got."""

    def __init__(self):
        self.received = 0
        self.bytes = 0
        self.first = None  # extended sequence number of the first packet
        self.highest = None
        self.jitter = 0.0  # in units of the clock
        self.jitter_worst = 0.0
        self.jitter_sum = 0.0
        self.transit = None
        self.frames = 0  # frames of which each packet came
        self.whole = False  # no packet was lost since the last marker
        self.last_frame = None
        self.spacing_ms = []  # how much later or earlier than its timestamp says a frame ended, after the frame before it
        self.seconds = {}  # second: [received, worst jitter in ms, frames, highest sequence number]
        self.started_us = None

    def packet(self, arrival_us, sequence, timestamp, marker, size=0):
        """One packet, as it arrived: µs, 16 bits, 32 bits, whether it ends a frame, bytes on the wire."""
        if self.first is None:
            self.first = self.highest = sequence
            self.started_us = arrival_us
        else:
            step = (sequence - self.highest + 0x8000) % 0x10000 - 0x8000
            if step != 1:
                self.whole = False
            if step > 0:
                self.highest += step
        self.received += 1
        self.bytes += size
        self.take_jitter(arrival_us, timestamp)
        if marker:
            self.end_frame(arrival_us, timestamp)
        second = self.seconds.setdefault(int(arrival_us // 1_000_000), [0, 0.0, 0, self.highest])
        second[0] += 1
        second[1] = max(second[1], ms(self.jitter))
        second[2] += bool(marker and self.last_frame == (arrival_us, timestamp))
        second[3] = self.highest

    def take_jitter(self, arrival_us, timestamp):
        transit = arrival_us * CLOCK_HZ / 1e6 - timestamp
        if self.transit is not None:
            difference = (transit - self.transit + 2**31) % 2**32 - 2**31
            self.jitter += (abs(difference) - self.jitter) / 16
            self.jitter_worst = max(self.jitter_worst, self.jitter)
            self.jitter_sum += self.jitter
        self.transit = transit

    def end_frame(self, arrival_us, timestamp):
        if self.whole:
            self.frames += 1
            if self.last_frame is not None:
                behind = (timestamp - self.last_frame[1]) % 2**32 / CLOCK_HZ * 1000
                self.spacing_ms.append((arrival_us - self.last_frame[0]) / 1000 - behind)
            self.last_frame = (arrival_us, timestamp)
        self.whole = True

    def measured(self):
        sent = 0 if self.first is None else self.highest - self.first + 1
        spacing = sorted(abs(each) for each in self.spacing_ms)
        return {
            "sent": sent,
            "received": self.received,
            "lost": max(0, sent - self.received),
            "bytes": self.bytes,
            "frames": self.frames,
            "jitter_mean_ms": ms(self.jitter_sum / max(1, self.received - 1)),
            "jitter_worst_ms": ms(self.jitter_worst),
            "spacing_p50_ms": quantile(spacing, 0.5),
            "spacing_p99_ms": quantile(spacing, 0.99),
            "spacing_worst_ms": quantile(spacing, 1.0),
            "seconds": [[second, *row] for second, row in sorted(self.seconds.items())],
            "started_us": self.started_us,
        }


def ms(ticks):
    return round(ticks / CLOCK_HZ * 1000, 4)


def quantile(ordered, share):
    """The nearest rank; None where nothing was measured."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def parsed(packet):
    """Sequence number, timestamp and marker of a packet of RTP; None if it is none."""
    if len(packet) < 12 or packet[0] >> 6 != 2:
        return None
    sequence, timestamp = struct.unpack_from("!HI", packet, 2)
    return sequence, timestamp, bool(packet[1] & 0x80)


class Receiver:
    def __init__(self, address, ports):
        self.streams = {}
        self.overflows = {}
        self.awaited = None
        self.commands = b""
        self.selector = selectors.DefaultSelector()
        for port in ports:
            self.selector.register(self.opened(address, port), selectors.EVENT_READ, port)
            # Its reports, of which nothing is wanted but that nobody answers that the port is closed.
            self.selector.register(self.opened(address, port + 1), selectors.EVENT_READ, None)
        self.selector.register(0, selectors.EVENT_READ, "commands")

    @staticmethod
    def opened(address, port):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        opened.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        opened.bind((address, port))
        opened.setblocking(False)
        return opened

    def take(self, source, port):
        """Everything that waits at a socket."""
        while True:
            try:
                packet, beside, _, _ = source.recvmsg(PACKET_MAX, 256)
            except BlockingIOError:
                return
            told = {kind: value for _, kind, value in beside}
            fields = parsed(packet) if port is not None else None
            if fields is None or SO_TIMESTAMPNS not in told:
                continue
            seconds, nanoseconds = struct.unpack("qq", told[SO_TIMESTAMPNS][:16])
            if SO_RXQ_OVFL in told:
                self.overflows[port] = struct.unpack("I", told[SO_RXQ_OVFL][:4])[0]
            stream = self.streams.setdefault(port, Stream())
            stream.packet(seconds * 1_000_000 + nanoseconds / 1000, *fields, len(packet) + HEADERS_BYTES)

    def command(self, line):
        """Whether it goes on."""
        word, _, number = line.partition(" ")
        if word == "await":
            self.awaited = int(number)
        elif word == "begin":
            self.streams.clear()
            print("ok", flush=True)
        elif word == "end":
            print(json.dumps(self.measured()), flush=True)
            return False
        return True

    def measured(self):
        rows = {str(port): stream.measured() for port, stream in sorted(self.streams.items())}
        return {"streams": rows, "overflows": sum(self.overflows.values())}

    def run(self):
        while True:
            for key, _ in self.selector.select():
                if key.data != "commands":
                    self.take(key.fileobj, key.data)
                    continue
                read = os.read(0, 4096)
                self.commands += read
                *lines, self.commands = self.commands.split(b"\n")
                if not read or not all(self.command(line.decode()) for line in lines):
                    return
            if self.awaited is not None and len(self.streams) >= self.awaited:
                self.awaited = None
                print("ok", flush=True)


def main():
    if sys.argv[1] == "--packets":
        stream = Stream()
        for line in open(sys.argv[2]):
            if line.strip() and not line.startswith("#"):
                arrival, sequence, timestamp, marker = line.split()
                stream.packet(float(arrival), int(sequence), int(timestamp), marker == "1")
        print(json.dumps(stream.measured()))
        return
    Receiver(sys.argv[1], [int(port) for port in sys.argv[2:]]).run()


if __name__ == "__main__":
    main()
