# SPDX-License-Identifier: MIT OR Apache-2.0
"""The bytes of the service protocol, version 2, little endian: docs/spec/service.md has the same numbers. What a consumer sends is
decoded in full, or refused as :class:`Corrupt` or with an errno, before anything is done about it."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import dataclass, field
from typing import Iterable, NamedTuple, Optional, Tuple

VERSION = 2
VERSION_MIN = 1
HEADER = struct.Struct("<HHIQQII")
MAX_REQUEST_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 96 * 1024
MAX_ANSWER_BYTES = 1024 * 1024
MAX_CAPSULE_BYTES = 3072
MAX_CONTROL_BYTES = 16 * 1024
MAX_RECORD_BYTES = 64 * 1024
RECORD_OVERHEAD_BYTES = 64
MAX_TRANSFER_BYTES = 60 * 1024
SESSION_NONE = 0
SERIAL_BITS = 24
MAX_NAME_BYTES = 255
OWNER_NONE = 2**32 - 1
#: Ids of folders end here, so that a node's number has room for the folder's.
MAX_FOLDER_ID = 254

#: Most bytes of an opener's description: a capsule of the longest, each byte as a number and a comma, and as much again for the rest.
MAX_OPENER_BYTES = 2 * 5 * MAX_CAPSULE_BYTES

TRACE = 1
MORE = 2
END = 4

HELLO = 1
OPEN = 2
REQUEST = 4
RESPONSE = 5
CANCEL = 6
CLOSE = 7
CONTROL = 8
CAPSULE = 10
STATE = 11
CREDIT = 12
RECORD = 13
LOOKUP = 14
LIST = 15
STAT = 16
CHANGE = 17
READ_AT = 18
WRITE_AT = 19
SET = 20
SYNC = 21
LEAVE = 23

FROM_CONSUMERS = frozenset(
    (OPEN, REQUEST, CANCEL, CLOSE, CONTROL, STATE, CREDIT, LOOKUP, LIST, STAT, CHANGE, READ_AT, WRITE_AT, SET, SYNC)
)

CREATE = 1
MAKE_FOLDER = 2
UNLINK = 3
REMOVE_FOLDER = 4
RENAME = 5
LINK = 6

BEHAVIOURS = {"session": 1, "control": 2, "text": 3, "stream": 4, "random": 5, "folder": 6}

_NODE = struct.Struct("<IBBHIIQQIIII")
_ENTRY = struct.Struct("<QH")
_LIST = struct.Struct("<QI")
_CHANGE = struct.Struct("<BBHIIII")
_SET = struct.Struct("<IIQQII")
_OFFSET = struct.Struct("<Q")
_SIZE_SET, _MODE_SET, _TIME_SET = 1, 2, 4
_MAX_SIGNED = 2**63 - 1
_NANOSECONDS = 1_000_000_000


class Corrupt(Exception):
    """A message that no correct consumer sends: its channel is closed, and the text goes to the log."""


class Header(NamedTuple):
    """The first 32 bytes of a message."""

    kind: int
    flags: int
    status: int
    session: int
    tag: int
    file: int
    length: int


def encode(kind: int, payload: bytes = b"", *, flags: int = 0, status: int = 0, session: int = 0, tag: int = 0, file: int = 0) -> bytes:
    """A whole message."""
    return HEADER.pack(kind, flags, status, session, tag, file, len(payload)) + payload


def decode(message: bytes) -> Tuple[Header, bytes]:
    """The header and the payload of a message of a consumer."""
    if len(message) < HEADER.size:
        raise Corrupt(f"a message of {len(message)} bytes is shorter than its header of {HEADER.size}")
    header = Header(*HEADER.unpack_from(message))
    if header.kind not in FROM_CONSUMERS:
        raise Corrupt(f"a consumer does not send messages of kind {header.kind}")
    if header.flags & ~TRACE or header.status:
        raise Corrupt("a request has the flags or the status of a response")
    payload = message[HEADER.size :]
    if header.length != len(payload):
        raise Corrupt(f"the header says {header.length} bytes of payload, {len(payload)} follow")
    return header, payload


@dataclass(frozen=True)
class Opener:
    """Who opens a session, as the frontend says, and what an earlier server left."""

    uid: int = 0
    gid: int = 0
    pid: int = 0
    entrance: str = ""
    flags: int = 0
    capsule: bytes = field(default=b"", repr=False)


def _is_u32(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def decode_opener(payload: bytes) -> Opener:
    """The opener that an ``Open`` describes, as JSON."""
    if len(payload) > MAX_OPENER_BYTES:
        raise Corrupt("the opener of a session has a description that is too long")
    try:
        said = json.loads(payload.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Corrupt("the opener of a session is not understood") from None
    numbers, known = ("uid", "gid", "pid"), {"uid", "gid", "pid", "entrance", "flags", "capsule"}
    if not isinstance(said, dict) or not set(said) <= known or not all(_is_u32(said.get(name)) for name in numbers):
        raise Corrupt("the opener of a session is not understood")
    capsule = said.get("capsule", [])
    if not isinstance(said.get("entrance"), str) or not _is_u32(said.get("flags", 0)) or not isinstance(capsule, list):
        raise Corrupt("the opener of a session is not understood")
    if len(capsule) > MAX_CAPSULE_BYTES or not all(_is_u32(byte) and byte < 256 for byte in capsule):
        raise Corrupt("the opener of a session has an impossible capsule")
    uid, gid, pid = (said[name] for name in numbers)
    return Opener(uid, gid, pid, said["entrance"], said.get("flags", 0), bytes(capsule))


@dataclass
class Node:
    """One node of a folder. ``serial`` tells it from the others below the same exported folder; 0 is that folder itself."""

    serial: int
    #: ``random``, ``text``, ``control``, ``session`` or ``folder``.
    behaviour: str = "random"
    size: int = 0
    mode: int = 0o644
    links: int = 1
    #: When it changed last, in nanoseconds since 1970.
    changed_ns: int = 0
    #: Who owns it; None: whoever owns the mount.
    uid: Optional[int] = None
    gid: Optional[int] = None
    #: Whether a request that was lost with a server may be sent to the next one.
    idempotent: bool = False

    def encode(self, root: int) -> bytes:
        """The bytes, below the exported folder of this id. A service's mistake is ``EIO`` to the asker, as any other one."""
        if not 0 <= self.serial < 2**SERIAL_BITS:
            raise ValueError(f"the serial number {self.serial} of a node has more than {SERIAL_BITS} bits")
        if self.behaviour not in BEHAVIOURS or self.behaviour == "stream":
            raise ValueError(f"a node of a folder can't behave as {self.behaviour!r}")
        uid = OWNER_NONE if self.uid is None else self.uid
        gid = OWNER_NONE if self.gid is None else self.gid
        seconds, nanoseconds = divmod(max(self.changed_ns, 0), _NANOSECONDS)
        number = (root + 1) << SERIAL_BITS | self.serial
        behaviour, flags = BEHAVIOURS[self.behaviour], int(self.idempotent)
        return _NODE.pack(
            number, behaviour, flags, self.mode & 0o777, self.links, 0, self.size, seconds, nanoseconds, uid, gid, 0
        )


