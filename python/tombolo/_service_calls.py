# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a service's functions are told of a call, and what they answer."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Dict, FrozenSet, Optional, Union

from ._memory import Buffer
from ._service_wire import SESSION_NONE

#: What a function answers: bytes, text, or nothing. A coroutine function answers the same.
Answer = Union[None, str, Buffer, Awaitable[Union[None, str, Buffer]]]


@dataclass(frozen=True)
class Caller:
    """Who calls. The domain and its verbs are the daemon's word; user, process and entrance are that of the domain's frontend, or of a
    program that connects by itself, and are as good as that. Where nobody says them, they are None or empty."""

    dc: str = ""
    domain: str = ""
    #: What the domain may; None at a path, where the permissions of the path decide.
    verbs: Optional[FrozenSet[str]] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    pid: Optional[int] = None
    entrance: str = ""
    #: The same in words, as the kernel or the daemon says it: ``uid 1000 pid 4711``.
    peer: str = ""

    def may(self, verb: str) -> bool:
        """Whether the caller's domain holds a verb."""
        return self.verbs is None or verb in self.verbs


class Call:
    """One call: who calls, of which file, opened how."""

    def __init__(self, caller: Caller, file: str, flags: int = 0) -> None:
        self.caller = caller
        #: Name of the file in the service's folder.
        self.file = file
        #: Flags of open(2), as far as they are known.
        self.flags = flags


class Session(Call):
    """One open file. ``state`` is for the service, and ends with the session."""

    def __init__(
        self, caller: Caller, file: str, flags: int, number: int, capsule: bytes, keep: Callable[[int, bytes], None]
    ) -> None:
        super().__init__(caller, file, flags)
        self.number = number
        #: What an earlier server kept of this session with :meth:`keep`; it has been in the consumer's hands, so check it.
        self.capsule = capsule
        self._keep = keep
        self._state: Optional[Dict[Any, Any]] = None

    @property
    def state(self) -> Dict[Any, Any]:
        """Whatever the service wants to remember of this session."""
        if self._state is None:
            self._state = {}
        return self._state

    def keep(self, capsule: Buffer) -> None:
        """Gives the consumer up to 3,072 bytes to keep: the next server of this session, after this one's death, finds them in
        :attr:`capsule`."""
        if self.number == SESSION_NONE:
            raise OSError(errno.EOPNOTSUPP, "session 0 is never opened, and has no capsule")
        self._keep(self.number, bytes(capsule))
