# What tombolo.sync promises, said by a program in a container: the end of a line that it prints is the test's.
import errno
import os
import threading

from tombolo.sync import Sync

sync = Sync()


def refused(number, call, *arguments, **named):
    try:
        got = call(*arguments, **named)
    except OSError as error:
        assert error.errno == number, f"{errno.errorcode.get(error.errno)} and not {errno.errorcode[number]}: {error}"
    else:
        raise AssertionError(f"{got!r} and not {errno.errorcode[number]}")


def not_meant(call, *arguments):
    try:
        got = call(*arguments)
    except ValueError:
        return
    raise AssertionError(f"{got!r} and no ValueError")


# Keys: any bytes, by what they are and not by how they are carried.
for value in (b"blue", b"", b" a b ", b"two\nlines\n", b"\xff\0", "ä".encode(), bytes(range(256)) * 128):
    revision = sync.put("config/colour", value)
    assert sync.get("config/colour") == (value, revision), value
    assert sync.swap("config/colour", revision, value + b"!" if len(value) < 32768 else value) > revision
    refused(errno.ESTALE, sync.swap, "config/colour", revision, value)
refused(errno.EFBIG, sync.put, "config/colour", bytes(32769))
assert sync.get("config/none") is None and not sync.remove("config/none")
refused(errno.EEXIST, sync.swap, "config/colour", 0, b"x")
refused(errno.EEXIST, sync.swap, "config/colour", 0, b"\n")
refused(errno.ESTALE, sync.swap, "config/none", 7, b"x")
refused(errno.ESTALE, sync.swap, "config/none", 7, b"\n")
first = sync.swap("config/new", 0, b"one")
refused(errno.ESTALE, sync.remove, "config/new", first + 1000)
assert [key.key for key in sync.keys("config/")] == ["config/colour", "config/new"]
assert [(key.revision, key.bytes) for key in sync.keys("config/new")] == [(first, 3)]
assert sync.remove("config/new", first)
for wrong in ("", "a b", "a\nb", "../locks/x", "a/../../ctl"):
    not_meant(sync.get, wrong)
    not_meant(sync.lock, wrong)

# Two threads count, and no step is lost.
sync.put("n", b"0")


def count():
    for _ in range(50):
        while True:
            value, revision = sync.get("n")
            try:
                sync.swap("n", revision, str(int(value) + 1).encode())
                break
            except OSError as error:
                assert error.errno == errno.ESTALE


threads = [threading.Thread(target=count) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sync.get("n").value == b"100"

# Changes, in their order.
with sync.watch("kv/watched/") as watch:
    assert watch.read(timeout=30).what == "now"
    sync.put("watched/a", b"1")
    sync.remove("watched/a")
    seen = [watch.read(timeout=30), watch.read(timeout=30)]
    assert [(change.what, change.words) for change in seen][-2:] in (
        [("put", ("kv/watched/a",)), ("rm", ("kv/watched/a",))],
    ), seen
    refused(errno.ETIMEDOUT, watch.read, timeout=0.1)

# Locks and semaphores; tokens only grow.
with sync.lock("printer") as token:
    refused(errno.EAGAIN, sync.lock, "printer", wait=False)
    refused(errno.ETIMEDOUT, sync.lock, "printer", timeout=0.1)
# close(2) returns before the service has heard of it.
with sync.lock("printer", timeout=30) as later:
    assert later > token
with sync.lock("fresh", wait=False):
    pass
held = [sync.semaphore("places", 2), sync.semaphore("places", 2, timeout=30)]
refused(errno.EAGAIN, sync.semaphore, "places", wait=False)
held.pop().release()
held.append(sync.semaphore("places", timeout=30))
for place in held:
    place.release()

# A barrier lets all go, or breaks for all.
passed = []
threads = [threading.Thread(target=lambda: passed.append(sync.barrier("phase", 3, timeout=60))) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(passed) == 3 and len(set(passed)) == 1, passed
refused(errno.ETIMEDOUT, sync.barrier, "phase", 3, timeout=0.1)

# A queue: what is not dealt with comes back.
jobs = sync.queue("jobs", 2, durable=True)
for item in (b"one\n", bytes(32768)):
    jobs.push(item)
refused(errno.EAGAIN, jobs.push, b"three", wait=False)
not_meant(jobs.push, b"")
assert jobs.pop() == b"one\n"
try:
    with jobs.take() as item:
        assert item == bytes(32768)
        raise KeyError
except KeyError:
    pass
assert jobs.pop(timeout=30) == bytes(32768)
refused(errno.EAGAIN, jobs.pop, wait=False)
refused(errno.ETIMEDOUT, jobs.pop, timeout=0.1)
jobs.push(b"a")
jobs.push(b"b")
for item in jobs:
    if item == b"b":
        break
assert jobs.pop(timeout=30) == b"b"

# A lease goes with whoever has it.
with sync.watch("kv/members/") as watch:
    with sync.lease() as lease:
        lease.put("members/me", "here")
        assert sync.get("members/me").value == b"here"
        not_meant(lease.put, "members/other", "two\nlines")
    while watch.read(timeout=30).what != "rm":
        pass
assert sync.get("members/me") is None

# Nothing stays open.
before = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    refused(errno.ESTALE, sync.swap, "n", 1, b"\n")
    refused(errno.ETIMEDOUT, sync.barrier, "phase", 3, timeout=0.01)
assert len(os.listdir("/proc/self/fd")) == before
print("all of it")
