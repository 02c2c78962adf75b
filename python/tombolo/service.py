# SPDX-License-Identifier: MIT OR Apache-2.0
"""Services: files that a program serves to the domains that the topology lets::

    from tombolo.service import Service

    thermometer = Service("thermometer")

    @thermometer.text("reading", verb="read")
    def reading(call):
        return "21.5\\n"

    thermometer.run()

Whoever mounts it at ``/srv/thermometer`` reads ``/srv/thermometer/reading``. The page ``docs/services.md`` is the tour,
``docs/spec/service.md`` the protocol.

All functions are called in one thread, the one of :meth:`Service.run`, and nobody else is served meanwhile: what takes long is a
coroutine function, or publishes to a stream from a thread of its own. An :class:`OSError` that a function raises is the errno of the
caller's call; any other exception is ``EIO`` to it, and in the log.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any, Callable, Dict, Optional, Type, TypeVar, Union

from ._service_calls import Answer, Call, Caller, Session
from ._service_files import Control, File, Foldered, Handler, Sessions, Streamed, Text
from ._service_folder import NODE_OVERHEAD_BYTES, RENAME_EXCHANGE, RENAME_NOREPLACE, ROOT, Folder, MemoryFolder
from ._service_loop import Loop
from ._service_offer import DaemonOffer, PathOffer
from ._service_stream import HISTORY_BYTES, HISTORY_RECORDS, Stream
from ._service_wire import MAX_FOLDER_ID, FileExport, Node, encode_export, is_name

__all__ = [
    "Answer",
    "Call",
    "Caller",
    "Control",
    "Folder",
    "HISTORY_BYTES",
    "HISTORY_RECORDS",
    "MemoryFolder",
    "NODE_OVERHEAD_BYTES",
    "Node",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "ROOT",
    "Service",
    "Session",
    "Sessions",
    "Stream",
    "Text",
]

#: Most files of one service: what is more belongs into a folder. Any of them may be one, and a folder's id has a bound.
MAX_FILES = MAX_FOLDER_ID + 1

_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

AnyFolder = TypeVar("AnyFolder", bound=Union[Folder, Type[Folder]])
Changed = TypeVar("Changed", bound=Callable[[Dict[str, Any]], None])


class Service:
    """A service of kind ``program``: a name, and files."""

    def __init__(self, name: str, *, kind: Optional[str] = None) -> None:
        """``name``: as the topology has it. ``kind``: a word for what it is; the name unless said."""
        self.name = name
        self.kind = _word("kind", kind if kind is not None else name)
        #: The settings of the topology file, as admitted; empty until the daemon has told them, and at a path.
        self.settings: Dict[str, Any] = {}
        self._files: Dict[int, File] = {}
        self._loop: Optional[Loop] = None
        self._stopped = False
        self._settings_handler: Optional[Callable[[Dict[str, Any]], None]] = None

    def text(
        self, name: str, *, verb: str, mode: int = 0o444, idempotent: bool = True
    ) -> Callable[[Handler], Text[Handler]]:
        """Decorates what answers who reads the file: ``function(call)``."""

        def registered(function: Handler) -> Text[Handler]:
            return self._add(Text(self._export(name, mode, "text", idempotent, verb), function))

        return registered

    def control(
        self, name: str, *, verb: str, mode: int = 0o666, idempotent: bool = False
    ) -> Callable[[Handler], Control[Handler]]:
        """Decorates what a line does that is written to the file: ``function(call, line)``. An :class:`OSError` is the errno of the write.
        See :meth:`Control.reader` for who reads it."""

        def registered(function: Handler) -> Control[Handler]:
            return self._add(Control(self._export(name, mode, "control", idempotent, verb), function))

        return registered

    def session(
        self, name: str, *, verb: str, mode: int = 0o666, idempotent: bool = False
    ) -> Callable[[Handler], Sessions[Handler]]:
        """Decorates what answers a line that is written to an open file: ``function(session, line)``; the answer is read from the same open
        file. See :class:`Sessions` for ioctl, openings and ends.

        ``idempotent``: a line that was not answered when this program died is sent to the next one; else the reader gets
        ``ECONNRESET``."""

        def registered(function: Handler) -> Sessions[Handler]:
            return self._add(Sessions(self._export(name, mode, "session", idempotent, verb), function))

        return registered

    def stream(
        self,
        name: str,
        *,
        verb: str,
        mode: int = 0o666,
        history: int = HISTORY_RECORDS,
        history_bytes: int = HISTORY_BYTES,
        replay: bool = False,
        wait: bool = False,
        numbered: bool = False,
    ) -> Stream:
        """A file of records, each of which every reader gets once.

        ``history``, ``history_bytes``: the last records, which are kept for readers that are behind, and for those that come back after
        the death of a server. ``replay``: a new reader begins with the oldest of them, not with the next record. ``wait``: who
        publishes waits for readers, so that a reader which never reads stops it; else a reader that is further behind loses the oldest
        records, which are counted. ``numbered``: :meth:`Stream.publish` is given the number of each record, and readers go on by it
        at the next server."""
        stream = Stream(history, history_bytes, replay=replay, waits=wait, numbered=numbered)
        self._add(Streamed(self._export(name, mode, "stream", numbered, verb), stream))
        return stream

    def folder(
        self, name: str, *, verb: str, change: Optional[str] = None, mode: Optional[int] = None
    ) -> Callable[[AnyFolder], AnyFolder]:
        """Decorates a :class:`Folder`, or a class of them of which one is made. ``verb``: to see what is in it and to open it for reading;
        ``change``: to change it. The name ``"."`` is the service's own folder."""
        bits = mode if mode is not None else 0o755 if change is None else 0o777

        def registered(folder: AnyFolder) -> AnyFolder:
            one = folder if isinstance(folder, Folder) else folder()
            self._add(Foldered(self._export(name, bits, "folder", True, verb, change), one))
            return folder

        return registered

    def on_settings(self, function: Changed) -> Changed:
        """Decorates what is called when the settings are told, first and whenever they change: ``function(settings)``."""
        self._settings_handler = function
        return function

    def run(self, at: Union[None, str, "os.PathLike[str]"] = None, *, any_user: bool = False) -> None:
        """Offers the service and serves it, until :meth:`stop`. :class:`OSError`: it is refused, or may not be offered any more.

        ``at``: offers it at this path, without a daemon; whoever may open the path is a consumer and may do everything. ``any_user``:
        programs of other users, too."""
        if any(file.is_async for file in self._files.values()):
            asyncio.run(self.serve_async(at, any_user=any_user))
            return
        loop = self._begin(at, any_user)
        try:
            while not self._stopped:
                loop.turn(loop.time_left())
        finally:
            self._end(loop)

    async def serve_async(self, at: Union[None, str, "os.PathLike[str]"] = None, *, any_user: bool = False) -> None:
        """As :meth:`run`, in an event loop that does other things, too."""
        events = asyncio.get_running_loop()
        loop = self._begin(at, any_user)
        over: asyncio.Future[None] = events.create_future()
        timer: Optional[asyncio.TimerHandle] = None

        def turn() -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
            if over.done():
                return
            try:
                loop.turn(0)
                left = loop.time_left()
            except BaseException as error:
                over.set_exception(error)
                return
            if self._stopped:
                over.set_result(None)
            elif left is not None:
                timer = events.call_later(left, turn)

        try:
            events.add_reader(loop.fileno(), turn)
            turn()
            await over
        finally:
            if timer is not None:
                timer.cancel()
            events.remove_reader(loop.fileno())
            self._end(loop)

    def stop(self) -> None:
        """Ends :meth:`run`, and every consumer's channel. For any thread, and for signal handlers."""
        self._stopped = True
        loop = self._loop
        if loop is not None:
            loop.ring()

    def _begin(self, at: Union[None, str, "os.PathLike[str]"], any_user: bool) -> Loop:
        if self._loop is not None:
            raise RuntimeError(f"the service {self.name} is served already")
        hello = encode_export(self.kind, (file.export for file in self._files.values()))
        offer: Union[PathOffer, DaemonOffer]
        if at is None:
            offer = DaemonOffer(self.name)
        else:
            path = os.fspath(at)
            offer = PathOffer(path if "/" in path else f"./{path}", any_user)
        self._loop = Loop(offer, self._files, hello, self._told)
        return self._loop

    def _end(self, loop: Loop) -> None:
        loop.close()
        self._loop, self._stopped = None, False

    def _told(self, settings: Dict[str, Any]) -> None:
        self.settings = settings
        if self._settings_handler is not None:
            self._settings_handler(settings)

    def _export(
        self, name: str, mode: int, behaviour: str, idempotent: bool, verb: str, change: Optional[str] = None
    ) -> FileExport:
        own_folder = name == "." and behaviour == "folder"
        if not own_folder and not is_name(name.encode()):
            raise ValueError(f"{name!r} can't be the name of a file: 1 to 255 bytes without / and NUL")
        if any(file.export.name == name for file in self._files.values()):
            raise ValueError(f"the service {self.name} has a file {name} already")
        if mode & ~0o777:
            raise ValueError(f"the mode {mode:#o} of {name} is more than permission bits")
        if change is not None:
            _word("verb", change)
        return FileExport(len(self._files), name, mode, behaviour, idempotent, _word("verb", verb), change)

    def _add(self, file: Added) -> Added:
        if self._loop is not None:
            raise RuntimeError("files are added before the service is served")
        if len(self._files) >= MAX_FILES:
            raise ValueError(f"a service has at most {MAX_FILES} files; put more into a folder")
        self._files[file.export.id] = file
        return file


Added = TypeVar("Added", bound=File)


def _word(what: str, word: str) -> str:
    if not _WORD.fullmatch(word):
        raise ValueError(f"{word!r} can't be a {what}: small letters, digits and hyphens, at most 63")
    return word
