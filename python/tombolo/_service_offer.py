# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the consumers of a service come from: the daemon, which says who they are and what they may, or a path without a daemon."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Tuple, Union

from ._channel import Channel, from_descriptors
from ._end import DESCRIPTORS
from ._offer import offer

#: Longest packet of the daemon (docs/spec/control.md).
MAX_PACKET_BYTES = 64 * 1024
#: Most descriptors of one packet: an end has five, that of a guest six.
MAX_PACKET_DESCRIPTORS = 8
#: How long a service waits for the daemon when it starts: one that is being restarted is there again much sooner.
FIRST_PATIENCE_S = 10.0
#: How often a service looks whether the next daemon is there: short beside the restart of a daemon, and one system call.
LOOK_AGAIN_S = 0.2
#: How long nobody is accepted when this process is out of descriptors: consumers that end meanwhile make room.
PAUSE_S = 0.1

_SOCKET = "/run/tombolo/control.sock"
_COMES_LATER = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@dataclass
class Consumer:
    """Who is at the other end of a channel: a domain's frontend, or a program."""

    dc: str = ""
    domain: str = ""
    entrance: str = ""
    #: What the domain may; None: nobody said, and the permissions of the path decide.
    verbs: Optional[FrozenSet[str]] = None
    peer: str = ""


@dataclass
class Verbs:
    """From now on a domain may do this."""

    domain: str
    verbs: FrozenSet[str]


@dataclass
class Settings:
    """The settings of the service, as the topology file has them."""

    settings: Dict[str, Any]


@dataclass
class Serving:
    """The service is this program's: with the first answer of a daemon, and again after it stood by."""

    settings: Dict[str, Any]


class Leave:
    """Another program is to have the service."""


Happening = Union[Tuple[Channel, Consumer], Verbs, Settings, Serving, Leave]


class PathOffer:
    """Consumers that come to a path."""

    def __init__(self, path: str, any_user: bool) -> None:
        self._offer = offer(path, timeout=0, any_user=any_user)
        self._paused_until = 0.0

    def fileno(self) -> int:
        """What to wait for; -1: only the time."""
        return -1 if time.monotonic() < self._paused_until else self._offer.fileno()

    def source(self) -> object:
        """Whose descriptor that is: another one's may have the same number."""
        return self._offer

    def look_at(self) -> Optional[float]:
        """When to look without having been woken."""
        return self._paused_until if time.monotonic() < self._paused_until else None

    def next(self) -> Optional[Happening]:
        """The next thing that has happened."""
        try:
            channel = self._offer.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
            self._paused_until = time.monotonic() + PAUSE_S
            return None
        return channel, Consumer(peer=channel.peer)

    def step_back(self) -> None:
        """Nobody tells an offer at a path to leave."""

    def close(self) -> None:
        """Takes no more consumers."""
        self._offer.close()


