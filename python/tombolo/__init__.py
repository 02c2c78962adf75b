# SPDX-License-Identifier: MIT OR Apache-2.0
"""Channels between programs, through shared memory.

One program offers, another opens; both read and write::

    import tombolo

    with tombolo.offer("/run/user/1000/echo") as offer:
        channel, = [offer.accept()]
        for message in channel:
            channel.write(message)

    with tombolo.open("/run/user/1000/echo") as channel:
        channel.write(b"hello")
        print(channel.read())

A name with a ``/`` is the path of a Unix socket; any other is a channel service of the domain that the program runs in. What fails is
an :class:`OSError` of the kind that files have, with ``errno`` and a sentence that says what to do. The page ``docs/channels.md`` shows
it step by step; ``include/tombolo/channel.h`` has each call's details.
"""

from ._channel import Channel, Loan, View, from_descriptors, open, pair
from ._end import DESCRIPTORS, Name
from ._offer import Offer, offer, offer_stream
from ._stream import Stream, open_stream, stream_from_descriptors, stream_pair

__all__ = [
    "DESCRIPTORS",
    "Channel",
    "Loan",
    "Name",
    "Offer",
    "Stream",
    "View",
    "from_descriptors",
    "offer",
    "offer_stream",
    "open",
    "open_stream",
    "pair",
    "stream_from_descriptors",
    "stream_pair",
]
