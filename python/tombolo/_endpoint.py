# SPDX-License-Identifier: MIT OR Apache-2.0
"""Endpoints: messages between the programs of a distributed container, which never learn where the others are."""

from __future__ import annotations

import ctypes
import enum
import errno
import time
from typing import Callable, Iterator, List, NamedTuple, NoReturn, Optional, Tuple, Union

from . import _library
from ._end import Handle, nanoseconds, options
from ._endpoint_errors import TooLong, raise_refusal
from ._library import READING, library
from ._memory import Buffer, pointer_to

_INTERRUPTIBLE = 128
_NOBODY = 0
# Bytes of a reply to a request to a name, unless the caller says otherwise: as many as fit a pair of the default size.
_ASK_TAKES = 16 << 10
# Seconds that one attempt to bind takes at most.
_BIND_TURN = 0.2
_HANDLE = ctypes.c_int64
_ADDRESS = ctypes.c_uint64


class _Message(ctypes.Structure):
    """``struct tombolo_message``."""

    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("source", _ADDRESS),
        ("request", ctypes.c_uint64),
        ("notices", ctypes.c_uint64),
        ("length", ctypes.c_uint32),
        ("takes", ctypes.c_uint32),
        ("relayed_by", _ADDRESS),
        ("reserved", ctypes.c_uint64 * 2),
    ]


class _Peer(ctypes.Structure):
    """``struct tombolo_peer``."""

    _fields_ = [
        ("address", _ADDRESS),
        ("rights", ctypes.c_uint32),
        ("is_alive", ctypes.c_uint32),
        ("name", ctypes.c_char * 64),
        ("domain", ctypes.c_char * 64),
        ("reserved", ctypes.c_uint64 * 4),
    ]


class _Grant(ctypes.Structure):
    """``struct tombolo_grant``."""

    _fields_ = [
        ("grant", ctypes.c_int64),
        ("owner", _ADDRESS),
        ("bytes", ctypes.c_uint64),
        ("access", ctypes.c_uint32),
        ("reserved_word", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 4),
    ]


_OPTIONS = ctypes.POINTER(_library.Options)
_SIZE, _COUNT, _TIME = ctypes.c_size_t, ctypes.c_ssize_t, ctypes.c_int64
_BYTES, _TEXT, _TAG, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_int
_LONG, _GRANT = ctypes.c_uint64, ctypes.c_int64
_MESSAGE = ctypes.POINTER(_Message)


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments


