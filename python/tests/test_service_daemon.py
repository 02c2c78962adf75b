# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a service in Python gets along with the node's daemon, which says who its consumers are and what they may. The daemon is played
here, by docs/spec/control.md."""

from __future__ import annotations

import array
import asyncio
import errno
import json
import os
import socket
import threading
import unittest
import unittest.mock
from typing import Any, Dict, List, Optional

import tombolo
from tombolo import _service_loop
from tombolo._service_wire import LEAVE
from tombolo.service import Call, Caller, MemoryFolder, Service

from consumer import CHANGE, CREATE, LIST, MAKE_FOLDER, OPEN, PATIENCE, REQUEST, Case, Raw, change, opener


OFFER = {"op": "offer", "id": 1, "service": "thermometer", "stand_by": True}


class Daemon:
    """The daemon's end of one control socket."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As the daemon does: whoever sees the file can connect.
        self.listener.bind(path + ".new")
        self.listener.listen(8)
        os.rename(path + ".new", path)
        self.listener.settimeout(PATIENCE)
        self.path = path
        self.program: Optional[socket.socket] = None

    def wait_for_offer(self, **settings: Any) -> Dict[str, Any]:
        """Takes the offer of the next program that connects."""
        asked = self.connected()
        served = {"name": asked["service"], "kind": "program", "settings": settings}
        self.say({"reply": "serving", "id": asked["id"], "services": [served]})
        return asked

    def connected(self) -> Dict[str, Any]:
        if self.program is not None:
            self.program.close()
        self.program, _ = self.listener.accept()
        self.program.settimeout(PATIENCE)
        asked: Dict[str, Any] = json.loads(self.program.recv(65536))
        return asked

    def say(self, message: Dict[str, Any], descriptors: "tuple[int, ...]" = ()) -> None:
        assert self.program is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.program.sendmsg([json.dumps(message).encode()], rights)

    def tell(self, event: str, **fields: Any) -> None:
        self.say({"reply": "event", "event": event, "service": "thermometer", **fields})

    def introduce(self, domain: str, verbs: List[str], more: int = 0) -> tombolo.Channel:
        """A consumer of this domain comes: its end."""
        ours, theirs = tombolo.pair()
        descriptors = theirs.descriptors()
        who = {"dc": "house", "domain": domain, "entrance": "device", "verbs": verbs}
        message = {"reply": "event", "event": "attach", "service": "thermometer", "channel": 1, "consumer": who}
        self.say(message, descriptors + descriptors[:more])
        for descriptor in descriptors:
            os.close(descriptor)
        return ours

    def die(self) -> None:
        if self.program is not None:
            self.program.close()
        self.listener.close()
        os.unlink(self.path)


