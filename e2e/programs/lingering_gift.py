"""Sends the last descriptor of a TCP connection whose closing takes N seconds to the daemon, with a harmless request."""

import array
import socket
import struct
import sys

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(1)
sender = socket.socket()
sender.connect(listener.getsockname())
# Never read: what is sent stays unsent, and a close waits for it.
peer, _ = listener.accept()
sender.setblocking(False)
try:
    while True:
        sender.send(b"x" * 65536)
except BlockingIOError:
    pass
sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(sys.argv[1])))
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect("/run/tombolo/control.sock")
gift = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sender.fileno()]))]
try:
    control.sendmsg([b'{"op":"about","id":5}'], gift)
    print("given")
except PermissionError:
    print("not taken")
    # So that nobody but the daemon could be held up.
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