def encode_entry(node: Node, place: int, name: bytes, root: int) -> bytes:
    """One entry of a listing."""
    if not 0 < place <= _MAX_SIGNED or not is_name(name):
        raise ValueError(f"{name!r} at place {place} can't be an entry of a folder")
    return node.encode(root) + _ENTRY.pack(place, len(name)) + name


def is_name(name: bytes) -> bool:
    """Whether these bytes can be the name of a node."""
    return 0 < len(name) <= MAX_NAME_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _invalid() -> OSError:
    return OSError(errno.EINVAL, "the payload of a request is impossible")


def _too_long() -> OSError:
    return OSError(errno.ENAMETOOLONG, f"a name has {MAX_NAME_BYTES} bytes at the most")


def decode_lookup(payload: bytes) -> bytes:
    """The name of a ``Lookup``."""
    if len(payload) > MAX_NAME_BYTES:
        raise _too_long()
    if not is_name(payload):
        raise _invalid()
    return payload


def decode_range(payload: bytes) -> Tuple[int, int]:
    """An offset, or a place in a listing, and how many bytes are wanted."""
    if len(payload) != _LIST.size:
        raise _invalid()
    offset, size = _LIST.unpack(payload)
    if offset > _MAX_SIGNED:
        raise _invalid()
    return int(offset), int(size)


