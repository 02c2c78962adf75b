# SPDX-License-Identifier: MIT OR Apache-2.0
"""The loop of a service: one thread, one epoll instance, all consumers."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from ._channel import Channel
from ._service_calls import Session
from ._service_consumer import STALL_LIMIT_S, Served
from ._service_files import File, Streamed
from ._service_offer import Consumer, DaemonOffer, Leave, PathOffer, Serving, Settings, Verbs

log = logging.getLogger("tombolo.service")

#: Most consumers at a time. Each takes up to seven descriptors, and a process usually may have 1,024.
MAX_CONSUMERS = 128
#: Most of them of one domain: its frontend, the frontend's successor, and programs that connect by themselves.
MAX_CONSUMERS_PER_DOMAIN = 16
#: Consumers that are taken before those that are there have their turn.
_ACCEPTED_PER_TURN = 16
#: Lines that the log has of mistakes in ten seconds, so that nobody fills a disk by asking for them.
_LOGGED = 10
_LOGGED_IN_S = 10.0


#: For so long a service that is left waits for its own answers.
_ANSWERS_S = 0.5


class Loop:
    """Serves one offer until it is stopped."""

    def __init__(
        self, offer: Union[PathOffer, DaemonOffer], files: Dict[int, File], hello: bytes, settings: Callable[[Dict[str, Any]], None]
    ) -> None:
        self.files = files
        self.stopped = False
        self._hello = hello
        self._settings = settings
        self._offer = offer
        self._watched: Optional[int] = None
        self._offered_by: object = None
        self._consumers: Set[Served] = set()
        self._stalled: Set[Served] = set()
        #: Those that are heard no more, because the service is left to another program.
        self._resting: Set[Served] = set()
        #: While it is left: until when to wait for its own answers.
        self._leaving: Optional[float] = None
        self._stands_by = False
        self._pumps: Dict[Session, Served] = {}
        self._readers: Dict[Session, Served] = {}
        self._faults: List[float] = []
        self._quiet = 0
        self._selector = selectors.EpollSelector()
        self._bell, self._clapper = socket.socketpair()
        self._bell.setblocking(False)
        self._clapper.setblocking(False)
        self._ringing = threading.RLock()
        self._rung = False
        self._published = False
        self._selector.register(self._bell, selectors.EVENT_READ, self._hear)
        for stream in self._streams():
            stream._begin(self.ring)

    def fileno(self) -> int:
        """Readable when :meth:`turn` has something to do."""
        return self._selector.fileno()

    def ring(self) -> None:
        """Something was published, or the loop shall stop. For any thread."""
        with self._ringing:
            self._published = True
            if not self._rung and self._clapper.fileno() != -1:
                self._rung = True
                self._clapper.send(b"!")

    def time_left(self) -> Optional[float]:
        """How long the loop may sleep."""
        if self._pumps:
            return 0.0
        moments = [served.stalled_since + STALL_LIMIT_S for served in self._stalled if served.stalled_since is not None]
        look_at = self._offer.look_at()
        if look_at is not None:
            moments.append(look_at)
        if self._leaving is not None and self._consumers:
            moments.append(self._leaving)
        return max(min(moments) - time.monotonic(), 0.0) if moments else None

    def turn(self, timeout: Optional[float]) -> None:
        """Waits for something to do, and does some of it. :class:`OSError`: the offer is over."""
        self._watch_offer()
        for key, _ in self._selector.select(timeout):
            key.data()
        look_at = self._offer.look_at()
        if look_at is not None and look_at <= time.monotonic():
            self._accept()
        self._pump()
        self._part()
        self._throw_out()

    def close(self) -> None:
        """Ends every consumer's channel, and takes no more."""
        for served in list(self._consumers):
            served.doom = "the service is over"
        self._throw_out()
        for stream in self._streams():
            stream._end()
        self._offer.close()
        self._selector.close()
        with self._ringing:
            self._bell.close()
            self._clapper.close()

    # What consumers ask of it.

    def stalled(self, consumer: Served) -> None:
        """Its ring is full: it is heard again when there is room."""
        if consumer not in self._consumers:
            return
        self._stalled.add(consumer)
        if consumer in self._resting:
            self._resting.discard(consumer)
        else:
            self._selector.unregister(consumer.channel.fileno())
        self._selector.register(consumer.channel.writable_fileno(), selectors.EVENT_READ, consumer.flush)
        # From now on the descriptor tells of room; what came before must not be missed.
        consumer.flush()

    def flowing(self, consumer: Served) -> None:
        """It reads again."""
        if consumer in self._stalled:
            self._stalled.discard(consumer)
            self._selector.unregister(consumer.channel.writable_fileno())
            if self._leaving is not None:
                self._resting.add(consumer)
            else:
                self._selector.register(consumer.channel.fileno(), selectors.EVENT_READ, consumer.readable)

    def answered(self) -> None:
        """A coroutine has been answered, or given up: a consumer that is left may have all its answers."""
        if self._leaving is not None:
            self.ring()

    def pump(self, consumer: Served, session: Session) -> None:
        """A reader of a stream may take more."""
        self._readers[session] = consumer
        self._pumps[session] = consumer

    def fault(self, file: str, error: BaseException) -> None:
        """A function of the service failed by mistake: who asked is told ``EIO``, and the log says more."""
        now = time.monotonic()
        self._faults = [moment for moment in self._faults if now - moment < _LOGGED_IN_S]
        if len(self._faults) >= _LOGGED:
            self._quiet += 1
            return
        self._faults.append(now)
        more = f" ({self._quiet} more were not logged)" if self._quiet else ""
        self._quiet = 0
        log.error("a function of the file %s failed%s", file, more, exc_info=error)

    # Its own.

    def _streams(self) -> "List[Any]":
        return [file.stream for file in self.files.values() if isinstance(file, Streamed)]

    def _hear(self) -> None:
        with self._ringing:
            self._rung = False
            published, self._published = self._published, False
            try:
                self._bell.recv(64)
            except BlockingIOError:
                pass
        if published:
            self._pumps.update(self._readers)

    def _pump(self) -> None:
        pumps, self._pumps = self._pumps, {}
        for session, served in pumps.items():
            if served.doom is None and served.pump(session):
                self._pumps[session] = served

    def forget(self, session: Session) -> None:
        """A reader is gone."""
        self._readers.pop(session, None)
        self._pumps.pop(session, None)

    def _throw_out(self) -> None:
        late = time.monotonic() - STALL_LIMIT_S
        for served in self._stalled:
            if served.stalled_since is not None and served.stalled_since <= late:
                served.doom = served.doom or f"it reads none of its answers for {STALL_LIMIT_S:.0f} s"
        for served in [one for one in self._consumers if one.doom is not None]:
            level = logging.DEBUG if served.doom == "it is gone" else logging.INFO
            log.log(level, "a consumer (%s) is let go: %s", served.consumer.domain or served.consumer.peer, served.doom)
            self._consumers.discard(served)
            stalled = served in self._stalled
            self._stalled.discard(served)
            if served in self._resting:
                self._resting.discard(served)
            else:
                self._selector.unregister(served.channel.writable_fileno() if stalled else served.channel.fileno())
            served.close()

    def _rest(self, served: Served) -> None:
        """Hears a consumer no more."""
        if served not in self._stalled and served not in self._resting:
            self._selector.unregister(served.channel.fileno())
            self._resting.add(served)

    def _part(self) -> None:
        """While the service is left: says the last word to each consumer that has its answers, and steps back when all have been told."""
        if self._leaving is None:
            return
        late = time.monotonic() >= self._leaving
        for served in list(self._consumers):
            if served.doom is None and not served.left and (late or not served.owes_answers):
                served.leave()
            if served.doom is None and served.left and (late or served not in self._stalled):
                served.doom = "its service is left"
        self._throw_out()
        if not self._consumers and not self._stands_by:
            self._stands_by = True
            self._offer.step_back()

    def _watch_offer(self) -> None:
        """Waits for what the offer has now: a connection to the daemon comes and goes."""
        source, wanted = self._offer.source(), self._offer.fileno()
        if source is self._offered_by and wanted == (-1 if self._watched is None else self._watched):
            return
        if self._watched is not None:
            self._selector.unregister(self._watched)
            self._watched = None
        self._offered_by = source
        if wanted != -1:
            self._selector.register(wanted, selectors.EVENT_READ, self._accept)
            self._watched = wanted

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            happening = self._offer.next()
            self._watch_offer()
            if happening is None:
                return
            if isinstance(happening, Verbs):
                for served in self._consumers:
                    if served.consumer.domain == happening.domain:
                        served.consumer.verbs = happening.verbs
            elif isinstance(happening, Leave):
                if self._leaving is None:
                    self._leaving = time.monotonic() + _ANSWERS_S
                    for served in self._consumers:
                        self._rest(served)
            elif isinstance(happening, (Serving, Settings)):
                if isinstance(happening, Serving):
                    self._leaving, self._stands_by = None, False
                self._settings(happening.settings)
            else:
                self._attach(happening)

    def _attach(self, happening: Tuple[Channel, Consumer]) -> None:
        channel, consumer = happening
        same = sum(one.consumer.domain == consumer.domain for one in self._consumers) if consumer.domain else 0
        if len(self._consumers) >= MAX_CONSUMERS or same >= MAX_CONSUMERS_PER_DOMAIN:
            log.warning("a consumer of %s is refused: %d are served", consumer.domain or consumer.peer, len(self._consumers))
            channel.close()
            return
        try:
            descriptor = channel.fileno()
        except OSError as error:
            log.warning("a consumer of %s can't be served: %s", consumer.domain or consumer.peer, error.strerror)
            channel.close()
            return
        served = Served(self, channel, consumer)
        self._consumers.add(served)
        self._selector.register(descriptor, selectors.EVENT_READ, served.readable)
        served.greet(self._hello)
        if self._leaving is not None:
            self._rest(served)
