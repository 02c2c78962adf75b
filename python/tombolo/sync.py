# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keys, locks, semaphores, barriers and queues that the programs of a distributed container share.

The service keeps what it has answered over the death of a process, a server, a daemon or a node::

    from tombolo.sync import Sync

    sync = Sync()                                     # the one coordination service of this domain
    sync.put("config/colour", b"blue")
    value, revision = sync.get("config/colour")
    sync.swap("config/colour", revision, b"red")      # OSError ESTALE: somebody was faster

    with sync.lock("printer", timeout=5) as token:    # waits; the token only grows
        ...

    generation = sync.barrier("phase", parties=3)     # waits for the two others

    jobs = sync.queue("jobs", items=100, durable=True)
    jobs.push(b"page.ps")
    for item in jobs:                                 # waits; an item that raises goes to somebody else
        print(item)

All of it is files below ``/srv``, and can be had by any other language as well: ``docs/coordination.md`` says how, what is kept when, and the
bounds. What fails is an :class:`OSError` with the ``errno`` that is told there; what is not there within a time is a :class:`TimeoutError`,
and what is not to be had without waiting, a :class:`BlockingIOError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import time
from contextlib import contextmanager
from typing import Iterator, NamedTuple, Optional, Union

__all__ = ["Change", "Entry", "Held", "Key", "Lease", "Queue", "Sync", "Watch"]

#: Longest value of a key, and longest item of a queue, in bytes.
VALUE_BYTES_MAX = 32 << 10

# _IOR(0xD8, 1, u64) and _IOW(0xD8, 2, u64) of docs/spec/coordination.md.
_GET_REVISION = 0x8008D801
_EXPECT = 0x4008D802
_REVISION = struct.Struct("<Q")
# What a domain has, a line each: NAME KIND AT STATE VERBS.
_SERVICES = "/srv/self/services"
_LINE_BYTES = 64 << 10


class Entry(NamedTuple):
    """The value of a key."""

    value: bytes
    #: Grows with each change of anything of the service; :meth:`Sync.swap` takes it.
    revision: int


class Key(NamedTuple):
    """A key of a listing."""

    key: str
    revision: int
    #: Of its value.
    bytes: int


class Change(NamedTuple):
    """A change that :meth:`Sync.watch` tells."""

    revision: int
    #: ``now`` first of all: what is listed or read after it, and what is told from then on, is all there is. ``put`` and ``rm`` of a key, ``held``
    #: and ``free`` of a lock, ``open`` and ``broken`` of a barrier; ``gap``: so many changes were missed, list anew (``revision`` is their count).
    what: str
    #: The words behind it: the path, and before it of a lock the token and the domain.
    words: tuple


def _path(of: str, name: str) -> str:
    if not name or any(c.isspace() or not c.isprintable() for c in name) or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no name of that kind: it is text without white space")
    return f"{of}/{name}"


def _left(end: Optional[float]) -> Optional[float]:
    return None if end is None else max(0.0, end - time.monotonic())


def _wait_for(fd: int, end: Optional[float], what: str) -> None:
    """Waits until there is something to read."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    left = _left(end)
    if not poll.poll(None if left is None else left * 1000):
        raise TimeoutError(errno.ETIMEDOUT, "not within the time", what)


def _end(timeout: Optional[float]) -> Optional[float]:
    return None if timeout is None else time.monotonic() + timeout


class Held:
    """A lock or a place of a semaphore that is held: until :meth:`release`, the end of a ``with``, or the death of the process."""

    def __init__(self, fd: int, token: int):
        self._fd: Optional[int] = fd
        #: It only grows: whatever the lock protects refuses one that is less than one it has seen.
        self.token = token

    def release(self) -> None:
        """Gives it back. Once more is as good."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> int:
        return self.token

    def __exit__(self, *_) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class Lease:
    """Keys that go when this does: :meth:`Sync.lease` made them."""

    def __init__(self, sync: Sync):
        self._sync = sync
        self._fd: Optional[int] = os.open(sync._at("ctl"), os.O_RDWR | os.O_CLOEXEC)

    def put(self, key: str, value: Union[bytes, str]) -> int:
        """Makes a key, which must not be there (``EEXIST``). Its value is text without line ends. Returns its revision."""
        if self._fd is None:
            raise ValueError("the lease is over")
        text = _line(value)
        if text is None:
            raise ValueError("a value of a lease is text without line ends")
        path = self._sync._made(_path("kv", key))
        return int(_asked(self._fd, f"lease {path} {text}"))

    def close(self) -> None:
        """Removes the keys."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _line(value: Union[bytes, str]) -> Optional[str]:
    """The value as the end of a line to ``ctl``, if it can be."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None
    return None if "\n" in text or "\0" in text else text


def _asked(ctl: int, line: str) -> str:
    """The whole answer of ``ctl`` to a line."""
    os.write(ctl, line.encode() + b"\n")
    answer = bytearray()
    while piece := os.read(ctl, _LINE_BYTES):
        answer += piece
    return answer.decode(errors="replace")


class Watch:
    """The changes of a service, one after the other; iterating waits for them."""

    def __init__(self, fd: int):
        self._fd: Optional[int] = fd
        self._rest = b""

    def fileno(self) -> int:
        """For ``select`` and ``poll``: readable when there is a change."""
        if self._fd is None:
            raise ValueError("the watch is closed")
        return self._fd

    def read(self, timeout: Optional[float] = None) -> Change:
        """The next change."""
        end = _end(timeout)
        while b"\n" not in self._rest:
            _wait_for(self.fileno(), end, "watch")
            piece = os.read(self.fileno(), _LINE_BYTES)
            if not piece:
                raise EOFError("the service tells no changes any more")
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        number, what, *words = line.decode(errors="replace").split(" ")
        return Change(int(number), what, tuple(words))

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        try:
            return self.read()
        except EOFError:
            raise StopIteration from None

    def close(self) -> None:
        """Ends it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Queue:
    """A queue. Each item is dealt with at least once: one whose consumer dies comes back."""

    def __init__(self, sync: Sync, path: str):
        self._sync, self._path = sync, path

    def push(self, item: bytes, *, wait: bool = True) -> None:
        """Puts an item of 1 byte to 32 KiB into it; waits while it is full, or raises :class:`BlockingIOError`."""
        if not 0 < len(item) <= VALUE_BYTES_MAX:
            raise ValueError(f"an item has 1 to {VALUE_BYTES_MAX} bytes, and this one {len(item)}")
        fd = os.open(self._sync._at(self._path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if wait else os.O_NONBLOCK), 0o666)
        try:
            os.write(fd, item)
        finally:
            os.close(fd)

    @contextmanager
    def take(self, *, timeout: Optional[float] = None, wait: bool = True):
        """An item, which is dealt with when the ``with`` ends. Where it raises, the item goes back, as the first that somebody gets."""
        end = _end(timeout)
        fd = os.open(self._sync._at(self._path), os.O_RDWR | os.O_CLOEXEC | (0 if wait else os.O_NONBLOCK))
        try:
            if timeout is not None:
                _wait_for(fd, end, self._path)
            item = os.read(fd, VALUE_BYTES_MAX)
            yield item
            os.write(fd, b"done")
        finally:
            os.close(fd)

    def pop(self, *, timeout: Optional[float] = None, wait: bool = True) -> bytes:
        """Takes an item, which is gone then."""
        with self.take(timeout=timeout, wait=wait) as item:
            return item

    def __iter__(self) -> Iterator[bytes]:
        """Items one after the other, for ever; each is dealt with when the next one is asked for, and goes back where that never comes."""
        fd = os.open(self._sync._at(self._path), os.O_RDWR | os.O_CLOEXEC)
        try:
            while True:
                yield os.read(fd, VALUE_BYTES_MAX)
                os.write(fd, b"done")
        finally:
            os.close(fd)


class Sync:
    """A coordination service of this domain, by its folder below ``/srv``; without one, the only one that the domain has."""

    def __init__(self, folder: Optional[str] = None):
        self.folder = folder if folder is not None else _only()

    def _at(self, path: str) -> str:
        return os.path.join(self.folder, path)

    def _ask(self, line: str) -> str:
        ctl = os.open(self._at("ctl"), os.O_RDWR | os.O_CLOEXEC)
        try:
            return _asked(ctl, line)
        finally:
            os.close(ctl)

    def _made(self, path: str) -> str:
        """Makes the folders above a path."""
        os.makedirs(os.path.dirname(self._at(path)), exist_ok=True)
        return path

    def get(self, key: str) -> Optional[Entry]:
        """The value of a key and its revision; ``None``: there is none."""
        try:
            fd = os.open(self._at(_path("kv", key)), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            value = os.read(fd, VALUE_BYTES_MAX)
            return Entry(value, *_REVISION.unpack(fcntl.ioctl(fd, _GET_REVISION, bytes(8))))
        finally:
            os.close(fd)

    def put(self, key: str, value: bytes) -> int:
        """Has a key this value, whatever it had. Folders above it are made. Returns the new revision.

        A new key is there at once with its value where that is text without line ends; else it is empty for a moment."""
        path = _path("kv", key)
        if len(value) > VALUE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"a value has {VALUE_BYTES_MAX} bytes at the most", key)
        self._made(path)
        text = _line(value)
        if text is not None:
            return int(self._ask(f"put {path} {text}"))
        return self._write(path, os.O_CREAT, None, value)

    def swap(self, key: str, revision: int, value: bytes) -> int:
        """Has a key this value if it has that revision (0: if there is none). Returns the new one.

        :class:`OSError` with ``ESTALE`` (``EEXIST``): somebody was faster.
        """
        path = _path("kv", key)
        if len(value) > VALUE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"a value has {VALUE_BYTES_MAX} bytes at the most", key)
        if revision == 0:
            self._made(path)
            flags = os.O_CREAT | os.O_EXCL
        else:
            flags = 0
        text = _line(value)
        if text is not None:
            return int(self._ask(f"cas {path} {revision} {text}"))
        try:
            return self._write(path, flags, revision or None, value)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "it is not there any more", key) from None

    def _write(self, path: str, flags: int, revision: Optional[int], value: bytes) -> int:
        fd = os.open(self._at(path), os.O_RDWR | os.O_CLOEXEC | flags, 0o666)
        try:
            if revision is not None:
                fcntl.ioctl(fd, _EXPECT, _REVISION.pack(revision))
            os.pwrite(fd, value, 0)
            return _REVISION.unpack(fcntl.ioctl(fd, _GET_REVISION, bytes(8)))[0]
        finally:
            os.close(fd)

    def remove(self, key: str, revision: Optional[int] = None) -> bool:
        """Removes a key, if it has that revision (``ESTALE``). Returns whether there was one."""
        condition = "" if revision is None else f" {revision}"
        try:
            self._ask(f"rm {_path('kv', key)}{condition}")
        except FileNotFoundError:
            return False
        return True

    def keys(self, prefix: str = "") -> list[Key]:
        """All keys that begin so, in the order of their names."""
        below = "kv/" if not prefix else _path("kv", prefix)
        keys = []
        for line in self._ask(f"ls {below}").splitlines()[1:]:
            revision, size, path = line.split(" ", 2)
            if not path.endswith("/"):
                keys.append(Key(path.removeprefix("kv/"), int(revision), int(size)))
        return sorted(keys)

    def lease(self) -> Lease:
        """For keys that go when this process does."""
        return Lease(self)

    def watch(self, prefix: str = "") -> Watch:
        """What changes from now on; with a prefix (``kv/config/``, ``locks/``) that alone."""
        fd = os.open(self._at("watch"), os.O_RDWR | os.O_CLOEXEC)
        try:
            if prefix:
                os.write(fd, _path("", prefix).lstrip("/").encode() + b"\n")
        except BaseException:
            os.close(fd)
            raise
        return Watch(fd)

    def lock(self, name: str, *, timeout: Optional[float] = None, wait: bool = True) -> Held:
        """Takes a lock, first come, first served: ``with sync.lock("printer") as token:``. Made where there is none."""
        return self._take(_path("locks", name), timeout, wait)

    def semaphore(self, name: str, count: Optional[int] = None, *, timeout: Optional[float] = None, wait: bool = True) -> Held:
        """Takes a place of a semaphore; ``count`` says how many may hold one."""
        path = _path("semaphores", name)
        if count is not None:
            self._ask(f"count {path} {count}")
        return self._take(path, timeout, wait)

    def _take(self, path: str, timeout: Optional[float], wait: bool) -> Held:
        end = _end(timeout)
        at = self._at(path)
        if not wait:
            # Made first: what is opened without waiting must be there.
            os.close(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
            fd = os.open(at, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            fd = os.open(at, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if timeout is not None:
                _wait_for(fd, end, path)
            return Held(fd, int(os.read(fd, 64)))
        except BaseException:
            os.close(fd)
            raise

    def barrier(self, name: str, parties: Optional[int] = None, *, timeout: Optional[float] = None) -> int:
        """Arrives, waits for the others, and returns the generation: the same number to all who pass together.

        ``parties`` says how many pass. :class:`OSError` with ``ECANCELED``: one that waited gave up or died, and this generation is broken.
        """
        path = _path("barriers", name)
        end = _end(timeout)
        if parties is not None:
            self._ask(f"parties {path} {parties}")
        fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if timeout is not None:
                _wait_for(fd, end, path)
            return int(os.read(fd, 64))
        finally:
            os.close(fd)

    def queue(self, name: str, items: Optional[int] = None, *, durable: bool = False) -> Queue:
        """A queue; ``items`` makes it, with room for so many, or gives it that room."""
        path = _path("queues", name)
        if items is not None:
            self._ask(f"queue {path} {items}{' durable' if durable else ''}")
        elif durable:
            raise ValueError("say how many items it has room for as well")
        return Queue(self, path)


def _only() -> str:
    """The folder of the only coordination service of this domain."""
    with open(_SERVICES, encoding="utf-8") as services:
        lines = [line.split() for line in services]
    found = [words[2] for words in lines if len(words) > 2 and words[1] == "coordination"]
    if len(found) != 1:
        raise LookupError(f"this domain has {len(found)} services of kind `coordination`: say which folder, as Sync('/srv/sync')")
    return os.path.join("/srv", found[0])