def decode_write(payload: bytes) -> Tuple[int, bytes]:
    """The offset and the data of a ``WriteAt``."""
    if len(payload) < _OFFSET.size:
        raise _invalid()
    (offset,) = _OFFSET.unpack_from(payload)
    data = payload[_OFFSET.size :]
    if len(data) > MAX_TRANSFER_BYTES:
        raise OSError(errno.EMSGSIZE, "more data than one WriteAt may bring")
    if offset > _MAX_SIGNED - len(data):
        raise _invalid()
    return int(offset), data


class Change(NamedTuple):
    """A change of a folder."""

    operation: int
    mode: int
    other: int
    uid: int
    gid: int
    name: bytes
    new_name: bytes


def decode_change(payload: bytes) -> Change:
    """What a ``Change`` wants."""
    if len(payload) < _CHANGE.size:
        raise _invalid()
    operation, reserved, length, mode, other, uid, gid = _CHANGE.unpack_from(payload)
    names = payload[_CHANGE.size :]
    name, new_name = names[:length], names[length:]
    if len(name) > MAX_NAME_BYTES or (operation == RENAME and len(new_name) > MAX_NAME_BYTES):
        raise _too_long()
    if reserved or len(name) != length or not CREATE <= operation <= LINK or not is_name(name):
        raise _invalid()
    if (operation == RENAME) != is_name(new_name) or (operation != RENAME and new_name):
        raise _invalid()
    return Change(operation, mode, other, uid, gid, name, new_name)


class Attributes(NamedTuple):
    """Attributes to be changed; what is None stays."""

    size: Optional[int]
    mode: Optional[int]
    changed_ns: Optional[int]


def decode_attributes(payload: bytes) -> Attributes:
    """What a ``Set`` wants."""
    if len(payload) != _SET.size:
        raise _invalid()
    which, mode, size, seconds, nanoseconds, reserved = _SET.unpack(payload)
    if which & ~(_SIZE_SET | _MODE_SET | _TIME_SET) or reserved or mode & ~0o777:
        raise _invalid()
    if max(size, seconds) > _MAX_SIGNED or nanoseconds >= _NANOSECONDS:
        raise _invalid()
    return Attributes(
        size if which & _SIZE_SET else None,
        mode if which & _MODE_SET else None,
        seconds * _NANOSECONDS + nanoseconds if which & _TIME_SET else None,
    )


@dataclass(frozen=True)
class FileExport:
    """One file of the export."""

    id: int
    name: str
    mode: int
    behaviour: str
    idempotent: bool
    verb: str
    change: Optional[str] = None


def encode_export(kind: str, files: Iterable[FileExport]) -> bytes:
    """The greeting: version 1 if nothing needs more."""
    files = list(files)
    newer = any(file.behaviour in ("stream", "folder") for file in files)
    described = []
    for file in files:
        one = {name: getattr(file, name) for name in ("id", "name", "mode", "behaviour", "idempotent", "verb")}
        if file.change is not None:
            one["change"] = file.change
        described.append(one)
    export = {"version": VERSION if newer else VERSION_MIN, "kind": kind, "files": described}
    return json.dumps(export).encode()
