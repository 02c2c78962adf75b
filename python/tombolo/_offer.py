# SPDX-License-Identifier: MIT OR Apache-2.0
"""Offers: channels under a name, one for each opener."""

from __future__ import annotations

from typing import Callable, Generic, Iterator, Optional, TypeVar

from ._channel import Channel
from ._end import End, Name, name_bytes, options
from ._library import READING, checked, library
from ._stream import Stream

Made = TypeVar("Made", Channel, Stream)


class Offer(End, Generic[Made]):
    """A name under which each opener gets a channel of its own. Closing it ends none of them."""

    _directions = (READING,)

    def __init__(self, handle: int, made: Callable[[int], Made], timeout: Optional[float] = None) -> None:
        """Made by :func:`offer` and :func:`offer_stream`."""
        super().__init__(handle, timeout)
        self._made: Callable[[int], Made] = made

    def accept(self) -> Made:
        """The channel of the next opener."""
        return self._made(self._call(READING, lambda: int(library.tombolo_accept(self._handle))))

    def __iter__(self) -> Iterator[Made]:
        """The channels of all openers to come."""
        while True:
            yield self.accept()


def offer(
    name: Name,
    *,
    timeout: Optional[float] = None,
    any_user: bool = False,
    ring_bytes: int = 0,
    spin: bool = True,
    batch_bytes: int = 0,
) -> Offer[Channel]:
    """Offers channels of messages under a name.

    ``any_user``: programs of other users are welcome, at a path. ``ring_bytes``: shared memory for each direction, a power of two (0: 256
    KiB). The rest is as of :func:`tombolo.open`, for the channels."""
    made = options(any_user=any_user, ring_bytes=ring_bytes, spin=spin, batch_bytes=batch_bytes)
    return Offer(checked(library.tombolo_offer(name_bytes(name), made)), Channel, timeout)


def offer_stream(
    name: Name,
    *,
    timeout: Optional[float] = None,
    any_user: bool = False,
    ring_bytes: int = 0,
    spin: bool = True,
    batch_bytes: int = 0,
) -> Offer[Stream]:
    """Offers streams of bytes under a name: as :func:`offer`."""
    made = options(stream=True, any_user=any_user, ring_bytes=ring_bytes, spin=spin, batch_bytes=batch_bytes)
    return Offer(checked(library.tombolo_offer(name_bytes(name), made)), Stream, timeout)
