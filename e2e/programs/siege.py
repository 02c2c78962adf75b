"""All that a hostile program tries against its node and its neighbours, over and over until it is killed.

    siege.py LIST SCORE [WORD...]    keeps every attack of LIST going; SCORE is a file that says how often each was begun
    siege.py ATTACK [WORD...]        is one attack

The words are folders of the node for `user`, an address for `stranger`, and a certificate behind it for `former`.

Each attack is a function and a word in a list. It has a process of its own, in a session of its own; all are killed and begun anew every ROUND_S
seconds, in another order each time, so that one that takes everything does not keep the others from their turn.
"""

import ctypes
import fcntl
import json
import os
import random
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

CONTROL = os.environ.get("TOMBOLO_CONTROL", "/run/tombolo/control.sock")
ROUND_S = 1.5
PR_SET_PDEATHSIG = 1
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


def memory_and_processes():
    """A command that is to be started beside these finds no memory and no process."""
    while True:
        try:
            if os.fork() == 0:
                memory()
        except OSError:
            pass


def real_time_forks():
    while True:
        try:
            if os.fork() == 0:
                try:
                    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
                except OSError:
                    pass
                while True:
                    pass
        except OSError:
            time.sleep(0.1)


def threads():
    while True:
        try:
            threading.Thread(target=time.sleep, args=(1000,)).start()
        except RuntimeError:
            time.sleep(0.1)


def long_command_lines():
    while True:
        subprocess.run(["/bin/true", *["x" * 100000] * 15], check=False)


def other_classes():
    """Packets that ask for a class that is not theirs: that it stays in its own is shown by `network_classes.rs`."""
    flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        for option, value in ((socket.SO_PRIORITY, 6), (socket.SO_PRIORITY, 0)):
            flood.setsockopt(socket.SOL_SOCKET, option, value)
        flood.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)
        flood.sendto(random.randbytes(64), ("127.0.0.53", 53))


def ioctls():
    while True:
        query = os.open("/srv/dns/query", os.O_RDWR)
        try:
            fcntl.ioctl(query, random.randrange(1 << 32), random.randbytes(random.randrange(1, 1024)))
        except OSError:
            pass
        os.close(query)


def pollers():
    query = os.open("/srv/dns/query", os.O_RDWR)

    def poll_for(events):
        poller = select.poll()
        poller.register(query, events)
        while True:
            poller.poll(5)

    for events in (1, 4, 1):
        threading.Thread(target=poll_for, args=(events,)).start()


def unread_answers():
    many_files()
    held = []
    while True:
        query = os.open("/srv/dns/query", os.O_RDWR)
        os.write(query, b"A host3.tombolo.example\n")
        held.append(query)


def reach():
    """Of somebody without rights: everything of the node's that has a name."""
    while True:
        for folder in sys.argv[2:]:
            for path in (folder, f"{folder}/daemon.sock", f"{folder}/registry.redb", f"{folder}/dc", f"{folder}/lock"):
                for flags in (os.O_RDONLY, os.O_WRONLY):
                    try:
                        os.close(os.open(path, flags))
                        print("reached", path, flush=True)
                    except OSError:
                        pass
            admin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                admin.connect(f"{folder}/daemon.sock")
                print("reached", folder, flush=True)
            except OSError:
                pass
            admin.close()


def host_files():
    many_files()
    held = []
    while True:
        held.append(os.open("/proc/self/cgroup", os.O_RDONLY))
        os.read(held[-1], 4096)


def host_notices():
    many_files()
    while True:
        instance = libc.inotify_init()
        if instance < 0:
            raise OSError(ctypes.get_errno(), "inotify_init")
        libc.inotify_add_watch(instance, b"/", 0xFFF)


def unread_rings():
    """The rings of as many channels as can be had, full, at somebody who never looks."""
    subprocess.run(["/channel-peer", "fill", "spam", "200"], stdin=subprocess.PIPE, check=False)


def query(number, name):
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b"."))
    return number.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"


def stub_stack():
    """Once 128 long queries by datagrams and 215 in one stream, of names that nobody answers, ended a frontend."""
    flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(128):
        flood.sendto(query(number, f"n{number}.silent.example").ljust(4096, b"\0"), ("127.0.0.53", 53))
    pipelined = b""
    for number in range(215):
        one = query(number, f"p{number}.silent.example")
        pipelined += len(one).to_bytes(2, "big") + one
    stream = socket.create_connection(("127.0.0.53", 53))
    stream.sendall(pipelined)
    stream.recv(65536)


def library_descriptors():
    """Of a program with the preload library: everything is closed, and replaced by what is the program's own."""
    while True:
        try:
            socket.getaddrinfo(f"host{random.randrange(200)}.tombolo.example", 80)
        except OSError:
            pass
        os.closerange(3, 1024)
        own = os.open("/dev/zero", os.O_RDWR)
        for number in range(4, 64):
            os.dup2(own, number)
        if os.fork() == 0:
            os.closerange(3, 1024)
            try:
                socket.getaddrinfo("host3.tombolo.example", 80)
            except OSError:
                pass
            os._exit(0)
        os.wait()


