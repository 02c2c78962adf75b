# SPDX-License-Identifier: MIT OR Apache-2.0
"""Channels of messages."""

from __future__ import annotations

import ctypes
import errno
from types import TracebackType
from typing import Iterator, Optional, Tuple, Type

from ._end import ChannelEnd, Name, name_bytes, options, taken, two
from ._library import READING, WRITING, checked, library
from ._memory import Buffer, Memory, pointer_to


class Loan:
    """Room in a channel for a message, to be filled in where it is::

        with channel.loan(5) as loan:
            loan.memory[:] = b"hello"

    Leaving the block sends it, unless it was sent or cancelled before, or an exception leaves the block."""

    def __init__(self, handle: int, address: int, length: int) -> None:
        """Made by :meth:`Channel.loan`."""
        self._handle = handle
        self._length = length
        self._memory = Memory(address, length, lambda: int(library.tombolo_cancel(handle)))

    @property
    def memory(self) -> memoryview:
        """The room: writable bytes, until the loan is over. What is not written is whatever the channel carried there before."""
        return self._memory.view

    def commit(self, length: Optional[int] = None) -> None:
        """Sends the first ``length`` bytes, or all. :class:`BufferError` while a slice of the memory is kept: nothing is sent then."""
        wanted = self._length if length is None else length
        if not 0 <= wanted <= self._length:
            raise ValueError(f"{wanted} bytes can't be sent of a loan of {self._length}")
        self._memory.give_back(lambda: int(library.tombolo_commit(self._handle, wanted)))

    def cancel(self) -> None:
        """Sends nothing."""
        self._memory.give_back(lambda: int(library.tombolo_cancel(self._handle)))

    def __enter__(self) -> "Loan":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._memory.is_over:
            return
        if kind is None:
            self.commit()
        else:
            self.cancel()


class View:
    """A message where it is::

        with channel.view() as message:
            if message is not None:
                print(bytes(message[:4]))

    The bytes can only be read, and only inside of the block. The other end could change them meanwhile: copy what you check first.
    ``None`` is the end of the channel."""

    def __init__(self, handle: int, address: Optional[int], length: int) -> None:
        """Made by :meth:`Channel.view`."""
        self._handle = handle
        self._memory = None
        self._shown: Optional[memoryview] = None
        if address is not None:
            self._memory = Memory(address, length, lambda: int(library.tombolo_release(handle)))
            self._shown = self._memory.view.toreadonly()

    def release(self) -> None:
        """Takes the message off the channel. :class:`BufferError` while a slice of it is kept: it is taken off when that goes."""
        if self._memory is None or self._memory.is_over:
            return
        if self._shown is not None:
            self._shown.release()
        self._memory.give_back(lambda: int(library.tombolo_release(self._handle)))

    def __enter__(self) -> Optional[memoryview]:
        return self._shown

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.release()


class Channel(ChannelEnd):
    """One end of a channel of messages: each arrives whole, once, in order. One thread may read while another writes."""

    def read(self) -> Optional[bytes]:
        """The next message; ``None`` at the end: the other end has closed, or is dead, and all that it had sent has been read."""
        start = ctypes.c_void_p()
        length = self._call(READING, lambda: int(library.tombolo_view(self._handle, ctypes.byref(start))))
        if start.value is None:
            return None
        try:
            return ctypes.string_at(start.value, length)
        finally:
            checked(library.tombolo_release(self._handle))

    def readinto(self, buffer: Buffer) -> int:
        """Reads the next message into a writable buffer and returns its length; 0 is an empty message, or the end. ``EMSGSIZE``: it is
        longer than the buffer; it stays."""
        view = memoryview(buffer)
        if view.readonly:
            raise TypeError("the buffer can only be read")
        place, size = pointer_to(view)
        return self._call(READING, lambda: int(library.tombolo_read(self._handle, place, size)))

    def write(self, message: Buffer) -> None:
        """Sends a message. :class:`BrokenPipeError`: the other end has closed or is dead, which shows at the latest when there is no room.
        A message that fails has not been sent, not even in part; so one longer than half a ring, which goes in pieces, wants a time-out
        other than 0."""
        place, size = pointer_to(message)
        try:
            self._call(WRITING, lambda: int(library.tombolo_write(self._handle, place, size)))
        except BaseException as error:
            # A long message may have gone in part. The next one is another, though it may lie at the same place.
            if not isinstance(error, OSError) or error.errno in (errno.ETIMEDOUT, errno.EAGAIN):
                library.tombolo_cancel(self._handle)
            raise

    def loan(self, length: int) -> Loan:
        """Room for a message of ``length`` bytes, to be filled in where it is. Until it is sent or cancelled, nothing else can be
        written."""
        found: Optional[int] = None

        def lend() -> int:
            nonlocal found
            found = library.tombolo_loan(self._handle, length)
            return -1 if found is None else 0

        if length < 0:
            raise ValueError("a message has no negative length")
        self._call(WRITING, lend)
        assert found is not None
        return Loan(self._handle, found, length)

    def view(self) -> View:
        """The next message where it is. Until it is released, nothing else can be read."""
        start = ctypes.c_void_p()
        length = self._call(READING, lambda: int(library.tombolo_view(self._handle, ctypes.byref(start))))
        return View(self._handle, start.value, length)

    def set_message_limit(self, limit_bytes: int) -> None:
        """Takes messages of up to so many bytes from the other end, which hears of it; by default, and at least, those that fit into a
        little less than half a ring. Set it before you read."""
        checked(library.tombolo_set_message_limit(self._handle, limit_bytes))

    @property
    def max_message(self) -> int:
        """Bytes of the longest message that the other end takes."""
        return checked(library.tombolo_max_message(self._handle))

    def __iter__(self) -> Iterator[bytes]:
        """The messages, until the end."""
        while True:
            message = self.read()
            if message is None:
                return
            yield message


def open(
    name: Name,
    *,
    wait: Optional[float] = 0.0,
    timeout: Optional[float] = None,
    any_user: bool = False,
    spin: bool = True,
    batch_bytes: int = 0,
) -> Channel:
    """Opens the channel that is offered under a name.

    ``wait``: how long (in seconds) to wait for somebody to offer it; 0, somebody must; ``None``, as long as it takes. ``timeout`` is that of
    the channel. ``any_user``: it may be another user's program, at a path. Not ``spin``: sleep at once instead of watching for some
    microseconds. ``batch_bytes``: see :meth:`Channel.set_batch`."""
    made = options(any_user=any_user, spin=spin, batch_bytes=batch_bytes, wait=wait)
    return Channel(checked(library.tombolo_open(name_bytes(name), made)), timeout)


def pair(*, ring_bytes: int = 0, spin: bool = True, batch_bytes: int = 0) -> Tuple[Channel, Channel]:
    """A channel with both ends here: for threads, or for a parent and its child. An end belongs to the process that first uses it."""
    one, other = two(options(ring_bytes=ring_bytes, spin=spin, batch_bytes=batch_bytes))
    return Channel(one), Channel(other)


def from_descriptors(descriptors: Tuple[int, ...], *, spin: bool = True, batch_bytes: int = 0) -> Channel:
    """Takes over the descriptors of an end (:meth:`Channel.descriptors`), from somebody trusted."""
    return Channel(taken(descriptors, options(spin=spin, batch_bytes=batch_bytes)))
