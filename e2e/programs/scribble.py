"""Asks for a channel of its own, maps it, and writes random bytes all over it while ringing the doorbells."""

import array
import json
import mmap
import os
import random
import socket
import sys
import time

random.seed(int(sys.argv[1]))
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect(os.environ.get("TOMBOLO_CONTROL", "/run/tombolo/control.sock"))
control.sendall(json.dumps({"op": "connect", "id": 1, "service": "dns", "entrance": "api"}).encode())
packet, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_SPACE(16 * 4))
reply = json.loads(packet)
assert reply["reply"] == "connected", reply
descriptors = array.array("i")
for level, kind, data in ancillary:
    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
        descriptors.frombytes(data[: len(data) - len(data) % 4])
regions, bells = [], []  # the doorbells are sockets, or pipes
for descriptor in descriptors:
    target = os.readlink("/proc/self/fd/%d" % descriptor)
    if "memfd" in target:
        regions.append(descriptor)
    elif "socket" in target or "pipe" in target:
        os.set_blocking(descriptor, False)
        bells.append(descriptor)
assert regions and bells, [os.readlink("/proc/self/fd/%d" % d) for d in descriptors]
size = os.fstat(regions[0]).st_size
memory = mmap.mmap(regions[0], size)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    for _ in range(200):
        at = random.randrange(0, min(size, 8192) if random.random() < 0.7 else size) & ~7
        memory[at : at + 8] = random.choice(
            [random.randbytes(8), b"\xff" * 8, b"\0" * 8, random.randrange(0, 1 << 20).to_bytes(8, "little")]
        )
    for bell in bells:
        try:
            os.write(bell, b"x" * 64)
        except OSError:
            # Those that listen are among the bells, and a full one is as good as a rung one.
            pass
print("scribbled over", size, "bytes")