def silent_names():
    """Names that the first upstream never answers: once three of them had everybody's names asked of the second."""
    held = []
    while True:
        question = os.open("/srv/dns/query", os.O_RDWR)
        os.write(question, f"A n{random.randrange(1 << 60)}.silent.example\n".encode())
        held.append(question)
        if len(held) > 16:
            os.close(held.pop(0))
        time.sleep(0.02)


def port_half_open():
    """Of somebody on the network: connections that say nothing."""
    many_files()
    held = []
    while True:
        held.append(socket.create_connection((sys.argv[2], 7420), 5))


def port_half_hello():
    """Connections that begin TLS and do not go on."""
    many_files()
    held = []
    while True:
        half = socket.create_connection((sys.argv[2], 7420), 5)
        half.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(16))
        held.append(half)


def port_garbage():
    while True:
        try:
            with socket.create_connection((sys.argv[2], 7420), 5) as noise:
                noise.sendall(random.randbytes(random.randrange(1, 70000)))
                noise.recv(4096)
        except OSError:
            pass


def tls(certificate=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate)
    return context.wrap_socket(socket.create_connection((sys.argv[2], 7420), 5))


def port_slow_request():
    """Whole handshakes, and requests that do not end."""
    many_files()
    held = []
    while True:
        try:
            slow = tls()
            slow.sendall(b"POST /v1/hello HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n{")
            held.append(slow)
        except OSError:
            pass


def former_requests():
    """Of a node that was removed, with the certificate that it had."""
    while True:
        for path in ("/v1/hello", "/v1/join", "/v1/certificate", "/v1/authority", "/v1/etcd/certificate"):
            try:
                with tls(sys.argv[3]) as peer:
                    peer.sendall(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}".encode())
                    answer = peer.recv(4096)
                    if answer.startswith(b"HTTP/1.1 200"):
                        print("believed", path, answer, flush=True)
            except OSError:
                pass


LISTS = {
    # As root in a container.
    "tenant": [
        deep_trees, inodes, descriptors, inotify, processes, memory, memory_and_processes, real_time_forks, threads,
        long_command_lines, other_classes, control_garbage, control_half_open, sessions, questions, unread_answers, pollers,
        ioctls, stub_flood, stub_half_open, stub_stack, settings, names, output, unread_rings, library_descriptors,
    ],
    # As root in a container of the same distributed container, with the same services.
    "neighbour": [
        silent_names, questions, unread_answers, sessions, settings, names, ioctls, pollers, stub_flood, stub_half_open,
        stub_stack, control_garbage, control_half_open,
    ],
    # The same where its channels lead to another node.
    "rings": [unread_rings],
    # As somebody on the network.
    "stranger": [port_half_open, port_half_hello, port_garbage, port_slow_request],
    # As a node that was removed.
    "former": [former_requests, port_slow_request],
    # As somebody on the node without rights.
    "user": [reach, host_files, host_notices],
}


# Lists whose siege is a child of a test, and not of whoever started a container and ended then.
OF_TESTS = ("stranger", "former", "user")


def end_with(parent):
    """Has this process killed when its parent ends, however that is."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill(running):
    for child in running:
        try:
            # With what it forked.
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
    for child in running:
        child.wait()


def siege(name, score, words):
    attacks = [attack.__name__ for attack in LISTS[name]]
    begun = dict.fromkeys(attacks, 0)
    try:
        # Of a siege before this one, which ended.
        with open(score, encoding="utf-8") as before:
            begun.update(json.load(before))
    except (OSError, ValueError):
        pass
    sink = open("/dev/null", "r+b")
    own = os.getpid()
    # In a container its end is theirs, and a child that does something before its program begins takes memory that there may not be.
    first = (lambda: end_with(own)) if name in OF_TESTS else None
    while True:
        running = []
        random.shuffle(attacks)
        for attack in attacks:
            shown = None if attack in ("output", "reach", "former_requests") else sink
            command = [sys.executable, __file__, attack, *words]
            try:
                running.append(
                    subprocess.Popen(
                        command, stdin=sink, stdout=shown, stderr=sink, start_new_session=True, preexec_fn=first
                    )
                )
                begun[attack] += 1
            except (OSError, MemoryError, subprocess.SubprocessError):
                # No process is left for it: its turn is in another round.
                pass
        with open(score + ".new", "w", encoding="utf-8") as new:
            json.dump(begun, new)
        os.rename(score + ".new", score)
        time.sleep(ROUND_S)
        kill(running)


if sys.argv[1] in LISTS:
    if sys.argv[1] in OF_TESTS:
        end_with(os.getppid())
    siege(sys.argv[1], sys.argv[2], sys.argv[3:])
else:
    next(attack for attacks in LISTS.values() for attack in attacks if attack.__name__ == sys.argv[1])()
