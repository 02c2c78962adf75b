# SPDX-License-Identifier: MIT OR Apache-2.0
"""The first service of docs/services.md and the one of examples/thermometer, as processes of their own that are killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import List

import tombolo

from consumer import CAPSULE, CHANGE, CREATE, CREDIT, PATIENCE, REQUEST, Case, Raw, change

ROOT = Path(__file__).resolve().parents[2]
#: A first service is written in so many lines.
MOST_LINES = 30


class Pages(Case):
    def run_program(self, arguments: List[str]) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": str(Path(tombolo.__file__).resolve().parents[1])}
        program = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.path.parent, stdout=subprocess.DEVNULL, env=environment
        )

        def end() -> None:
            program.kill()
            program.wait(PATIENCE)

        self.addCleanup(end)
        return program

    def test_the_first_service_is_short_and_serves(self) -> None:
        page = (ROOT / "docs/services.md").read_text()
        found = re.search(r"```python thermometer.py\n(.*?)```", page, re.DOTALL)
        assert found is not None
        first = found.group(1)
        self.assertLessEqual(len(first.splitlines()), MOST_LINES)
        place = self.path.with_name("thermometer.py")
        # At a path, since there is no daemon here: that alone is changed.
        self.assertEqual(first.count("thermometer.run()"), 1)
        place.write_text(first.replace("thermometer.run()", f"thermometer.run(at={str(self.path)!r})"))
        self.run_program([str(place)])
        raw = self.consumer()
        self.assertEqual(raw.ask(REQUEST, file=raw.ids["reading"]), b"20.0\n")
        raw.ask(REQUEST, file=raw.ids["ctl"], payload=b"21.5")
        self.refused(errno.EINVAL, REQUEST, file=raw.ids["ctl"], payload=b"warm", raw=raw)
        raw.open(1, raw.ids["samples"])
        raw.send(CREDIT, 1, file=1000)
        self.assertEqual(raw.records(2, 1), [b"21.5\n"] * 2)

    def test_the_example_serves_and_its_successor_goes_on(self) -> None:
        example = [str(ROOT / "examples/thermometer/thermometer.py"), str(self.path)]
        program = self.run_program(example)
        raw = self.consumer()
        reading, ctl, convert, notes = (raw.ids[name] for name in ("reading", "ctl", "convert", "notes"))
        before = float(raw.ask(REQUEST, file=reading))
        raw.ask(REQUEST, file=ctl, payload=b"offset 1.5")
        self.assertEqual(raw.ask(REQUEST, file=ctl), b"offset 1.5\n")
        # The machine's own sensor moves meanwhile, where there is one.
        self.assertLess(abs(float(raw.ask(REQUEST, file=reading)) - before - 1.5), 40)
        for line in (b"offset", b"offset nan", b"offset 11", b"more 1"):
            self.refused(errno.EINVAL, REQUEST, file=ctl, payload=line, raw=raw)
        raw.open(1, convert)
        self.assertEqual(raw.ask(REQUEST, 1, convert, b"20"), b"68.0\n")
        self.assertEqual(raw.ask(REQUEST, 1, convert, b"celsius"), b"ok\n")
        self.assertEqual(raw.ask(REQUEST, 1, convert, b"68"), b"20.0\n")
        capsule = raw.next(CAPSULE).payload
        raw.open(2, raw.node(raw.ask(CHANGE, file=notes, payload=change(CREATE, b"today"))), os.O_RDWR)
        raw.write_at(2, 0, b"calibrated\n")
        self.assertEqual(raw.read_at(2, 0, 100), b"calibrated\n")
        raw.open(3, raw.ids["samples"])
        raw.send(CREDIT, 3, file=1000)
        self.assertEqual(len(raw.records(2, 3)), 2)
        program.send_signal(signal.SIGKILL)
        program.wait(PATIENCE)
        self.assert_thrown_out(raw)
        self.run_program(example)
        raw = Raw(tombolo.open(self.path, wait=PATIENCE))
        self.addCleanup(raw.channel.close)
        raw.open(1, convert, capsule=capsule)
        self.assertEqual(raw.ask(REQUEST, 1, convert, b"68"), b"20.0\n")


if __name__ == "__main__":
    unittest.main()
