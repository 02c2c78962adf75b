# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sends words over a channel and prints what comes back: python3 open.py NAME WORD... Every program of this folder that offers can
answer. The words are written where the other end reads them: nothing is copied on the way."""

import sys
from typing import List

import tombolo


def converse(name: str, words: List[str]) -> None:
    # The offerer may come a little later.
    with tombolo.open(name, wait=10) as channel:
        for word in words:
            said = word.encode()
            with channel.loan(len(said)) as loan:
                loan.memory[:] = said
            with channel.view() as answer:
                if answer is None:
                    sys.exit("open.py: the offerer is gone")
                print(str(answer, "utf-8", "replace"))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: open.py NAME WORD...")
    converse(sys.argv[1], sys.argv[2:])
