"""Offers the channel `frames`, and answers each message with the same bytes, each of them plus one: read and written in place."""

import sys
import threading

import tombolo

PLUS_ONE = bytes((byte + 1) % 256 for byte in range(256))


def serve(channel):
    with channel:
        while True:
            with channel.view() as message:
                if message is None:
                    return
                with channel.loan(len(message)) as loan:
                    loan.memory[:] = bytes(message).translate(PLUS_ONE)


with tombolo.offer("frames") as offer:
    print("offering with", tombolo.__file__, "by Python", sys.version.split()[0], flush=True)
    for opened in offer:
        threading.Thread(target=serve, args=(opened,), daemon=True).start()
