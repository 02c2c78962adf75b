# SPDX-License-Identifier: MIT OR Apache-2.0
"""Channels and endpoints: programs that speak to each other through shared memory.

One program offers, another opens; both read and write::

    import tombolo

    with tombolo.offer("/run/user/1000/echo") as offer:
        channel, = [offer.accept()]
        for message in channel:
            channel.write(message)

    with tombolo.open("/run/user/1000/echo") as channel:
        channel.write(b"hello")
        print(channel.read())

Programs of a distributed container have endpoints, which find each other by name::

    with tombolo.Endpoint("planner") as me:
        for message in me:
            me.reply(message, b"turn left")

    with tombolo.Endpoint() as me:
        print(me.call(me.wait("planner"), b"where to?").data)

Services that a program serves as files are in :mod:`tombolo.service`; keys, locks, barriers and queues in :mod:`tombolo.sync`.

The name of a channel with a ``/`` is the path of a Unix socket; any other is a channel service of the domain that the program runs in.
What fails is an :class:`OSError` of the kind that files have, or an :class:`EndpointError`, with ``errno`` and a sentence that says what
to do. The pages ``docs/channels.md`` and ``docs/endpoints.md`` show it step by step; ``include/tombolo/channel.h`` and ``endpoint.h`` have
each call's details.
"""

from ._channel import Channel, Loan, View, from_descriptors, open, pair
from ._end import DESCRIPTORS, Name
from ._endpoint import (
    Address,
    Backup,
    Endpoint,
    Granted,
    Kind,
    Message,
    OwnBuffer,
    Peer,
    Rights,
    Whom,
    endpoint_pair,
)
from ._endpoint_errors import (
    BrokenRules,
    Canceled,
    Dead,
    Deadlock,
    Elsewhere,
    Ended,
    EndpointError,
    Moved,
    NotBound,
    Refused,
    Revoked,
    TimedOut,
    TooLong,
    WouldWait,
    WrongGeneration,
)
from ._offer import Offer, offer, offer_stream
from ._stream import Stream, open_stream, stream_from_descriptors, stream_pair

__all__ = [
    "Address",
    "Backup",
    "BrokenRules",
    "Canceled",
    "Channel",
    "DESCRIPTORS",
    "Dead",
    "Deadlock",
    "Elsewhere",
    "Ended",
    "Endpoint",
    "EndpointError",
    "Granted",
    "Kind",
    "Loan",
    "Message",
    "Moved",
    "Name",
    "NotBound",
    "Offer",
    "OwnBuffer",
    "Peer",
    "Refused",
    "Revoked",
    "Rights",
    "Stream",
    "TimedOut",
    "TooLong",
    "View",
    "Whom",
    "WouldWait",
    "WrongGeneration",
    "endpoint_pair",
    "from_descriptors",
    "offer",
    "offer_stream",
    "open",
    "open_stream",
    "pair",
    "stream_from_descriptors",
    "stream_pair",
]
