"""The end of a binlog file: its last event, ROTATE or STOP, and the in-use flag of its format description.

The flag is cleared in place after everything else is durable. So a file without the flag ends with one of the two
events, and a file that lost its tail later is detected even if it ends with a whole transaction.
"""

from __future__ import annotations

import struct

from tidemark.engine.base.errors import BinlogDamaged
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.errors import Origin

_FLAGS = struct.Struct("<H")
_STOP_BYTES = b.HEADER_BYTES + b.CHECKSUM_BYTES
# A ROTATE has a position and the name of the next file, which is as long as this file's name or one digit longer.
_ROTATE_BYTES = _STOP_BYTES + 8


def end_use(files: Files, file: File) -> None:
    """Clear the in-use flag of a file whose content is durable. Durable on return: the cleared flag."""
    place = b.FIRST_POSITION + b.FLAGS_OFFSET
    (flags,) = _FLAGS.unpack(files.pread(file, place, _FLAGS.size))
    if flags & b.FLAG_IN_USE:
        files.pwrite(file, place, _FLAGS.pack(flags & ~b.FLAG_IN_USE))
        files.fdatasync(file)


def has_end(files: Files, file: File, name: str, end: int | None = None) -> bool:
    """Whether the event that ends at `end` (None: the end of the file) is a ROTATE or a STOP."""
    end = files.size(file) if end is None else end
    for size in (_STOP_BYTES, _ROTATE_BYTES + len(name), _ROTATE_BYTES + len(name) + 1):
        begin = end - size
        if begin < b.FIRST_POSITION:
            return False
        try:
            header, _ = e.parse(files.pread(file, begin, size), Origin(name, begin))
        except BinlogDamaged:
            continue
        if header.type in (b.STOP_EVENT, b.ROTATE_EVENT) and header.end_position == end & 0xFFFFFFFF:
            return True
    return False


def check_end(files: Files, file: File, name: str, header: e.EventHeader) -> None:
    """Check that an ended file has its last event, before a reader continues with the next file. `header` is that of
    its format description.

    Raises: BinlogDamaged if the event is missing.
    """
    if header.flags & (b.FLAG_IN_USE | b.FLAG_RELAY_LOG) or has_end(files, file, name):
        return
    raise Origin(name, files.size(file)).damaged("is missing: the file was ended, and its last event is not there")
