# SPDX-License-Identifier: MIT OR Apache-2.0
"""What consumers of a service in Python see. Run by bin/libtombolo/tests/python.rs, which names the library."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import unittest
import unittest.mock
from typing import Any, List, Tuple

from tombolo import service as services
from tombolo import _service_loop
from tombolo._service_consumer import MAX_SESSIONS
from tombolo.service import Call, Service, Session

from consumer import (
    CANCEL,
    CAPSULE,
    CLOSE,
    CONTROL,
    CREDIT,
    HEADER,
    HELLO,
    LOOKUP,
    MORE,
    OPEN,
    PATIENCE,
    READ_AT,
    RECORD,
    REQUEST,
    RESPONSE,
    STAT,
    STATE,
    SYNC,
    TRACE,
    Case,
    Raw,
    opener,
)


class Answers(Case):
    def service(self) -> Service:
        service = Service("thermometer")
        self.lines: List[Tuple[bytes, Any]] = []
        self.closed: List[int] = []

        @service.text("reading", verb="read")
        def reading(call: Call) -> str:
            return "21.5\n"

        @service.control("ctl", verb="calibrate")
        def ctl(call: Call, line: bytes) -> None:
            self.lines.append((line, call.caller))
            if not line.isdigit():
                raise OSError(errno.EINVAL, "a number")

        @ctl.reader
        def shown(call: Call) -> bytes:
            return b"calibrated\n"

        @service.session("ask", verb="read")
        def ask(session: Session, line: bytes) -> bytes:
            if line == b"bug":
                raise KeyError("bug")
            if line == b"who":
                return f"{session.caller.uid} {session.caller.gid} {session.caller.pid} {session.caller.entrance}".encode()
            session.state["count"] = session.state.get("count", 0) + 1
            session.keep(b"%d" % session.state["count"])
            return b"%d %s" % (session.state["count"], line * 3)

        @ask.opened
        def opened(session: Session) -> None:
            if session.capsule:
                if not session.capsule.isdigit():
                    raise OSError(errno.EINVAL, "no capsule of ours")
                session.state["count"] = int(session.capsule)

        @ask.closed
        def closed(session: Session) -> None:
            self.closed.append(session.number)

        @ask.ioctl
        def ioctl(session: Session, number: int, data: bytes) -> bytes:
            if number != 7:
                raise OSError(errno.ENOTTY, "no such ioctl")
            return data[::-1]

        self.assertEqual(reading(Call(services.Caller(), "reading")), "21.5\n", "a function is called by itself, too")
        return service

    def test_text_control_session_and_ioctl(self) -> None:
        self.serve(self.service())
        raw = self.consumer()
        reading, ctl, ask = (raw.ids[name] for name in ("reading", "ctl", "ask"))
        self.assertEqual((raw.export["version"], raw.export["kind"]), (1, "thermometer"))
        self.assertEqual(raw.export["files"][0]["verb"], "read")
        self.assertEqual(raw.ask(REQUEST, file=reading), b"21.5\n")
        self.refused(errno.EINVAL, REQUEST, raw=raw, file=reading, payload=b"x")
        self.assertEqual(raw.ask(REQUEST, file=ctl), b"calibrated\n")
        self.assertEqual(raw.ask(REQUEST, file=ctl, payload=b"12"), b"")
        self.refused(errno.EINVAL, REQUEST, raw=raw, file=ctl, payload=b"warm")
        self.assertEqual([line for line, _ in self.lines], [b"12", b"warm"])
        raw.open(5, ask)
        self.assertEqual(raw.ask(REQUEST, 5, ask, b"a"), b"1 aaa")
        self.assertEqual(raw.ask(REQUEST, 5, ask, b"b"), b"2 bbb")
        self.assertEqual(raw.ask(REQUEST, 5, ask, b"who"), b"1000 100 17 device")
        self.assertEqual([raw.next(CAPSULE).payload for _ in range(2)], [b"1", b"2"])
        self.assertEqual(raw.ask(CONTROL, 5, 7, b"abc"), b"cba")
        self.refused(errno.ENOTTY, CONTROL, 5, 8, b"abc", raw=raw)
        raw.open(6, ask, capsule=b"41")
        self.assertEqual(raw.ask(REQUEST, 6, ask, b""), b"42 ")
        with self.assertRaises(OSError):
            raw.open(7, ask, capsule=b"forged")
        self.refused(errno.EBADF, REQUEST, 7, ask, b"a", raw=raw)
        self.refused(errno.EIO, REQUEST, 5, ask, b"bug", raw=raw)
        state = json.loads(raw.ask(STATE))
        self.assertEqual(state["sessions"], 2)

    def test_what_is_refused(self) -> None:
        self.serve(self.service())
        raw = self.consumer()
        ask = raw.ids["ask"]
        self.refused(errno.ENOENT, REQUEST, raw=raw, file=99)
        self.refused(errno.ENOENT, OPEN, 5, 99, opener(), raw=raw)
        self.refused(errno.ENOENT, STAT, raw=raw, file=2 << 24)
        self.refused(errno.EBADF, REQUEST, 5, ask, b"a", raw=raw)
        raw.open(5, ask)
        self.refused(errno.EBADF, REQUEST, 5, raw.ids["ctl"], b"a", raw=raw)
        self.refused(errno.EMSGSIZE, REQUEST, 5, ask, bytes(64 * 1024 + 1), raw=raw)
        self.refused(errno.EMSGSIZE, CONTROL, 5, 7, bytes(16 * 1024 + 1), raw=raw)
        self.refused(errno.EBADF, CONTROL, 6, 7, b"", raw=raw)
        self.refused(errno.EBADF, READ_AT, 5, payload=bytes(12), raw=raw)
        self.refused(errno.ENOTDIR, LOOKUP, file=ask, payload=b"x", raw=raw)
        self.refused(errno.EOPNOTSUPP, OPEN, 0, 0, opener(capsule=b"x"), raw=raw)
        self.assertEqual(raw.ask(REQUEST, 5, ask, b"a"), b"1 aaa", "the session has lived through all that")
        raw.send(CLOSE, 5)
        self.refused(errno.EBADF, REQUEST, 5, ask, b"a", raw=raw)
        self.assertEqual(self.closed, [5])
        raw.send(CANCEL, tag=77)
        raw.send(CLOSE, 78)
        raw.send(CREDIT, 79, file=2**32 - 1)
        raw.open(5, ask)

    def test_what_is_not_forgiven_costs_its_sender_the_channel_and_nobody_else(self) -> None:
        self.serve(self.service())
        honest = self.consumer()
        ask = honest.ids["ask"]
        honest.open(1, ask)
        good = opener()
        wrong: List[bytes] = [
            b"",
            b"short",
            HEADER.pack(99, 0, 0, 0, 1, 0, 0),
            HEADER.pack(REQUEST, 0x80, 0, 0, 1, 0, 0),
            HEADER.pack(REQUEST, MORE, 0, 0, 1, 0, 0),
            HEADER.pack(REQUEST, 0, 5, 0, 1, 0, 0),
            HEADER.pack(REQUEST, 0, 0, 0, 1, 0, 5),
            HEADER.pack(HELLO, 0, 0, 0, 1, 0, 0),
            HEADER.pack(RESPONSE, 0, 0, 0, 1, 0, 0),
            HEADER.pack(CAPSULE, 0, 0, 0, 1, 0, 0),
            HEADER.pack(RECORD, 0, 0, 0, 1, 0, 0),
            HEADER.pack(OPEN, 0, 0, 0, 1, ask, len(good)) + good,
        ]
        number = 2**32
        for payload in (
            b"", b"{", b"[]", b"[" * 9000, b"\xff", b'{"uid":1}', opener(more=1), opener(uid=-1), opener(uid=number), opener(uid=True),
            opener(entrance=5), opener(flags=number), opener(capsule=bytes(3073)), opener(entrance="x" * 40000),
            b'{"uid":1,"gid":1,"pid":1,"entrance":"x","capsule":[256]}', b'{"uid":1,"gid":1,"pid":1,"entrance":"x","capsule":"x"}',
        ):  # fmt: skip
            wrong.append(HEADER.pack(OPEN, 0, 0, 9, 1, ask, len(payload)) + payload)
        for message in wrong:
            with self.subTest(message=message[:60]):
                hostile = self.consumer()
                hostile.channel.write(message)
                self.assert_thrown_out(hostile)
                hostile.channel.close()
        twice = self.consumer()
        twice.open(3, ask)
        twice.start(OPEN, 3, ask, opener())
        self.assert_thrown_out(twice)
        self.assertEqual(honest.ask(REQUEST, 1, ask, b"x"), b"1 xxx")

    def test_any_bytes_are_answered_or_not_forgiven(self) -> None:
        self.serve(self.service())
        seed = random.randrange(2**32)
        dice = random.Random(seed)
        with self.subTest(seed=seed):
            for _ in range(30):
                hostile = self.consumer()
                try:
                    for tag in range(40):
                        kinds = (OPEN, REQUEST, CANCEL, CLOSE, CONTROL, STATE, CREDIT, *range(LOOKUP, SYNC + 1), dice.randrange(30))
                        kind = dice.choice(kinds)
                        payload = dice.choice((b"", opener(dice.randrange(4)), dice.randbytes(dice.randrange(60))))
                        file = dice.choice((0, 1, 2, 3, 1 << 24, dice.randrange(2**32)))
                        hostile.send(kind, dice.randrange(3), tag, file, payload)
                except BrokenPipeError:
                    pass
                hostile.channel.close()
            self.assertEqual(self.consumer().ask(REQUEST), b"21.5\n")

    def test_sessions_end_with_their_consumer(self) -> None:
        self.serve(self.service())
        raw = self.consumer()
        for number in (3, 4):
            raw.open(number, raw.ids["ask"])
        raw.channel.close()
        self.until(lambda: sorted(self.closed) == [3, 4])

    def test_a_thousand_sessions_and_not_more_than_the_bound(self) -> None:
        self.serve(self.service())
        raw = self.consumer()
        ask = raw.ids["ask"]
        tags = [raw.start(OPEN, number, ask, opener()) for number in range(1, 1001)]
        for tag in tags:
            raw.answer(tag)
        for number in (1, 500, 1000):
            self.assertEqual(raw.ask(REQUEST, number, ask, b"x"), b"1 xxx")
        self.assertEqual(json.loads(raw.ask(STATE))["sessions"], 1000)
        for number in range(1001, MAX_SESSIONS + 1):
            raw.open(number, ask)
        self.refused(errno.EMFILE, OPEN, 10**9, ask, opener(), raw=raw)
        raw.send(CLOSE, 1)
        raw.open(10**9, ask)

    def test_long_answers_come_in_pieces_and_have_a_bound(self) -> None:
        service = Service("long")

        @service.session("ask", verb="read")
        def ask(session: Session, line: bytes) -> bytes:
            return b"x" * int(line)

        self.serve(service)
        raw = self.consumer()
        self.assertEqual(len(raw.ask(REQUEST, payload=b"1048576")), 1048576)
        self.refused(errno.EMSGSIZE, REQUEST, payload=b"1048577", raw=raw)
        tag = raw.start(REQUEST, payload=b"3", flags=TRACE)
        answer = raw.next(RESPONSE, tag)
        self.assertEqual((answer.flags, answer.file, answer.payload), (TRACE, 0, b"xxx"), "there are no phases")

    def test_who_never_reads_is_not_listened_to_and_nobody_else_notices(self) -> None:
        service = Service("long")

        @service.session("ask", verb="read")
        def ask(session: Session, line: bytes) -> bytes:
            return b"x" * 60000

        self.serve(service)
        deaf, honest = self.consumer(), self.consumer()
        deaf.channel.timeout = 0
        sent = 0
        try:
            while sent < 100_000:
                deaf.send(REQUEST, tag=sent)
                sent += 1
        except BlockingIOError:
            pass
        for _ in range(50):
            self.assertEqual(len(honest.ask(REQUEST)), 60000)
        self.assertLess(sent, 100_000, "its requests are left in its own ring")
        # Who reads again goes on where it was.
        deaf.channel.timeout = PATIENCE
        for tag in range(sent):
            self.assertEqual(deaf.receive().tag, tag)
        self.assertEqual(len(deaf.ask(REQUEST)), 60000)

    @unittest.mock.patch.object(_service_loop, "STALL_LIMIT_S", 0.1)
    def test_who_reads_nothing_for_too_long_is_thrown_out(self) -> None:
        service = Service("long")
        service.text("text", verb="read")(lambda call: b"x" * 100_000)
        self.serve(service)
        deaf = self.consumer()
        for tag in range(8):
            deaf.send(REQUEST, tag=tag)
        # Its channel is closed, which it sees without reading.
        self.until(lambda: broken(deaf))


def broken(raw: Raw) -> bool:
    try:
        raw.send(CANCEL)
    except BrokenPipeError:
        return True
    return False


class Streams(Case):
    def test_records_come_within_the_credit_and_go_on_after_a_capsule(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read")
        self.serve(service)
        raw = self.consumer()
        self.assertEqual(raw.export["version"], 2)
        file = raw.ids["samples"]
        raw.open(1, file)
        for number in range(5):
            samples.publish(b"record %d" % number)
        # Two records of 8 bytes and 64 bytes of overhead, and not quite a third one.
        raw.send(CREDIT, 1, file=3 * 72 - 1)
        first = raw.next(RECORD)
        self.assertEqual(first.payload[: -first.file], b"record 0")
        second = raw.next(RECORD)
        raw.ask(STATE)
        self.assertFalse(raw.others, "no credit, no record")
        raw.send(CREDIT, 1, file=1)
        self.assertEqual(raw.records(1, 1), [b"record 2"])
        raw.send(CLOSE, 1)
        raw.open(2, file, capsule=second.payload[-second.file :])
        raw.send(CREDIT, 2, file=2**32 - 1)
        self.assertEqual(raw.records(3, 2), [b"record 2", b"record 3", b"record 4"])
        with self.assertRaises(OSError) as caught:
            raw.open(3, file, capsule=b"forged")
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        raw.open(4, file, capsule=b"\xff" * 16)
        raw.send(CREDIT, 4, file=2**32 - 1)
        self.assertEqual(raw.records(5, 4)[0], b"record 0", "a capsule of another process: all that this one has")

    def test_numbered_records_are_gone_on_with_by_another_process(self) -> None:
        def made() -> Tuple[Service, services.Stream]:
            service = Service("sampler")
            return service, service.stream("samples", verb="read", numbered=True)

        service, samples = made()
        thread = self.serve(service)
        raw = self.consumer()
        raw.open(1, raw.ids["samples"])
        raw.send(CREDIT, 1, file=10_000)
        for number in (10, 20, 30):
            samples.publish(b"%d" % number, number=number)
        self.assertEqual(raw.next(RECORD).payload[:2], b"10")
        capsule = raw.next(RECORD).payload[-16:]
        service.stop()
        thread.join(PATIENCE)
        service, samples = made()
        self.serve(service)
        raw = self.consumer()
        raw.open(1, raw.ids["samples"], capsule=capsule)
        raw.send(CREDIT, 1, file=10_000)
        for number in (10, 20, 30, 40):
            samples.publish(b"%d" % number, number=number)
        self.assertEqual(raw.records(2, 1), [b"30", b"40"])
        with self.assertRaises(ValueError):
            samples.publish(b"x", number=40)
        with self.assertRaises(ValueError):
            samples.publish(b"x")
        with self.assertRaises(OSError):
            samples.publish(bytes(65537), number=50)

    def test_a_slow_reader_loses_the_oldest_and_that_is_counted(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read", history=4)
        self.serve(service)
        slow, quick = self.consumer(), self.consumer()
        for raw in (slow, quick):
            raw.open(1, raw.ids["samples"])
        quick.send(CREDIT, 1, file=2**32 - 1)
        for number in range(10):
            samples.publish(b"%d" % number)
            self.assertEqual(quick.records(1, 1), [b"%d" % number])
        slow.send(CREDIT, 1, file=2**32 - 1)
        self.assertEqual(slow.records(4, 1), [b"6", b"7", b"8", b"9"])
        self.assertEqual(json.loads(slow.ask(STATE))["dropped"], {"samples": 6})
        self.assertEqual(json.loads(quick.ask(STATE))["dropped"], {"samples": 0})

    def test_a_reader_that_never_reads_holds_nothing_up(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read", history=64)
        self.serve(service)
        deaf, quick = self.consumer(), self.consumer()
        for raw in (deaf, quick):
            raw.open(1, raw.ids["samples"])
            raw.send(CREDIT, 1, file=2**32 - 1)
            raw.ask(STATE)
        for number in range(500):
            samples.publish(b"%08d" % number * 1000)
            self.assertEqual(quick.records(1, 1)[0][:8], b"%08d" % number)
        # What it was sent fits into its ring; it goes on with what is still there.
        last = b""
        while last != b"%08d" % 499:
            last = deaf.records(1, 1)[0][:8]
        self.assertGreater(json.loads(deaf.ask(STATE))["dropped"]["samples"], 0)

    def test_who_publishes_waits_where_that_is_asked_for(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read", history=2, wait=True)
        self.serve(service)
        raw = self.consumer()
        raw.open(1, raw.ids["samples"])
        samples.publish(b"0")
        samples.publish(b"1")
        with self.assertRaises(TimeoutError):
            samples.publish(b"2", timeout=0.01)

        def publish() -> None:
            for number in range(2, 50):
                samples.publish(b"%d" % number)

        publisher = threading.Thread(target=publish)
        publisher.start()
        raw.send(CREDIT, 1, file=2**32 - 1)
        self.assertEqual(raw.records(50, 1), [b"%d" % number for number in range(50)])
        publisher.join(PATIENCE)
        samples.publish(b"x")
        samples.publish(b"y")
        # The last reader's end lets a publisher go, too.
        raw.open(2, raw.ids["samples"])
        raw.channel.close()
        for _ in range(5):
            samples.publish(b"z", timeout=PATIENCE)

    def test_new_readers_begin_with_what_is_kept_where_that_is_asked_for(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read", history=2, replay=True)
        samples.publish(b"before anybody serves")
        samples.publish(b"1")
        samples.publish(b"2")
        self.serve(service)
        raw = self.consumer()
        raw.open(1, raw.ids["samples"])
        raw.send(CREDIT, 1, file=10_000)
        self.assertEqual(raw.records(2, 1), [b"1", b"2"])

    def test_programs_write_records(self) -> None:
        service = Service("sampler")
        samples = service.stream("samples", verb="read")
        silent = service.stream("silent", verb="read")
        self.assertIsNotNone(silent)

        @samples.writer
        def wrote(session: Session, record: bytes) -> None:
            if record == b"no":
                raise OSError(errno.EDOM, "no")
            samples.publish(record.upper())

        self.serve(service)
        raw = self.consumer()
        file = raw.ids["samples"]
        raw.open(1, file, os.O_RDWR)
        raw.open(2, file, os.O_WRONLY)
        raw.send(CREDIT, 1, file=10_000)
        raw.send(CREDIT, 2, file=10_000)
        raw.ask(REQUEST, 2, file, b"one")
        self.refused(errno.EDOM, REQUEST, 2, file, b"no", raw=raw)
        self.assertEqual(raw.records(1, 1), [b"ONE"], "who opened it for writing alone reads none")
        raw.open(3, raw.ids["silent"], os.O_RDWR)
        self.refused(errno.EBADF, REQUEST, 3, raw.ids["silent"], b"x", raw=raw)
        self.refused(errno.ENOTTY, CONTROL, 1, 7, b"", raw=raw)


if __name__ == "__main__":
    unittest.main()