class Introduced(Case):
    def setUp(self) -> None:
        super().setUp()
        self.control = str(self.path)
        variables = unittest.mock.patch.dict(os.environ, {"TOMBOLO_CONTROL": self.control})
        variables.start()
        self.addCleanup(variables.stop)
        self.callers: List[Caller] = []
        self.told: List[Dict[str, Any]] = []
        self.failures: List[BaseException] = []

    def service(self) -> Service:
        service = Service("thermometer")

        @service.text("reading", verb="read")
        def reading(call: Call) -> str:
            self.callers.append(call.caller)
            return "21.5\n"

        @service.control("ctl", verb="calibrate")
        def ctl(call: Call, line: bytes) -> None:
            pass

        service.folder("log", verb="read", change="write")(MemoryFolder)
        service.on_settings(self.told.append)
        return service

    def begin(self, service: Service) -> threading.Thread:
        def run() -> None:
            try:
                service.run()
            except OSError as error:
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def stop() -> None:
            service.stop()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())

        self.addCleanup(stop)
        return thread

    def daemon(self) -> Daemon:
        daemon = Daemon(self.control)

        def end() -> None:
            daemon.listener.close()
            if daemon.program is not None:
                daemon.program.close()

        self.addCleanup(end)
        return daemon

    def raw(self, channel: tombolo.Channel) -> Raw:
        self.addCleanup(channel.close)
        return Raw(channel)

    def test_verbs_are_the_daemons_word_and_hold_from_when_they_are_told(self) -> None:
        daemon = self.daemon()
        self.begin(self.service())
        self.assertEqual(daemon.wait_for_offer(unit="celsius"), OFFER)
        raw = self.raw(daemon.introduce("hall", ["read"]))
        reading, ctl, log = (raw.ids[name] for name in ("reading", "ctl", "log"))
        self.assertEqual(self.told, [{"unit": "celsius"}])
        self.assertEqual(raw.ask(REQUEST, file=reading), b"21.5\n")
        who = self.callers[0]
        self.assertEqual((who.dc, who.domain, who.uid, who.entrance), ("house", "hall", None, "device"))
        self.assertTrue(who.may("read") and not who.may("calibrate"))
        # It is no frontend's word: a program that connects by itself is held to its verbs here.
        self.refused(errno.EACCES, REQUEST, file=ctl, payload=b"1", raw=raw)
        self.refused(errno.EACCES, OPEN, 1, ctl, opener(), raw=raw)
        self.refused(errno.EACCES, CHANGE, file=log, payload=change(CREATE, b"x"), raw=raw)
        raw.open(2, reading)
        other = self.raw(daemon.introduce("cellar", ["calibrate", "write"]))
        other.ask(REQUEST, file=ctl, payload=b"1")
        self.refused(errno.EACCES, REQUEST, file=reading, raw=other)
        self.refused(errno.EACCES, LIST, file=log, payload=bytes(12), raw=other)
        daemon.tell("verbs", domain="hall", verbs=["read", "calibrate", "write"])
        self.until(lambda: self.may_calibrate(raw, ctl))
        folder = raw.node(raw.change(log, MAKE_FOLDER, b"x"))
        raw.open(3, raw.node(raw.change(folder, CREATE, b"y")), os.O_RDWR)
        daemon.tell("verbs", domain="hall", verbs=[])
        self.until(lambda: not self.may_calibrate(raw, ctl))
        self.refused(errno.EACCES, REQUEST, 2, reading, raw=raw)
        with self.assertRaises(PermissionError):
            raw.write_at(3, 0, b"x")
        with self.assertRaises(PermissionError):
            raw.read_at(3, 0, 1)
        daemon.tell("settings", settings={"unit": "kelvin"})
        self.until(lambda: self.told[-1] == {"unit": "kelvin"})

    def may_calibrate(self, raw: Raw, ctl: int) -> bool:
        try:
            raw.ask(REQUEST, file=ctl, payload=b"1")
        except PermissionError:
            return False
        return True

    def test_the_next_daemon_is_told_of_the_offer_and_channels_live_on(self) -> None:
        service = self.service()
        # The daemon may come later than the service.
        self.begin(service)
        daemon = self.daemon()
        daemon.wait_for_offer()
        raw = self.raw(daemon.introduce("hall", ["read"]))
        for _ in range(3):
            daemon.die()
            self.assertEqual(raw.ask(REQUEST, file=raw.ids["reading"]), b"21.5\n")
            daemon = self.daemon()
            # It has the consumers, whoever else may stand by.
            self.assertEqual(daemon.wait_for_offer(), {**OFFER, "serving": True})
            newer = self.raw(daemon.introduce("cellar", ["read"]))
            self.assertEqual(newer.ask(REQUEST, file=raw.ids["reading"]), b"21.5\n")

    def test_a_service_that_is_left_names_what_it_has_taken_and_is_served_again_in_its_turn(self) -> None:
        service = self.service()

        @service.control("slow", verb="read")
        async def slow(call: Call, line: bytes) -> None:
            await asyncio.sleep(PATIENCE)

        daemon = self.daemon()
        self.begin(service)
        daemon.wait_for_offer()
        raw, other = (self.raw(daemon.introduce(domain, ["read"])) for domain in ("hall", "cellar"))
        taken = raw.start(REQUEST, file=raw.ids["slow"], payload=b"1")
        self.assertEqual(raw.ask(REQUEST, file=raw.ids["reading"]), b"21.5\n")
        daemon.tell("leave")
        for one, tags in ((other, []), (raw, [taken])):
            self.assertEqual(one.next(LEAVE).payload, b"".join(tag.to_bytes(8, "little") for tag in tags))
            self.assert_thrown_out(one)
        assert daemon.program is not None
        self.assertEqual(json.loads(daemon.program.recv(65536)), {"op": "step_back", "id": 2, "service": "thermometer"})
        # Who comes now is told at once that this is not the server any more.
        self.assertEqual(self.raw(daemon.introduce("hall", ["read"])).next(LEAVE).payload, b"")
        daemon.say({"reply": "serving", "id": 2, "services": [{"name": "thermometer", "kind": "program", "settings": {"unit": "kelvin"}}]})
        self.until(lambda: self.told[-1] == {"unit": "kelvin"})
        raw = self.raw(daemon.introduce("hall", ["read"]))
        self.assertEqual(raw.ask(REQUEST, file=raw.ids["reading"]), b"21.5\n")

    def test_an_offer_that_is_refused_or_withdrawn_ends_the_service_with_the_reason(self) -> None:
        daemon = self.daemon()
        thread = self.begin(self.service())
        asked = daemon.connected()
        daemon.say({"reply": "refused", "id": asked["id"], "errno": errno.EBUSY, "message": "another program offers it"})
        thread.join(PATIENCE)
        thread = self.begin(self.service())
        daemon.wait_for_offer()
        raw = self.raw(daemon.introduce("hall", ["read"]))
        daemon.tell("withdrawn", message="the file has no such service any more")
        thread.join(PATIENCE)
        self.assert_thrown_out(raw)
        self.assertEqual([str(failure) for failure in self.failures], [
            f"[Errno {errno.EBUSY}] another program offers it", f"[Errno {errno.EPERM}] the file has no such service any more"
        ])  # fmt: skip

    def test_what_the_daemon_says_that_is_not_understood_is_passed_over(self) -> None:
        daemon = self.daemon()
        self.begin(self.service())
        daemon.wait_for_offer()
        assert daemon.program is not None
        daemon.program.send(b"{")
        daemon.program.send(b"[]")
        daemon.tell("news")
        daemon.say({"reply": "event", "event": "verbs", "service": "another", "domain": "hall", "verbs": []})
        before = len(os.listdir("/proc/self/fd"))
        with open(os.devnull) as null:
            daemon.say({"reply": "event", "event": "news", "service": "thermometer"}, (null.fileno(),) * 3)
            daemon.say({"reply": "event", "event": "attach", "service": "thermometer"}, (null.fileno(),) * 5)
        raw = self.raw(daemon.introduce("hall", ["read"]))
        self.assertEqual(raw.ask(REQUEST, file=raw.ids["reading"]), b"21.5\n")
        raw.channel.close()
        self.until(lambda: len(os.listdir("/proc/self/fd")) <= before)

    @unittest.mock.patch.object(_service_loop, "MAX_CONSUMERS_PER_DOMAIN", 2)
    @unittest.mock.patch.object(_service_loop, "MAX_CONSUMERS", 3)
    def test_no_domain_takes_all_the_room(self) -> None:
        daemon = self.daemon()
        self.begin(self.service())
        daemon.wait_for_offer()
        hall = [self.raw(daemon.introduce("hall", ["read"])) for _ in range(2)]
        for domain in ("hall", "cellar"):
            if domain == "cellar":
                self.raw(daemon.introduce(domain, ["read"]))
            with daemon.introduce(domain, ["read"]) as refused:
                refused.timeout = PATIENCE
                self.assertIsNone(refused.read())
        self.assertEqual(hall[1].ask(REQUEST), b"21.5\n")

    def test_a_guest_is_told_that_it_cant(self) -> None:
        daemon = self.daemon()
        thread = self.begin(self.service())
        daemon.wait_for_offer()
        self.addCleanup(daemon.introduce("hall", ["read"], more=1).close)
        thread.join(PATIENCE)
        self.assertEqual([getattr(failure, "errno", 0) for failure in self.failures], [errno.EOPNOTSUPP])


if __name__ == "__main__":
    unittest.main()
