# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streams of bytes."""

from __future__ import annotations

from typing import Optional, Tuple

from ._end import ChannelEnd, Name, name_bytes, options, taken, two
from ._library import READING, WRITING, checked, library
from ._memory import Buffer, pointer_to

#: Read at a time where the caller names no size.
_READ_BYTES = 65536


class Stream(ChannelEnd):
    """One end of a channel of bytes without seams, like a pair of pipes. One thread may read while another writes."""

    def read(self, size: int = _READ_BYTES) -> bytes:
        """Some bytes, at least one and at most ``size``; none at the end: the other end has finished, or closed, or is dead."""
        if size < 0:
            raise ValueError("read() takes what is there; it can't wait for the end: take a size")
        into = bytearray(size)
        length = self.readinto(into)
        return bytes(memoryview(into)[:length])

    def readinto(self, buffer: Buffer) -> int:
        """Reads into a writable buffer what is there, at least a byte; returns how many, 0 at the end."""
        view = memoryview(buffer)
        if view.readonly:
            raise TypeError("the buffer can only be read")
        place, size = pointer_to(view)
        return self._call(READING, lambda: int(library.tombolo_read(self._handle, place, size)))

    def write(self, data: Buffer) -> int:
        """Writes; returns how many bytes, which may be fewer only where there is a time-out. :class:`BrokenPipeError`: the other end has
        closed, or is dead, which shows at the latest when there is no room."""
        rest = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        written = 0
        while True:
            place, size = pointer_to(rest[written:])
            written += self._call(WRITING, lambda: int(library.tombolo_write(self._handle, place, size)))
            if written == rest.nbytes or self._timeout is not None:
                return written

    def finish(self) -> None:
        """Ends what goes out: the other end reads what was written, and then the end. What comes in goes on."""
        self._call(WRITING, lambda: int(library.tombolo_finish(self._handle)))


def open_stream(
    name: Name,
    *,
    wait: Optional[float] = 0.0,
    timeout: Optional[float] = None,
    any_user: bool = False,
    spin: bool = True,
    batch_bytes: int = 0,
) -> Stream:
    """Opens the stream that is offered under a name: as :func:`tombolo.open`."""
    made = options(stream=True, any_user=any_user, spin=spin, batch_bytes=batch_bytes, wait=wait)
    return Stream(checked(library.tombolo_open(name_bytes(name), made)), timeout)


def stream_pair(*, ring_bytes: int = 0, spin: bool = True, batch_bytes: int = 0) -> Tuple[Stream, Stream]:
    """A stream with both ends here: as :func:`tombolo.pair`."""
    one, other = two(options(stream=True, ring_bytes=ring_bytes, spin=spin, batch_bytes=batch_bytes))
    return Stream(one), Stream(other)


def stream_from_descriptors(
    descriptors: Tuple[int, ...], *, spin: bool = True, batch_bytes: int = 0
) -> Stream:
    """Takes over the descriptors of a stream's end: as :func:`tombolo.from_descriptors`."""
    return Stream(taken(descriptors, options(stream=True, spin=spin, batch_bytes=batch_bytes)))
