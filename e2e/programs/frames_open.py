"""Opens the channel `frames`, asks in place, then waits for the end; the same as frames_open.c, word for word."""

import errno

import tombolo

ROUNDS = 300
LONGEST = 60000

with tombolo.open("frames", wait=20) as channel:
    for number in range(ROUNDS):
        length = 1 + number * 7919 % LONGEST
        asked = bytes((number + place) % 256 for place in range(251)) * (length // 251 + 1)
        with channel.loan(length) as loan:
            loan.memory[:] = asked[:length]
        with channel.view() as answer:
            assert answer is not None, "the end came early"
            assert bytes(answer) == bytes((byte + 1) % 256 for byte in asked[:length]), number
    print("answered", ROUNDS, flush=True)
    assert channel.read() is None, "a message that nobody asked for"
    try:
        channel.write(b"is anybody there?")
        print("over: written to nobody", flush=True)
    except BrokenPipeError as error:
        assert error.errno == errno.EPIPE
        print("over: end of file, EPIPE", flush=True)
