# SPDX-License-Identifier: MIT OR Apache-2.0
"""One consumer of a service: its channel, its sessions, what it is owed. It is believed nothing: what it sends is checked here, and
what it can make grow has a bound here."""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Protocol, Union, cast

from . import _service_wire as wire
from ._channel import Channel
from ._memory import Buffer
from ._service_calls import Call, Caller, Session
from ._service_files import Control, File, Foldered, Sessions, Streamed, Text
from ._service_offer import Consumer
from ._service_tree import changed, listed
from ._service_wire import SESSION_NONE, Corrupt, Header

#: Most sessions of one consumer. One takes about 1 KiB here, so these are 4 MiB.
MAX_SESSIONS = 4096
#: Most unanswered requests of one consumer; only coroutines leave requests unanswered.
MAX_OUTSTANDING = 1024
#: Most bytes that these together brought: 64 requests of the longest.
MAX_OUTSTANDING_BYTES = 4 * 1024 * 1024
#: Most bytes that wait for room in one consumer's ring: two of the longest answers. More, and it does not read.
MAX_QUEUED_BYTES = 2 * wire.MAX_ANSWER_BYTES
#: Who reads none of its queued answers for so long, does not read.
STALL_LIMIT_S = 30.0
#: Messages that one consumer may have handled, and records that one reader is sent, before the others have their turn.
MESSAGES_PER_TURN = 16

_ACCESS, _WRITE_ONLY = 3, 1
_NO_ERRNO = errno.EIO
_MAX_ERRNO = 4095


class Server(Protocol):
    """What a consumer asks of the loop."""

    files: Dict[int, File]

    def stalled(self, consumer: Served) -> None:
        """Its ring is full: wake it when there is room, and not for what it sends."""

    def flowing(self, consumer: Served) -> None:
        """It reads again."""

    def pump(self, consumer: Served, session: Session) -> None:
        """A reader of a stream may take more."""

    def forget(self, session: Session) -> None:
        """A reader is gone."""

    def answered(self) -> None:
        """A coroutine was answered, or given up."""

    def fault(self, file: str, error: BaseException) -> None:
        """A function of the service failed by mistake."""


class _Opened:
    """An open session, and what belongs to it."""

    def __init__(self, session: Session, file: File, serial: Optional[int]) -> None:
        self.session = session
        self.file = file
        #: The node of a folder.
        self.serial = serial
        self.number = 0


class _Later:
    """What a function said, or the coroutine that will say it, and what makes an answer of it."""

    def __init__(self, result: Any, finish: Callable[[Any], Any]) -> None:
        self.result = result
        self.finish = finish


class _Outstanding:
    def __init__(self, session: int, size: int, task: "asyncio.Future[Any]") -> None:
        self.session = session
        self.size = size
        self.task = task


