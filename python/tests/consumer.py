# SPDX-License-Identifier: MIT OR Apache-2.0
"""A consumer of services that knows the bytes of their protocol, and no more; and services that are served while a test lasts."""

from __future__ import annotations

import errno
import json
import logging
import struct
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import tombolo
from tombolo.service import Service

# Longer than anything takes on a busy machine.
PATIENCE = 20.0

HEADER = struct.Struct("<HHIQQII")
NODE = struct.Struct("<IBBHIIQQIIII")
HELLO, OPEN, REQUEST, RESPONSE, CANCEL, CLOSE, CONTROL, CAPSULE, STATE = 1, 2, 4, 5, 6, 7, 8, 10, 11
CREDIT, RECORD, LOOKUP, LIST, STAT, CHANGE, READ_AT, WRITE_AT, SET, SYNC = 12, 13, 14, 15, 16, 17, 18, 19, 20, 21
TRACE, MORE, END = 1, 2, 4
CREATE, MAKE_FOLDER, UNLINK, REMOVE_FOLDER, RENAME, LINK = 1, 2, 3, 4, 5, 6


class Message(NamedTuple):
    kind: int
    flags: int
    status: int
    session: int
    tag: int
    file: int
    payload: bytes


class Entry(NamedTuple):
    number: int
    name: bytes
    place: int


class Raw:
    """A consumer."""

    def __init__(self, channel: tombolo.Channel) -> None:
        self.channel = channel
        channel.timeout = PATIENCE
        self.tag = 0
        self.others: List[Message] = []
        self.export = json.loads(self.next(HELLO).payload)
        self.ids: Dict[str, int] = {file["name"]: file["id"] for file in self.export["files"]}

    def send(self, kind: int, session: int = 0, tag: int = 0, file: int = 0, payload: bytes = b"", flags: int = 0, status: int = 0) -> None:
        self.channel.write(HEADER.pack(kind, flags, status, session, tag, file, len(payload)) + payload)

    def receive(self) -> Message:
        message = self.channel.read()
        if message is None:
            raise EOFError
        kind, flags, status, session, tag, file, length = HEADER.unpack_from(message)
        payload = message[HEADER.size :]
        assert length == len(payload)
        return Message(kind, flags, status, session, tag, file, payload)

    def next(self, kind: int, tag: Optional[int] = None) -> Message:
        """The next message of this kind; others are kept for later."""
        for at, message in enumerate(self.others):
            if message.kind == kind and tag in (None, message.tag):
                return self.others.pop(at)
        while True:
            message = self.receive()
            if message.kind == kind and tag in (None, message.tag):
                return message
            self.others.append(message)

    def start(self, kind: int, session: int = 0, file: int = 0, payload: bytes = b"", flags: int = 0) -> int:
        self.tag += 1
        self.send(kind, session, self.tag, file, payload, flags)
        return self.tag

    def answer(self, tag: int) -> bytes:
        whole = b""
        while True:
            message = self.next(RESPONSE, tag)
            if message.status:
                assert not message.payload
                raise OSError(message.status, errno.errorcode.get(message.status, "?"))
            whole += message.payload
            if not message.flags & MORE:
                return whole

    def ask(self, kind: int, session: int = 0, file: int = 0, payload: bytes = b"") -> bytes:
        return self.answer(self.start(kind, session, file, payload))

    def open(self, session: int, file: int, flags: int = 0, capsule: bytes = b"", **more: Any) -> None:
        self.ask(OPEN, session, file, opener(flags, capsule, **more))

    def records(self, count: int, session: int) -> List[bytes]:
        found: List[bytes] = []
        while len(found) < count:
            message = self.next(RECORD)
            assert message.session == session
            found.append(message.payload[: len(message.payload) - message.file])
        return found

    def node(self, answer: bytes) -> int:
        assert len(answer) == NODE.size
        return int(NODE.unpack(answer)[0])

    def size(self, number: int) -> int:
        return int(NODE.unpack(self.ask(STAT, file=number))[6])

    def list(self, folder: int, after: int = 0, most: int = 4096) -> List[Entry]:
        answer = self.ask(LIST, file=folder, payload=struct.pack("<QI", after, most))
        entries: List[Entry] = []
        while answer:
            (number,), (place, length) = struct.unpack_from("<I", answer), struct.unpack_from("<QH", answer, NODE.size)
            entries.append(Entry(number, answer[58 : 58 + length], place))
            answer = answer[58 + length :]
        return entries

    def change(self, folder: int, operation: int, name: bytes, new: bytes = b"", other: int = 0, mode: int = 0o644) -> bytes:
        return self.ask(CHANGE, file=folder, payload=change(operation, name, new, other, mode))

    def write_at(self, session: int, offset: int, data: bytes) -> int:
        return int.from_bytes(self.ask(WRITE_AT, session, payload=struct.pack("<Q", offset) + data), "little")

    def read_at(self, session: int, offset: int, size: int) -> bytes:
        return self.ask(READ_AT, session, payload=struct.pack("<QI", offset, size))


def opener(flags: int = 0, capsule: bytes = b"", **more: Any) -> bytes:
    said = {"uid": 1000, "gid": 100, "pid": 17, "entrance": "device", **more}
    if flags:
        said["flags"] = flags
    if capsule:
        said["capsule"] = list(capsule)
    return json.dumps(said).encode()


def change(operation: int, name: bytes, new: bytes = b"", other: int = 0, mode: int = 0o644) -> bytes:
    return struct.pack("<BBHIIII", operation, 0, len(name), mode, other, 1000, 100) + name + new


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "meet"
        logging.getLogger("tombolo.service").setLevel(logging.CRITICAL)

    def serve(self, service: Service) -> threading.Thread:
        """Serves in a thread until the end of the test, or until it is stopped."""
        thread = threading.Thread(target=service.run, args=(self.path,))
        thread.start()

        def stop() -> None:
            service.stop()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())

        self.addCleanup(stop)
        return thread

    def consumer(self) -> Raw:
        raw = Raw(tombolo.open(self.path, wait=PATIENCE))
        self.addCleanup(raw.channel.close)
        return raw

    def refused(self, number: int, *asked: Any, raw: Raw, **more: Any) -> None:
        with self.assertRaises(OSError) as caught:
            raw.ask(*asked, **more)
        self.assertEqual(errno.errorcode[caught.exception.errno or 0], errno.errorcode[number])

    def assert_thrown_out(self, raw: Raw) -> None:
        with self.assertRaises((EOFError, BrokenPipeError)):
            while True:
                raw.receive()

    def until(self, condition: Any) -> None:
        """Asks until something that another thread does has been done."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            threading.Event().wait(0.005)
