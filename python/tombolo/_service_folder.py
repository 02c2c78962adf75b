# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders of which only the service knows what is in them, and one that is kept in memory."""

from __future__ import annotations

import bisect
import errno
import os
import time
from collections import deque
from typing import Deque, Dict, Iterable, List, NoReturn, Optional, Tuple

from ._memory import Buffer
from ._service_calls import Answer, Call
from ._service_wire import SERIAL_BITS, Node

#: The serial number of the folder itself.
ROOT = 0
#: Flags of renameat2(2).
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

#: What a node of a :class:`MemoryFolder` counts for beside its bytes: about what Python takes for it and its name.
NODE_OVERHEAD_BYTES = 1024


class Folder:
    """What a service does for a folder: override what it can do, the rest is refused. Nodes are known by serial numbers that the service
    chooses, below 2**24 and never given to another node while anybody may know them; :data:`ROOT` is the folder itself. What fails raises
    an :class:`OSError`, whose ``errno`` the asker gets. ``lookup``, ``stat``, ``read``, ``write``, ``sync``, ``set`` and ``ask`` may be
    coroutine functions."""

    def lookup(self, call: Call, folder: int, name: bytes) -> Node:
        """The node of this name."""
        raise _cannot()

    def list(self, call: Call, folder: int, after: int) -> Iterable[Tuple[int, bytes, Node]]:
        """Places, names and nodes from the first place that is greater than ``after``. Places grow, and are never 0."""
        raise _cannot()

    def stat(self, call: Call, node: int) -> Node:
        """What the node is like now."""
        raise _cannot()

    def open(self, call: Call, node: int, flags: int) -> None:
        """A file is opened, with flags of open(2)."""

    def close(self, call: Call, node: int) -> None:
        """A file that was opened is closed."""

    def read(self, call: Call, node: int, offset: int, size: int) -> Buffer:
        """Bytes; fewer than ``size`` are the end."""
        raise _cannot()

    def write(self, call: Call, node: int, offset: int, data: bytes) -> int:
        """How many bytes were written."""
        raise _cannot()

    def sync(self, call: Call, node: int) -> None:
        """What was written shall outlive a power cut."""
        raise _cannot()

    def set(self, call: Call, node: int, size: Optional[int], mode: Optional[int], changed_ns: Optional[int]) -> Node:
        """Changes attributes that are not None."""
        raise _cannot()

    def ask(self, call: Call, node: int, line: bytes) -> Answer:
        """A line that was written to a node of behaviour ``session`` or ``control``; an empty one asks for the text of a ``text`` or
        ``control``."""
        raise _cannot()

    def create(self, call: Call, folder: int, name: bytes, mode: int) -> Node:
        """Makes a file; ``EEXIST`` where the name is taken."""
        raise _cannot()

    def make_folder(self, call: Call, folder: int, name: bytes, mode: int) -> Node:
        """Makes a folder."""
        raise _cannot()

    def unlink(self, call: Call, folder: int, name: bytes) -> None:
        """Takes a file's name away."""
        raise _cannot()

    def remove_folder(self, call: Call, folder: int, name: bytes) -> None:
        """Takes an empty folder away."""
        raise _cannot()

    def rename(self, call: Call, folder: int, name: bytes, to_folder: int, new_name: bytes, flags: int) -> None:
        """Gives a node another name, in another folder or the same. ``flags`` are those of renameat2(2)."""
        raise _cannot()

    def link(self, call: Call, node: int, folder: int, name: bytes) -> Node:
        """Gives a node one more name."""
        raise _cannot()


class _Entries:
    """Names of one folder, in the order in which they came."""

    def __init__(self) -> None:
        self.by_name: Dict[bytes, Tuple[int, int]] = {}
        self._names: Dict[int, bytes] = {}
        self._places: List[int] = []
        self._last_place = 0

    def add(self, name: bytes, serial: int) -> None:
        self._last_place += 1
        self.by_name[name] = (self._last_place, serial)
        self._names[self._last_place] = name
        self._places.append(self._last_place)

    def remove(self, name: bytes) -> int:
        place, serial = self.by_name.pop(name)
        del self._names[place]
        # Places of names that are gone are passed over, and swept when they are as many as the others.
        if len(self._places) > 2 * len(self._names) + 16:
            self._places = [place for place in self._places if place in self._names]
        return serial

    def after(self, place: int) -> Iterable[Tuple[int, bytes, int]]:
        at = bisect.bisect_right(self._places, place)
        while at < len(self._places):
            here = self._places[at]
            name = self._names.get(here)
            if name is not None:
                yield here, name, self.by_name[name][1]
            at += 1


class _Kept:
    """A file or a folder in memory."""

    def __init__(self, node: Node, parent: int) -> None:
        self.node = node
        self.parent = parent
        self.data = bytearray()
        self.entries: Optional[_Entries] = _Entries() if node.behaviour == "folder" else None
        self.opened = 0


