# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a Python program sees of endpoints. Run by bin/libtombolo/tests/python.rs, which names the library and starts a daemon."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import threading
import time
import unittest
from typing import Callable, List, Optional
from unittest import mock

import tombolo
from tombolo import Kind

# Longer than anything takes on a busy machine.
PATIENCE = 20.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class Case(unittest.TestCase):
    def pair(self) -> None:
        """Two endpoints that know each other."""
        self.one, self.other = tombolo.endpoint_pair()
        self.addCleanup(self.one.close)
        self.addCleanup(self.other.close)
        self.at_one, self.at_other = self.one.address, self.other.address


class Calls(Case):
    def setUp(self) -> None:
        self.pair()

    def test_messages_and_notices(self) -> None:
        one, other = self.one, self.other
        one.send_buffered(self.at_other, b"hello", tag=7)
        one.send_buffered(self.at_other, bytearray(b"array"))
        one.send_buffered(self.at_other)
        one.flush()
        message = other.receive(timeout=PATIENCE)
        self.assertEqual(
            message, tombolo.Message(Kind.MESSAGE, self.at_one, 7, b"hello", 0, 0, 0)
        )
        self.assertEqual(other.receive(self.at_one).data, b"array")
        self.assertEqual(other.receive().data, b"")
        one.notify(self.at_other, 1)
        one.notify(self.at_other, 1 << 63)
        message = other.receive()
        self.assertEqual((message.kind, message.notices, message.data), (Kind.NOTICES, 1 << 63 | 1, b""))
        with self.assertRaises(ValueError):
            one.notify(self.at_other, 1 << 64)

    def test_addresses_are_numbers_that_people_can_read(self) -> None:
        self.assertEqual((str(self.at_other), self.at_other.place, self.at_other.generation), ("2.1", 2, 1))
        self.assertEqual(repr(self.at_other), "<tombolo.Address 2.1>")
        self.assertEqual({self.at_one: "one"}[tombolo.Address(1 << 32 | 1)], "one")

    def test_a_message_longer_than_any_before(self) -> None:
        most = self.one.max_message(self.at_other)
        data = os.urandom(most)
        self.one.send_buffered(self.at_other, data)
        self.one.send_buffered(self.at_other, b"next")
        self.assertEqual(self.other.receive().data, data)
        self.assertEqual(self.other.receive().data, b"next")
        with self.assertRaises(tombolo.TooLong) as caught:
            self.one.send(self.at_other, bytes(most + 1))
        self.assertEqual(caught.exception.errno, errno.EMSGSIZE)

    def test_requests(self) -> None:
        one, other = self.one, self.other

        def serve() -> None:
            for message in other:
                if message.kind is not Kind.REQUEST:
                    return
                other.reply(message, message.data.upper(), tag=message.tag + 1)

        server = in_thread(serve)
        for tag in range(200):
            reply = one.call(self.at_other, b"question", tag=tag, timeout=PATIENCE)
            self.assertEqual((reply.kind, reply.tag, reply.source), (Kind.REPLY, tag + 1, self.at_other))
            self.assertEqual(reply.data, b"QUESTION")
        one.notify(self.at_other, 1)
        server.join(PATIENCE)

    def test_a_reply_that_is_too_long_or_late(self) -> None:
        one, other = self.one, self.other
        received: List[tombolo.Message] = []
        server = in_thread(lambda: received.append(other.receive()))
        with self.assertRaises(tombolo.TimedOut) as caught:
            one.call(self.at_other, b"x", takes=4, timeout=0.2)
        server.join(PATIENCE)
        self.assertTrue(caught.exception.received)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertEqual(received[0].takes, 4)
        with self.assertRaises(tombolo.TooLong):
            other.reply(received[0], b"12345")
        with self.assertRaises(tombolo.Canceled):
            other.reply(received[0], b"1234")
        # One that nobody received was withdrawn.
        with self.assertRaises(tombolo.TimedOut) as caught:
            one.call(self.at_other, b"y", timeout=0.01)
        self.assertFalse(caught.exception.received)
        with self.assertRaises(tombolo.WouldWait):
            other.receive(timeout=0)

    def test_a_rendezvous(self) -> None:
        with self.assertRaises(tombolo.TimedOut):
            self.one.send(self.at_other, b"lost", timeout=0.01)
        with self.assertRaises(BlockingIOError):
            self.one.send(self.at_other, b"lost", timeout=0)
        received: List[tombolo.Message] = []
        receiver = in_thread(lambda: received.append(self.other.receive(self.at_one)))
        self.one.send(self.at_other, b"here", tag=3)
        receiver.join(PATIENCE)
        self.assertEqual((received[0].data, received[0].tag), (b"here", 3))

    def test_nobody(self) -> None:
        one = self.one
        with self.assertRaises(tombolo.NotBound):
            one.send(tombolo.Address(1 << 32 | 9), b"x")
        with self.assertRaises(tombolo.WrongGeneration):
            one.call(tombolo.Address(7 << 32 | 2), b"x")
        with self.assertRaises(OSError) as caught:
            one.send(self.at_one, b"x")
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.other.send_buffered(self.at_one, b"last")
        self.other.close()
        self.assertEqual(one.receive(self.at_other).data, b"last")
        with self.assertRaises(BrokenPipeError) as broken:
            one.receive(self.at_other)
        self.assertIsInstance(broken.exception, tombolo.Dead)
        with self.assertRaises(tombolo.Dead):
            one.call(self.at_other, b"x")
        # It may be forgotten already.
        self.assertNotIn(True, [peer.is_alive for peer in one.peers()])

    def test_a_deadlock_is_told_to_one(self) -> None:
        told: List[str] = []

        def wait_for(endpoint: tombolo.Endpoint, peer: tombolo.Address) -> None:
            try:
                endpoint.call(peer, b"x", timeout=PATIENCE)
            except tombolo.Deadlock:
                told.append("deadlock")
                endpoint.reply(endpoint.receive(peer, timeout=PATIENCE), b"")

        other = in_thread(lambda: wait_for(self.other, self.at_one))
        wait_for(self.one, self.at_other)
        other.join(PATIENCE)
        self.assertEqual(told, ["deadlock"])

    def test_peers(self) -> None:
        (peer,) = self.one.peers()
        self.assertEqual((peer.address, peer.name, peer.is_alive), (self.at_other, "", True))
        self.assertEqual(peer.rights, tombolo.Rights(255))
        self.assertEqual(self.one.peer(self.at_other), peer)
        with self.assertRaises(tombolo.NotBound):
            self.one.peer(tombolo.Address(1 << 32 | 9))

    def test_closing_wakes_who_waits(self) -> None:
        errors: List[Optional[int]] = []

        def wait() -> None:
            try:
                self.one.receive()
            except OSError as error:
                errors.append(error.errno)

        waiting = in_thread(wait)
        time.sleep(0.05)
        self.one.close()
        waiting.join(PATIENCE)
        self.assertEqual(errors, [errno.EBADF])

    def test_signals_run_while_a_call_waits(self) -> None:
        class Interrupted(Exception):
            pass

        rung: List[int] = []

        def ring(number: int, frame: object) -> None:
            rung.append(number)
            if len(rung) == 3:
                raise Interrupted

        before = signal.signal(signal.SIGALRM, ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        for wait in (
            lambda: self.one.receive(),
            lambda: self.one.send(self.at_other, b"x"),
            lambda: self.one.call(self.at_other, b"x"),
            lambda: self.one.wait_readable(),
        ):
            rung.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            with self.assertRaises(Interrupted):
                wait()
            signal.setitimer(signal.ITIMER_REAL, 0)
            # What an exception has ended was given up.
            with self.assertRaises(tombolo.WouldWait):
                self.other.receive(timeout=0)
        self.one.send_buffered(self.at_other, b"after")
        self.assertEqual(self.other.receive(timeout=PATIENCE).data, b"after")

    def test_wrong_arguments(self) -> None:
        with self.assertRaises(ValueError):
            self.one.receive(timeout=-1)
        with self.assertRaises(ValueError):
            self.one.copy_in(0, 4)
        with self.assertRaises(ValueError):
            self.one.copy_in(1, -4)
        with self.assertRaises(ValueError):
            self.one.buffer(4096, "everything")
        with self.assertRaises(TypeError):
            self.one.copy_into(1, b"constant")
        with self.assertRaises(OSError) as caught:
            self.one.buffer(4096)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)


