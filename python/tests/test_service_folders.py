# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders of services in Python, and services in event loops."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import threading
import unittest
import unittest.mock
from typing import Any, Iterable, List, Tuple

from tombolo import _service_folder
from tombolo.service import (
    NODE_OVERHEAD_BYTES,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    ROOT,
    Call,
    Caller,
    Folder,
    MemoryFolder,
    Node,
    Service,
    Session,
)

from consumer import (
    CANCEL,
    CHANGE,
    CLOSE,
    CREATE,
    CREDIT,
    LINK,
    LIST,
    LOOKUP,
    MAKE_FOLDER,
    OPEN,
    PATIENCE,
    READ_AT,
    REMOVE_FOLDER,
    RENAME,
    REQUEST,
    SET,
    STAT,
    SYNC,
    UNLINK,
    WRITE_AT,
    Case,
    change,
    opener,
)


class Folders(Case):
    def setUp(self) -> None:
        super().setUp()
        service = Service("notes")

        @service.folder("log", verb="read", change="write")
        class Log(MemoryFolder):
            most_bytes = 1024 * 1024

        read_only = MemoryFolder()
        read_only.put("help/first.txt", b"hello")
        read_only.put("help/first.txt", b"hello again")
        service.folder("static", verb="read")(read_only)
        self.serve(service)
        self.raw = self.consumer()
        self.log = self.raw.ids["log"]

    def refuse(self, number: int, *asked: Any, **more: Any) -> None:
        self.refused(number, *asked, raw=self.raw, **more)

    def make(self, name: bytes, folder: int = -1, operation: int = CREATE) -> int:
        return self.raw.node(self.raw.change(self.log if folder == -1 else folder, operation, name))

    def test_files_are_made_written_read_and_taken_away(self) -> None:
        raw, log = self.raw, self.log
        self.refuse(errno.ENOENT, LOOKUP, file=log, payload=b"a")
        number = self.make(b"a")
        self.assertEqual(number >> 24, log + 1)
        self.refuse(errno.EEXIST, CHANGE, file=log, payload=change(CREATE, b"a"))
        raw.open(1, number, os.O_RDWR)
        self.assertEqual(raw.write_at(1, 3, b"abc"), 3)
        self.assertEqual(raw.read_at(1, 0, 100), b"\0\0\0abc")
        self.assertEqual(raw.read_at(1, 4, 1), b"b")
        self.assertEqual(raw.read_at(1, 100, 1), b"")
        self.assertEqual((raw.ask(SYNC, 1), raw.size(number)), (b"", 6))
        raw.open(2, number, os.O_WRONLY | os.O_APPEND)
        raw.write_at(2, 0, b"!")
        self.assertEqual(raw.size(number), 7)
        self.refuse(errno.EBADF, READ_AT, 2, payload=bytes(12))
        raw.open(3, number)
        self.refuse(errno.EBADF, WRITE_AT, 3, payload=bytes(9))
        raw.ask(SET, file=number, payload=struct.pack("<IIQQII", 7, 0o600, 2, 5, 6, 0))
        fields = struct.unpack("<IBBHIIQQIIII", raw.ask(STAT, file=number))
        self.assertEqual(fields, (number, 5, 1, 0o600, 1, 0, 2, 5, 6, 1000, 100, 0))
        raw.change(log, UNLINK, b"a")
        self.refuse(errno.ENOENT, LOOKUP, file=log, payload=b"a")
        self.assertEqual(raw.read_at(1, 0, 9), b"\0\0", "who has it open still reads it")
        for session in (1, 2, 3):
            raw.send(CLOSE, session)
        self.refuse(errno.ESTALE, STAT, file=number)
        raw.open(4, self.make(b"b"), os.O_RDWR)
        raw.write_at(4, 0, b"long")
        raw.open(5, raw.node(raw.ask(LOOKUP, file=log, payload=b"b")), os.O_WRONLY | os.O_TRUNC)
        self.assertEqual(raw.read_at(4, 0, 9), b"")

    def test_names_are_moved_exchanged_and_linked(self) -> None:
        raw, log = self.raw, self.log
        one, two = self.make(b"one"), self.make(b"two")
        folder = self.make(b"folder", operation=MAKE_FOLDER)
        self.refuse(errno.EEXIST, CHANGE, file=log, payload=change(RENAME, b"one", b"two", log, RENAME_NOREPLACE))
        raw.change(log, RENAME, b"one", b"two", log, RENAME_EXCHANGE)
        self.assertEqual(raw.node(raw.ask(LOOKUP, file=log, payload=b"one")), two)
        raw.change(log, RENAME, b"two", b"inside", folder, 0)
        self.assertEqual([entry[:2] for entry in raw.list(folder)], [(one, b"inside")])
        self.refuse(errno.ENOTEMPTY, CHANGE, file=log, payload=change(REMOVE_FOLDER, b"folder"))
        self.refuse(errno.EISDIR, CHANGE, file=log, payload=change(UNLINK, b"folder"))
        self.refuse(errno.ENOTDIR, CHANGE, file=log, payload=change(REMOVE_FOLDER, b"one"))
        self.refuse(errno.EINVAL, CHANGE, file=log, payload=change(RENAME, b"folder", b"x", folder, 0))
        self.refuse(errno.EXDEV, CHANGE, file=log, payload=change(RENAME, b"one", b"x", self.raw.ids["static"], 0))
        self.refuse(errno.EISDIR, CHANGE, file=log, payload=change(RENAME, b"one", b"folder", log, 0))
        self.assertEqual(raw.node(raw.change(log, LINK, b"again", other=one)), one)
        raw.change(folder, UNLINK, b"inside")
        self.assertEqual(struct.unpack_from("<I", raw.ask(STAT, file=one), 8)[0], 1, "it has one name left")
        raw.change(log, REMOVE_FOLDER, b"folder")
        self.refuse(errno.ESTALE, CHANGE, file=folder, payload=change(CREATE, b"x"))
        self.refuse(errno.EPERM, CHANGE, file=log, payload=change(LINK, b"x", other=self.make(b"f", operation=MAKE_FOLDER)))
        raw.change(log, RENAME, b"one", b"again", log, 0)
        self.refuse(errno.ESTALE, STAT, file=one)

    def test_listings_go_on_while_names_come_and_go(self) -> None:
        raw, log = self.raw, self.log
        for number in range(600):
            self.make(b"%d" % number)
        found: List[bytes] = []
        after = 0
        while True:
            entries = raw.list(log, after)
            if not entries:
                break
            found.extend(entry.name for entry in entries)
            after = entries[-1].place
            if len(found) < 400:
                raw.change(log, UNLINK, found[-1])
                raw.change(log, UNLINK, b"%d" % (599 - len(found) // 10))
        self.assertEqual(len(found), len(set(found)))
        self.assertTrue({b"%d" % number for number in range(500)} <= set(found))
        self.refuse(errno.EINVAL, LIST, file=log, payload=struct.pack("<QI", 0, 10))

    def test_what_is_impossible_is_refused(self) -> None:
        raw, log = self.raw, self.log
        number = self.make(b"a")
        self.refuse(errno.ENAMETOOLONG, LOOKUP, file=log, payload=b"x" * 256)
        self.refuse(errno.ENAMETOOLONG, CHANGE, file=log, payload=change(CREATE, b"x" * 256))
        self.refuse(errno.ENAMETOOLONG, CHANGE, file=log, payload=change(RENAME, b"a", b"x" * 256, log, 0))
        for name in (b"", b".", b"..", b"a/b", b"a\0"):
            self.refuse(errno.EINVAL, LOOKUP, file=log, payload=name)
            self.refuse(errno.EINVAL, CHANGE, file=log, payload=change(CREATE, name))
        for payload in (b"", change(CREATE, b"x", b"y"), change(RENAME, b"x"), change(9, b"x"), b"\1\1" + change(CREATE, b"x")[2:]):
            self.refuse(errno.EINVAL, CHANGE, file=log, payload=payload)
        self.refuse(errno.EINVAL, LIST, file=log, payload=b"short")
        self.refuse(errno.EINVAL, SET, file=number, payload=struct.pack("<IIQQII", 8, 0, 0, 0, 0, 0))
        self.refuse(errno.EISDIR, OPEN, 1, log, opener())
        self.refuse(errno.EISDIR, OPEN, 1, self.make(b"f", operation=MAKE_FOLDER), opener())
        self.refuse(errno.ENOTDIR, LOOKUP, file=number, payload=b"x")
        raw.open(1, number, os.O_RDWR)
        self.refuse(errno.EMSGSIZE, WRITE_AT, 1, payload=bytes(8 + 60 * 1024 + 1))
        self.refuse(errno.EINVAL, WRITE_AT, 1, payload=b"\xff" * 9)
        self.refuse(errno.EINVAL, READ_AT, 1, payload=b"\xff" * 12)
        self.refuse(errno.EMSGSIZE, READ_AT, 1, payload=struct.pack("<QI", 0, 2**32 - 1))
        self.refuse(errno.ENOSPC, WRITE_AT, 1, payload=struct.pack("<Q", 2**62) + b"x")
        self.refuse(errno.EACCES, CHANGE, file=raw.ids["static"], payload=change(CREATE, b"x"))

    def test_a_folder_in_memory_has_a_bound_and_gives_room_back(self) -> None:
        made = 0
        with self.assertRaises(OSError) as caught:
            while True:
                self.make(b"%d" % made)
                made += 1
        self.assertEqual((caught.exception.errno, made), (errno.ENOSPC, 1024 * 1024 // NODE_OVERHEAD_BYTES))
        self.raw.change(self.log, UNLINK, b"7")
        self.make(b"again")

    @unittest.mock.patch.object(_service_folder, "SERIAL_BITS", 3)
    def test_a_number_is_given_again_only_when_all_others_have_been(self) -> None:
        folder, call = MemoryFolder(), Call(Caller(), "log")

        def make() -> int:
            return folder.create(call, ROOT, b"x", 0o644).serial

        def remove() -> None:
            folder.unlink(call, ROOT, b"x")

        kept = make()
        folder.open(call, kept, 0)
        remove()
        given = []
        for _ in range(6):
            given.append(make())
            remove()
        self.assertEqual(len({kept, *given}), 7, "each has been given once")
        self.assertEqual(make(), given[0], "the one that is gone for longest")
        remove()
        folder.close(call, kept)
        for number in (*given[1:], given[0]):
            self.assertEqual(make(), number)
            remove()
        self.assertEqual(make(), kept, "nobody had been given it while it was open")
        for number in range(6):
            folder.create(call, ROOT, b"%d" % number, 0o644)
        with self.assertRaises(OSError) as caught:
            folder.create(call, ROOT, b"one too many", 0o644)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)

    def test_files_that_the_service_puts_are_read(self) -> None:
        raw = self.raw
        folder = raw.list(raw.ids["static"])[0]
        self.assertEqual(folder.name, b"help")
        raw.open(1, raw.list(folder.number)[0].number)
        self.assertEqual(raw.read_at(1, 0, 100), b"hello again")
        self.refuse(errno.EACCES, OPEN, 2, raw.list(folder.number)[0].number, opener(os.O_RDWR))

    def test_a_folder_of_ones_own(self) -> None:
        service = Service("names")

        @service.folder(".", verb="read")
        class Names(Folder):
            def lookup(self, call: Call, folder: int, name: bytes) -> Node:
                return Node(int(name), "text", idempotent=True)

            def list(self, call: Call, folder: int, after: int) -> Iterable[Tuple[int, bytes, Node]]:
                for number in range(after + 1, 100_001):
                    yield number, b"%d" % number, Node(number, "text")

            def stat(self, call: Call, node: int) -> Node:
                return Node(node, "text" if node else "folder", uid=2**33 if node == 5 else None)

            async def ask(self, call: Call, node: int, line: bytes) -> str:
                await asyncio.sleep(0)
                return f"{node}\n"

        self.path = self.path.with_name("own")
        self.serve(service)
        raw = self.consumer()
        number = raw.node(raw.ask(LOOKUP, file=0, payload=b"77"))
        self.assertEqual(raw.ask(REQUEST, file=number), b"77\n")
        self.assertEqual(raw.node(raw.ask(STAT, file=0)) & 0xFFFFFF, 0)
        self.assertEqual(raw.list(0, 99_998)[-1].name, b"100000")
        self.assertEqual(raw.list(0, 100_000), [])
        self.refused(errno.EIO, STAT, file=1 << 24 | 5, raw=raw)
        self.refused(errno.EIO, LOOKUP, file=0, payload=b"x", raw=raw)


class EventLoops(Case):
    def test_coroutines_answer_when_they_are_through(self) -> None:
        service = Service("patient")
        self.cancelled = threading.Event()
        self.gates: "dict[bytes, asyncio.Event]" = {}

        @service.session("ask", verb="read")
        async def ask(session: Session, line: bytes) -> bytes:
            gate = self.gates.setdefault(line, asyncio.Event())
            if line == b"go":
                for one in self.gates.values():
                    one.set()
                return b"gone"
            try:
                await gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            if line == b"bad":
                raise OSError(errno.EDOM, "bad")
            return line

        samples = service.stream("samples", verb="read")
        self.serve(service)
        raw = self.consumer()
        raw.open(1, 0)
        raw.open(2, 0)
        raw.open(3, 1)
        raw.send(CREDIT, 3, file=1000)
        samples.publish(b"hello")
        self.assertEqual(raw.records(1, 3), [b"hello"])
        slow, bad, given_up = (raw.start(REQUEST, 1, 0, line) for line in (b"slow", b"bad", b"given up"))
        raw.start(REQUEST, 2, 0, b"closed")
        # What is cancelled before it has begun would not notice.
        self.until(lambda: {b"given up", b"closed"} <= set(self.gates))
        raw.send(CANCEL, tag=given_up)
        self.assertTrue(self.cancelled.wait(PATIENCE))
        self.cancelled.clear()
        raw.send(CLOSE, 2)
        self.assertTrue(self.cancelled.wait(PATIENCE))
        self.assertEqual(raw.ask(REQUEST, 1, 0, b"go"), b"gone")
        self.assertEqual(raw.answer(slow), b"slow")
        with self.assertRaises(OSError) as caught:
            raw.answer(bad)
        self.assertEqual(caught.exception.errno, errno.EDOM)
        self.assertFalse(raw.others, "who has given up is answered nothing")

    def test_requests_that_wait_have_a_bound(self) -> None:
        service = Service("patient")

        @service.session("ask", verb="read")
        async def ask(session: Session, line: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        self.serve(service)
        raw = self.consumer()
        for _ in range(64):
            raw.start(REQUEST, payload=bytes(64 * 1024))
        self.refused(errno.EAGAIN, REQUEST, payload=b"x", raw=raw)
        for tag in range(1, 65):
            raw.send(CANCEL, tag=tag)
        for _ in range(1024):
            raw.start(REQUEST)
        self.refused(errno.EAGAIN, REQUEST, raw=raw)
        raw.send(REQUEST, tag=raw.tag - 1)
        self.assert_thrown_out(raw)

    def test_a_service_lives_in_an_event_loop_with_others(self) -> None:
        service = Service("guest")
        service.text("text", verb="read")(lambda call: "here\n")
        answers: List[bytes] = []

        async def main() -> None:
            serving = asyncio.ensure_future(service.serve_async(self.path))

            def ask() -> None:
                raw = self.consumer()
                answers.append(raw.ask(REQUEST))

            await asyncio.get_running_loop().run_in_executor(None, ask)
            service.stop()
            await serving
            # Once more, and ended from outside.
            serving = asyncio.ensure_future(service.serve_async(self.path))
            await asyncio.get_running_loop().run_in_executor(None, ask)
            serving.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await serving

        asyncio.run(main())
        self.assertEqual(answers, [b"here\n"] * 2)

    def test_a_service_that_is_declared_wrongly_is_refused_at_once(self) -> None:
        service = Service("wrong")
        service.text("text", verb="read")(lambda call: "")
        for name in ("", "a/b", "a\0", "text", ".", "x" * 256):
            with self.assertRaises(ValueError):
                service.text(name, verb="read")(lambda call: "")
        with self.assertRaises(ValueError):
            service.text("other", verb="Read it")(lambda call: "")
        with self.assertRaises(ValueError):
            service.text("other", verb="read", mode=0o4755)(lambda call: "")
        with self.assertRaises(ValueError):
            service.stream("records", verb="read", history=0)
        with self.assertRaises(ValueError):
            Service("Not a word")
        other = Service("other")
        ask = other.session("ask", verb="read")(lambda session, line: line)

        async def opened(session: Session) -> None:
            pass

        with self.assertRaises(TypeError):
            ask.opened(opened)  # type: ignore[type-var]
        for number in range(254):
            service.text(f"file{number}", verb="read")(lambda call: "")
        with self.assertRaises(ValueError):
            service.text("one too many", verb="read")(lambda call: "")
        self.serve(service)
        self.consumer()
        with self.assertRaises(RuntimeError):
            service.text("late", verb="read")(lambda call: "")
        with self.assertRaises(RuntimeError):
            service.run(self.path.with_name("second"))


if __name__ == "__main__":
    unittest.main()
