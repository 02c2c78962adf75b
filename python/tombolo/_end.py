# SPDX-License-Identifier: MIT OR Apache-2.0
"""What channels, streams, offers and endpoints have in common: a handle, time-outs, descriptors to poll."""

from __future__ import annotations

import ctypes
import errno
import os
import time
import warnings
from typing import Callable, NoReturn, Optional, Tuple, Type, TypeVar, Union

from . import _library
from ._library import FOREVER, READING, WRITING, Options, checked, library, raise_error

#: What names a channel: a path if there is a ``/`` in it, or if it is a :class:`os.PathLike`; else a service.
Name = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

#: How many descriptors make an end of a channel.
DESCRIPTORS = 5

# Calls of the C library are given this long at a time: they watch and nap for that long, which is quick; what takes longer sleeps in
# a call that signals interrupt, so that Python's handlers (and Ctrl-C) run.
_HOT_NS = 5_000_000

Self = TypeVar("Self", bound="Handle")


def name_bytes(name: Name) -> bytes:
    """The bytes of a name, in which a path has a slash."""
    encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("a name has no NUL in it")
    if b"/" not in encoded and not isinstance(name, (str, bytes)):
        return b"./" + encoded
    return encoded


def nanoseconds(seconds: Optional[float]) -> int:
    """A time-out in seconds as the library takes it; ``None`` is for ever."""
    if seconds is None:
        return FOREVER
    if seconds < 0:
        raise ValueError("a time-out is not negative; None is to wait for ever")
    return min(int(seconds * 1_000_000_000), 2**63 - 1)


def options(
    *,
    stream: bool = False,
    any_user: bool = False,
    spin: bool = True,
    ring_bytes: int = 0,
    batch_bytes: int = 0,
    wait: Optional[float] = 0.0,
) -> Options:
    """``struct tombolo_options``."""
    flags = 0
    flags |= _library.STREAM if stream else 0
    flags |= _library.ANY_USER if any_user else 0
    flags |= 0 if spin else _library.NO_SPIN
    for value in (ring_bytes, batch_bytes):
        if not 0 <= value < 2**32:
            raise ValueError("a size has 0 to 2**32 - 1 bytes")
    return Options(ctypes.sizeof(Options), flags, ring_bytes, batch_bytes, nanoseconds(wait))


class Handle:
    """A handle of the library. Closed by :meth:`close`, at the end of a ``with`` block, or when it is forgotten."""

    _handle = -1

    @property
    def closed(self) -> bool:
        """Whether it has been closed here."""
        return self._handle == -1

    def close(self) -> None:
        """Closes it: a channel for both directions, an offer for new openers, an endpoint for good. Does nothing the second time."""
        handle, self._handle = self._handle, -1
        if handle != -1:
            checked(library.tombolo_close(handle))

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to read or accept, or the end: for :mod:`select`, :mod:`selectors` and
        ``add_reader`` of :mod:`asyncio`. It belongs to this object: only poll it, and not longer than until the close."""
        return checked(library.tombolo_poll_descriptor(self._handle, READING))

    def wait_readable(self, timeout: Optional[float] = None) -> bool:
        """Waits until there is something to read or accept, or the end; ``False``: the time (in seconds) was over."""
        return self._wait(READING, timeout)

    def _wait(self, direction: int, timeout: Optional[float]) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = library.tombolo_wait(self._handle, direction, nanoseconds(left))
            if ready != -1:
                return bool(ready)
            # A signal: Python runs its handlers before the next turn.
            if ctypes.get_errno() != errno.EINTR:
                self._raise_error()

    def _raise_error(self) -> NoReturn:
        raise_error()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", -1) != -1:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self)
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"handle {self._handle}"
        return f"<tombolo.{type(self).__name__} {state}>"


class End(Handle):
    """A handle whose calls wait as long as its time-out says."""

    _directions: Tuple[int, ...] = (READING, WRITING)

    def __init__(self, handle: int, timeout: Optional[float] = None) -> None:
        """Made by the functions of this package, and not by programs."""
        self._handle = handle
        self._timeout: Optional[float] = None
        self.timeout = timeout

    @property
    def timeout(self) -> Optional[float]:
        """How long calls wait, in seconds: ``None``, as long as it takes (the default); 0, not at all (:class:`BlockingIOError`); else
        :class:`TimeoutError` when it is over."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: Optional[float]) -> None:
        ns = nanoseconds(seconds)
        hot = _HOT_NS if ns == FOREVER else min(ns, _HOT_NS)
        for direction in self._directions:
            checked(library.tombolo_set_timeout(self._handle, direction, hot))
        self._timeout = seconds

    def _call(self, direction: int, call: Callable[[], int]) -> int:
        """Makes a call until it does not want to wait any more, or this end's time-out is over."""
        result = call()
        if result != -1:
            return result
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while result == -1:
            if ctypes.get_errno() != errno.ETIMEDOUT:
                raise_error()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0.0:
                raise_error()
            self._wait(direction, left)
            result = call()
        return result


class ChannelEnd(End):
    """What channels of messages and streams have in common."""

    def writable_fileno(self) -> int:
        """A descriptor that is *readable* when there may be room to write: then write until :class:`BlockingIOError`."""
        return checked(library.tombolo_poll_descriptor(self._handle, WRITING))

    def wait_writable(self, timeout: Optional[float] = None) -> bool:
        """Waits until there is room to write, or nobody to write to; ``False``: the time (in seconds) was over."""
        return self._wait(WRITING, timeout)

    @property
    def peer(self) -> str:
        """Who is at the other end, as the kernel or the daemon says: ``uid 1000 pid 4711``; empty if nobody knows."""
        size = checked(library.tombolo_peer(self._handle, None, 0))
        text = ctypes.create_string_buffer(size + 1)
        checked(library.tombolo_peer(self._handle, text, size + 1))
        return text.value.decode("utf-8", "replace")

    def set_batch(self, batch_bytes: int) -> None:
        """Holds small messages (or writes) back until they are so many bytes together; 0 holds nothing. Who waits for an answer calls
        :meth:`flush` first."""
        self._call(WRITING, lambda: library.tombolo_set_batch(self._handle, batch_bytes))

    def flush(self) -> None:
        """Shows the other end what is held back."""
        self._call(WRITING, lambda: library.tombolo_flush(self._handle))

    def descriptors(self) -> Tuple[int, ...]:
        """Gives up an end that has not been used, as the descriptors that it is made of, to pass them to another process
        (:func:`socket.send_fds`). They are the caller's to close."""
        numbers = (ctypes.c_int * DESCRIPTORS)()
        checked(library.tombolo_channel_descriptors(self._handle, numbers))
        self._handle = -1
        return tuple(numbers)


def two(made: Options) -> Tuple[int, int]:
    """The handles of a channel with both ends here."""
    ends = (ctypes.c_int64 * 2)()
    checked(library.tombolo_pair(made, ends))
    return ends[0], ends[1]


def taken(descriptors: Tuple[int, ...], made: Options) -> int:
    """The handle of an end whose descriptors came from somebody trusted."""
    if len(descriptors) != DESCRIPTORS:
        raise ValueError(f"an end of a channel has {DESCRIPTORS} descriptors, not {len(descriptors)}")
    return checked(library.tombolo_from_descriptors((ctypes.c_int * DESCRIPTORS)(*descriptors), made))
