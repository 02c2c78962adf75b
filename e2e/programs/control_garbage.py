"""Sends nonsense to the domain's control socket, then a right request on a new connection."""

import json
import os
import random
import socket

path = os.environ.get("TOMBOLO_CONTROL", "/run/tombolo/control.sock")


def connect():
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # First connect, then the time-out: with one, a full queue of the daemon's would be an error and not a wait.
    control.connect(path)
    control.settimeout(5)
    return control


def ask(control, packet):
    control.sendall(packet)
    return json.loads(control.recv(65536))


random.seed(1)
for _ in range(300):
    control = connect()
    try:
        control.send(random.randbytes(random.randrange(0, 2000)))
    except OSError:
        pass
    control.close()
many = []
for _ in range(500):
    try:
        many.append(connect())
    except OSError:
        break
for control in many:
    control.close()
control = connect()
assert ask(control, b'{"op":"explode","id":7}')["reply"] == "refused"
refused = ask(control, json.dumps({"op": "connect", "id": 8, "service": "dns", "entrance": "device"}).encode())
assert refused["reply"] == "refused", refused
refused = ask(control, json.dumps({"op": "connect", "id": 9, "service": "nothing", "entrance": "api"}).encode())
assert refused["reply"] == "refused" and refused["id"] == 9, refused
refused = ask(control, json.dumps({"op": "serve", "id": 10}).encode())
assert refused["reply"] == "refused" and refused["id"] == 10, refused
services = ask(control, json.dumps({"op": "services", "id": 11}).encode())
assert services["services"][0]["name"] == "dns", services
print("still answering")