class DaemonOffer:
    """Consumers whom the daemon of the node introduces. Its death is survived: the next one is told of the offer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._path = os.environ.get("TOMBOLO_CONTROL") or _SOCKET
        self._socket: Optional[socket.socket] = None
        now = time.monotonic()
        self._patience: Optional[float] = now + FIRST_PATIENCE_S
        self._look_at = now
        self._serving = False

    def fileno(self) -> int:
        """What to wait for; -1: only the time."""
        return -1 if self._socket is None else self._socket.fileno()

    def source(self) -> object:
        """Whose descriptor that is: another one's may have the same number."""
        return self._socket

    def look_at(self) -> Optional[float]:
        """When to look without having been woken."""
        return self._look_at if self._socket is None else None

    def next(self) -> Optional[Happening]:
        """The next thing that has happened. :class:`OSError`: the offer is refused, or was taken away."""
        while self._socket is not None or self._connect():
            packet = self._receive()
            if packet is None:
                return None
            message, descriptors = packet
            happening = self._understand(message, descriptors)
            if happening is not None:
                return happening
        return None

    def step_back(self) -> None:
        """Says that the service is left, and that this program stands by for it from now on."""
        self._serving = False
        if self._socket is not None:
            try:
                self._socket.send(json.dumps({"op": "step_back", "id": 2, "service": self._name}).encode())
            except OSError:
                # The daemon is gone: the next one is told that this one stands by.
                pass

    def close(self) -> None:
        """Takes no more consumers."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_AGAIN_S
        attempt = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            attempt.connect(self._path)
            offer: Dict[str, Any] = {"op": "offer", "id": 1, "service": self._name, "stand_by": True}
            if self._serving:
                offer["serving"] = True
            attempt.send(json.dumps(offer).encode())
        except OSError as error:
            attempt.close()
            if error.errno not in _COMES_LATER + (errno.EPIPE, errno.ECONNRESET):
                raise OSError(error.errno, f"can't reach the daemon at {self._path}: {error.strerror}") from error
            if self._patience is not None and now > self._patience:
                text = f"no daemon at {self._path}: run this in the domain that the topology names, or give a path (run(at=...))"
                raise OSError(error.errno, text) from error
            return False
        self._socket = attempt
        return True

    def _receive(self) -> Optional[Tuple[Dict[str, Any], List[int]]]:
        """One packet and what came along; None: there is none, or the daemon is gone."""
        assert self._socket is not None
        room = socket.CMSG_SPACE(MAX_PACKET_DESCRIPTORS * 4)
        while True:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return None
            except OSError:
                data, ancillary, flags = b"", [], 0
            descriptors = _descriptors(ancillary)
            if not data:
                _close(descriptors)
                self.close()
                self._look_at = time.monotonic()
                return None
            try:
                message = json.loads(data)
            except ValueError:
                message = None
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or not isinstance(message, dict):
                _close(descriptors)
                continue
            return message, descriptors

    def _understand(self, message: Dict[str, Any], descriptors: List[int]) -> Optional[Happening]:
        reply, event = message.get("reply"), message.get("event")
        if reply == "event" and event == "attach":
            return self._attached(message, descriptors)
        _close(descriptors)
        if reply == "refused":
            raise OSError(int(message.get("errno", errno.EPERM)), str(message.get("message", "refused")))
        if reply == "serving":
            self._patience = None
            self._serving = True
            return next((Serving(dict(one.get("settings") or {})) for one in message.get("services", [])), None)
        if reply != "event" or message.get("service") != self._name:
            return None
        if event == "withdrawn":
            raise OSError(errno.EPERM, str(message.get("message", "the offer was withdrawn")))
        if event == "leave":
            return Leave()
        if event == "settings":
            return Settings(dict(message.get("settings") or {}))
        if event == "verbs":
            return Verbs(str(message.get("domain")), frozenset(message.get("verbs", [])))
        return None

    def _attached(self, message: Dict[str, Any], descriptors: List[int]) -> Optional[Happening]:
        if len(descriptors) == DESCRIPTORS + 1:
            _close(descriptors)
            text = "this is a guest: services in Python are for domains of kind process and container; serve this one in Rust"
            raise OSError(errno.EOPNOTSUPP, text)
        if message.get("service") != self._name or len(descriptors) != DESCRIPTORS:
            _close(descriptors)
            return None
        try:
            channel = from_descriptors(tuple(descriptors))
        except OSError:
            # The consumer is gone again, or this process is out of descriptors: the consumer sees its end of the channel close.
            _close(descriptors)
            return None
        who = message.get("consumer", {})
        verbs = frozenset(who.get("verbs", []))
        consumer = Consumer(who.get("dc", ""), who.get("domain", ""), who.get("entrance", ""), verbs, channel.peer)
        return channel, consumer


def _descriptors(ancillary: List[Tuple[int, int, bytes]]) -> List[int]:
    found: List[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            found.extend(struct.unpack(f"={whole // 4}i", data[:whole]))
    return found


def _close(descriptors: List[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
