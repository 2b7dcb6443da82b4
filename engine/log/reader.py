"""Reading the log at restart: which groups are there, where the log ends, and whether that end is a tail or damage.

A batch of groups is written only after the previous batch is durable, and each group stores how many groups of its
batch precede it. So a bad group is damage if a valid group of a later batch follows it, which can be anywhere before
the log's reach (ADR 0007). Otherwise the bad group begins the tail that a crash left, which includes any valid groups
after it (ADR 0016).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import ForeignFile, RedoDamaged
from tidemark.engine.log.geometry import FOLDER, is_log_name
from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_BYTES, GROUP_ALIGN_WORDS
from tidemark.engine.log.records import Frame, InvalidRecord, transactions
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.log.ring import RingReader
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, SEAL, header_of, is_sealed, store_of
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Words

SCAN_BYTES = 4 << 20


@dataclass
class GroupRead:
    """One intact group."""

    sequence: int
    lsn: int
    epoch: int
    wall_us: int
    next_txid: int
    transactions: int
    records_words: int
    words: Words
    unsynced: int = 0  # how many groups directly before it may not have been durable when it was written

    @property
    def end_lsn(self) -> int:
        """The LSN where the next group starts."""
        return self.lsn + int(header_of(self.words, SEAL)["words"]) * 8

    def transaction_frames(self, wanted: int = 0) -> Iterator[Frame]:
        """Yield the transactions, as `records.transactions` does. Raises: RedoDamaged."""
        try:
            yield from transactions(self.words, GROUP_WORDS, GROUP_WORDS + self.records_words, wanted)
        except InvalidRecord as error:
            raise RedoDamaged(
                f"REDO group {self.sequence} is not made of transactions; restore from a backup", lsn=self.lsn
            ) from error


class LogReader(RingReader):
    """Reads the log of one store; writes only through `make_durable`, `seal_tail` and `cut`."""

    error_class = RedoDamaged

    def __init__(self, files: Files, geometry: Geometry, store: bytes, writable: bool = False) -> None:
        """Raises: FileMissing, FileTruncated."""
        super().__init__(files, geometry, store, writable)
        self.end_lsn = 0
        self.next_sequence = 1
        self.last: GroupRead | None = None
        self._doubtful: list[GroupRead] = []  # the last group and its predecessors of the same batch
        self._has_remnants = False  # whether intact groups of a torn batch are past the end
        self._strange: int | None = None  # place of an apparent group of another store

    def groups(self, lsn: int, sequence: int, floor_lsn: int = 0, reach_lsn: int = 0) -> Iterator[GroupRead]:
        """Yield every group from (lsn, sequence) to the end of the log; then `end_lsn`, `next_sequence`, `last` are
        set.

        floor_lsn: the log was durable up to here. reach_lsn: no group that was ever written ends past this; 0 if
        unknown. Raises: RedoDamaged if the log continues after a bad group.
        """
        self.end_lsn = lsn
        self.next_sequence = sequence
        for group in self.intact(lsn, sequence):
            yield group
            self._take(group)
            self.end_lsn = group.end_lsn
            self.next_sequence = group.sequence + 1
        # A log that ends before `floor_lsn` contradicts the sysfile, so the sysfile's reach is not trusted either.
        self._check_tail(reach_lsn if self.end_lsn >= floor_lsn else 0)

    def intact(self, lsn: int, sequence: int) -> Iterator[GroupRead]:
        """Yield groups from (lsn, sequence) on until one is not intact."""
        while (group := self.group_at(lsn, sequence)) is not None:
            yield group
            lsn, sequence = group.end_lsn, sequence + 1

    def _take(self, group: GroupRead) -> None:
        """Advance past this group, and keep it with the predecessors that may not be durable."""
        self.last = group
        before = len(self._doubtful) - group.unsynced
        self._doubtful = [*self._doubtful[max(0, before) :], group]

    def group_at(self, lsn: int, sequence: int) -> GroupRead | None:
        """Return the intact group of this LSN and sequence, or None. Raises: VersionTooNew, VersionTooOld."""
        head = self._read(lsn, GROUP_ALIGN_BYTES)
        header = header_of(head, GROUP)
        is_ours = int(header["kind"]) == KIND_GROUP and store_of(head) == self._store
        if not is_ours or int(header["sequence"]) != sequence or int(header["lsn"]) != lsn:
            return None
        size = int(header["words"])
        if size < GROUP_ALIGN_WORDS or size % GROUP_ALIGN_WORDS or size * 8 > self._geometry.capacity_bytes:
            return None
        words = head if size == GROUP_ALIGN_WORDS else self._read(lsn, size * 8)
        records = int(header_of(words, GROUP)["records_words"])
        if not is_sealed(words, KIND_GROUP, size) or records > size - GROUP_WORDS:
            return None
        check_version(words, self._geometry.name(self._geometry.pieces(lsn, 8)[0][0]))
        return described(words)

    def _read(self, lsn: int, size: int) -> Words:
        words = np.zeros(size // 8, dtype=np.int64)
        self._fill(lsn, words)
        return words

    def _check_tail(self, reach_lsn: int) -> None:
        """Raise RedoDamaged if an intact group of a later batch is before the reach, or anywhere if that is unknown."""
        size = self._geometry.capacity_bytes
        start = 0
        if 0 < reach_lsn >= self.end_lsn:
            start = self.end_lsn
            size = min(size, reach_lsn - start)
        for lsn, sequence in self.candidates(start, size):
            if sequence < self.next_sequence or lsn < self.end_lsn:
                continue
            group = self.group_at(lsn, sequence)
            if group is None:
                continue
            if not sequence - group.unsynced <= self.next_sequence < sequence:
                raise self.damage(f"is damaged but group {sequence} after it is intact")
            self._has_remnants = True
        if self._strange is not None and self._is_foreign(self._strange):
            raise self._foreign(self._strange)

    def damage(self, what: str) -> RedoDamaged | ForeignFile:
        """Return the error for a log that ends too early: RedoDamaged, or ForeignFile if another store's group follows.

        what: what is wrong with the group missing at the end, for the message.
        """
        if self._is_foreign(self.end_lsn):
            return self._foreign(self.end_lsn)
        name, offset = self._place(self.end_lsn)
        return RedoDamaged(
            f"REDO group {self.next_sequence} at LSN {self.end_lsn} ({name}, offset {offset}) {what}; restore the"
            " store from a backup, or restart through an earlier epoch",
            file=name,
            offset=offset,
            lsn=self.end_lsn,
        )

    def _is_foreign(self, lsn: int) -> bool:
        """Whether another store's intact group begins there. Files are created with zeros, so it is not a leftover."""
        head = self._read(lsn, GROUP_ALIGN_BYTES)
        size = int(header_of(head, GROUP)["words"])
        if size < GROUP_ALIGN_WORDS or size % GROUP_ALIGN_WORDS or size * 8 > self._geometry.capacity_bytes:
            return False
        words = self._read(lsn, size * 8)
        return store_of(words) != self._store and is_sealed(words, KIND_GROUP, size)

    def candidates(self, start: int = 0, size: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (LSN, sequence) of each apparent group header of this store in `size` bytes from LSN `start` on, by
        default in the whole ring.
        """
        size = self._geometry.capacity_bytes if size is None else size
        # One buffer for all reads: touching new memory costs more than reading into it.
        buffer = np.empty(min(SCAN_BYTES, size) // 8, dtype=np.int64)
        for done in range(0, size, SCAN_BYTES):
            for number, offset, _, length in self._geometry.pieces(start + done, min(SCAN_BYTES, size - done)):
                if self._handle(number) is None:
                    continue
                words = buffer[: length // 8]
                place = number * self._geometry.file_bytes + offset
                self._fill(place, words)
                yield from self._headers(words, place)

    def _headers(self, words: Words, place: int) -> Iterator[tuple[int, int]]:
        """Yield (LSN, sequence) of each apparent group header of this store in words read from a place in the ring."""
        step = GROUP_ALIGN_BYTES
        low = int.from_bytes(self._store[:8], "little")
        headers = np.ascontiguousarray(words.reshape(-1, step // 8)[:, :GROUP_WORDS]).view(GROUP).reshape(-1)
        ours = headers["store_low"] == low
        strange = np.flatnonzero((headers["kind"] == KIND_GROUP) & ~ours)
        if strange.size and self._strange is None:
            self._strange = place + int(strange[0]) * step
        found = np.flatnonzero((headers["kind"] == KIND_GROUP) & ours)
        for index in found.tolist():
            lsn = int(headers[index]["lsn"])
            if lsn % self._geometry.capacity_bytes == place + index * step:
                yield lsn, int(headers[index]["sequence"])

    def end_at(self, groups: list[GroupRead]) -> None:
        """End the log after the last of these consecutive groups (restart through an epoch)."""
        self.last = groups[-1]
        self._doubtful = groups[-1 - self.last.unsynced :]
        self.end_lsn = self.last.end_lsn
        self.next_sequence = self.last.sequence + 1

    def end_before(self, lsn: int, sequence: int) -> None:
        """End the log where reading began (restart through an epoch)."""
        self.last = None
        self._doubtful = []
        self.end_lsn = lsn
        self.next_sequence = sequence

    def make_durable(self) -> None:
        """Rewrite the last group and its predecessors of the same batch with identical bytes: if their sync failed or
        a kill prevented it, the page cache may have data that the disk lacks (F39). Durable on return: every group that
        was read.
        """
        if self._doubtful:
            batch = [group.words[: (group.end_lsn - group.lsn) // 8] for group in self._doubtful]
            self._write(self._doubtful[0].lsn, np.concatenate(batch))

    def seal_tail(self) -> None:
        """Make the end of the log durable before anything new is acknowledged.

        Rewrite the groups that may not be durable and zero the sector after them. Remnants of a batch after the end are
        removed first: a new group that ends where a remnant begins would make it valid again. Durable on return.
        """
        if self._has_remnants:
            self.cut()
        self.make_durable()
        if self.end_lsn < self._geometry.limit_lsn:
            self._write(self.end_lsn, np.zeros(GROUP_ALIGN_WORDS, dtype=np.int64))

    def cut(self) -> None:
        """Zero the header of every intact group past the end that the restart has chosen. Durable on return."""
        for lsn, sequence in sorted(self.candidates(), reverse=True):
            if lsn >= self.end_lsn and self.group_at(lsn, sequence) is not None:
                self._write(lsn, np.zeros(GROUP_ALIGN_WORDS, dtype=np.int64))


def described(words: Words) -> GroupRead:
    """Return a group as described by its header, which the caller has verified."""
    header = header_of(words, GROUP)
    return GroupRead(
        int(header["sequence"]),
        int(header["lsn"]),
        int(header["epoch"]),
        int(header["wall_us"]),
        int(header["next_txid"]),
        int(header["transactions"]),
        int(header["records_words"]),
        words,
        int(header["unsynced"]),
    )


def holds_groups(files: Files) -> bool:
    """Whether any file of a log holds an intact group, of any store.

    Files that were never written have no seal. After some laps, a file need not begin with a group.
    """
    for name in files.list(FOLDER):
        if not is_log_name(name):
            continue
        file = files.open(f"{FOLDER}/{name}", False)
        try:
            words = np.zeros(files.size(file) // 8, dtype=np.int64)
            files.pread_into(file, 0, words.data.cast("B"))
        finally:
            files.close(file)
        for at in range(0, words.size, GROUP_ALIGN_WORDS):
            if is_sealed(words[at:], KIND_GROUP, words.size - at):
                return True
    return False
