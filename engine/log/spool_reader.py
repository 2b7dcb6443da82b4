"""Files of records that the log refers to, spool files and load files: their blocks, and reading them (D3, W1, Q1).

Files that a durable group names were durable before the group was queued. So a missing or short file, or one with a
block that does not match its digest, is damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.base.errors import FileMissing, IoFailed, RedoDamaged, Rejected, SpoolDamaged
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.load_files import LoadFile, is_load_leaf
from tidemark.engine.log.load_kernels import add_pages
from tidemark.engine.log.redo_layout import (
    FILES_LOAD,
    FILES_SPOOL,
    FILES_WORDS,
    GROUP_WORDS,
    KIND_FILES,
    KIND_MASK,
    LOAD_FILE_WORDS,
    LOAD_PLACE_WORDS,
    LOAD_WORDS,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from tidemark.engine.log.spool_files import FOLDER as SPOOL_FOLDER
from tidemark.engine.log.spool_files import damaged, spool_name, txid_of
from tidemark.engine.log.spool_layout import DIGEST_PAD_WORDS, SPOOL_ALIGN_WORDS, SPOOL_BLOCK, SPOOL_HEADER_WORDS
from tidemark.engine.memory.arena import Words
from tidemark.engine.memory.arena_layout import OK
from tidemark.engine.sealed.checksums_kernels import xxh3_signed
from tidemark.engine.sealed.sealed_layout import KIND_SPOOL, header_of, is_sealed, seal, store_of, write_seal
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.log.reader import GroupRead

FIRST_WORD = GROUP_WORDS + TRANSACTION_WORDS  # place of the first record of a transaction in its buffer


def is_name(name: str) -> bool:
    """Whether a group may name such a file: only spool and load files are allowed."""
    folder, _, leaf = name.partition("/")
    return (folder == SPOOL_FOLDER and txid_of(leaf) is not None) or (folder == LOAD_FOLDER and is_load_leaf(leaf))


def seal_block(
    unit: Words, identity: tuple[bytes, int], owner: int, number: int, start_word: int, records_words: int
) -> int:
    """Seal a block that has its records after the header, and zeros after them; return its checksum."""
    header = header_of(unit, SPOOL_BLOCK)
    write_seal(header, KIND_SPOOL, unit.size, *identity)
    header["txid"] = owner
    header["number"] = number
    header["start_word"] = start_word
    header["records_words"] = records_words
    seal(unit, unit.size)
    return int(unit[0])


def records_digest(checksums: Sequence[int] | Words) -> int:
    """Return the digest of a file of records: over DIGEST_PAD_WORDS zero words and the checksums of its blocks."""
    sums: Words = np.zeros(DIGEST_PAD_WORDS + len(checksums), dtype=np.int64)
    sums[DIGEST_PAD_WORDS:] = checksums
    return xxh3_signed(sums, 1, sums.size - 1)


def is_block(unit: Words, store: bytes, owner: int, number: int, start_word: int) -> bool:
    """Whether an array is the intact block of this number in the file of a transaction or job."""
    if not is_sealed(unit, KIND_SPOOL, unit.size) or store_of(unit) != store:
        return False
    header = header_of(unit, SPOOL_BLOCK)
    return (int(header["txid"]), int(header["number"]), int(header["start_word"])) == (owner, number, start_word)


@dataclass(frozen=True)
class RecordFile:
    """A file of records as a group of the log describes it."""

    name: str
    owner: int  # named in its blocks: a transaction, or the job of a load
    blocks: int
    records_words: int
    size_bytes: int
    digest: int
    first_page: int = 0  # added to its ROWIDs, which count pages from 0
    table_id: int = 0  # of a load file
    rows: int = 0  # likewise


@dataclass(frozen=True)
class Referred:
    """The files a group of the log refers to, which hold its records."""

    txid: int
    files: tuple[RecordFile, ...]
    lsn: int  # of the group
    epoch: int

    @property
    def load_rows(self) -> int:
        """Rows of the load that the group adopted, 0 if it adopted none: a load file always has rows."""
        return sum(file.rows for file in self.files)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(file.name for file in self.files)

    @property
    def blocks(self) -> int:
        """Blocks in all files."""
        return sum(file.blocks for file in self.files)

    @property
    def records_words(self) -> int:
        """Words of records in all files."""
        return sum(file.records_words for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


class SpoolBlock(NamedTuple):
    """The records of one block: words[start:stop]; `offset` is the place of words[0] in the file."""

    words: Words
    start: int
    stop: int
    offset: int
    name: str


def referred(group: GroupRead) -> Referred | None:
    """Return the files a group refers to, None if it holds its records itself. Raises: RedoDamaged."""
    at = FIRST_WORD
    if group.records_words < TRANSACTION_WORDS + 2 or int(group.words[at]) & KIND_MASK != KIND_FILES:
        return None
    record = [int(word) for word in group.words[at : GROUP_WORDS + group.records_words]]
    files: tuple[RecordFile, ...] = ()
    if record[0] >> WORDS_SHIFT == len(record):
        files = _spool_file(record) if record[1] == FILES_SPOOL else _load_files(record)
    if not files or record[2] < 0 or not all(_is_sane(file) for file in files):
        raise RedoDamaged(
            f"REDO group {group.sequence} has an invalid record of files; restore from a backup",
            lsn=group.lsn + at * 8,
        )
    return Referred(record[2], files, group.lsn, group.epoch)


def _spool_file(record: list[int]) -> tuple[RecordFile, ...]:
    if len(record) != FILES_WORDS:
        return ()
    txid, blocks, records_words, size_bytes, digest = record[2:7]
    return (RecordFile(spool_name(txid), txid, blocks, records_words, size_bytes, digest),)


def _load_files(record: list[int]) -> tuple[RecordFile, ...]:
    each_words = LOAD_FILE_WORDS + LOAD_PLACE_WORDS
    if record[1] != FILES_LOAD or len(record) < LOAD_WORDS or len(record) != LOAD_WORDS + record[5] * each_words:
        return ()
    found = []
    for at in range(LOAD_WORDS, len(record), each_words):
        file = LoadFile(*record[3:5], *record[at : at + LOAD_FILE_WORDS])
        place = record[at + LOAD_FILE_WORDS]
        if min(record[3:5]) < 0 or min(record[at : at + LOAD_FILE_WORDS - 1]) < 0 or place < 0:
            return ()
        of_file = (file.job, file.blocks, file.records_words, file.size_bytes, file.digest)
        found.append(RecordFile(file.name, *of_file, place, file.table_id, file.rows))
    return tuple(found)


def _is_sane(file: RecordFile) -> bool:
    is_counted = min(file.owner, file.blocks, file.records_words, file.size_bytes) >= 0
    return is_counted and file.records_words * 8 <= file.size_bytes


class SpoolReader:
    """The files of one group. Each read opens the file anew, so that several threads may read."""

    def __init__(self, files: Files, store: bytes, what: Referred) -> None:
        self.what = what
        self._files = [FileReader(files, store, file, what.txid) for file in what.files]

    def verify(self) -> int:
        """Read and check all files; return their bytes. Raises: SpoolDamaged, VersionTooNew, VersionTooOld."""
        return sum(file.verify() for file in self._files)

    def blocks(self) -> Iterator[SpoolBlock]:
        """Yield every block; call `verify` first. Raises: SpoolDamaged."""
        for file in self._files:
            yield from file.blocks()


class FileReader:
    """One file of records, read against its description."""

    def __init__(self, files: Files, store: bytes, what: RecordFile, txid: int) -> None:
        self._files = files
        self._store = store
        self._txid = txid
        self.what = what
        self._places: list[tuple[int, int, int]] = []  # offset, words and checksum of each block, once verified

    def verify(self) -> int:
        """Read and check the whole file; return its bytes. Raises: SpoolDamaged, VersionTooNew, VersionTooOld."""
        places = [(offset, unit.size, int(unit[0])) for unit, offset in self.units()]
        self._places = places
        return self.what.size_bytes

    def units(
        self, room: Callable[[int, int], Words] = lambda offset, words: np.empty(words, dtype=np.int64)
    ) -> Iterator[tuple[Words, int]]:
        """Yield every block as stored, with its offset, in order. Only after the last one is the digest checked.

        room: returns an array for the block at an offset, given its words. Raises: SpoolDamaged, VersionTooNew,
        VersionTooOld.
        """
        what = self.what
        checksums: list[int] = []
        offset = done = 0
        file = self._open()
        try:
            for number in range(what.blocks):
                unit = room(offset, self._words_at(file, offset))
                self._block(file, number, offset, unit)
                checksums.append(int(unit[0]))
                header = header_of(unit, SPOOL_BLOCK)
                if int(header["start_word"]) != FIRST_WORD + done:
                    raise self.damaged(offset, "has a block that does not follow the one before")
                done += int(header["records_words"])
                yield unit, offset
                offset += unit.nbytes
        finally:
            self._files.close(file)
        if (done, offset, records_digest(checksums)) != (what.records_words, what.size_bytes, what.digest):
            raise self.damaged(offset, "differs from its description in the log")

    def blocks(self) -> Iterator[SpoolBlock]:
        """Yield every block; call `verify` first. Raises: SpoolDamaged."""
        for offset, words, checksum in self._places:
            unit = self.read_again(offset, words, checksum)
            stop = SPOOL_HEADER_WORDS + records_of(unit)
            if self.what.first_page and add_pages(unit, SPOOL_HEADER_WORDS, stop, self.what.first_page) != OK:
                raise self.damaged(offset, "has an impossible record")
            yield SpoolBlock(unit, SPOOL_HEADER_WORDS, stop, offset, self.what.name)

    def read_again(self, offset: int, words: int, checksum: int) -> Words:
        """Read a block again and check it. Raises: SpoolDamaged."""
        unit: Words = np.empty(words, dtype=np.int64)
        file = self._open()  # once for each block: a caller that stops early leaves no file open
        try:
            self._read(file, offset, unit)
        finally:
            self._files.close(file)
        if int(unit[0]) != checksum or not is_sealed(unit, KIND_SPOOL, words):
            raise self.damaged(offset, "changed while it was read")
        return unit

    def damaged(self, offset: int, what: str) -> SpoolDamaged:
        """Return the error for a file that lacks what was written to it."""
        return damaged(self.what.name, self._txid, offset, what)

    def _open(self) -> File:
        try:
            file = self._files.open(self.what.name)
        except (FileMissing, Rejected) as error:
            raise self.damaged(0, f"cannot be opened ({error.message})") from error
        return file

    def _words_at(self, file: File, offset: int) -> int:
        """Return the words of the block at an offset, from its header, which is not trusted yet."""
        head = np.zeros(SPOOL_HEADER_WORDS, dtype=np.int64)
        self._read(file, offset, head)
        words = int(header_of(head, SPOOL_BLOCK)["words"])
        if words < SPOOL_ALIGN_WORDS or words % SPOOL_ALIGN_WORDS or offset + words * 8 > self.what.size_bytes:
            raise self.damaged(offset, "lacks a block")
        return words

    def _block(self, file: File, number: int, offset: int, unit: Words) -> None:
        words = unit.size
        self._read(file, offset, unit)
        if is_sealed(unit, KIND_SPOOL, words):
            check_version(unit, self.what.name)
        start_word = int(header_of(unit, SPOOL_BLOCK)["start_word"])
        if not is_block(unit, self._store, self.what.owner, number, start_word):
            raise self.damaged(offset, f"lacks block {number}")
        if not 0 < records_of(unit) <= words - SPOOL_HEADER_WORDS:
            raise self.damaged(offset, f"has an impossible block {number}")

    def _read(self, file: File, offset: int, words: Words) -> None:
        try:
            read = self._files.pread_into(file, offset, words.data.cast("B"))
        except IoFailed as error:
            if self._files.failure.first is not None:
                raise
            raise self.damaged(offset, f"cannot be read ({error.message})") from error
        if read != words.nbytes:
            raise self.damaged(offset, "is too short")


def records_of(unit: Words) -> int:
    """Return the words of records in a block."""
    return int(header_of(unit, SPOOL_BLOCK)["records_words"])
