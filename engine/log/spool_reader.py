"""Reading spool files that the log refers to: whole or not at all (D3, W1).

What a durable group names was durable before it was queued. So a file that is missing, too short, or has one block that
is not the one its digest was made of, is damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import FileMissing, IoFailed, RedoDamaged, Rejected
from engine.kernels.checksums import xxh3_signed
from engine.layout.redo import (
    FILES_SPOOL,
    FILES_WORDS,
    GROUP_WORDS,
    KIND_FILES,
    KIND_MASK,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from engine.layout.sealed import KIND_SPOOL, check_version, header_of, is_sealed, store_of
from engine.layout.spool import DIGEST_PAD_WORDS, SPOOL_ALIGN_WORDS, SPOOL_BLOCK, SPOOL_HEADER_WORDS
from engine.spool_files import damaged, spool_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.file_protocol import File, Files
    from engine.log.reader import GroupRead
    from engine.memory.arena import Words


def records_digest(checksums: Words) -> int:
    """Digest over the checksums of a file's blocks, behind DIGEST_PAD_WORDS zero words."""
    return xxh3_signed(checksums, 1, checksums.size - 1)


def is_block(unit: Words, store: bytes, txid: int, number: int, start_word: int) -> bool:
    """Whether an array is the intact block of this number of a transaction's file."""
    if not is_sealed(unit, KIND_SPOOL, unit.size) or store_of(unit) != store:
        return False
    header = header_of(unit, SPOOL_BLOCK)
    return (int(header["txid"]), int(header["number"]), int(header["start_word"])) == (txid, number, start_word)


@dataclass(frozen=True)
class Referred:
    """A spool file as a group of the log describes it."""

    txid: int
    blocks: int
    records_words: int
    size_bytes: int
    digest: int
    lsn: int  # of the group
    epoch: int


def referred(group: GroupRead) -> Referred | None:
    """The spool file a group refers to, None if it holds its records itself. Raises: RedoDamaged."""
    at = GROUP_WORDS + TRANSACTION_WORDS
    if group.records_words < TRANSACTION_WORDS + 2 or int(group.words[at]) & KIND_MASK != KIND_FILES:
        return None
    record = [int(word) for word in group.words[at : at + FILES_WORDS]]
    is_sane = group.records_words == TRANSACTION_WORDS + FILES_WORDS and record[0] >> WORDS_SHIFT == FILES_WORDS
    if not is_sane or record[1] != FILES_SPOOL or min(record[2:6]) < 0 or record[3] * 8 > record[5]:
        raise RedoDamaged(
            f"REDO group {group.sequence} refers to files in a way that makes no sense; restore from a backup",
            lsn=group.lsn + at * 8,
        )
    txid, blocks, records_words, size_bytes, digest = record[2:7]
    return Referred(txid, blocks, records_words, size_bytes, digest, group.lsn, group.epoch)


class SpoolReader:
    """One spool file. Whoever reads opens it for himself, so that threads may read it side by side."""

    def __init__(self, files: Files, store: bytes, what: Referred) -> None:
        self._files = files
        self._store = store
        self.what = what
        self._places: list[tuple[int, int, int]] = []  # offset, words and checksum of each block, once verified

    def verify(self) -> int:
        """Read all of it; returns its bytes. Raises: SpoolDamaged, VersionTooNew, VersionTooOld."""
        what = self.what
        places: list[tuple[int, int, int]] = []
        offset = done = 0
        file = self._open()
        try:
            for number in range(what.blocks):
                unit = self._block(file, number, offset, self._words_at(file, offset))
                places.append((offset, unit.size, int(unit[0])))
                header = header_of(unit, SPOOL_BLOCK)
                if int(header["start_word"]) != GROUP_WORDS + TRANSACTION_WORDS + done:
                    raise damaged(what.txid, offset, "has a block that does not follow the one before")
                done += int(header["records_words"])
                offset += unit.nbytes
        finally:
            self._files.close(file)
        sums = np.zeros(DIGEST_PAD_WORDS + what.blocks, dtype=np.int64)
        sums[DIGEST_PAD_WORDS:] = [checksum for _, _, checksum in places]
        if (done, offset, records_digest(sums)) != (what.records_words, what.size_bytes, what.digest):
            raise damaged(what.txid, offset, "is not what the log says of it")
        self._places = places
        return offset

    def blocks(self) -> Iterator[tuple[Words, int, int, int]]:
        """(words, first word and word behind the last of the records, offset in the file) of each block, verified
        before. Raises: SpoolDamaged.
        """
        for number, (offset, words, checksum) in enumerate(self._places):
            file = self._open()  # for each block: who stops taking them leaves no file open
            try:
                unit = self._block(file, number, offset, words)
            finally:
                self._files.close(file)
            if int(unit[0]) != checksum:
                raise damaged(self.what.txid, offset, "changes while it is read")
            yield unit, SPOOL_HEADER_WORDS, SPOOL_HEADER_WORDS + records_of(unit), offset

    def _open(self) -> File:
        try:
            return self._files.open(spool_name(self.what.txid))
        except (FileMissing, Rejected) as error:
            raise damaged(self.what.txid, 0, f"cannot be opened ({error.message})") from error

    def _words_at(self, file: File, offset: int) -> int:
        """Words of the block at an offset, as its header says: not trusted yet."""
        head = np.zeros(SPOOL_HEADER_WORDS, dtype=np.int64)
        self._read(file, offset, head)
        words = int(header_of(head, SPOOL_BLOCK)["words"])
        if words < SPOOL_ALIGN_WORDS or words % SPOOL_ALIGN_WORDS or offset + words * 8 > self.what.size_bytes:
            raise damaged(self.what.txid, offset, "has no block where one must be")
        return words

    def _block(self, file: File, number: int, offset: int, words: int) -> Words:
        unit = np.empty(words, dtype=np.int64)
        self._read(file, offset, unit)
        if is_sealed(unit, KIND_SPOOL, words):
            check_version(unit, spool_name(self.what.txid))
        start_word = int(header_of(unit, SPOOL_BLOCK)["start_word"])
        if not is_block(unit, self._store, self.what.txid, number, start_word):
            raise damaged(self.what.txid, offset, f"has not block {number} where it must be")
        if not 0 < records_of(unit) <= words - SPOOL_HEADER_WORDS:
            raise damaged(self.what.txid, offset, f"has an impossible block {number}")
        return unit

    def _read(self, file: File, offset: int, words: Words) -> None:
        try:
            read = self._files.pread_into(file, offset, words.data.cast("B"))
        except IoFailed as error:
            if self._files.failure.first is not None:
                raise
            raise damaged(self.what.txid, offset, f"cannot be read ({error.message})") from error
        if read != words.nbytes:
            raise damaged(self.what.txid, offset, "is too short")


def records_of(unit: Words) -> int:
    """Words of records in a block."""
    return int(header_of(unit, SPOOL_BLOCK)["records_words"])
