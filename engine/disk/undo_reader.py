"""Reading the UNDO log at restart: forward to find its end, then backward to undo.

Group n + 1 is written only after n is durable (U1). So a bad group with an intact successor is damage, and a bad last
group is the tail a crash left (F21, F57). The successor of a group starts at the latest where a group of the largest
size would end, and that size depends only on the ring: the reader searches one such stretch past the end for any later
group. Only damage to all of the stretch would pass for a tail; then the pages, with LSNs ahead of the log, reveal it.

A group is accepted as the next one only if store, place, lap, sequence, previous group and LSNs in its sealed header
agree, and its incarnation is not older than that of the previous group. So a torn group that a later group of the same
sequence overwrote cannot come back. Groups that the sysfile calls void are ignored, intact or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import UndoDamaged
from tidemark.engine.disk import disk_layout as d
from tidemark.engine.disk.undo_kernels import parse_records
from tidemark.engine.disk.undo_ring import LSN_FIRST, LSN_STEP_BYTES, UndoPosition, UndoVoid, group_bytes_max
from tidemark.engine.log.ring import RingReader
from tidemark.engine.sealed.sealed_layout import KIND_UNDO_GROUP, header_of, is_sealed, store_of
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Words

ALIGN_WORDS = d.UNDO_GROUP_ALIGN_BYTES // 8
SCAN_BYTES = 4 << 20
NOTHING_VOID = UndoVoid()


@dataclass(frozen=True)
class UndoGroup:
    """One intact group. The next read of its reader may overwrite `words`."""

    sequence: int
    position: int
    incarnation: int
    first_lsn: int
    next_lsn: int
    records_words: int
    records: int
    filtered: int
    filtered_epoch: int
    previous_position: int
    size_bytes: int
    words: Words

    @property
    def end(self) -> int:
        """The position where the next group starts."""
        return self.position + self.size_bytes


class UndoReader(RingReader):
    """Reads the UNDO log of one store; writes only through `seal_tail`."""

    error_class = UndoDamaged

    def __init__(
        self, files: Files, geometry: Geometry, store: bytes, void: UndoVoid = NOTHING_VOID, writable: bool = False
    ) -> None:
        """Raises: FileMissing, FileTruncated."""
        super().__init__(files, geometry, store, writable)
        self.void = void
        self._largest = group_bytes_max(geometry)
        self._buffer = np.zeros(ALIGN_WORDS, dtype=np.int64)
        self._first = (1, 0)
        self._positions: list[int] = []
        self._last: UndoGroup | None = None

    # --- forward ---------------------------------------------------------------------------------
    def find_end(self, sequence: int, position: int, needed_sequence: int = 0) -> int:
        """Read forward from (sequence, position) to the end of the log; returns the number of groups.

        needed_sequence: the group up to which the log is known to have been durable, 0 if no group must exist (a log
        never written). Raises: UndoDamaged, ForeignFile, VersionTooNew, VersionTooOld.
        """
        self._first = (sequence, position)
        self._positions = []
        self._last = None
        for group in self.forward(sequence, position):
            self._positions.append(group.position)
            self._last = replace(group, words=group.words[:0])
        if sequence + len(self._positions) <= needed_sequence:
            self._check_foreign(self.end)
            raise self._damage(sequence + len(self._positions), self.end, "is damaged or missing")
        self.check_tail(sequence + len(self._positions), self.end)
        return len(self._positions)

    @property
    def end(self) -> int:
        """The position after the last group."""
        return self._first[1] if self._last is None else self._last.end

    def forward(self, sequence: int, position: int) -> Iterator[UndoGroup]:
        """Yield intact groups in order, from a place on, until a group is not intact or does not follow the last."""
        last: UndoGroup | None = None
        while True:
            group = self.group_at(position, sequence)
            if group is None or not _follows(last, group):
                return
            yield group
            last = replace(group, words=group.words[:0])
            position, sequence = group.end, sequence + 1

    def group_at(self, position: int, sequence: int) -> UndoGroup | None:
        """Return the intact group of this place and sequence, or None. Raises: VersionTooNew, VersionTooOld."""
        head = self._read(position, d.UNDO_GROUP_ALIGN_BYTES)
        header = header_of(head, d.UNDO_GROUP)
        is_ours = int(header["kind"]) == KIND_UNDO_GROUP and store_of(head) == self._store
        if not is_ours or int(header["sequence"]) != sequence or int(header["position"]) != position:
            return None
        size = self._size_of(header)
        if size == 0 or int(header["lap"]) != self._geometry.lap(position):
            return None
        words = self._read(position, size)
        header = header_of(words, d.UNDO_GROUP)
        if not is_sealed(words, KIND_UNDO_GROUP, size // 8):
            return None
        records_words = int(header["records_words"])
        if records_words > size // 8 - d.UNDO_GROUP_WORDS or int(header["next_lsn"]) < int(header["first_lsn"]):
            return None
        check_version(words, self._place(position)[0])
        if self.void.covers(sequence, int(header["next_lsn"])):
            return None
        names = ("first_lsn", "next_lsn", "records_words", "records", "filtered", "filtered_epoch", "previous_position")
        values = {name: int(header[name]) for name in names}
        return UndoGroup(sequence, position, int(header["incarnation"]), size_bytes=size, words=words, **values)

    def _size_of(self, header: Any) -> int:
        size = int(header["words"]) * 8
        return size if size % d.UNDO_GROUP_ALIGN_BYTES == 0 and 0 < size <= self._largest else 0

    def check_tail(self, sequence: int, position: int) -> None:
        """Check that the log really ends before the group `sequence`, whose place would be `position`.

        Raises: UndoDamaged if a later group is intact, ForeignFile if a group of another store is there.
        """
        if self._is_foreign(position):
            raise self._foreign(position)
        stretch = min(self._largest + d.UNDO_GROUP_ALIGN_BYTES, self._geometry.capacity_bytes)
        for step in range(0, stretch, d.UNDO_GROUP_ALIGN_BYTES):
            header = header_of(self._read(position + step, d.UNDO_GROUP_ALIGN_BYTES), d.UNDO_GROUP)
            found = int(header["sequence"])
            if int(header["kind"]) == KIND_UNDO_GROUP and found >= sequence:
                # The header must name its own place: the stretch past the end may hold groups of another lap.
                if int(header["position"]) == position + step and self.group_at(position + step, found) is not None:
                    raise self._damage(sequence, position, f"is damaged but group {found} after it is intact")

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Yield (position, sequence) of each apparent group of this store anywhere in the ring, by place."""
        step = min(SCAN_BYTES, self._geometry.file_bytes)
        low = int.from_bytes(self._store[:8], "little")
        for place in range(0, self._geometry.capacity_bytes, step):
            size = min(step, self._geometry.capacity_bytes - place)
            blocks = self._read(place, size).reshape(-1, ALIGN_WORDS)[:, : d.UNDO_GROUP_WORDS]
            headers = np.ascontiguousarray(blocks).view(d.UNDO_GROUP).reshape(-1)
            found = np.flatnonzero((headers["kind"] == KIND_UNDO_GROUP) & (headers["store_low"] == low))
            for index in found.tolist():
                position = int(headers[index]["position"])
                if position % self._geometry.capacity_bytes == place + index * d.UNDO_GROUP_ALIGN_BYTES:
                    yield position, int(headers[index]["sequence"])

    def _is_foreign(self, position: int) -> bool:
        head = self._read(position, d.UNDO_GROUP_ALIGN_BYTES)
        header = header_of(head, d.UNDO_GROUP)
        size = self._size_of(header)
        if int(header["kind"]) != KIND_UNDO_GROUP or store_of(head) == self._store or size == 0:
            return False
        return is_sealed(self._read(position, size), KIND_UNDO_GROUP, size // 8)

    def _check_foreign(self, position: int) -> None:
        """Raise ForeignFile if the file of a missing group holds groups of another store. They can be at any place in
        the file; files are created zeroed, so none is a leftover.
        """
        start = position - self._place(position)[1]
        for at in range(start, start + self._geometry.file_bytes, d.UNDO_GROUP_ALIGN_BYTES):
            if self._is_foreign(at):
                raise self._foreign(at)

    def _damage(self, sequence: int, position: int, what: str) -> UndoDamaged:
        name, offset = self._place(position)
        return UndoDamaged(
            f"UNDO group {sequence} ({name}, offset {offset}) {what}; restore the store from a backup",
            file=name,
            offset=offset,
            sequence=sequence,
        )

    def _read(self, position: int, size: int) -> Words:
        if self._buffer.size * 8 < size:
            self._buffer = np.zeros(size // 8, dtype=np.int64)
        words = self._buffer[: size // 8]
        self._fill(position, words)
        return words

    # --- backward --------------------------------------------------------------------------------
    def backward(self) -> Iterator[tuple[UndoGroup, Words]]:
        """Yield the groups to undo, newest first, each with the offsets of its records, newest first.

        An UNDO_RESTART record is yielded, but not the records it declares undone: it is followed by the UNDO_LCP record
        it refers to, alone, and then by older records. Each group is read and verified again. Raises: UndoDamaged.
        """
        index = len(self._positions) - 1
        is_mark_only = False
        while index >= 0:
            group = self._again(self._first[0] + index, self._positions[index])
            offsets = self.offsets_of(group)
            if is_mark_only:
                offsets = offsets[:1]
                if not offsets.size or int(group.words[offsets[0]]) & d.UNDO_KIND_MASK != d.UNDO_LCP:
                    raise self._damage(
                        group.sequence, group.position, "does not begin with its local checkpoint's mark"
                    )
            kinds = group.words[offsets] & d.UNDO_KIND_MASK
            restarts = np.flatnonzero(kinds == d.UNDO_RESTART)
            if restarts.size:
                offsets = offsets[int(restarts[-1]) :]
                at = int(offsets[0])
                target = int(group.words[at + 4]) - self._first[0]
                if not 0 <= target < index or self._positions[target] != int(group.words[at + 5]):
                    raise self._damage(group.sequence, group.position, "refers to a group that does not exist")
                index, is_mark_only = target, True
            else:
                index, is_mark_only = index - 1, False
            yield group, offsets[::-1]

    def _again(self, sequence: int, position: int) -> UndoGroup:
        group = self.group_at(position, sequence)
        if group is None:
            raise self._damage(sequence, position, "was intact when it was first read and is not now")
        return group

    def offsets_of(self, group: UndoGroup) -> Words:
        """Return the offsets of a group's records in its words, oldest first. Raises: UndoDamaged."""
        offsets = np.zeros(group.records_words // d.UNDO_RECORD_WORDS + 1, dtype=np.int64)
        stop = d.UNDO_GROUP_WORDS + group.records_words
        count = parse_records(group.words, d.UNDO_GROUP_WORDS, stop, offsets)
        if count != group.records:
            raise self._damage(group.sequence, group.position, "has an impossible record")
        return offsets[:count]

    # --- where a writer continues ----------------------------------------------------------------
    def place_of(self, sequence: int) -> int:
        """Return the position of a group that was read. Raises: UndoDamaged."""
        index = sequence - self._first[0]
        if not 0 <= index < len(self._positions):
            raise self._damage(sequence, self.end, "is missing")
        return self._positions[index]

    def next_position(self, mark_sequence: int = 0) -> UndoPosition:
        """Return where a writer continues.

        The tail is where reading began, the mark is the group `mark_sequence` (0: the tail).
        """
        sequence, position = self._first
        last_lsn = LSN_FIRST if self._last is None else self._last.next_lsn
        return UndoPosition(
            sequence + len(self._positions),
            self.end,
            max(last_lsn, self.void.lsn) + LSN_STEP_BYTES,
            sequence,
            position,
            self.place_of(mark_sequence) if mark_sequence else position,
            None if self._last is None else self._last.position,
            last_lsn,
        )

    def void_after(self, group: UndoGroup | None) -> UndoVoid:
        """Return the void that covers the groups after this one (None: all); the current void if there are none."""
        if self._last is None or (group is not None and self._last.sequence == group.sequence):
            return self.void
        return UndoVoid(
            self._first[0] if group is None else group.sequence + 1, max(self._last.next_lsn, self.void.lsn)
        )

    def seal_tail(self) -> None:
        """Make the end of the log durable before its records are undone.

        The last group is rewritten with identical bytes and synced, because after a failed sync the page cache may have
        data that the disk lacks (F39). The block after it is zeroed, so that a torn group leaves no header. Durable on
        return. The block past the head is always free (`UndoLog`).
        """
        if self._last is not None:
            group = self._again(self._last.sequence, self._last.position)
            self._write(group.position, group.words)
        self._write(self.end, np.zeros(ALIGN_WORDS, dtype=np.int64))


def _follows(last: UndoGroup | None, group: UndoGroup) -> bool:
    """Whether a group is the one that was written after `last`."""
    if last is None:
        return group.sequence != 1 or group.previous_position == group.position
    return (
        group.previous_position == last.position
        and group.first_lsn == last.next_lsn
        and group.incarnation >= last.incarnation
    )
