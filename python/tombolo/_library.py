# SPDX-License-Identifier: MIT OR Apache-2.0
"""The C library: where it is, and what its functions take."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NoReturn

READING = 1
WRITING = 2
FOREVER = -1

STREAM = 1
NONBLOCK = 2
ANY_USER = 4
NO_SPIN = 8

_FILE = "libtombolo.so.0"


class Options(ctypes.Structure):
    """``struct tombolo_options``."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("ring_bytes", ctypes.c_uint32),
        ("batch_bytes", ctypes.c_uint32),
        ("wait_ns", ctypes.c_int64),
        ("reserved", ctypes.c_uint64 * 5),
    ]


def _load() -> ctypes.CDLL:
    """Loads the file that ``TOMBOLO_LIBRARY`` names, or the one beside this package, or the one that the loader finds."""
    named = os.environ.get("TOMBOLO_LIBRARY")
    if named:
        places = [named]
    else:
        beside = Path(__file__).parent
        places = [str(path) for path in (beside / _FILE, beside / "libtombolo.so") if path.exists()] + [_FILE]
    try:
        return ctypes.CDLL(places[0], use_errno=True)
    except OSError as error:
        raise ImportError(
            f"can't load {places[0]} ({error}): build it with `make build`, and name it in TOMBOLO_LIBRARY, "
            "or put it beside the package, or where the loader looks (ldconfig, LD_LIBRARY_PATH)"
        ) from error


library = _load()

_HANDLE = ctypes.c_int64
_OPTIONS = ctypes.POINTER(Options)
_INTS = ctypes.POINTER(ctypes.c_int)


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments


_declare("tombolo_error_text", ctypes.c_char_p)
_declare("tombolo_offer", _HANDLE, ctypes.c_char_p, _OPTIONS)
_declare("tombolo_accept", _HANDLE, _HANDLE)
_declare("tombolo_open", _HANDLE, ctypes.c_char_p, _OPTIONS)
_declare("tombolo_pair", ctypes.c_int, _OPTIONS, ctypes.POINTER(_HANDLE))
_declare("tombolo_channel_descriptors", ctypes.c_int, _HANDLE, _INTS)
_declare("tombolo_from_descriptors", _HANDLE, _INTS, _OPTIONS)
_declare("tombolo_read", ctypes.c_ssize_t, _HANDLE, ctypes.c_void_p, ctypes.c_size_t)
_declare("tombolo_write", ctypes.c_ssize_t, _HANDLE, ctypes.c_void_p, ctypes.c_size_t)
_declare("tombolo_loan", ctypes.c_void_p, _HANDLE, ctypes.c_size_t)
_declare("tombolo_commit", ctypes.c_int, _HANDLE, ctypes.c_size_t)
_declare("tombolo_cancel", ctypes.c_int, _HANDLE)
_declare("tombolo_view", ctypes.c_ssize_t, _HANDLE, ctypes.POINTER(ctypes.c_void_p))
_declare("tombolo_release", ctypes.c_int, _HANDLE)
_declare("tombolo_set_batch", ctypes.c_int, _HANDLE, ctypes.c_size_t)
_declare("tombolo_flush", ctypes.c_int, _HANDLE)
_declare("tombolo_finish", ctypes.c_int, _HANDLE)
_declare("tombolo_set_timeout", ctypes.c_int, _HANDLE, ctypes.c_int, ctypes.c_int64)
_declare("tombolo_wait", ctypes.c_int, _HANDLE, ctypes.c_int, ctypes.c_int64)
_declare("tombolo_poll_descriptor", ctypes.c_int, _HANDLE, ctypes.c_int)
_declare("tombolo_set_message_limit", ctypes.c_int, _HANDLE, ctypes.c_size_t)
_declare("tombolo_max_message", ctypes.c_ssize_t, _HANDLE)
_declare("tombolo_peer", ctypes.c_ssize_t, _HANDLE, ctypes.c_char_p, ctypes.c_size_t)
_declare("tombolo_close", ctypes.c_int, _HANDLE)


def raise_error() -> NoReturn:
    """Raises what the last call in this thread failed with: the kind of :class:`OSError` that fits its ``errno``."""
    errno = ctypes.get_errno()
    text = library.tombolo_error_text() or b""
    raise OSError(errno, text.decode("utf-8", "replace"))


def checked(result: int) -> int:
    """The result of a call, unless it failed."""
    if result == -1:
        raise_error()
    return result
