# SPDX-License-Identifier: MIT OR Apache-2.0
"""The files of a service, and the functions that they are registered with."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Generic, List, Optional, TypeVar

from ._service_calls import Answer, Call, Session
from ._service_folder import Folder
from ._service_stream import Stream
from ._service_wire import FileExport

Handler = TypeVar("Handler", bound=Callable[..., Answer])
Other = TypeVar("Other", bound=Callable[..., Answer])
Plain = TypeVar("Plain", bound=Callable[..., None])


class File:
    """A file of a service."""

    def __init__(self, export: FileExport) -> None:
        self.export = export

    def functions(self) -> List[Callable[..., Any]]:
        """What is called, and may be a coroutine function."""
        return []

    @property
    def is_async(self) -> bool:
        """Whether it takes an event loop to serve this."""
        return any(inspect.iscoroutinefunction(function) for function in self.functions())


class Text(File, Generic[Handler]):
    """A file that is read. The function that it was made of is called by itself, too."""

    def __init__(self, export: FileExport, handler: Handler) -> None:
        super().__init__(export)
        self.handler = handler

    def functions(self) -> List[Callable[..., Any]]:
        return [self.handler]

    def __call__(self, call: Call) -> Answer:
        return self.handler(call)


class Control(File, Generic[Handler]):
    """A file to which lines are written, each of which has an errno or none."""

    def __init__(self, export: FileExport, handler: Handler) -> None:
        super().__init__(export)
        self.handler = handler
        self.read_handler: Optional[Callable[[Call], Answer]] = None

    def functions(self) -> List[Callable[..., Any]]:
        return [self.handler] + ([self.read_handler] if self.read_handler else [])

    def __call__(self, call: Call, line: bytes) -> Answer:
        return self.handler(call, line)

    def reader(self, function: Other) -> Other:
        """Decorates what answers who reads the file: ``function(call)``. Without it, the file is empty."""
        self.read_handler = function
        return function


class Sessions(File, Generic[Handler]):
    """A file on which each who opens it has a session: lines are asked and answered."""

    def __init__(self, export: FileExport, handler: Handler) -> None:
        super().__init__(export)
        self.handler = handler
        self.open_handler: Optional[Callable[[Session], None]] = None
        self.close_handler: Optional[Callable[[Session], None]] = None
        self.ioctl_handler: Optional[Callable[[Session, int, bytes], Answer]] = None

    def functions(self) -> List[Callable[..., Any]]:
        return [self.handler] + ([self.ioctl_handler] if self.ioctl_handler else [])

    def __call__(self, session: Session, line: bytes) -> Answer:
        return self.handler(session, line)

    def opened(self, function: Plain) -> Plain:
        """Decorates what is called when a session begins: ``function(session)``. An :class:`OSError` refuses it."""
        self.open_handler = _plain(function)
        return function

    def closed(self, function: Plain) -> Plain:
        """Decorates what is called when a session is over, however that came: ``function(session)``."""
        self.close_handler = _plain(function)
        return function

    def ioctl(self, function: Other) -> Other:
        """Decorates what answers an ioctl: ``function(session, number, data)``, with the bytes for whoever asks. Without it: ``ENOTTY``."""
        self.ioctl_handler = function
        return function


class Streamed(File):
    """A file of records."""

    def __init__(self, export: FileExport, stream: Stream) -> None:
        super().__init__(export)
        self.stream = stream

    def functions(self) -> List[Callable[..., Any]]:
        return [self.stream.write_handler] if self.stream.write_handler else []


class Foldered(File):
    """A folder of which only the service knows what is in it."""

    def __init__(self, export: FileExport, folder: Folder) -> None:
        super().__init__(export)
        self.folder = folder

    def functions(self) -> List[Callable[..., Any]]:
        return [getattr(self.folder, name) for name in ("lookup", "stat", "read", "write", "sync", "set", "ask")]


def _plain(function: Plain) -> Plain:
    """A session begins and ends at once, so a coroutine function can't say how."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function!r} is a coroutine function; sessions are opened and closed by plain ones")
    return function
