# SPDX-License-Identifier: MIT OR Apache-2.0
"""Offers a channel that says everything louder: python3 offer.py NAME [OPENERS]. Serves many openers at once, in one asyncio loop, and ends
when so many have come and gone. Every program of this folder that opens can talk to it."""

import asyncio
import sys
from typing import Optional

import tombolo


class Louder:
    """Serves an offer until so many openers are gone."""

    def __init__(self, offer: "tombolo.Offer[tombolo.Channel]", openers: Optional[int]) -> None:
        self.offer = offer
        self.left = openers
        self.loop = asyncio.get_running_loop()
        self.over = self.loop.create_future()
        self.loop.add_reader(offer.fileno(), self.accept)

    def accept(self) -> None:
        try:
            channel = self.offer.accept()
        except BlockingIOError:
            return
        channel.timeout = 0
        self.loop.add_reader(channel.fileno(), self.answer, channel)

    def answer(self, channel: tombolo.Channel) -> None:
        try:
            for message in channel:
                channel.write(message.upper())
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self.loop.remove_reader(channel.fileno())
        channel.close()
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.loop.remove_reader(self.offer.fileno())
                self.over.set_result(None)


async def serve(name: str, openers: Optional[int]) -> None:
    with tombolo.offer(name, timeout=0) as offer:
        print(f"offering at {name}", flush=True)
        await Louder(offer, openers).over


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: offer.py NAME [OPENERS]")
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
