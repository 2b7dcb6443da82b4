"""Timeline and history of a binlog: what its positions and its numbers belong to.

A replica by position says in which file it is, and one by GTID up to which number it has all transactions. Whatever
could make another future of the same positions ends the timeline, and a new one begins with the next file: a restored
backup, a binlog that lacks changes or was begun anew, a store or a binlog that went back to an earlier state, a copy.
Names of its files have the timeline, 32 random bits, as WAL files of PostgreSQL have theirs, so no other future has a
file of this name. The first timeline of a new store has none.

A history is a UUID and the number of its first transaction. It ends with its timeline, and at a time without numbers,
over which positions continue. In it numbers follow one another without a gap, and none is given twice. Numbers of the
first history of a new store begin at 1. Those of later histories begin above all earlier ones, because MariaDB's form
has no UUID: at the seconds since 1970 × 65,536, since every transaction takes more time than 1/65,536 s.

The file `history` is beside the index: UUID, first number (0: there are no numbers), timeline, what tells the file from
its copies, and the CRC32 of all this. A file that is missing or damaged, or a copy, means that both are over.

Order of writes: (1) an incident, if the binlog lacks changes; (2) the file `history`; (3) the first binlog file with
its name and numbers; (4) the removal of the mark of missing changes. A crash before 3 leaves a timeline without a
file, which the next opening continues, or replaces by one more; nothing of it was served. A crash before 4 begins one
more after another incident. No order of them writes past the break under an old name, because the opening reads
`history` before it begins a file.
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
_TIMELINE_DIGITS = 8
_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LINE = re.compile(rb"((" + _UUID + rb") ([0-9]{1,18}) ([0-9a-f]{8}|-)((?: [0-9]+){0,2})) ([0-9a-f]{8})\n")


class History(NamedTuple):
    """The UUID of a history, as its bytes, the number of its first transaction, and the timeline of its files. All
    lower numbers are absent. first: 0 if transactions have no numbers.
    """

    source: bytes
    first: int
    timeline: str

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.source)


def is_there(files: Files, folder: str) -> bool:
    """Whether a timeline was begun here, even if it is over."""
    return files.exists(f"{folder}/{_NAME}")


def read(files: Files, folder: str) -> History | None:
    """Return the history of the binlog in a folder; None if there is none, or if its timeline is over."""
    name = f"{folder}/{_NAME}"
    if not files.exists(name):
        return None
    with Opened(files, files.open(name)) as file:
        content = files.pread(file, 0, _BYTES_MAX)
    found = _LINE.fullmatch(content)
    if found is None:
        return None
    text, source, first, timeline, identity, checksum = (each.decode() for each in found.groups())
    if int(checksum, 16) != zlib.crc32(text.encode()) or identity.split() != _identity(files, name):
        return None
    return History(uuid.UUID(source).bytes, int(first), timeline.strip("-"))


def first_after(number: int, clock: Clock) -> int:
    """Return the first number of a history after an earlier one, of which this is the highest known number."""
    return max(clock.wall_us() // 1_000_000 * _SECOND_NUMBERS, number + 2)


def begin(files: Files, folder: str, clock: Clock, first: int, timeline: str | None = None) -> History:
    """Begin a history, with a timeline of its own (None) or in the present one. first: its first number, 0 for none.

    Durable on return: the history. Raises: StorageFull, after which the earlier one, if any, is as it was.
    """
    source = uuid.UUID(bytes=clock.random_bytes(16), version=4)
    made = History(source.bytes, first, source.hex[:_TIMELINE_DIGITS] if timeline is None else timeline)
    fresh = f"{folder}/{_FRESH}"
    if files.exists(fresh):
        files.unlink(fresh)
    file = files.create(fresh)
    try:
        text = " ".join([str(made.uuid), str(first), made.timeline or "-", *_identity(files, fresh)]).encode()
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


def _identity(files: Files, name: str) -> list[str]:
    return [str(each) for each in files.identity_of(name) or ()]