class MemoryFolder(Folder):
    """A tree of files that is kept in memory, and is gone with the program::

        @service.folder("notes", verb="read", change="write")
        class Notes(tombolo.service.MemoryFolder):
            pass

    ``most_bytes`` bounds all of it together: the bytes of files, and :data:`NODE_OVERHEAD_BYTES` for each file and folder."""

    most_bytes = 64 * 1024 * 1024

    def __init__(self) -> None:
        self._kept: Dict[int, _Kept] = {}
        self._last_serial = ROOT
        # Numbers of nodes that are gone, the oldest first. They are given again only when there are no others.
        self._free: Deque[int] = deque()
        self._used = 0
        self._kept[ROOT] = _Kept(Node(ROOT, "folder", mode=0o777, links=2, changed_ns=time.time_ns()), ROOT)

    def put(self, path: str, data: Buffer, mode: int = 0o644) -> None:
        """Puts a file at ``path``, in the place of one that is there, and makes the folders above it. For the service itself, in the thread
        that serves."""
        *folders, last = os.fsencode(path).strip(b"/").split(b"/")
        folder = ROOT
        for name in folders:
            found = self._entries(folder).by_name.get(name)
            folder = found[1] if found else self._make(None, folder, name, 0o755, "folder").serial
        there = self._entries(folder).by_name.get(last)
        serial = there[1] if there else self._make(None, folder, last, mode, "random").serial
        kept = self._file(serial)
        self._resize(kept, 0)
        self._write(kept, 0, bytes(data))

    def lookup(self, call: Call, folder: int, name: bytes) -> Node:
        return self._node(self._find(folder, name))

    def list(self, call: Call, folder: int, after: int) -> Iterable[Tuple[int, bytes, Node]]:
        for place, name, serial in self._entries(folder).after(after):
            yield place, name, self._node(serial)

    def stat(self, call: Call, node: int) -> Node:
        return self._node(node)

    def open(self, call: Call, node: int, flags: int) -> None:
        kept = self._file(node)
        if flags & os.O_TRUNC:
            self._resize(kept, 0)
        kept.opened += 1

    def close(self, call: Call, node: int) -> None:
        kept = self._kept.get(node)
        if kept is not None:
            kept.opened -= 1
            self._forget_if_unused(kept)

    def read(self, call: Call, node: int, offset: int, size: int) -> Buffer:
        return bytes(self._file(node).data[offset : offset + size])

    def write(self, call: Call, node: int, offset: int, data: bytes) -> int:
        kept = self._file(node)
        self._write(kept, len(kept.data) if call.flags & os.O_APPEND else offset, data)
        return len(data)

    def sync(self, call: Call, node: int) -> None:
        self._file(node)

    def set(self, call: Call, node: int, size: Optional[int], mode: Optional[int], changed_ns: Optional[int]) -> Node:
        kept = self._known(node)
        if size is not None:
            self._resize(self._file(node), size)
        if mode is not None:
            kept.node.mode = mode
        if changed_ns is not None:
            kept.node.changed_ns = changed_ns
        return self._node(node)

    def create(self, call: Call, folder: int, name: bytes, mode: int) -> Node:
        return self._make(call, folder, name, mode, "random")

    def make_folder(self, call: Call, folder: int, name: bytes, mode: int) -> Node:
        return self._make(call, folder, name, mode, "folder")

    def unlink(self, call: Call, folder: int, name: bytes) -> None:
        if self._known(self._find(folder, name)).entries is not None:
            _fail(errno.EISDIR)
        self._take_away(folder, name)

    def remove_folder(self, call: Call, folder: int, name: bytes) -> None:
        entries = self._known(self._find(folder, name)).entries
        if entries is None:
            _fail(errno.ENOTDIR)
        elif entries.by_name:
            _fail(errno.ENOTEMPTY)
        self._take_away(folder, name)

    def rename(self, call: Call, folder: int, name: bytes, to_folder: int, new_name: bytes, flags: int) -> None:
        if flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            _fail(errno.EINVAL)
        serial, target = self._find(folder, name), self._entries(to_folder).by_name.get(new_name)
        self._check_is_not_above(serial, to_folder)
        if flags == RENAME_EXCHANGE:
            other = self._find(to_folder, new_name)
            self._check_is_not_above(other, folder)
            self._move(folder, name, to_folder, new_name, other)
            return
        if target is not None:
            if flags == RENAME_NOREPLACE:
                _fail(errno.EEXIST)
            if target[1] == serial:
                return
            # What is in a folder does not replace it.
            self._check_is_not_above(target[1], folder, errno.ENOTEMPTY)
            old, new = self._known(serial), self._known(target[1])
            if old.entries is None and new.entries is not None:
                _fail(errno.EISDIR)
            if old.entries is not None:
                self.remove_folder(call, to_folder, new_name)
            else:
                self._take_away(to_folder, new_name)
        self._move(folder, name, to_folder, new_name, None)

    def link(self, call: Call, node: int, folder: int, name: bytes) -> Node:
        kept, entries = self._known(node), self._entries(folder)
        if kept.entries is not None:
            _fail(errno.EPERM)
        if name in entries.by_name:
            _fail(errno.EEXIST)
        if kept.node.links == 0:
            _fail(errno.ENOENT)
        self._charge(NODE_OVERHEAD_BYTES)
        entries.add(name, node)
        kept.node.links += 1
        self._touch(folder)
        return self._node(node)

    def _known(self, serial: int) -> _Kept:
        kept = self._kept.get(serial)
        if kept is None:
            _fail(errno.ESTALE)
        return kept

    def _file(self, serial: int) -> _Kept:
        kept = self._known(serial)
        if kept.entries is not None:
            _fail(errno.EISDIR)
        return kept

    def _entries(self, serial: int) -> _Entries:
        entries = self._known(serial).entries
        if entries is None:
            _fail(errno.ENOTDIR)
        return entries

    def _find(self, folder: int, name: bytes) -> int:
        found = self._entries(folder).by_name.get(name)
        if found is None:
            _fail(errno.ENOENT)
        return found[1]

    def _node(self, serial: int) -> Node:
        kept = self._known(serial)
        kept.node.size = len(kept.data)
        return kept.node

    def _make(self, call: Optional[Call], folder: int, name: bytes, mode: int, behaviour: str) -> Node:
        entries, above = self._entries(folder), self._known(folder)
        if name in entries.by_name:
            _fail(errno.EEXIST)
        self._charge(NODE_OVERHEAD_BYTES)
        node = Node(self._new_serial(), behaviour, mode=mode, changed_ns=time.time_ns(), idempotent=behaviour == "random")
        if call is not None:
            node.uid, node.gid = call.caller.uid, call.caller.gid
        if behaviour == "folder":
            node.links = 2
            above.node.links += 1
        self._kept[node.serial] = _Kept(node, folder)
        entries.add(name, node.serial)
        self._touch(folder)
        return node

    def _new_serial(self) -> int:
        if self._last_serial + 1 < 2**SERIAL_BITS:
            self._last_serial += 1
            return self._last_serial
        if not self._free:
            self._charge(-NODE_OVERHEAD_BYTES)
            _fail(errno.ENOSPC)
        return self._free.popleft()

    def _take_away(self, folder: int, name: bytes) -> None:
        kept = self._known(self._entries(folder).remove(name))
        if kept.entries is not None:
            kept.node.links = 0
            self._known(folder).node.links -= 1
        else:
            kept.node.links -= 1
            if kept.node.links > 0:
                self._charge(-NODE_OVERHEAD_BYTES)
        self._touch(folder)
        self._forget_if_unused(kept)

    def _forget_if_unused(self, kept: _Kept) -> None:
        if kept.node.links == 0 and kept.opened == 0 and self._kept.pop(kept.node.serial, None) is not None:
            self._charge(-NODE_OVERHEAD_BYTES - len(kept.data))
            self._free.append(kept.node.serial)

    def _check_is_not_above(self, serial: int, folder: int, code: int = errno.EINVAL) -> None:
        while True:
            if folder == serial:
                _fail(code)
            if folder == ROOT:
                return
            folder = self._known(folder).parent

    def _move(self, folder: int, name: bytes, to_folder: int, new_name: bytes, other: Optional[int]) -> None:
        serial = self._entries(folder).remove(name)
        if other is not None and (folder, name) != (to_folder, new_name):
            self._entries(to_folder).remove(new_name)
            self._place(other, to_folder, folder, name)
        self._place(serial, folder, to_folder, new_name)
        self._touch(folder)
        self._touch(to_folder)

    def _place(self, serial: int, from_folder: int, folder: int, name: bytes) -> None:
        kept = self._known(serial)
        self._entries(folder).add(name, serial)
        kept.parent = folder
        if kept.entries is not None:
            self._known(from_folder).node.links -= 1
            self._known(folder).node.links += 1

    def _write(self, kept: _Kept, offset: int, data: bytes) -> None:
        if data:
            self._resize(kept, max(len(kept.data), offset + len(data)))
            kept.data[offset : offset + len(data)] = data
            kept.node.changed_ns = time.time_ns()

    def _resize(self, kept: _Kept, size: int) -> None:
        more = size - len(kept.data)
        if more > 0:
            self._charge(more)
            kept.data.extend(bytes(more))
        elif more < 0:
            del kept.data[size:]
            self._charge(more)
        kept.node.changed_ns = time.time_ns()

    def _charge(self, count: int) -> None:
        if count > 0 and self._used + count > self.most_bytes:
            _fail(errno.ENOSPC)
        self._used += count

    def _touch(self, folder: int) -> None:
        self._known(folder).node.changed_ns = time.time_ns()


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


def _cannot() -> OSError:
    return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
