# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a Python program sees of channels. Run by bin/libtombolo/tests/python.rs, which names the library."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import List

import tombolo

# Longer than anything takes on a busy machine.
PATIENCE = 20.0


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "meet"

    def assert_errno(self, number: int, error: OSError) -> None:
        self.assertEqual(error.errno, number)
        self.assertTrue(error.strerror)


class Messages(Case):
    def test_messages_come_whole_and_in_order(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            one.write(b"hello")
            one.write(b"")
            one.write(bytearray(b"array"))
            one.write(memoryview(b"-view-")[1:5])
            self.assertEqual(other.read(), b"hello")
            self.assertEqual(other.read(), b"")
            self.assertEqual([other.read(), other.read()], [b"array", b"view"])
            other.write(b"back")
            self.assertEqual(one.read(), b"back")
            one.write(b"last")
            one.close()
            self.assertEqual(list(other), [b"last"])
            self.assertIsNone(other.read())
            with self.assertRaises(BrokenPipeError):
                other.write(b"x")

    def test_a_buffer_that_is_too_short_costs_nothing(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            one.write(b"hello")
            with self.assertRaises(OSError) as caught:
                other.readinto(bytearray(4))
            self.assert_errno(errno.EMSGSIZE, caught.exception)
            buffer = bytearray(8)
            self.assertEqual(other.readinto(buffer), 5)
            self.assertEqual(buffer, b"hello\0\0\0")
            with self.assertRaises(TypeError):
                other.readinto(b"constant")
            with self.assertRaises(OSError) as caught:
                one.write(bytes(one.max_message + 1))
            self.assert_errno(errno.EMSGSIZE, caught.exception)

    def test_time_outs(self) -> None:
        one, other = tombolo.pair(ring_bytes=4096)
        with one, other:
            one.timeout = 0
            with self.assertRaises(BlockingIOError):
                one.read()
            one.timeout = 0.05
            start = time.monotonic()
            with self.assertRaises(TimeoutError) as caught:
                one.read()
            self.assertGreaterEqual(time.monotonic() - start, 0.05)
            self.assert_errno(errno.ETIMEDOUT, caught.exception)
            with self.assertRaises(TimeoutError):
                for _ in range(10):
                    one.write(bytes(1000))
            self.assertFalse(one.wait_writable(0.01))
            for _ in range(2):
                other.read()
            self.assertTrue(one.wait_writable(PATIENCE))
            self.assertFalse(one.wait_readable(0))
            with self.assertRaises(ValueError):
                one.timeout = -1

    def test_a_message_longer_than_a_ring_goes_in_pieces(self) -> None:
        one, other = tombolo.pair(ring_bytes=4096)
        with one, other:
            data = os.urandom(1_000_000)
            with self.assertRaises(OSError) as caught:
                one.write(data)
            self.assert_errno(errno.EMSGSIZE, caught.exception)
            other.set_message_limit(len(data))
            self.assertEqual(one.max_message, len(data))
            # A reader that comes late makes the writer go on where it was.
            one.timeout = 0.05
            with self.assertRaises(TimeoutError):
                one.write(data)
            one.timeout = None
            writer = threading.Thread(target=lambda: one.write(data))
            writer.start()
            self.assertEqual(other.read(), data)
            writer.join()

    def test_batches_show_when_they_are_flushed(self) -> None:
        one, other = tombolo.pair(batch_bytes=1000)
        with one, other:
            other.timeout = 0
            one.write(b"a")
            with self.assertRaises(BlockingIOError):
                other.read()
            one.flush()
            self.assertEqual(other.read(), b"a")
            one.set_batch(0)
            one.write(b"b")
            self.assertEqual(other.read(), b"b")

    def test_a_long_wait_ends_with_its_message(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            # Longer than the library watches and naps.
            timer = threading.Timer(0.1, one.write, [b"late"])
            timer.start()
            self.assertEqual(other.read(), b"late")
            timer.join()

    def test_one_thread_reads_while_another_writes(self) -> None:
        one, other = tombolo.pair()
        count = 2000

        def echo() -> None:
            for message in other:
                other.write(message)

        def send() -> None:
            for number in range(count):
                one.write(b"%d" % number)

        threads = [threading.Thread(target=echo), threading.Thread(target=send)]
        for thread in threads:
            thread.start()
        for number in range(count):
            self.assertEqual(one.read(), b"%d" % number)
        one.close()
        for thread in threads:
            thread.join()
        other.close()

    def test_closing_wakes_who_waits(self) -> None:
        one, other = tombolo.pair()
        with other:
            timer = threading.Timer(0.1, one.close)
            timer.start()
            with self.assertRaises(OSError) as caught:
                one.read()
            self.assert_errno(errno.EBADF, caught.exception)
            timer.join()

    def test_signals_run_while_a_call_waits(self) -> None:
        one, other = tombolo.pair()

        class Interrupted(Exception):
            pass

        def interrupt(number: int, frame: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with one, other:
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                with self.assertRaises(Interrupted):
                    one.read()
                signal.setitimer(signal.ITIMER_REAL, 0)
                other.write(b"as before")
                self.assertEqual(one.read(), b"as before")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class InPlace(Case):
    def test_a_loan_is_sent_at_the_end_of_its_block(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            with one.loan(5) as loan:
                loan.memory[:] = b"hello"
                with self.assertRaises(OSError) as caught:
                    one.write(b"x")
                self.assert_errno(errno.EBUSY, caught.exception)
            self.assertEqual(other.read(), b"hello")
            with one.loan(100) as loan:
                loan.memory[:2] = b"hi"
                loan.commit(2)
            self.assertEqual(other.read(), b"hi")
            with one.loan(0):
                pass
            self.assertEqual(other.read(), b"")
            with self.assertRaises(ValueError):
                loan.memory[0]
            with self.assertRaises(ValueError):
                loan.commit()
            with self.assertRaises(ValueError):
                one.loan(3).commit(4)

    def test_a_loan_that_fails_sends_nothing(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            other.timeout = 0
            with self.assertRaises(KeyError):
                with one.loan(5) as loan:
                    loan.memory[:] = b"wrong"
                    raise KeyError
            with one.loan(5) as loan:
                loan.cancel()
            one.loan(5)
            one.write(b"right")
            self.assertEqual(other.read(), b"right")
            with self.assertRaises(BlockingIOError):
                other.read()

    def test_a_view_is_read_only_and_ends_with_its_block(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            one.write(b"hello")
            one.write(b"")
            with other.view() as message:
                assert message is not None
                self.assertEqual(bytes(message), b"hello")
                self.assertTrue(message.readonly)
                with self.assertRaises(TypeError):
                    message[0] = 1
                with self.assertRaises(OSError) as caught:
                    other.read()
                self.assert_errno(errno.EBUSY, caught.exception)
            with self.assertRaises(ValueError):
                bytes(message)
            with other.view() as message:
                self.assertEqual(message, b"")
            one.close()
            with other.view() as message:
                self.assertIsNone(message)

    def test_a_slice_that_is_kept_keeps_the_memory(self) -> None:
        one, other = tombolo.pair()
        one.write(b"hello")
        one.write(b"next")
        view = other.view()
        with self.assertRaises(BufferError):
            with view as message:
                assert message is not None
                kept = message[1:3]
        self.assertEqual(bytes(kept), b"el")
        with self.assertRaises(OSError) as caught:
            other.read()
        self.assert_errno(errno.EBUSY, caught.exception)
        del kept
        self.assertEqual(other.read(), b"next")
        # Even when the channel is closed under it.
        one.write(b"closing")
        with self.assertRaises(BufferError):
            with other.view() as message:
                assert message is not None
                kept = message[:]
        loan = one.loan(4)
        one.close()
        other.close()
        self.assertEqual(bytes(kept), b"closing")
        loan.memory[:] = b"gone"
        with self.assertRaises(BrokenPipeError):
            loan.commit()
        kept.release()

    def test_a_loan_with_a_slice_kept_is_not_sent(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            with self.assertRaises(BufferError):
                with one.loan(5) as loan:
                    kept = loan.memory[:2]
            kept[:] = b"ab"
            del kept
            one.write(b"only this")
            self.assertEqual(other.read(), b"only this")


class Streams(Case):
    def test_bytes_have_no_seams(self) -> None:
        one, other = tombolo.stream_pair()
        with one, other:
            self.assertEqual(one.write(b"hello "), 6)
            one.write(b"world")
            self.assertEqual(other.read(3), b"hel")
            self.assertEqual(other.read(), b"lo world")
            one.finish()
            self.assertEqual(other.read(), b"")
            other.write(b"still here")
            self.assertEqual(one.read(), b"still here")
            with self.assertRaises(BrokenPipeError):
                one.write(b"x")
            with self.assertRaises(ValueError):
                other.read(-1)

    def test_a_long_write_goes_through_a_small_ring(self) -> None:
        one, other = tombolo.stream_pair(ring_bytes=4096)
        data = os.urandom(300_000)

        def write() -> None:
            one.write(data)
            one.finish()

        writer = threading.Thread(target=write)
        writer.start()
        got: List[bytes] = []
        while piece := other.read(10_000):
            got.append(piece)
        writer.join()
        self.assertEqual(b"".join(got), data)
        one.close()
        other.close()

    def test_a_stream_is_not_opened_as_messages(self) -> None:
        with tombolo.offer_stream(self.path) as offer:
            opener = threading.Thread(target=lambda: offer.accept().close())
            opener.start()
            with self.assertRaises(OSError) as caught:
                tombolo.open(self.path)
            self.assert_errno(errno.EPROTOTYPE, caught.exception)
            opener.join()


class Meeting(Case):
    def test_each_opener_gets_a_channel(self) -> None:
        with tombolo.offer(self.path, timeout=PATIENCE) as offer:

            def opened() -> None:
                with tombolo.open(self.path) as channel:
                    channel.write(channel.read() or b"")

            threads = [threading.Thread(target=opened) for _ in range(3)]
            for thread in threads:
                thread.start()
            channels = [offer.accept() for _ in threads]
            for number, channel in enumerate(channels):
                self.assertEqual(channel.peer, f"uid {os.geteuid()} pid {os.getpid()}")
                channel.write(b"%d" % number)
                self.assertEqual(channel.read(), b"%d" % number)
                channel.close()
            for thread in threads:
                thread.join()
        self.assertFalse(self.path.exists())

    def test_errors_are_those_of_files(self) -> None:
        with self.assertRaises(FileNotFoundError) as caught:
            tombolo.open(self.path)
        self.assertIn(str(self.path), str(caught.exception))
        with self.assertRaises(TimeoutError):
            tombolo.open(self.path, wait=0.02)
        with self.assertRaises(OSError) as refused:
            tombolo.open("/" + "x" * 200)
        self.assert_errno(errno.ENAMETOOLONG, refused.exception)
        with self.assertRaises(ConnectionRefusedError):
            tombolo.open("a-service-without-a-domain")
        with self.assertRaises(ValueError):
            tombolo.open("a\0b")
        with tombolo.offer(self.path):
            with self.assertRaises(OSError) as refused:
                tombolo.offer(self.path)
            self.assert_errno(errno.EADDRINUSE, refused.exception)
        self.path.write_bytes(b"a file")
        with self.assertRaises(FileExistsError):
            tombolo.offer(self.path)
        # A path object is a path, also without a slash.
        before = os.getcwd()
        os.chdir(self.path.parent)
        try:
            with tombolo.offer(Path("here")):
                self.assertTrue(Path("here").is_socket())
        finally:
            os.chdir(before)

    def test_ends_travel_as_descriptors(self) -> None:
        one, other = tombolo.pair()
        ours, theirs = socket.socketpair()
        with one, ours, theirs:
            numbers = other.descriptors()
            self.assertTrue(other.closed)
            socket.send_fds(ours, [b"end"], list(numbers))
            for number in numbers:
                os.close(number)
            _, received, _, _ = socket.recv_fds(theirs, 16, tombolo.DESCRIPTORS)
            with tombolo.from_descriptors(tuple(received)) as again:
                one.write(b"hello")
                self.assertEqual(again.read(), b"hello")
                with self.assertRaises(OSError) as caught:
                    again.descriptors()
                self.assert_errno(errno.EALREADY, caught.exception)
            with self.assertRaises(ValueError):
                tombolo.from_descriptors((1, 2))


class Polling(Case):
    def test_select(self) -> None:
        one, other = tombolo.pair()
        with one, other:
            self.assertEqual(select.select([one], [], [], 0), ([], [], []))
            other.write(b"hello")
            self.assertEqual(select.select([one], [], [], PATIENCE)[0], [one])
            self.assertEqual(one.read(), b"hello")
            self.assertEqual(select.select([one], [], [], 0)[0], [])
            other.close()
            self.assertEqual(select.select([one], [], [], PATIENCE)[0], [one])
            self.assertIsNone(one.read())

    def test_asyncio(self) -> None:
        async def converse() -> List[bytes]:
            loop = asyncio.get_running_loop()
            one, other = tombolo.pair()
            one.timeout = other.timeout = 0
            got: List[bytes] = []
            over = loop.create_future()

            def readable() -> None:
                try:
                    for message in other:
                        got.append(message)
                except BlockingIOError:
                    return
                loop.remove_reader(other.fileno())
                over.set_result(None)

            loop.add_reader(other.fileno(), readable)
            for number in range(3):
                one.write(b"%d" % number)
                await asyncio.sleep(0)
            one.close()
            await asyncio.wait_for(over, PATIENCE)
            other.close()
            return got

        self.assertEqual(asyncio.run(converse()), [b"0", b"1", b"2"])


PROGRAM = """
import sys, time, tombolo
channel = tombolo.open(sys.argv[1], wait=20)
channel.write(b"last words")
channel.read()
"""


class Death(Case):
    def test_a_program_that_is_killed_is_the_end(self) -> None:
        with tombolo.offer(self.path, timeout=PATIENCE) as offer:
            program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(self.path)])
            channel = offer.accept()
            self.assertTrue(channel.wait_readable(PATIENCE))
            program.kill()
            self.assertEqual(channel.read(), b"last words")
            self.assertIsNone(channel.read())
            with self.assertRaises(BrokenPipeError):
                while True:
                    channel.write(b"anybody?")
            channel.close()
            program.wait()

    def test_a_forks_child_has_its_own_ends_only(self) -> None:
        used, peer = tombolo.pair()
        one, other = tombolo.pair()
        used.write(b"ours")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                one.close()
                assert other.read() == b"hello"
                try:
                    used.write(b"x")
                except OSError as error:
                    assert error.errno == errno.ESTALE
                    status = 0
            finally:
                os._exit(status)
        other.close()
        one.write(b"hello")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIsNone(one.read())
        self.assertEqual(peer.read(), b"ours")
        for end in (used, peer, one):
            end.close()

    def test_what_is_forgotten_is_closed(self) -> None:
        one, other = tombolo.pair()
        other.write(b"x")
        with self.assertWarns(ResourceWarning):
            del other
            gc.collect()
        self.assertEqual(list(one), [b"x"])
        one.close()
        with self.assertRaises(OSError) as caught:
            one.read()
        self.assert_errno(errno.EBADF, caught.exception)
        one.close()
        self.assertIn("closed", repr(one))


if __name__ == "__main__":
    unittest.main()
