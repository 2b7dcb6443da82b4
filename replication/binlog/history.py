"""The history of a binlog whose transactions have numbers: its UUID and its first number.

A replica says up to which number of a history it has all transactions. So numbers follow one another without a gap, and
none is given twice. Whatever could make another future of the same numbers ends the history, and a new one begins: a
restored backup, a binlog that lacks changes or was begun anew, a store or a binlog that went back to an earlier state,
a copy, a time without numbers. Numbers of the first history of a new store begin at 1. Those of later histories begin
above all earlier ones, because MariaDB's form has no UUID: at the seconds since 1970 × 65,536, since every transaction
takes more time than 1/65,536 s.

The file `history` is beside the index: UUID, first number, what tells the file from its copies, and the CRC32 of all
this. A file that is missing or damaged, or a copy, means that the history is over.

Order of writes: the file, before the first binlog file with its numbers; its removal, before the first transaction
without a number. A crash in between begins one more history, of which nothing was served.
"""

from __future__ import annotations

import re
import uuid
import zlib
from typing import TYPE_CHECKING, NamedTuple

from tidemark.engine.base.errors import StorageFull
from tidemark.engine.files.opened import Opened

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files

_NAME = "history"
_FRESH = "history_new"
_BYTES_MAX = 256
_SECOND_NUMBERS = 1 << 16
_LINE = re.compile(rb"(([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) ([0-9]{1,18})((?: [0-9]+){0,2})) ([0-9a-f]{8})\n")


class History(NamedTuple):
    """The UUID of a history, as its bytes, and the number of its first transaction. All lower numbers are absent."""

    source: bytes
    first: int

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.source)


def is_there(files: Files, folder: str) -> bool:
    """Whether a history was begun here, even if it is over."""
    return files.exists(f"{folder}/{_NAME}")


def read(files: Files, folder: str) -> History | None:
    """Return the history of the binlog in a folder; None if there is none, or if it is over."""
    name = f"{folder}/{_NAME}"
    if not files.exists(name):
        return None
    with Opened(files, files.open(name)) as file:
        content = files.pread(file, 0, _BYTES_MAX)
    found = _LINE.fullmatch(content)
    if found is None:
        return None
    text, source, first, identity, checksum = (each.decode() for each in found.groups())
    if int(checksum, 16) != zlib.crc32(text.encode()) or identity.split() != _identity(files, name):
        return None
    return History(uuid.UUID(source).bytes, int(first))


def begin(files: Files, folder: str, clock: Clock, above: int | None) -> History:
    """Begin a history. above: the highest number known from an earlier one, None for the first history of a store.
    Durable on return: the history. Raises: StorageFull, after which the earlier history, if any, is as it was.
    """
    first = 1 if above is None else max(clock.wall_us() // 1_000_000 * _SECOND_NUMBERS, above + 2)
    made = History(uuid.UUID(bytes=clock.random_bytes(16), version=4).bytes, first)
    fresh = f"{folder}/{_FRESH}"
    if files.exists(fresh):
        files.unlink(fresh)
    file = files.create(fresh)
    try:
        text = " ".join([str(made.uuid), str(first), *_identity(files, fresh)]).encode()
        files.pwrite(file, 0, b"%s %08x\n" % (text, zlib.crc32(text)))
    except StorageFull:
        files.close(file)
        files.unlink(fresh)
        raise
    files.fdatasync(file)
    files.close(file)
    files.rename(fresh, f"{folder}/{_NAME}")
    files.sync_directory(folder)
    return made


def end(files: Files, folder: str) -> None:
    """End the history, because transactions without a number follow. Durable on return, if the folder was synced since
    the opening.
    """
    if is_there(files, folder):
        files.unlink(f"{folder}/{_NAME}")
        files.sync_directory(folder)


def _identity(files: Files, name: str) -> list[str]:
    return [str(each) for each in files.identity_of(name) or ()]
