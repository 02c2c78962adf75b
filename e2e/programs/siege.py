"""All that one hostile program of a domain tries against its node and its neighbours, over and over until its input ends.

Each attack is a process that is started again when it dies; the last line says how often each was begun.
"""

import ctypes
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import time

CONTROL = os.environ.get("TOMBOLO_CONTROL", "/run/tombolo/control.sock")
libc = ctypes.CDLL(None, use_errno=True)


def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def deep_trees():
    os.makedirs("/tmp/deep", exist_ok=True)
    os.chdir("/tmp/deep")
    for _ in range(20000):
        os.mkdir("d")
        os.chdir("d")


def inodes():
    os.makedirs("/tmp/wide", exist_ok=True)
    for number in range(200000):
        open(f"/tmp/wide/{number}", "w").close()


def descriptors():
    many_files()
    held = []
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


def inotify():
    many_files()
    while True:
        instance = libc.inotify_init()
        if instance < 0:
            raise OSError(ctypes.get_errno(), "inotify_init")
        libc.inotify_add_watch(instance, b"/tmp", 0xFFF)


def processes():
    while True:
        try:
            if os.fork() == 0:
                signal.pause()
        except OSError:
            time.sleep(0.5)
            return


def memory():
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))


def control_garbage():
    while True:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(CONTROL)
        try:
            control.send(random.randbytes(random.randrange(1, 4000)))
        except OSError:
            pass
        control.close()


def control_half_open():
    many_files()
    held = []
    while True:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(CONTROL)
        held.append(control)


def sessions():
    many_files()
    held = []
    while True:
        held.append(os.open("/srv/dns/query", os.O_RDWR))


def questions():
    while True:
        query = os.open("/srv/dns/query", os.O_RDWR)
        os.write(query, f"A {random.randrange(1 << 60)}.tombolo.example\n".encode())
        try:
            os.read(query, 4096)
        except OSError:
            pass
        os.close(query)


def stub_flood():
    flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        flood.sendto(random.randbytes(random.randrange(0, 512)), ("127.0.0.53", 53))


def stub_half_open():
    many_files()
    held = []
    while True:
        held.append(socket.create_connection(("127.0.0.53", 53)))


def settings():
    while True:
        with open("/srv/dns/ctl", "wb", buffering=0) as ctl:
            ctl.write(random.randbytes(random.randrange(0, 4096)))


def names():
    while True:
        name = bytes(random.choice(b"abc\xff .\n") for _ in range(random.randrange(1, 255)))
        try:
            os.open(b"/srv/dns/" + name, os.O_RDWR | os.O_CREAT)
        except OSError:
            pass


def output():
    while True:
        os.write(1, random.randbytes(65536))


ATTACKS = [
    deep_trees, inodes, descriptors, inotify, processes, memory, control_garbage, control_half_open,
    sessions, questions, stub_flood, stub_half_open, settings, names, output,
]

if len(sys.argv) > 1:
    next(attack for attack in ATTACKS if attack.__name__ == sys.argv[1])()
    sys.exit(0)

running, begun = {}, {attack.__name__: 0 for attack in ATTACKS}
sink = open("/dev/null", "r+b")
while not select.select([0], [], [], 0.05)[0]:
    for name in begun:
        child = running.get(name)
        if child is None or child.poll() is not None:
            shown = None if name == "output" else sink
            try:
                # Each in a group of its own, so that what it forked ends with it.
                running[name] = subprocess.Popen([sys.executable, __file__, name], stdin=sink, stdout=shown, stderr=sink, start_new_session=True)
                begun[name] += 1
            except OSError:
                # No process is left for it: what the file allows is used up.
                for other in running.values():
                    try:
                        os.killpg(other.pid, signal.SIGKILL)
                    except OSError:
                        pass
for child in running.values():
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
print("begun:", begun, file=sys.stderr)