_declare("tombolo_endpoint_bind", _HANDLE, _TEXT, _OPTIONS)
_declare("tombolo_endpoint_pair", _INT, _OPTIONS, ctypes.POINTER(_HANDLE))
_declare("tombolo_endpoint_address", _ADDRESS, _HANDLE)
_declare("tombolo_endpoint_name", _COUNT, _HANDLE, _TEXT, _SIZE)
_declare("tombolo_endpoint_find", _ADDRESS, _HANDLE, _TEXT, _TIME)
_declare("tombolo_endpoint_wait", _ADDRESS, _HANDLE, _TEXT, _TIME)
_declare("tombolo_endpoint_send", _INT, _HANDLE, _ADDRESS, _TAG, _BYTES, _SIZE, _TIME)
_declare("tombolo_endpoint_send_buffered", _INT, _HANDLE, _ADDRESS, _TAG, _BYTES, _SIZE, _TIME)
_declare("tombolo_endpoint_flush", _INT, _HANDLE)
_declare("tombolo_endpoint_call", _COUNT, _HANDLE, _ADDRESS, _TAG, _BYTES, _SIZE, _BYTES, _SIZE, _MESSAGE, _TIME)
_declare(
    "tombolo_endpoint_ask", _COUNT, _HANDLE, _TEXT, _TAG, _BYTES, _SIZE, _BYTES, _SIZE, _MESSAGE, _TIME
)
_declare("tombolo_endpoint_bind_backup", _HANDLE, _TEXT, _OPTIONS)
_declare("tombolo_endpoint_take_over", _HANDLE, _HANDLE, _TIME)
_declare("tombolo_endpoint_promote", _INT, _HANDLE)
_declare("tombolo_endpoint_reply_with_state", _INT, _HANDLE, _LONG, _TAG, _BYTES, _SIZE, _BYTES, _SIZE)
_declare("tombolo_endpoint_keep_state", _INT, _HANDLE, _BYTES, _SIZE)
_declare("tombolo_endpoint_state", _COUNT, _HANDLE, _BYTES, _SIZE)
_declare("tombolo_endpoint_tell", _INT, _HANDLE, _TEXT, _TAG, _BYTES, _SIZE, _TIME)
_declare("tombolo_endpoint_migrate_start", _INT, _HANDLE, _TEXT)
_declare("tombolo_endpoint_migrate_commit", _INT, _HANDLE)
_declare("tombolo_endpoint_migrate_roll_back", _INT, _HANDLE)
_declare("tombolo_endpoint_give_up", _INT, _HANDLE)
_declare("tombolo_endpoint_receive", _COUNT, _HANDLE, _ADDRESS, _BYTES, _SIZE, _MESSAGE, _TIME)
_declare("tombolo_endpoint_reply", _INT, _HANDLE, _LONG, _TAG, _BYTES, _SIZE)
_declare("tombolo_endpoint_relay", _INT, _HANDLE, _LONG, _ADDRESS, _TAG, _BYTES, _SIZE)
_declare("tombolo_endpoint_notify", _INT, _HANDLE, _ADDRESS, _LONG)
_declare("tombolo_endpoint_max_message", _COUNT, _HANDLE, _ADDRESS)
_declare("tombolo_endpoint_peers", _COUNT, _HANDLE, ctypes.POINTER(_Peer), _SIZE)
_declare("tombolo_endpoint_peer", _INT, _HANDLE, _ADDRESS, ctypes.POINTER(_Peer))
_declare("tombolo_endpoint_buffer", _HANDLE, _HANDLE, _SIZE, _INT)
_declare("tombolo_endpoint_grant", _GRANT, _HANDLE, _HANDLE, _ADDRESS)
_declare("tombolo_endpoint_revoke", _INT, _HANDLE, _HANDLE, _GRANT)
_declare("tombolo_endpoint_granted", _INT, _HANDLE, _GRANT, ctypes.POINTER(_Grant), _TIME)
_declare("tombolo_endpoint_copy_in", _INT, _HANDLE, _GRANT, _LONG, _BYTES, _SIZE, _TIME)
_declare("tombolo_endpoint_copy_out", _INT, _HANDLE, _BYTES, _SIZE, _GRANT, _LONG, _TIME)
_declare("tombolo_endpoint_copy", _INT, _HANDLE, _GRANT, _LONG, _GRANT, _LONG, _LONG, _TIME)
_declare("tombolo_endpoint_copy_to_own", _INT, _HANDLE, _GRANT, _LONG, _HANDLE, _LONG, _LONG, _TIME)
_declare("tombolo_endpoint_copy_from_own", _INT, _HANDLE, _HANDLE, _LONG, _GRANT, _LONG, _LONG, _TIME)
_declare("tombolo_buffer_read", _INT, _HANDLE, _LONG, _BYTES, _SIZE)
_declare("tombolo_buffer_write", _INT, _HANDLE, _LONG, _BYTES, _SIZE)


class Address(int):
    """Where an endpoint is: it names no machine. Its text is what people write: ``7.3``, place and generation."""

    @property
    def place(self) -> int:
        """Its place in the distributed container's table."""
        return self & 0xFFFF_FFFF

    @property
    def generation(self) -> int:
        """Which of those that had this place, from 1 on."""
        return self >> 32

    def __str__(self) -> str:
        return f"{self.place}.{self.generation}"

    def __repr__(self) -> str:
        return f"<tombolo.Address {self}>"


#: Whom to find: a name, or an address.
Whom = Union[str, Address]


class Kind(enum.IntEnum):
    """What came."""

    MESSAGE = 1
    REQUEST = 2
    NOTICES = 3
    REPLY = 4


class Message(NamedTuple):
    """What came, from whom, and what it means."""

    kind: Kind
    #: Who it is from; of a request that was passed on, who asked first.
    source: Address
    #: What it means: the sender's word.
    tag: int
    #: Its bytes.
    data: bytes
    #: The bits of notices.
    notices: int
    #: Of a request: most bytes of its reply.
    takes: int
    #: Of a request: its number, which :meth:`Endpoint.reply` needs.
    request: int
    #: Of a request that was passed on: by whom, who is the one that says who asked. ``None``: the source has asked itself.
    relayed_by: Optional[Address] = None