class Served:
    """A consumer that is served."""

    def __init__(self, server: Server, channel: Channel, consumer: Consumer) -> None:
        self.server = server
        self.channel = channel
        self.consumer = consumer
        #: Why it is to be thrown out.
        self.doom: Optional[str] = None
        self.requests = 0
        self.stalled_since: Optional[float] = None
        #: Whether the last word has been said.
        self.left = False
        self._sessions: Dict[int, _Opened] = {}
        self._defaults: Dict[int, Session] = {}
        self._outstanding: Dict[int, _Outstanding] = {}
        self._outstanding_bytes = 0
        self._queue: Deque[bytes] = deque()
        self._queued_bytes = 0
        channel.timeout = 0

    def greet(self, hello: bytes) -> None:
        """Sends what the service offers."""
        self._send(wire.encode(wire.HELLO, hello))

    def readable(self) -> None:
        """Handles some of what it sent."""
        for _ in range(MESSAGES_PER_TURN):
            if self.doom is not None or self._queue:
                return
            try:
                message = self.channel.read()
            except BlockingIOError:
                return
            except OSError as error:
                self.doom = f"its channel failed: {error.strerror}"
                return
            if message is None:
                self.doom = "it is gone"
                return
            try:
                self._handle(*wire.decode(message))
            except Corrupt as corruption:
                self.doom = f"it sent what no consumer sends: {corruption}"

    @property
    def owes_answers(self) -> bool:
        """Whether coroutines have not answered yet."""
        return bool(self._outstanding)

    def leave(self) -> None:
        """Says the last word: nothing more is taken, and what has no answer has not been taken, but for what is named."""
        taken = b"".join(tag.to_bytes(8, "little") for tag in self._outstanding)
        self.left = True
        self._send(wire.encode(wire.LEAVE, taken))

    def flush(self) -> None:
        """Sends what is queued, as far as there is room."""
        while self._queue and self.doom is None:
            if not self._write(self._queue[0]):
                return
            self._queued_bytes -= len(self._queue.popleft())
            self.stalled_since = time.monotonic()
        if self.doom is None:
            self.stalled_since = None
            self.server.flowing(self)
            for opened in self._sessions.values():
                if isinstance(opened.file, Streamed):
                    self.server.pump(self, opened.session)

    def pump(self, session: Session) -> bool:
        """Sends a reader some records; whether there may be more to send at once."""
        opened = self._sessions.get(session.number)
        if opened is None or opened.session is not session or not isinstance(opened.file, Streamed):
            return False
        for _ in range(MESSAGES_PER_TURN):
            if self._queue or self.doom is not None:
                return False
            taken = opened.file.stream._take(session, wire.RECORD_OVERHEAD_BYTES)
            if taken is None:
                return False
            record, capsule = taken
            message = wire.encode(wire.RECORD, record + capsule, session=session.number, file=len(capsule))
            if len(message) > self.channel.max_message:
                opened.file.stream._close(session)
                message = wire.encode(wire.RECORD, flags=wire.END, status=errno.EMSGSIZE, session=session.number)
            self._send(message)
        return True

    def close(self) -> None:
        """The consumer is gone, or thrown out, and all of its sessions with it."""
        for number in list(self._sessions):
            self._end(number)
        for outstanding in list(self._outstanding.values()):
            outstanding.task.cancel()
        self._outstanding.clear()
        self.channel.close()

    @property
    def sessions(self) -> int:
        """How many are open."""
        return len(self._sessions)

    # What it sends.

    def _handle(self, header: Header, payload: bytes) -> None:
        kind = header.kind
        if kind == wire.CANCEL:
            self._cancel(header.tag)
        elif kind == wire.CLOSE:
            for tag in [tag for tag, one in self._outstanding.items() if one.session == header.session != SESSION_NONE]:
                self._cancel(tag)
            self._end(header.session)
        elif kind == wire.CREDIT:
            opened = self._sessions.get(header.session)
            if opened is not None and isinstance(opened.file, Streamed):
                opened.file.stream._grant(opened.session, header.file)
                self.server.pump(self, opened.session)
        else:
            if header.tag in self._outstanding:
                raise Corrupt(f"tag {header.tag} is outstanding already")
            self.requests += 1
            self._ask(header, payload)

    def _ask(self, header: Header, payload: bytes) -> None:
        """A request that is answered."""
        if header.kind == wire.OPEN:
            # What is not understood, and a number in use, are not forgiven, whoever asks.
            opener = wire.decode_opener(payload)
            if header.session in self._sessions or (header.session == SESSION_NONE and not opener.capsule):
                raise Corrupt(f"session {header.session} is open already")
            self._run(header, payload, lambda: self._open(header, opener))
        elif header.kind == wire.STATE:
            self._run(header, payload, self._state)
        elif header.kind == wire.REQUEST:
            self._run(header, payload, lambda: self._request(header, payload))
        elif header.kind == wire.CONTROL:
            self._run(header, payload, lambda: self._ioctl(header, payload))
        elif header.kind in (wire.READ_AT, wire.WRITE_AT, wire.SYNC):
            self._run(header, payload, lambda: self._bytes_at(header, payload))
        else:
            self._run(header, payload, lambda: self._tree(header, payload))

    def _open(self, header: Header, opener: wire.Opener) -> Any:
        if header.session == SESSION_NONE:
            raise _error(errno.EOPNOTSUPP)
        file, serial = self._file(header.file)
        if isinstance(file, Foldered):
            if serial is None:
                raise _error(errno.EISDIR)
            if opener.flags & _ACCESS:
                self._check(file.export.change)
        if len(self._sessions) >= MAX_SESSIONS:
            raise _error(errno.EMFILE)
        caller = self._caller(opener)
        session = Session(caller, file.export.name, opener.flags, header.session, opener.capsule, self._keep)
        opened = _Opened(session, file, serial)
        opened.number = header.file
        if isinstance(file, Sessions) and file.open_handler is not None:
            file.open_handler(session)
        elif isinstance(file, Streamed) and opener.flags & _ACCESS != _WRITE_ONLY:
            file.stream._open(session, opener.capsule)
        elif isinstance(file, Foldered) and serial is not None:
            file.folder.open(session, serial, opener.flags)
        self._sessions[header.session] = opened
        return None

    def _end(self, number: int) -> None:
        opened = self._sessions.pop(number, None)
        if opened is None:
            return
        file = opened.file
        try:
            if isinstance(file, Streamed):
                file.stream._close(opened.session)
                self.server.forget(opened.session)
            elif isinstance(file, Sessions) and file.close_handler is not None:
                file.close_handler(opened.session)
            elif isinstance(file, Foldered) and opened.serial is not None:
                file.folder.close(opened.session, opened.serial)
        except Exception as error:  # The session is over, whatever the service makes of it.
            self.server.fault(file.export.name, error)

    def _request(self, header: Header, payload: bytes) -> Any:
        if len(payload) > wire.MAX_REQUEST_BYTES:
            raise _error(errno.EMSGSIZE)
        session, file, serial = self._asked(header)
        if isinstance(file, Text):
            return file.handler(session) if not payload else _raise(errno.EINVAL)
        if isinstance(file, Control):
            if payload:
                return file.handler(session, payload)
            return file.read_handler(session) if file.read_handler else b""
        if isinstance(file, Sessions):
            return file.handler(session, payload)
        if isinstance(file, Streamed):
            if file.stream.write_handler is None or header.session == SESSION_NONE:
                raise _error(errno.EBADF)
            if len(payload) > wire.MAX_RECORD_BYTES:
                raise _error(errno.EMSGSIZE)
            return file.stream.write_handler(session, payload)
        folder = cast(Foldered, file)
        return folder.folder.ask(session, serial, payload) if serial is not None else _raise(errno.EISDIR)

    def _ioctl(self, header: Header, payload: bytes) -> Any:
        if len(payload) > wire.MAX_CONTROL_BYTES:
            raise _error(errno.EMSGSIZE)
        opened = self._sessions.get(header.session)
        if opened is None:
            raise _error(errno.EBADF)
        self._check(opened.file.export.verb)
        if not isinstance(opened.file, Sessions) or opened.file.ioctl_handler is None:
            raise _error(errno.ENOTTY)
        return opened.file.ioctl_handler(opened.session, header.file, payload)

    def _bytes_at(self, header: Header, payload: bytes) -> Any:
        opened = self._sessions.get(header.session)
        if opened is None or opened.serial is None:
            raise _error(errno.EBADF)
        file, call, serial = cast(Foldered, opened.file), opened.session, opened.serial
        access = call.flags & _ACCESS
        self._check(file.export.verb if header.kind != wire.WRITE_AT else file.export.change)
        if header.kind == wire.SYNC:
            sync: Callable[[Call, int], Any] = file.folder.sync
            return _Later(sync(call, serial), lambda _: b"")
        if header.kind == wire.READ_AT:
            offset, size = wire.decode_range(payload)
            if access == _WRITE_ONLY:
                raise _error(errno.EBADF)
            if size > wire.MAX_ANSWER_BYTES:
                raise _error(errno.EMSGSIZE)
            return _Later(file.folder.read(call, serial, offset, size), lambda data: bytes(data)[:size])
        offset, data = wire.decode_write(payload)
        if not access:
            raise _error(errno.EBADF)
        return _Later(file.folder.write(call, serial, offset, data), lambda count: int(count).to_bytes(4, "little"))

    def _tree(self, header: Header, payload: bytes) -> Any:
        file, serial = self._file(header.file)
        if len(payload) > wire.MAX_REQUEST_BYTES:
            raise _error(errno.EMSGSIZE)
        if not isinstance(file, Foldered):
            raise _error(errno.ENOTDIR)
        root, node = file.export.id, serial or 0
        call = Call(self._caller(None), file.export.name)
        if header.kind in (wire.CHANGE, wire.SET):
            self._check(file.export.change)
        if header.kind == wire.LOOKUP:
            name = wire.decode_lookup(payload)
            return _Later(file.folder.lookup(call, node, name), lambda found: found.encode(root))
        if header.kind == wire.LIST:
            after, size = wire.decode_range(payload)
            return listed(file.folder.list(call, node, after), size, root)
        if header.kind == wire.STAT:
            return _Later(file.folder.stat(call, node), lambda found: found.encode(root))
        if header.kind == wire.SET:
            wanted = wire.decode_attributes(payload)
            return _Later(file.folder.set(call, node, *wanted), lambda found: found.encode(root))
        change = wire.decode_change(payload)
        call.caller = self._caller(wire.Opener(change.uid, change.gid))
        return changed(file.folder, call, node, change, root)

    def _state(self) -> bytes:
        said: Dict[str, Any] = {"requests": self.requests, "sessions": len(self._sessions), "outstanding": len(self._outstanding)}
        streams: Dict[str, int] = {}
        for opened in self._sessions.values():
            if isinstance(opened.file, Streamed):
                name = opened.file.export.name
                streams[name] = streams.get(name, 0) + opened.file.stream._dropped_by(opened.session)
        said["dropped"] = streams
        return json.dumps(said).encode()

    # What it may.

    def _file(self, number: int) -> "tuple[File, Optional[int]]":
        """The file that a number means, and the serial number of the node where it is below a folder."""
        above = number >> wire.SERIAL_BITS
        file = self.server.files.get(above - 1 if above else number)
        if file is None or (above and not isinstance(file, Foldered)):
            raise _error(errno.ENOENT)
        self._check(file.export.verb)
        return file, number & (2**wire.SERIAL_BITS - 1) if above else None

    def _check(self, verb: Optional[str]) -> None:
        verbs = self.consumer.verbs
        if verb is None or (verbs is not None and verb not in verbs):
            raise _error(errno.EACCES)

    def _asked(self, header: Header) -> "tuple[Session, File, Optional[int]]":
        """The session, the file and the node of a request, which may be in session 0."""
        if header.session != SESSION_NONE:
            opened = self._sessions.get(header.session)
            if opened is None or opened.number != header.file:
                raise _error(errno.EBADF)
            self._check(opened.file.export.verb)
            return opened.session, opened.file, opened.serial
        file, serial = self._file(header.file)
        session = self._defaults.get(file.export.id)
        if session is None:
            session = Session(self._caller(None), file.export.name, 0, SESSION_NONE, b"", self._keep)
            self._defaults[file.export.id] = session
        return session, file, serial

    def _caller(self, opener: Optional[wire.Opener]) -> Caller:
        who = self.consumer
        if opener is None:
            return Caller(who.dc, who.domain, who.verbs, entrance=who.entrance, peer=who.peer)
        uid, gid = (None if one == wire.OWNER_NONE else one for one in (opener.uid, opener.gid))
        return Caller(who.dc, who.domain, who.verbs, uid, gid, opener.pid, opener.entrance or who.entrance, who.peer)

    # What it is answered.

    def _run(self, header: Header, payload: bytes, ask: Callable[[], Any]) -> None:
        """Asks the service, and answers now, or when its coroutine is through."""
        try:
            result = ask()
            later = result if isinstance(result, _Later) else _Later(result, lambda answer: answer)
            if not inspect.isawaitable(later.result):
                self._respond(header, later.finish(later.result))
                return
            full = self._outstanding_bytes + len(payload) > MAX_OUTSTANDING_BYTES
            if full or len(self._outstanding) >= MAX_OUTSTANDING:
                if inspect.iscoroutine(later.result):
                    later.result.close()
                raise _error(errno.EAGAIN)
            task = asyncio.ensure_future(later.result)
            self._outstanding[header.tag] = _Outstanding(header.session, len(payload), task)
            self._outstanding_bytes += len(payload)
            task.add_done_callback(lambda task: self._through(header, task, later.finish))
        except Exception as error:
            self._refuse(header, error)

    def _through(self, header: Header, task: "asyncio.Future[Any]", finish: Callable[[Any], Any]) -> None:
        """A coroutine of the service is through."""
        outstanding = self._outstanding.get(header.tag)
        if outstanding is None or outstanding.task is not task:
            # Nobody waits for it any more, and a failure of it has been looked at.
            if not task.cancelled():
                task.exception()
            return
        self._forget(header.tag)
        try:
            self._respond(header, finish(task.result()))
        except (Exception, asyncio.CancelledError) as error:
            self._refuse(header, error)

    def _forget(self, tag: int) -> Optional[_Outstanding]:
        outstanding = self._outstanding.pop(tag, None)
        if outstanding is not None:
            self._outstanding_bytes -= outstanding.size
            self.server.answered()
        return outstanding

    def _cancel(self, tag: int) -> None:
        outstanding = self._forget(tag)
        if outstanding is not None:
            outstanding.task.cancel()

    def _refuse(self, header: Header, error: BaseException) -> None:
        number = error.errno if isinstance(error, OSError) else None
        if number is None or not 0 < number <= _MAX_ERRNO:
            file = header.file >> wire.SERIAL_BITS
            known = self.server.files.get(file - 1 if file else header.file)
            self.server.fault(known.export.name if known else "?", error)
            number = _NO_ERRNO
        flags = header.flags & wire.TRACE
        self._send(wire.encode(wire.RESPONSE, flags=flags, status=number, session=header.session, tag=header.tag))

    def _respond(self, header: Header, answer: Union[None, str, Buffer]) -> None:
        """Sends an answer, in pieces if it is long."""
        data = answer.encode() if isinstance(answer, str) else b"" if answer is None else bytes(memoryview(answer))
        if len(data) > wire.MAX_ANSWER_BYTES:
            raise _error(errno.EMSGSIZE)
        room = min(self.channel.max_message - wire.HEADER.size, wire.MAX_RESPONSE_BYTES)
        if room <= 0:
            self.doom = "its ring has no room for an answer"
            return
        at = 0
        while len(data) - at > room:
            piece = data[at : at + room]
            self._send(wire.encode(wire.RESPONSE, piece, flags=wire.MORE, session=header.session, tag=header.tag))
            at += room
        last = data[at:] if at else data
        # Where the phases are asked for, there are none.
        self._send(wire.encode(wire.RESPONSE, last, flags=header.flags & wire.TRACE, session=header.session, tag=header.tag))

    def _keep(self, number: int, capsule: bytes) -> None:
        if len(capsule) > wire.MAX_CAPSULE_BYTES:
            raise OSError(errno.EMSGSIZE, f"a capsule has at most {wire.MAX_CAPSULE_BYTES} bytes, not {len(capsule)}")
        self._send(wire.encode(wire.CAPSULE, capsule, session=number))

    def _send(self, message: bytes) -> None:
        """Sends a message, or queues it. Never waits."""
        if self.doom is not None:
            return
        if not self._queue and self._write(message):
            return
        if self.doom is not None:
            return
        if not self._queue:
            self.stalled_since = time.monotonic()
        self._queue.append(message)
        self._queued_bytes += len(message)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self.doom = f"it does not read its answers: {self._queued_bytes} bytes are queued for it"
        elif len(self._queue) == 1:
            self.server.stalled(self)

    def _write(self, message: bytes) -> bool:
        """Whether there was room; where the channel is over, the consumer is doomed."""
        try:
            self.channel.write(message)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            self.doom = "it is gone" if error.errno == errno.EPIPE else f"its channel failed: {error.strerror}"
            return False


def _error(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


def _raise(number: int) -> Any:
    raise _error(number)
