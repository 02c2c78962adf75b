# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a service says of a folder, as bytes for whoever asked."""

from __future__ import annotations

import errno
import os
from typing import Iterable, List, Optional, Tuple

from . import _service_wire as wire
from ._service_calls import Call
from ._service_folder import Folder
from ._service_wire import Change, Node

#: Most bytes of one part of a listing, whatever is asked for: some hundreds of names, and the next part is asked for.
MAX_LISTING_BYTES = 60 * 1024


def listed(entries: Iterable[Tuple[int, bytes, Node]], size: int, root: int) -> bytes:
    """As many entries as fit into ``size`` bytes."""
    size = min(size, MAX_LISTING_BYTES)
    parts: List[bytes] = []
    used = 0
    for place, name, node in entries:
        entry = wire.encode_entry(node, place, name, root)
        if used + len(entry) > size:
            if not parts:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            break
        parts.append(entry)
        used += len(entry)
    return b"".join(parts)


def changed(folder: Folder, call: Call, node: int, change: Change, root: int) -> bytes:
    """Changes a folder: the node where one was made or got a name, else nothing."""
    made: Optional[Node] = None
    if change.operation == wire.CREATE:
        made = folder.create(call, node, change.name, change.mode & 0o777)
    elif change.operation == wire.MAKE_FOLDER:
        made = folder.make_folder(call, node, change.name, change.mode & 0o777)
    elif change.operation == wire.UNLINK:
        folder.unlink(call, node, change.name)
    elif change.operation == wire.REMOVE_FOLDER:
        folder.remove_folder(call, node, change.name)
    elif change.operation == wire.RENAME:
        to_folder = _serial_below(root, change.other)
        folder.rename(call, node, change.name, to_folder, change.new_name, change.mode)
    else:
        made = folder.link(call, _serial_below(root, change.other), node, change.name)
    return b"" if made is None else made.encode(root)


def _serial_below(root: int, number: int) -> int:
    """The serial number of another node, which has to be below the same exported folder."""
    if number == root:
        return 0
    if number >> wire.SERIAL_BITS != root + 1:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return int(number & (2**wire.SERIAL_BITS - 1))
