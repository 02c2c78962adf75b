# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program that is called: it moves box after box, each once. How far it is stands in a key, so the next life of it, on whatever node, knows."""

import errno
import time

import tombolo

KEY = "kv/moved"


def asked(line):
    """One line to the service of keys, and its answer. Where that is lost with its node, the next one is asked again."""
    while True:
        try:
            with open("/srv/sync/ctl", "r+b", 0) as ctl:
                ctl.write(line.encode() + b"\n")
                answer = ctl.read(4096).decode().split()
            if answer:
                return answer
            raise OSError(errno.EIO, "no answer")
        except FileNotFoundError:
            raise
        except OSError as error:
            # Somebody wrote the key since it was read: this very program, whose answer was lost.
            if error.errno == errno.ESTALE:
                return None
            print(f"asked again: {error}", flush=True)
            time.sleep(0.1)


def moved_so_far():
    """The revision of the key, and what it holds."""
    try:
        return tuple(map(int, asked(f"get {KEY}")))
    except FileNotFoundError:
        return 0, 0


with tombolo.Endpoint("crane") as me:
    for request in me:
        box = int(request.data)
        revision, moved = moved_so_far()
        # A box that was moved before is asked for again where the answer was lost with a node.
        if box == moved + 1:
            asked(f"cas {KEY} {revision} {box}")
            _, moved = moved_so_far()
        me.reply(request, str(moved).encode())