class Loops(Case):
    def setUp(self) -> None:
        self.pair()

    def test_select(self) -> None:
        with self.assertRaises(tombolo.WouldWait):
            self.one.receive(timeout=0)
        self.assertEqual(select.select([self.one], [], [], 0), ([], [], []))
        for number in range(50):
            self.other.send_buffered(self.at_one, str(number).encode())
            self.assertEqual(select.select([self.one], [], [], PATIENCE)[0], [self.one])
            self.assertEqual(self.one.receive(timeout=0).data, str(number).encode())
            with self.assertRaises(tombolo.WouldWait):
                self.one.receive(timeout=0)
        self.assertFalse(self.one.wait_readable(0.01))

    def test_asyncio(self) -> None:
        async def receive(endpoint: tombolo.Endpoint) -> tombolo.Message:
            loop = asyncio.get_running_loop()
            while True:
                try:
                    return endpoint.receive(timeout=0)
                except tombolo.WouldWait:
                    readable = loop.create_future()
                    loop.add_reader(endpoint.fileno(), readable.set_result, None)
                    try:
                        await readable
                    finally:
                        loop.remove_reader(endpoint.fileno())

        async def main() -> List[bytes]:
            async def send() -> None:
                for number in range(20):
                    await asyncio.sleep(0.001)
                    self.other.send_buffered(self.at_one, str(number).encode())

            sending = asyncio.ensure_future(send())
            received = [(await asyncio.wait_for(receive(self.one), PATIENCE)).data for _ in range(20)]
            await sending
            return received

        self.assertEqual(asyncio.run(main()), [str(number).encode() for number in range(20)])


