"""The mark that a binlog file is whole: the in-use flag of its format description, cleared in place."""

from __future__ import annotations

import struct

from engine.file_protocol import File, Files
from engine.layout import binlog as b

_FLAGS = struct.Struct("<H")


def end_use(files: Files, file: File) -> None:
    """Clear the in-use flag of a file whose content is durable. Durable: that it is whole, on return."""
    place = b.FIRST_POSITION + b.FLAGS_OFFSET
    (flags,) = _FLAGS.unpack(files.pread(file, place, _FLAGS.size))
    if flags & b.FLAG_IN_USE:
        files.pwrite(file, place, _FLAGS.pack(flags & ~b.FLAG_IN_USE))
        files.fdatasync(file)
