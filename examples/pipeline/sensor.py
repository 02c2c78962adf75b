"""The endpoint `sensor`. What it measures is real, and on every machine: how long it is between two looks at the clock. That is some tens of
nanoseconds, unless something else had the processor meanwhile.

A frame of samples is too large for a message. It goes into one of the slots of a buffer, which is granted to the filter; the message
says where it is. The filter copies it and says by a notice, one bit for each slot, that the slot is free: so the sensor never runs ahead.
"""

import array
import itertools
import struct
import time

import tombolo

FRAME = 1  # what its messages mean; filter.c has the same numbers
SAMPLES = 16384
SLOTS = 8
SLOT_BYTES = SAMPLES * 4
PAUSE = 0.1  # seconds between frames


def measure():
    """Gaps between looks at the clock, in ns, as unsigned numbers of 32 bits."""
    look = time.perf_counter_ns
    looks = array.array("Q", (look() for _ in range(SAMPLES + 1)))
    return array.array("I", (min(b - a, 0xFFFFFFFF) for a, b in zip(looks, looks[1:])))


def feed(me, numbers):
    """Sends frames to the filter that is there now, until it is gone."""
    them = me.wait("filter")
    with me.buffer(SLOTS * SLOT_BYTES, access="read") as buffer:
        grant = me.grant(buffer, them)
        print(f"frames for the filter at {them}", flush=True)
        free = (1 << SLOTS) - 1
        for number in numbers:
            while free == 0:
                free |= me.receive(them).notices
            slot = free.bit_length() - 1
            free &= ~(1 << slot)
            buffer.write(slot * SLOT_BYTES, measure())
            me.send(them, struct.pack("<qQII", grant, number, slot, SAMPLES), tag=FRAME)
            time.sleep(PAUSE)


def main():
    with tombolo.Endpoint("sensor", wait=10) as me:
        numbers = itertools.count(1)
        while True:
            try:
                feed(me, numbers)
            except (tombolo.Dead, tombolo.WrongGeneration, tombolo.NotBound) as error:
                print(error.strerror, flush=True)  # the next one of this name has another address


if __name__ == "__main__":
    main()