class Rights(enum.IntFlag):
    """What an endpoint may do to a peer, and what it takes from it."""

    SEND = 1
    REQUEST = 2
    NOTIFY = 4
    RELAY = 8
    TAKES_MESSAGES = 16
    TAKES_REQUESTS = 32
    TAKES_NOTICES = 64
    TAKES_RELAYED = 128


class Peer(NamedTuple):
    """One whom an endpoint was introduced to."""

    address: Address
    name: str
    domain: str
    rights: Rights
    is_alive: bool


class Granted(NamedTuple):
    """What a grant stands for."""

    grant: int
    owner: Address
    size: int
    writable: bool


def _ok(result: int) -> int:
    if result == -1:
        raise_refusal()
    return result


class OwnBuffer:
    """A buffer of an endpoint, which others may copy from or to once it is granted. Made by :meth:`Endpoint.buffer`."""

    def __init__(self, handle: int, size: int) -> None:
        """Made by :meth:`Endpoint.buffer`."""
        self._handle = handle
        self._size = size

    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes:
        """Some of its bytes; all from the offset on, if no length is given."""
        wanted = max(0, self._size - offset) if length is None else length
        _check_range(offset, wanted)
        data = bytearray(wanted)
        place, size = pointer_to(data)
        _ok(library.tombolo_buffer_read(self._handle, offset, place, size))
        return bytes(data)

    def write(self, offset: int, data: Buffer) -> None:
        """Writes bytes at an offset."""
        place, size = pointer_to(data)
        _check_range(offset, size)
        _ok(library.tombolo_buffer_write(self._handle, offset, place, size))

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Frees it: all its grants are over. Does nothing the second time."""
        handle, self._handle = self._handle, -1
        if handle != -1:
            _ok(library.tombolo_close(handle))

    def __enter__(self) -> "OwnBuffer":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", -1) != -1:
            library.tombolo_close(self._handle)


def _check_range(offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise ValueError("an offset and a length are not negative")


def _grant_number(grant: int) -> int:
    if not 0 < grant < 2**63:
        raise ValueError(f"{grant} is no number of a grant")
    return grant


class Endpoint(Handle):
    """An endpoint: it makes one call at a time::

        with tombolo.Endpoint("planner") as me:
            for message in me:
                if message.kind is tombolo.Kind.REQUEST:
                    me.reply(message, b"turn left")

    Time-outs are in seconds: ``None``, as long as it takes (the default); 0, not at all (:class:`WouldWait`); else :class:`TimedOut`."""

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        wait: Optional[float] = 0.0,
        spin: bool = True,
        batch_bytes: int = 0,
    ) -> None:
        """Binds an endpoint: by a name that the topology file places in this domain, or (``None``) one without a name.

        ``wait``: how long (in seconds) to wait for the daemon, and for a name that another program has. Not ``spin``: sleep at once instead of
        watching for some microseconds. ``batch_bytes``: see :meth:`send_buffered`."""
        made = options(spin=spin, batch_bytes=batch_bytes)
        made.flags |= _INTERRUPTIBLE
        self._take(_bound(_name_bytes(name), made, wait))

    def _again(self, call: Callable[[], int], failed: int = -1) -> int:
        """Makes a call of the library; one that a signal has interrupted goes on after Python has run its handlers, or is given up if one of
        them raises an exception."""
        is_interrupted = False
        try:
            while True:
                result = call()
                if result != failed:
                    is_interrupted = False
                    return result
                is_interrupted = ctypes.get_errno() == errno.EINTR
                if not is_interrupted:
                    raise_refusal()
        finally:
            if is_interrupted:
                library.tombolo_endpoint_give_up(self._handle)

    def _take(self, handle: int) -> None:
        self._handle = handle
        self._buffer = bytearray(4096)
        self._replies = bytearray(4096)

    @property
    def address(self) -> Address:
        """Where it is."""
        return Address(self._again(lambda: int(library.tombolo_endpoint_address(self._handle)), _NOBODY))

    @property
    def name(self) -> str:
        """Its name, empty if it has none."""
        text = ctypes.create_string_buffer(64)
        _ok(library.tombolo_endpoint_name(self._handle, text, 64))
        return text.value.decode("utf-8", "replace")

    def find(self, whom: Whom, timeout: Optional[float] = None) -> Address:
        """The address of whoever is bound by a name, or at an address; introduces both if they do not know each other. :class:`NotBound`: nobody
        is bound there now."""
        text = _whom_bytes(whom)
        ns = _answer_ns(timeout)
        return Address(self._again(lambda: int(library.tombolo_endpoint_find(self._handle, text, ns)), _NOBODY))

    def wait(self, whom: Whom, timeout: Optional[float] = None) -> Address:
        """As :meth:`find`, and waits until somebody is bound there."""
        text, ns = _whom_bytes(whom), nanoseconds(timeout)
        return Address(self._again(lambda: int(library.tombolo_endpoint_wait(self._handle, text, ns)), _NOBODY))

    def send(self, to: Address, data: Buffer = b"", *, tag: int = 0, timeout: Optional[float] = None) -> None:
        """Sends a message, and waits until it is received. What failed has not been received, and will not be."""
        place, size = pointer_to(data)
        ns = nanoseconds(timeout)
        self._again(lambda: int(library.tombolo_endpoint_send(self._handle, to, tag, place, size, ns)))

    def send_buffered(self, to: Address, data: Buffer = b"", *, tag: int = 0, timeout: Optional[float] = None) -> None:
        """Sends a message, and waits no longer than until there is room for it. Small ones are held back until they are ``batch_bytes``
        together; calls that wait show them first, and so does :meth:`flush`."""
        place, size = pointer_to(data)
        ns = nanoseconds(timeout)
        self._again(lambda: int(library.tombolo_endpoint_send_buffered(self._handle, to, tag, place, size, ns)))

    def flush(self) -> None:
        """Shows what is held back."""
        _ok(library.tombolo_endpoint_flush(self._handle))

    def call(
        self,
        to: Address,
        data: Buffer = b"",
        *,
        tag: int = 0,
        takes: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Message:
        """Sends a request, and waits for the reply, of ``takes`` bytes at most (``None``: as many as fit)."""
        place, size = pointer_to(data)
        ns = nanoseconds(timeout)
        room = self._room_for(to) if takes is None else takes
        if room > len(self._replies):
            self._replies = bytearray(room)
        into, came = self._replies, _Message()
        target = (ctypes.c_ubyte * len(into)).from_buffer(into)
        length = self._again(
            lambda: int(
                library.tombolo_endpoint_call(
                    self._handle, to, tag, place, size, target, room, ctypes.byref(came), ns
                )
            )
        )
        return _message(came, bytes(memoryview(into)[:length]))

    def receive(self, source: Optional[Address] = None, *, timeout: Optional[float] = None) -> Message:
        """The next message, request or notices: of anybody, each in turn, or of one."""
        wanted = _NOBODY if source is None else source
        ns = nanoseconds(timeout)
        came = _Message()
        while True:
            target = (ctypes.c_ubyte * len(self._buffer)).from_buffer(self._buffer)
            try:
                length = self._again(
                    lambda: int(
                        library.tombolo_endpoint_receive(
                            self._handle, wanted, target, len(self._buffer), ctypes.byref(came), ns
                        )
                    )
                )
            except TooLong:
                # It stays until there is room for it.
                self._buffer = bytearray(came.length)
                wanted = came.source
                continue
            return _message(came, bytes(memoryview(self._buffer)[:length]))

    def __iter__(self) -> Iterator[Message]:
        """All that comes, for ever."""
        while True:
            yield self.receive()

    def reply(
        self, request: Message, data: Buffer = b"", *, tag: int = 0, state: Optional[Buffer] = None
    ) -> None:
        """Answers a request. Waits for nobody but backups of this endpoint. ``state``: whatever a backup has to know to go on from here; it has both
        the reply and the state, or neither. :class:`Canceled`: nobody waits for it any more."""
        place, size = pointer_to(data)
        if state is None:
            _ok(library.tombolo_endpoint_reply(self._handle, request.request, tag, place, size))
            return
        kept, length = pointer_to(state)
        _ok(
            library.tombolo_endpoint_reply_with_state(
                self._handle, request.request, tag, place, size, kept, length
            )
        )

    def keep_state(self, state: Buffer) -> None:
        """Hands over a state to backups without a reply: at the start, or after a message."""
        kept, length = pointer_to(state)
        _ok(library.tombolo_endpoint_keep_state(self._handle, kept, length))

    @property
    def state(self) -> bytes:
        """The state that was handed over last, by this endpoint or by those whose place it has taken; empty: none was."""
        return _state_of(self._handle)

    def tell(self, name: str, data: Buffer = b"", *, tag: int = 0, timeout: Optional[float] = None) -> None:
        """Sends a message to whoever has a name, and waits until it is received. If that one moves or dies before it has received the message, the
        next one receives it: one of them, and once."""
        whom = _name_bytes(name)
        place, size = pointer_to(data)
        ns = nanoseconds(timeout)
        self._again(lambda: int(library.tombolo_endpoint_tell(self._handle, whom, tag, place, size, ns)))

    def start_migration(self, domain: str) -> None:
        """Begins to move to a program of another domain that is a backup of this endpoint. From now on it receives nothing, and those who call it
        wait, until :meth:`commit_migration` or :meth:`roll_back_migration`."""
        _ok(library.tombolo_endpoint_migrate_start(self._handle, _name_bytes(domain)))

    def commit_migration(self) -> None:
        """Moves: everything that is queued goes to the new place, which has the name from then on, and this endpoint has ended. :class:`Canceled`:
        the other program did not take it, and the endpoint goes on here."""
        _ok(library.tombolo_endpoint_migrate_commit(self._handle))

    def roll_back_migration(self) -> None:
        """Stays, and receives again."""
        _ok(library.tombolo_endpoint_migrate_roll_back(self._handle))

    def migrate(self, domain: str) -> None:
        """Moves to a program of another domain: starts and commits."""
        self.start_migration(domain)
        self.commit_migration()

    def ask(
        self,
        name: str,
        data: Buffer = b"",
        *,
        tag: int = 0,
        takes: int = _ASK_TAKES,
        timeout: Optional[float] = None,
    ) -> Message:
        """Sends a request to whoever has a name, and waits for the reply. If that one dies or is superseded, the request is sent again to the backup
        that takes over, under the same number: it is answered once. :class:`TimedOut` with ``received`` ``None``: somebody may have received it and
        has died, and whoever has the name now knows nothing of it."""
        whom = _name_bytes(name)
        place, size = pointer_to(data)
        ns = nanoseconds(timeout)
        if takes > len(self._replies):
            self._replies = bytearray(takes)
        into, came = self._replies, _Message()
        target = (ctypes.c_ubyte * len(into)).from_buffer(into)
        length = self._again(
            lambda: int(
                library.tombolo_endpoint_ask(
                    self._handle, whom, tag, place, size, target, takes, ctypes.byref(came), ns
                )
            )
        )
        return _message(came, bytes(memoryview(into)[:length]))

    def relay(self, request: Message, to: Address, data: Optional[Buffer] = None, *, tag: Optional[int] = None) -> None:
        """Passes a request on, as it came or with other bytes: ``to`` answers. Never waits. :class:`WouldWait`: ``to`` has not received what was
        sent before, and the request still waits for an answer from here."""
        place, size = pointer_to(request.data if data is None else data)
        meant = request.tag if tag is None else tag
        _ok(library.tombolo_endpoint_relay(self._handle, request.request, to, meant, place, size))

    def notify(self, to: Address, bits: int) -> None:
        """Sets bits, which the other one receives together with those that it has not received yet. Never waits."""
        if not 0 <= bits < 2**64:
            raise ValueError("notices are 64 bits")
        _ok(library.tombolo_endpoint_notify(self._handle, to, bits))

    def max_message(self, to: Address) -> int:
        """Most bytes of a message to this one."""
        return _ok(library.tombolo_endpoint_max_message(self._handle, to))

    def _room_for(self, to: Address) -> int:
        # Whom it does not know, the call says.
        known = int(library.tombolo_endpoint_max_message(self._handle, to))
        return known if known >= 0 else 0

    def peers(self) -> List[Peer]:
        """Whom it was introduced to."""
        count = _ok(library.tombolo_endpoint_peers(self._handle, None, 0))
        while True:
            room = count
            found = (_Peer * room)()
            count = _ok(library.tombolo_endpoint_peers(self._handle, found, room))
            if count <= room:
                return [_peer(one) for one in found[:count]]

    def peer(self, address: Address) -> Peer:
        """One of them: who has sent what was received last, as the daemon says."""
        found = _Peer()
        _ok(library.tombolo_endpoint_peer(self._handle, address, ctypes.byref(found)))
        return _peer(found)

    def buffer(self, size: int, access: str = "read") -> OwnBuffer:
        """A buffer of zeros that can be granted: for others to ``"read"``, or to ``"write"`` as well."""
        numbers = {"read": 1, "write": 2}
        if access not in numbers:
            raise ValueError(f"access is 'read' or 'write', not {access!r}")
        if not 0 <= size < 2**63:
            raise ValueError(f"a buffer can't have {size} bytes")
        return OwnBuffer(_ok(library.tombolo_endpoint_buffer(self._handle, size, numbers[access])), size)

    def grant(self, buffer: OwnBuffer, to: Address) -> int:
        """Grants a buffer to another endpoint: the number of the grant, to be sent to it."""
        return _ok(library.tombolo_endpoint_grant(self._handle, buffer._handle, to))

    def revoke(self, buffer: OwnBuffer, grant: int) -> None:
        """Takes a grant back: after it the other one sees nothing of what this one writes, and changes nothing."""
        _ok(library.tombolo_endpoint_revoke(self._handle, buffer._handle, _grant_number(grant)))

    def granted(self, grant: int, timeout: Optional[float] = None) -> Granted:
        """What a grant stands for."""
        found = _Grant()
        number = _grant_number(grant)
        self._again(
            lambda: int(
                library.tombolo_endpoint_granted(self._handle, number, ctypes.byref(found), _answer_ns(timeout))
            )
        )
        return Granted(found.grant, Address(found.owner), found.bytes, found.access == 2)

    def copy_in(self, grant: int, length: int, offset: int = 0, timeout: Optional[float] = None) -> bytes:
        """Bytes of a granted buffer."""
        _check_range(offset, length)
        data = bytearray(length)
        self.copy_into(grant, data, offset, timeout)
        return bytes(data)

    def copy_into(self, grant: int, buffer: Buffer, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Fills a writable buffer with bytes of a granted one."""
        view = memoryview(buffer)
        if view.readonly:
            raise TypeError("the buffer can only be read")
        place, size = pointer_to(view)
        _check_range(offset, size)
        number, ns = _grant_number(grant), _answer_ns(timeout)
        self._again(lambda: int(library.tombolo_endpoint_copy_in(self._handle, number, offset, place, size, ns)))

    def copy_out(self, data: Buffer, grant: int, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Writes bytes to a granted buffer."""
        place, size = pointer_to(data)
        _check_range(offset, size)
        number, ns = _grant_number(grant), _answer_ns(timeout)
        self._again(lambda: int(library.tombolo_endpoint_copy_out(self._handle, place, size, number, offset, ns)))

    def copy(
        self,
        from_grant: int,
        to_grant: int,
        length: int,
        *,
        from_offset: int = 0,
        to_offset: int = 0,
        timeout: Optional[float] = None,
    ) -> None:
        """Copies from one granted buffer to another."""
        _check_range(min(from_offset, to_offset), length)
        source, target, ns = _grant_number(from_grant), _grant_number(to_grant), _answer_ns(timeout)
        self._again(
            lambda: int(
                library.tombolo_endpoint_copy(self._handle, source, from_offset, target, to_offset, length, ns)
            )
        )

    def copy_to_own(
        self,
        grant: int,
        buffer: OwnBuffer,
        length: int,
        *,
        from_offset: int = 0,
        to_offset: int = 0,
        timeout: Optional[float] = None,
    ) -> None:
        """Copies from a granted buffer to one of one's own."""
        _check_range(min(from_offset, to_offset), length)
        source, target, ns = _grant_number(grant), buffer._handle, _answer_ns(timeout)
        self._again(
            lambda: int(
                library.tombolo_endpoint_copy_to_own(
                    self._handle, source, from_offset, target, to_offset, length, ns
                )
            )
        )

    def copy_from_own(
        self,
        buffer: OwnBuffer,
        grant: int,
        length: int,
        *,
        from_offset: int = 0,
        to_offset: int = 0,
        timeout: Optional[float] = None,
    ) -> None:
        """Copies from a buffer of one's own to a granted one."""
        _check_range(min(from_offset, to_offset), length)
        source, target, ns = buffer._handle, _grant_number(grant), _answer_ns(timeout)
        self._again(
            lambda: int(
                library.tombolo_endpoint_copy_from_own(
                    self._handle, source, from_offset, target, to_offset, length, ns
                )
            )
        )

    def fileno(self) -> int:
        """A descriptor that is readable when there may be something to receive: for :mod:`select`, :mod:`selectors` and ``add_reader`` of
        :mod:`asyncio`. Receive with ``timeout=0`` until :class:`WouldWait`."""
        return _ok(library.tombolo_poll_descriptor(self._handle, READING))

    def _raise_error(self) -> NoReturn:
        raise_refusal()


class Backup(Handle):
    """A backup of an endpoint: it takes its place when the program of that one dies::

        me = tombolo.Backup("planner").wait()
        count = int(me.state or b"0")

    It is a backup only while its program is in :meth:`wait`."""

    def __init__(self, name: str, *, spin: bool = True, batch_bytes: int = 0) -> None:
        """Becomes a backup of the endpoint of this name, which need not be bound yet. The rest is as of :class:`Endpoint`, for the endpoint that it
        will be."""
        made = options(spin=spin, batch_bytes=batch_bytes)
        made.flags |= _INTERRUPTIBLE
        self._handle = int(library.tombolo_endpoint_bind_backup(_name_bytes(name), made))
        if self._handle == -1:
            raise_refusal()

    def wait(self, timeout: Optional[float] = None) -> Endpoint:
        """The endpoint, as soon as this backup has its primary's place. :class:`TimedOut`: the primary lives."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _BIND_TURN if deadline is None else max(0.0, min(_BIND_TURN, deadline - time.monotonic()))
            handle = int(library.tombolo_endpoint_take_over(self._handle, max(1, nanoseconds(left))))
            if handle != -1:
                endpoint = Endpoint.__new__(Endpoint)
                endpoint._take(handle)
                return endpoint
            is_over = deadline is not None and time.monotonic() >= deadline
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR) or is_over:
                raise_refusal()

    def promote(self) -> None:
        """Has the next :meth:`wait` supersede a primary that lives: no reply of that one counts any more."""
        _ok(library.tombolo_endpoint_promote(self._handle))

    @property
    def state(self) -> bytes:
        """The state that the primary has handed over last; empty: none was."""
        return _state_of(self._handle)


def _state_of(handle: int) -> bytes:
    room = bytearray(4096)
    while True:
        target = (ctypes.c_ubyte * len(room)).from_buffer(room)
        length = _ok(int(library.tombolo_endpoint_state(handle, target, len(room))))
        if length <= len(room):
            return bytes(memoryview(room)[:length])
        room = bytearray(length)


def _bound(name: Optional[bytes], made: _library.Options, wait: Optional[float]) -> int:
    """Binds: in turns short enough that signals have their handlers run."""
    deadline = None if wait is None else time.monotonic() + wait
    while True:
        left = _BIND_TURN if deadline is None else max(0.0, min(_BIND_TURN, deadline - time.monotonic()))
        made.wait_ns = 0 if wait == 0 else max(1, nanoseconds(left))
        handle = int(library.tombolo_endpoint_bind(name, made))
        if handle != -1:
            return handle
        is_over = deadline is not None and time.monotonic() >= deadline
        if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR) or is_over:
            raise_refusal()


def _answer_ns(timeout: Optional[float]) -> int:
    """What the daemon is given to answer: the library's choice, unless somebody says otherwise."""
    return 0 if timeout is None else max(1, nanoseconds(timeout))


def _name_bytes(name: Optional[str]) -> Optional[bytes]:
    if name is None:
        return None
    encoded = name.encode()
    if b"\0" in encoded:
        raise ValueError("a name has no NUL in it")
    return encoded


def _whom_bytes(whom: Whom) -> bytes:
    found = _name_bytes(str(whom))
    assert found is not None
    return found


def _message(came: _Message, data: bytes) -> Message:
    return Message(
        Kind(came.kind),
        Address(came.source),
        came.tag,
        data,
        came.notices,
        came.takes,
        came.request,
        Address(came.relayed_by) if came.relayed_by else None,
    )


def _peer(found: _Peer) -> Peer:
    name, domain = (text.decode("utf-8", "replace") for text in (found.name, found.domain))
    return Peer(Address(found.address), name, domain, Rights(found.rights), bool(found.is_alive))


def endpoint_pair(*, spin: bool = True, batch_bytes: int = 0) -> Tuple[Endpoint, Endpoint]:
    """Two endpoints that know each other, and nobody else: for threads, and to try things without a daemon. They can't grant buffers."""
    made = options(spin=spin, batch_bytes=batch_bytes)
    made.flags |= _INTERRUPTIBLE
    ends = (_HANDLE * 2)()
    _ok(library.tombolo_endpoint_pair(made, ends))
    one, other = Endpoint.__new__(Endpoint), Endpoint.__new__(Endpoint)
    one._take(ends[0])
    other._take(ends[1])
    return one, other
