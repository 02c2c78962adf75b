# SPDX-License-Identifier: MIT OR Apache-2.0
"""What fails of an endpoint: an exception for each kind."""

from __future__ import annotations

import ctypes
import errno
from typing import Dict, NoReturn, Type

from ._library import library


class EndpointError(OSError):
    """A call of an endpoint that failed: with ``errno``, and a sentence that says what, where, and what to do."""


class NotBound(EndpointError):
    """``ENOTCONN``: the endpoint is not bound, or this one was not introduced to it."""


class WrongGeneration(EndpointError):
    """``ESTALE``: what had this address has ended, and another has its place."""


class Dead(EndpointError, BrokenPipeError):
    """``EPIPE``, ``EOWNERDEAD``: it is dead, or has ended."""


class Moved(EndpointError):
    """``EREMCHG``: it has moved; find it again."""


class Refused(EndpointError, PermissionError):
    """``EPERM``, ``EACCES``: the topology file does not allow this, or the grant does not."""


class Deadlock(EndpointError):
    """``EDEADLK``: it waits, over others perhaps, for this very caller."""


class TimedOut(EndpointError, TimeoutError):
    """``ETIMEDOUT``: the time is over, and what was sent was withdrawn. ``ETIME``: the request was received, and had no reply in time.
    ``ECOMM``: it went to another node, which does not say what became of it."""

    @property
    def received(self) -> "bool | None":
        """Whether what was sent was received. If not, it will not be. ``None``: nobody knows."""
        return None if self.errno == errno.ECOMM else self.errno == errno.ETIME


class WouldWait(EndpointError, BlockingIOError):
    """``EAGAIN``: the call would have to wait, and may not."""


class TooLong(EndpointError):
    """``EMSGSIZE``: more bytes than fit this pair, or than the requester takes."""


class Canceled(EndpointError):
    """``ECANCELED``: nobody waits for this reply any more."""


class BrokenRules(EndpointError):
    """``EPROTO``: it broke the rules of the shared memory, and was cut off."""


class Ended(EndpointError):
    """``ESHUTDOWN``: this endpoint has ended; the topology file does not place it here any more."""


class Elsewhere(EndpointError):
    """``EHOSTUNREACH``: the request was passed on to an endpoint that this one was not introduced to."""


class Revoked(EndpointError):
    """``EKEYREVOKED``: the grant was taken back."""


_KINDS: Dict[int, Type[EndpointError]] = {
    errno.ENOTCONN: NotBound,
    errno.ESTALE: WrongGeneration,
    errno.EPIPE: Dead,
    errno.EOWNERDEAD: Dead,
    errno.EREMCHG: Moved,
    errno.EPERM: Refused,
    errno.EACCES: Refused,
    errno.EDEADLK: Deadlock,
    errno.ETIMEDOUT: TimedOut,
    errno.ETIME: TimedOut,
    errno.ECOMM: TimedOut,
    errno.EAGAIN: WouldWait,
    errno.EMSGSIZE: TooLong,
    errno.ECANCELED: Canceled,
    errno.EPROTO: BrokenRules,
    errno.EHOSTUNREACH: Elsewhere,
    errno.ESHUTDOWN: Ended,
    getattr(errno, "EKEYREVOKED", 128): Revoked,
}


def raise_refusal() -> NoReturn:
    """Raises what the last call in this thread failed with."""
    number = ctypes.get_errno()
    text = (library.tombolo_error_text() or b"").decode("utf-8", "replace")
    kind = _KINDS.get(number)
    # Of what is no endpoint's own, the kind that files have: FileNotFoundError, ConnectionRefusedError.
    raise OSError(number, text) if kind is None else kind(number, text)
