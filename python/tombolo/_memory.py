# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of a channel that Python looks at, and the bytes that Python gives to C."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Optional, Tuple, Union

from ._library import raise_error

#: What can be written: anything with contiguous bytes.
Buffer = Union[bytes, bytearray, memoryview]


def pointer_to(data: Buffer) -> Tuple[Any, int]:
    """What ctypes takes as a pointer to the bytes, and how many there are. It keeps ``data`` alive and, a ``bytearray``, in its size."""
    if isinstance(data, bytes):
        return data, len(data)
    view = memoryview(data)
    size = view.nbytes
    if view.readonly or size == 0:
        # ctypes points to no memory that can only be read.
        return view.tobytes(), size
    return (ctypes.c_ubyte * size).from_buffer(view), size


class _GivingBack:
    """What to do when nobody looks at the memory any more, and what came of it."""

    def __init__(self, act: Callable[[], int]) -> None:
        self.act = act
        self.is_done = False
        self.error: Optional[OSError] = None

    def __call__(self) -> None:
        self.is_done = True
        try:
            if self.act() == -1:
                raise_error()
        except OSError as error:
            self.error = error


class Memory:
    """Memory of a channel. It is given back when the last view of it is gone, and not earlier: a slice that somebody keeps makes the
    channel busy, but never points to memory that is not there."""

    def __init__(self, address: int, size: int, forgotten: Callable[[], int]) -> None:
        self._array: Optional[ctypes.Array[ctypes.c_ubyte]] = (ctypes.c_ubyte * size).from_address(address)
        self._giving_back = _GivingBack(forgotten)
        # Knows the array only: whoever holds a view holds that, and nothing holds this object.
        weakref.finalize(self._array, self._giving_back).atexit = False
        self.view = memoryview(self._array).cast("B") if size else memoryview(bytearray())

    def give_back(self, act: Callable[[], int]) -> None:
        """Ends the view, and gives the memory back by ``act``. :class:`BufferError`: somebody keeps a slice of it; the memory is then given
        back as forgotten when that goes, too."""
        if self._array is None:
            raise ValueError("this memory has been given back")
        forgotten, self._giving_back.act = self._giving_back.act, act
        self.view.release()
        self._array = None
        if not self._giving_back.is_done:
            self._giving_back.act = forgotten
            raise BufferError("a slice of the channel's memory is still in use: release it, or copy what you keep")
        if self._giving_back.error is not None:
            raise self._giving_back.error

    @property
    def is_over(self) -> bool:
        """Whether it has been given back, or is going to be."""
        return self._array is None
