# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streams: records that a service publishes, and what each reader has had of them.

All readers share one history. A reader is a place in it, so one that does not read holds nothing; what it misses when the history
moves on is counted, or the publisher waits for it, as the service has asked."""

from __future__ import annotations

import errno
import secrets
import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple, TypeVar

from ._memory import Buffer
from ._service_wire import MAX_RECORD_BYTES

#: Records that a stream keeps unless it says otherwise: at a hundred each second, a pause of two seconds loses nothing.
HISTORY_RECORDS = 256
#: Bytes that they have together at the most: 16 records of the longest.
HISTORY_BYTES = 1024 * 1024
_CAPSULE = struct.Struct("<QQ")

Writer = TypeVar("Writer", bound=Callable[..., Any])


class Reader:
    """One open file: which record it gets next, by its place among all that were published here."""

    def __init__(self, place: int, after: int) -> None:
        self.place = place
        #: Records up to this number it has had from an earlier server.
        self.after = after
        self.credit = 0
        self.dropped = 0


class Stream:
    """A file of records, made by :meth:`Service.stream`. :meth:`publish` is for any thread."""

    def __init__(
        self, records: int, most_bytes: int, *, replay: bool, waits: bool, numbered: bool
    ) -> None:
        if records < 1 or most_bytes < MAX_RECORD_BYTES:
            raise ValueError(f"the history of a stream has at least one record and {MAX_RECORD_BYTES} bytes")
        self._wake: Optional[Callable[[], None]] = None
        self._records, self._most_bytes = records, most_bytes
        self._replay, self._waits, self._numbered = replay, waits, numbered
        self._changed = threading.Condition()
        self._history: Deque[Tuple[int, bytes]] = deque()
        self._bytes = 0
        self._first_place = 0
        self._last_number = 0
        # Which numbering a capsule is of: those of another process mean nothing here, unless the publisher numbers records itself.
        self._epoch = 0 if numbered else secrets.randbits(64) | 1
        self._readers: Dict[object, Reader] = {}
        self._serving: Optional[int] = None
        self._closed = False
        self.published = 0
        self.dropped = 0
        self.write_handler: Optional[Callable[..., Any]] = None

    def writer(self, function: Writer) -> Writer:
        """Decorates what takes a record that somebody writes: ``function(session, record)``. An :class:`OSError` is the errno of the
        writer's next write. Without it, nobody writes (``EBADF``)."""
        self.write_handler = function
        return function

    def publish(self, record: Buffer, *, number: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """Gives a record to all readers, now or as soon as they take it.

        ``number``: in a ``numbered`` stream, the record's own number, which grows: so a reader goes on after the last record that it had
        even where another process than this one sent it. ``timeout``: how many seconds to wait for readers, in a stream that waits for them
        (:class:`TimeoutError`; the record is not published then)."""
        data = bytes(record)
        if len(data) > MAX_RECORD_BYTES:
            raise OSError(errno.EMSGSIZE, f"a record has at most {MAX_RECORD_BYTES} bytes, not {len(data)}")
        if self._numbered != (number is not None):
            raise ValueError("records have a number in a numbered stream, and only there")
        with self._changed:
            if self._waits:
                self._wait_for_room(len(data), timeout)
            following = self._last_number + 1 if number is None else number
            if not self._last_number < following < 2**63:
                raise ValueError(f"record {following} can't come after record {self._last_number}: numbers grow, up to 2**63")
            while self._is_full_for(len(data)):
                self._bytes -= len(self._history.popleft()[1])
                self._first_place += 1
            self._history.append((following, data))
            self._bytes += len(data)
            self._last_number = following
            self.published += 1
            wake = self._wake
        if wake is not None:
            wake()

    def _is_full_for(self, length: int) -> bool:
        full = len(self._history) >= self._records or self._bytes + length > self._most_bytes
        return full and bool(self._history)

    def _wait_for_room(self, length: int, timeout: Optional[float]) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._is_full_for(length) and self._somebody_lacks_the_first():
            if self._closed:
                raise BrokenPipeError(errno.EPIPE, "the service is over")
            if self._serving == threading.get_ident():
                raise BlockingIOError(errno.EAGAIN, "readers are behind, and the thread that serves them can't wait for them")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "readers are behind, and the time to wait for them is over")
            self._changed.wait(left)

    def _somebody_lacks_the_first(self) -> bool:
        return any(reader.place <= self._first_place for reader in self._readers.values())

    # The rest is the server's, in its own thread.

    def _begin(self, wake: Callable[[], None]) -> None:
        with self._changed:
            self._wake = wake
            self._serving, self._closed = threading.get_ident(), False

    def _end(self) -> None:
        with self._changed:
            self._wake, self._serving, self._closed = None, None, True
            self._readers.clear()
            self._changed.notify_all()

    def _open(self, key: object, capsule: bytes) -> None:
        """A reader comes, perhaps with the capsule of the last record that it had, which is whatever it says."""
        with self._changed:
            end = self._first_place + len(self._history)
            place, after = self._first_place if self._replay else end, 0
            if capsule:
                if len(capsule) != _CAPSULE.size:
                    raise OSError(errno.EINVAL, "no capsule of this stream")
                epoch, number = _CAPSULE.unpack(capsule)
                place, after = self._first_place, number if epoch == self._epoch else 0
            reader = self._readers[key] = Reader(place, after)
            if after and not self._numbered and self._history:
                reader.dropped = max(self._history[0][0] - after - 1, 0)
                self.dropped += reader.dropped

    def _close(self, key: object) -> None:
        with self._changed:
            self._readers.pop(key, None)
            self._changed.notify_all()

    def _grant(self, key: object, credit: int) -> None:
        with self._changed:
            reader = self._readers.get(key)
            if reader is not None:
                reader.credit = min(reader.credit + credit, 2**64 - 1)

    def _take(self, key: object, overhead: int) -> Optional[Tuple[bytes, bytes]]:
        """The reader's next record within its credit, and the capsule after it."""
        with self._changed:
            reader = self._readers.get(key)
            if reader is None:
                return None
            if reader.place < self._first_place:
                reader.dropped += self._first_place - reader.place
                self.dropped += self._first_place - reader.place
                reader.place = self._first_place
            end = self._first_place + len(self._history)
            while reader.place < end:
                number, record = self._history[reader.place - self._first_place]
                if number <= reader.after:
                    reader.place += 1
                    continue
                cost = len(record) + overhead
                if cost > reader.credit:
                    return None
                reader.credit -= cost
                reader.place += 1
                self._changed.notify_all()
                return record, _CAPSULE.pack(self._epoch, number)
            return None

    def _counters(self) -> Dict[str, int]:
        with self._changed:
            return {"published": self.published, "dropped": self.dropped, "readers": len(self._readers)}

    def _dropped_by(self, key: object) -> int:
        with self._changed:
            reader = self._readers.get(key)
            return reader.dropped if reader else 0
