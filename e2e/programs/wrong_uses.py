"""Uses the service files wrongly in every way that comes to mind and compares the errno with the documentation."""

import errno
import fcntl
import os
import select
import struct
import sys

QUERY = "/srv/dns/query"
wrong = []


def expect(what, wanted, action):
    try:
        found = action()
    except OSError as error:
        found = errno.errorcode.get(error.errno, str(error.errno))
    if isinstance(wanted, str):
        wanted = (wanted,)
    if found not in wanted:
        wrong.append("%s: %r instead of %r" % (what, found, wanted))


def asking(line):
    def ask():
        query = os.open(QUERY, os.O_RDWR)
        try:
            os.write(query, line)
            return os.read(query, 65536)
        finally:
            os.close(query)

    return ask


GOOD = b"A host3.tombolo.example\n"
expect("unknown name", "ENOENT", asking(b"nobody.tombolo.example\n"))
expect("no such record", "ENODATA", asking(b"AAAA host2.tombolo.example\n"))
expect("unknown type", "EINVAL", asking(b"FROB host3.tombolo.example\n"))
expect("too many words", "EINVAL", asking(b"A host3.tombolo.example and more\n"))
expect("not UTF-8", "EINVAL", asking(b"A \xff\xfe.example\n"))
expect("NUL in the line", "EINVAL", asking(b"A host3\0.tombolo.example\n"))
expect("label of 64", ("ENAMETOOLONG", "EINVAL"), asking(b"A " + b"x" * 64 + b".example\n"))
expect("name of 300", "ENAMETOOLONG", asking(b"A " + b".".join([b"x" * 50] * 6) + b"\n"))
expect("line of 1 MiB", "EMSGSIZE", asking(b"A " + b"x" * (1 << 20) + b"\n"))
expect("line of 1 MiB without an end", "EMSGSIZE", asking(b"A " + b"x" * (1 << 20)))
expect("unknown control", "EINVAL", asking(b"ctl frobnicate\n"))
expect("impossible control", "EINVAL", asking(b"ctl timeout -5s\n"))


def partial():
    query = os.open(QUERY, os.O_RDWR)
    for byte in b"A host3.tombolo.ex", b"ample":
        os.write(query, byte)
    text = os.read(query, 65536)
    os.close(query)
    return b"192.0.2.3" in text


expect("a line in parts, without its end", (True,), partial)


def many_in_one_write():
    query = os.open(QUERY, os.O_RDWR)
    os.write(query, b"A host3.tombolo.example\nA host6.tombolo.example\n\nA host9.tombolo.example\n")
    text = b""
    while piece := os.read(query, 65536):
        text += piece
    os.close(query)
    return [n for n in (3, 6, 9) if b"192.0.2.%d" % n in text] == [3, 6, 9]


expect("three requests in one write", (True,), many_in_one_write)


def small_reads():
    query = os.open(QUERY, os.O_RDWR)
    os.write(query, GOOD)
    text = b""
    while piece := os.read(query, 3):
        text += piece
    os.close(query)
    return b"192.0.2.3" in text


expect("an answer read three bytes at a time", (True,), small_reads)


def nothing_asked():
    query = os.open(QUERY, os.O_RDWR)
    text = os.read(query, 100)
    os.close(query)
    return text


expect("reading without asking", (b"",), nothing_asked)


def ioctl(number, data=b""):
    def call():
        query = os.open(QUERY, os.O_RDWR)
        try:
            return fcntl.ioctl(query, number, data) if data else fcntl.ioctl(query, number)
        finally:
            os.close(query)

    return call


def number(direction, nr, size):
    return direction << 30 | size << 16 | 0xD7 << 8 | nr


expect("ioctl of another type", "ENOTTY", ioctl(0x5401, b"\0" * 64))
expect("ioctl with an unknown number", "ENOTTY", ioctl(number(1, 99, 8), b"\0" * 8))
expect("ioctl with a wrong size", ("EINVAL", "ENOTTY"), ioctl(number(1, 2, 4), b"\0" * 4))
expect("ioctl with nonsense inside", "EINVAL", ioctl(number(1, 2, 32), b"\xff" * 32))


def settings_by_ioctl():
    query = os.open(QUERY, os.O_RDWR)
    before = struct.unpack("8I", fcntl.ioctl(query, number(2, 1, 32), b"\0" * 32))
    fcntl.ioctl(query, number(1, 2, 32), struct.pack("8I", 1234, 1, 1, 0, 0, 0, 0, 0))
    after = struct.unpack("8I", fcntl.ioctl(query, number(2, 1, 32), b"\0" * 32))
    os.write(query, GOOD)
    answer = os.read(query, 65536)
    os.close(query)
    return before[0] != 1234 and after[:3] == (1234, 1, 1) and answer.startswith(b"{")


expect("settings by ioctl", (True,), settings_by_ioctl)


def select_poll_epoll():
    query = os.open(QUERY, os.O_RDWR | os.O_NONBLOCK)
    os.write(query, GOOD)
    readable = select.select([query], [], [], 10)[0] == [query]
    first = os.read(query, 65536)
    os.write(query, GOOD)
    poll = select.poll()
    poll.register(query, select.POLLIN)
    polled = poll.poll(10_000)
    second = os.read(query, 65536)
    epoll = select.epoll()
    epoll.register(query, select.EPOLLIN)
    os.write(query, GOOD)
    waited = epoll.poll(10)
    third = os.read(query, 65536)
    os.close(query)
    return readable and bool(polled) and bool(waited) and all(b"192.0.2.3" in t for t in (first, second, third))


expect("select, poll and epoll", (True,), select_poll_epoll)


def read_only():
    query = os.open(QUERY, os.O_RDONLY)
    try:
        return os.write(query, GOOD)
    finally:
        os.close(query)


expect("write on a read-only descriptor", "EBADF", read_only)


def closed():
    query = os.open(QUERY, os.O_RDWR)
    os.close(query)
    return os.write(query, GOOD)


expect("write after close", "EBADF", closed)
DENIED = ("EPERM", "EACCES", "EROFS", "ENOSYS")
expect("mkdir in /srv", DENIED, lambda: os.mkdir("/srv/new"))
expect("a new file in /srv/dns", DENIED, lambda: os.open("/srv/dns/new", os.O_CREAT | os.O_RDWR))
expect("unlink", DENIED, lambda: os.unlink(QUERY))
expect("rename", DENIED, lambda: os.rename(QUERY, "/srv/dns/other"))
expect("a folder that is none", "ENOTDIR", lambda: os.listdir(QUERY))
expect("a file that is none", "EISDIR", lambda: os.open("/srv/dns", os.O_RDWR))
expect("what is not there", "ENOENT", lambda: os.stat("/srv/dns/nothing"))


def control(text):
    def write():
        ctl = os.open("/srv/dns/ctl", os.O_WRONLY)
        try:
            return os.write(ctl, text)
        finally:
            os.close(ctl)

    return write


expect("ctl: unknown word", "EINVAL", control(b"frobnicate\n"))
expect("ctl: no number", "EINVAL", control(b"timeout soon\n"))
expect("ctl: not UTF-8", "EINVAL", control(b"\xff\xff\n"))
expect("ctl: a session of nobody", "ESRCH", control(b"session 999999 timeout 1s\n"))
expect("ctl: something right", (15,), control(b"timeout 1500ms\n"))
if b"timeout 1500ms" not in open("/srv/dns/ctl", "rb").read():
    wrong.append("ctl does not show what was set")

for line in wrong:
    print(line)
if wrong:
    sys.exit(1)
print("all as documented")