class Bound(Case):
    def setUp(self) -> None:
        control = os.environ.get("TOMBOLO_TEST_DAEMON")
        if control is None:
            self.skipTest("there is no daemon: run by `cargo test -p libtombolo`")
        domain = mock.patch.dict(os.environ, {"TOMBOLO_CONTROL": control})
        domain.start()
        self.addCleanup(domain.stop)

    def bound(self, name: Optional[str] = None, wait: Optional[float] = PATIENCE) -> tombolo.Endpoint:
        endpoint = tombolo.Endpoint(name, wait=wait)
        self.addCleanup(endpoint.close)
        return endpoint

    def test_names(self) -> None:
        planner, nameless = self.bound("planner"), self.bound()
        self.assertEqual((planner.name, nameless.name), ("planner", ""))
        there = nameless.find("planner")
        self.assertEqual(there, planner.address)
        self.assertEqual(nameless.wait(str(there), timeout=1), there)
        self.assertEqual(nameless.find(there), there)
        (peer,) = nameless.peers()
        self.assertEqual((peer.name, peer.domain), ("planner", "a"))
        with self.assertRaises(OSError) as caught:
            tombolo.Endpoint("planner")
        self.assertEqual(caught.exception.errno, errno.EADDRINUSE)
        with self.assertRaises(tombolo.TimedOut):
            tombolo.Endpoint("planner", wait=0.3)
        with self.assertRaises(FileNotFoundError):
            planner.find("unknown")
        with self.assertRaises(FileNotFoundError):
            tombolo.Endpoint("unknown")
        with self.assertRaises(tombolo.NotBound):
            planner.find("motor")
        with self.assertRaises(tombolo.TimedOut):
            planner.wait("motor", timeout=0.05)
        wall = self.bound("wall")
        with self.assertRaises(PermissionError):
            planner.find("wall")
        with self.assertRaises(tombolo.Refused):
            wall.wait("planner")

    def test_one_that_comes_later(self) -> None:
        planner = self.bound("planner")
        motors: List[tombolo.Endpoint] = []

        def bind() -> None:
            time.sleep(0.05)
            motors.append(self.bound("motor"))

        binding = in_thread(bind)
        there = planner.wait("motor", timeout=PATIENCE)
        binding.join(PATIENCE)
        self.assertEqual(there, motors[0].address)
        motors[0].close()
        successor = self.bound("motor")
        self.assertEqual(planner.wait("motor"), successor.address)
        self.assertEqual(successor.address.place, there.place)
        with self.assertRaises(tombolo.WrongGeneration):
            planner.send(there, b"x")

    def test_waits_for_names_hear_signals(self) -> None:
        class Interrupted(Exception):
            pass

        def ring(number: int, frame: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        planner = self.bound("planner")
        for wait in (lambda: planner.wait("motor"), lambda: tombolo.Endpoint("planner", wait=None)):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(Interrupted):
                wait()

    def test_grants(self) -> None:
        owner, user = self.bound("planner"), self.bound("motor")
        there = owner.find("motor")
        with owner.buffer(1 << 20) as frame, owner.buffer(4096, access="write") as answer:
            grant, back = owner.grant(frame, there), owner.grant(answer, there)
            frame.write(1000, b"golden")
            self.assertEqual(len(frame), 1 << 20)
            self.assertEqual(user.granted(grant), tombolo.Granted(grant, owner.address, 1 << 20, False))
            self.assertTrue(user.granted(back).writable)
            self.assertEqual(user.copy_in(grant, 6, 1000), b"golden")
            into = bytearray(8)
            user.copy_into(grant, memoryview(into)[2:], 1000)
            self.assertEqual(into, b"\0\0golden")
            user.copy_out(b"copied", back, 7)
            self.assertEqual(answer.read(7, 6), b"copied")
            self.assertEqual(len(answer.read(4000)), 96)
            user.copy(grant, back, 6, from_offset=1000, to_offset=100)
            self.assertEqual(answer.read(100, 6), b"golden")
            with user.buffer(100) as own:
                user.copy_to_own(grant, own, 6, from_offset=1000, to_offset=50)
                self.assertEqual(own.read(50, 6), b"golden")
                user.copy_from_own(own, back, 6, from_offset=50, to_offset=200)
                self.assertEqual(answer.read(200, 6), b"golden")
                with self.assertRaises(OSError) as caught:
                    user.copy_to_own(grant, own, 6, to_offset=95)
                self.assertEqual(caught.exception.errno, errno.ERANGE)
            with self.assertRaises(tombolo.Refused):
                user.copy_out(b"x", grant)
            with self.assertRaises(OSError) as caught:
                user.copy_in(grant, 4, 1 << 20)
            self.assertEqual(caught.exception.errno, errno.ERANGE)
            owner.revoke(answer, back)
            with self.assertRaises(tombolo.Revoked):
                user.copy_out(b"late", back, 7)
            self.assertEqual(answer.read(7, 6), b"copied")
        with self.assertRaises(tombolo.Revoked):
            user.copy_in(grant, 1)
        with self.assertRaises(FileNotFoundError):
            user.copy_in(12345678901, 1)

    def test_a_program_that_is_killed_is_dead(self) -> None:
        planner = self.bound("planner")
        child = os.fork()
        if child == 0:
            try:
                with self.assertRaises(tombolo.WrongGeneration):
                    planner.receive(timeout=0)
                planner.close()
                motor = tombolo.Endpoint("motor", wait=PATIENCE)
                motor.send_buffered(motor.wait("planner", timeout=PATIENCE), b"here")
                motor.receive(timeout=PATIENCE)
            finally:
                os._exit(1)
        message = planner.receive(timeout=PATIENCE)
        self.assertEqual(message.data, b"here")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with self.assertRaises(tombolo.Dead):
            planner.call(message.source, b"x")
        with self.assertRaises(tombolo.Dead):
            planner.receive(message.source)


if __name__ == "__main__":
    unittest.main()
