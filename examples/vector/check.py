# SPDX-License-Identifier: MIT OR Apache-2.0
"""Has arrays computed by the service `vector`, and holds each result against numpy's. Then how long both take, by the number of elements."""

import ctypes
import errno
import mmap
import os
import sys
import time

import numpy

SIZE = 16 << 20
array = os.open("/srv/vector/array", os.O_RDWR)
# A device has no size, which Python's own mmap wants to see.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
mapped = libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, array, 0)
if mapped == ctypes.c_void_p(-1).value:
    sys.exit(f"the memory can't be mapped: {os.strerror(ctypes.get_errno())}")
memory = (ctypes.c_char * SIZE).from_address(mapped)


def ask(*lines):
    """A batch of orders, and an answer for each."""
    os.write(array, "\n".join(lines).encode())
    return os.read(array, 65536).decode().split("\n")[:-1]


def refused(*lines):
    try:
        return f"answered {ask(*lines)}"
    except OSError as error:
        return errno.errorcode[error.errno]


def view(kind, place, count):
    return numpy.frombuffer(memory, dtype=kind, count=count, offset=place)


def check(what, is_so):
    if not is_so:
        sys.exit(f"{what} is not as numpy has it")


random = numpy.random.default_rng(1)
for kind, words in (("float32", "f32"), ("float64", "f64"), ("int64", "i64")):
    for count in (1, 7, 8192, 8193, 50_000):
        size = numpy.dtype(kind).itemsize * count
        places = [0, size, 2 * size]
        one, other, out = (view(kind, place, count) for place in places)
        if kind == "int64":
            one[:] = random.integers(-(2**62), 2**62, count)
            other[:] = random.integers(-(2**62), 2**62, count)
        else:
            one[:] = random.standard_normal(count)
            other[:] = random.standard_normal(count) + 3
        with numpy.errstate(over="ignore"):
            for name, expected in (("add", one + other), ("sub", one - other), ("mul", one * other)):
                check(f"{name} {words}", ask(f"{name} {words} 0 {places[1]} {places[2]} {count}") == ["ok"])
                check(f"{name} {words} of {count}", numpy.array_equal(out, expected))
            if kind == "int64":
                check("div i64", refused(f"div i64 0 {places[1]} {places[2]} {count}") in ("EOPNOTSUPP", "ENOTSUP"))
            else:
                ask(f"div {words} 0 {places[1]} {places[2]} {count}")
                check(f"div {words} of {count}", numpy.array_equal(out, one / other))
            answers = ask(f"sum {words} 0 {count}", f"dot {words} 0 {places[1]} {count}", f"min {words} 0 {count}", f"max {words} 0 {count}")
            wide = (lambda a: a) if kind == "int64" else (lambda a: a.astype("float64"))
            expected = [wide(one).sum(), (wide(one) * wide(other)).sum(), one.min(), one.max()]
        same = (lambda a, b: int(a) == int(b)) if kind == "int64" else (lambda a, b: numpy.isclose(float(a), float(b), rtol=1e-6 if words == "f32" else 1e-9, atol=1e-9))
        check(f"sum, dot, min, max of {count} {words}: {answers} {expected}", all(map(same, answers, expected)))
        if kind != "int64":
            ask(f"scale {words} 0 0.5 {places[2]} {count}")
            check(f"scale {words}", numpy.array_equal(out, one * one.dtype.type(0.5)))

for wrong, wanted in (
    ("add f64 0 8 16", "EINVAL"),
    ("add f16 0 8 16 1", "EINVAL"),
    ("add f64 0 8 16 0", "EINVAL"),
    ("add f64 0 8 16 99999999999", "EINVAL"),
    ("\n".join(["sum f64 0 1000000"] * 2), "E2BIG"),
    (f"add f64 0 8 {SIZE} 1", "EFAULT"),
    (f"sum f64 {SIZE - 8} 2", "EFAULT"),
    ("sum f64 4 1", "EFAULT"),
    ("sum f64 18446744073709551608 2", "EFAULT"),
):
    found = refused(wrong)
    if found != wanted:
        sys.exit(f"{wrong!r}: {found}, and not {wanted}")

print(f"{'elements':>9} {'here, us':>9} {'by the service, us':>19}")
for count in (16, 1024, 16_384, 65_536):
    places = [0, 8 * count, 16 * count]
    one, other, out = (view("float64", place, count) for place in places)
    spans = []
    for once in (lambda: numpy.multiply(one, other, out=out), lambda: ask(f"mul f64 0 {places[1]} {places[2]} {count}")):
        took = []
        for _ in range(21):
            begun = time.perf_counter()
            once()
            took.append(time.perf_counter() - begun)
        spans.append(sorted(took)[10] * 1e6)
    print(f"{count:>9} {spans[0]:>9.1f} {spans[1]:>19.1f}")
print("all as numpy has it")
