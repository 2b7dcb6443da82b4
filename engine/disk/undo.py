"""The UNDO log of disk columns: one stream of sealed groups in a separate ring, written only when it must be durable.

Records go to the active one of two buffers in the arena, under the commit latch (`engine/disk/undo_kernels.py`). A
flush swaps the buffers under the latch; without it, it copies, filters, seals, writes and syncs; then it publishes
`durable_lsn`. One thread flushes at a time; a waiter then finds its record durable, or flushes next.

Invariants: (U1) group n + 1 is written only after n is durable; (U2) records with an LSN below `durable_lsn` are
durable or were filtered; (U3) only UNDO_UPDATE records of restorable epochs are filtered; (U4) no group is written over
the tail; (U5) the tail moves only by `set_tail`; (U6) LSNs below `durable_lsn` are never reused, not by a later opening
either: the hole that filtering leaves after the last group is at most LSN_HOLE_BYTES and a buffer, and each opening
continues LSN_STEP_BYTES past the last group. Otherwise a page on disk could have the LSN of a filtered record, the next
opening could give that LSN to a new record, and a restart would undo this record on the page, which it never reached.

Why U4 holds, all sizes in words: c capacity, h head, t tail, m mark, r reserve for marks, b words in buffers and on
their way, with GROUP_SHARE_WORDS (header and padding of a group are at most 24 + 511) for each group they will become,
p words reserved and not yet in a buffer. U_FREE = (c - r - (h - t) - (h - m)) / 2 - b, and a reservation is granted
only while p <= U_FREE. A record moves its words from p to b. A commit that holds the latch once opens at most one
group, which its transaction's GROUP_SHARE_WORDS pay for. Each further slice of a transaction (except the last) must
cover 6 pages, because 6 times RECORD_SHARE_WORDS pay for one group. A flush moves at most b to h, and lowers b by as
much or more. So h - t + 2 (b + p) <= c - r - (h - m) stays true except for marks; these take from r, and are refused
when it is used up. Writing b, and writing all of it again in a restart, ends before t + c. A restart that is
interrupted there and repeated, any number of times, writes it again in the same place (`rewind`). So records that a
completed restart has written count once (`count_replayed_once` moves m to h), and a log that was full still has room
for a local checkpoint.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, IoFailed, StorageFull, StoreFailed
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk import disk_layout as d
from tidemark.engine.disk.undo_kernels import (
    FILTER_DROPPED,
    FILTER_DROPPED_WORDS,
    FILTER_EPOCH,
    FILTER_KEPT,
    FILTER_KEPT_WORDS,
    FILTER_STATE_WORDS,
    GROUP_SHARE_WORDS,
    MARK_ROOM_WORDS,
    append_undo_mark,
    filter_records,
)
from tidemark.engine.disk.undo_ring import LSN_FIRST, LSN_HOLE_BYTES, group_bytes_max, private_words_of
from tidemark.engine.log.geometry import open_files
from tidemark.engine.memory.arena_layout import OK, S_UNDO
from tidemark.engine.sealed.sealed_layout import KIND_UNDO_GROUP, header_of, seal, write_seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.disk.undo_reader import UndoGroup
    from tidemark.engine.disk.undo_ring import UndoPosition
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.memory.arena import Words

ALIGN_WORDS = d.UNDO_GROUP_ALIGN_BYTES // 8
WAITER_POLL_SECONDS = 0.1


@dataclass
class _Group:
    """Records that will become one group."""

    start: int  # words in the buffer
    stop: int
    next_lsn: int
    mark_lsn: int = 0  # its first record, if that is an UNDO_LCP
    words: int = 0  # of the sealed group; 0: there is nothing to write
    is_ready: bool = False
    result: list[int] = field(default_factory=list)  # result of the filter


@dataclass
class _Batch:
    """A buffer that was swapped out. Kept until all of it is durable: after a signal, the next flush continues it."""

    address: int
    next_lsn: int
    groups: list[_Group]


class UndoLog:
    """Writer of the UNDO log of an open store. The arena already holds its descriptor (`setup_undo`)."""

    def __init__(
        self,
        files: Files,
        geometry: Geometry,
        mem: Words,
        latch: threading.Lock,
        identity: tuple[bytes, int],
        position: UndoPosition,
        restorable_epoch: Callable[[], int],
        is_filtering: bool = True,
    ) -> None:
        """identity: store UUID and incarnation. restorable_epoch: see U3; called once for each flush.

        Raises: FileMissing, FileTruncated; InvariantBroken if the buffers are too large for the ring.
        """
        self.files = files
        self.geometry = geometry
        self._mem = mem
        self._at = int(mem[S_UNDO])
        self._latch = latch
        self._store, self._incarnation = identity
        self._restorable_epoch = restorable_epoch
        self.is_filtering = is_filtering
        self.buffer_words = int(mem[self._at + c.U_SIZE])
        largest = -(-(self.buffer_words + d.UNDO_GROUP_WORDS) // ALIGN_WORDS) * d.UNDO_GROUP_ALIGN_BYTES
        if largest > group_bytes_max(geometry):
            raise InvariantBroken(
                f"an UNDO buffer of {self.buffer_words} words is too large for a log of {geometry.capacity_bytes} bytes"
            )
        self._handles = open_files(files, geometry, True)
        self.sequence = position.sequence
        self.head = position.position
        self.tail_sequence = position.tail_sequence
        self.tail = position.tail_position
        self.mark = position.mark_position
        self.durable_lsn = position.lsn
        self._last_position = position.last_position
        self._last_lsn = position.last_lsn
        self._private = _aligned(largest // 8)
        self._filter_state = np.zeros(FILTER_STATE_WORDS, dtype=np.int64)
        self._guard = threading.Lock()
        self.flusher: object | None = None
        self._waiting: deque[threading.Lock] = deque()
        self._batch: _Batch | None = None
        self._cuts: list[tuple[int, int]] = []  # (word of the active buffer, LSN) where an UNDO_LCP begins a group
        self._places: dict[int, tuple[int, int]] = {}
        self.filtered_epoch = 0
        self.records_filtered = self.bytes_filtered = self.bytes_written = self.groups_written = self.flushes = 0
        self.private_words = private_words_of(geometry)
        mem[self._at + c.U_LSN] = position.lsn
        files.mark("undo_cut", position=self.tail)
        files.mark("undo_durable", lsn=self.durable_lsn)
        self.update_free()

    # --- under the commit latch, after `make_room(UNDO_MARK_WORDS)` without it --------------------
    def mark_lcp(self, lcp_id: int, epoch: int) -> int:
        """Append the UNDO_LCP record of a local checkpoint, first of its group; returns its LSN. `flush_through` makes
        it durable.

        Raises: StorageFull if even the reserve for marks is used up.
        """
        self._check_marks(d.UNDO_MARK_WORDS + 2 * GROUP_SHARE_WORDS)
        used = self._word(c.U_USED)
        lsn = self._append_mark(d.UNDO_LCP, lcp_id, epoch, 0, 0)
        self._cuts.append((used, lsn))
        self.update_free()
        return lsn

    def record_table(self, kind: int, table_id: int) -> int:
        """Append the UNDO_CREATE or UNDO_DROP record of a table; returns its LSN. Raises: StorageFull; nothing is
        recorded.
        """
        if self._word(c.U_RESERVED) + d.UNDO_MARK_WORDS + 2 * GROUP_SHARE_WORDS > self._word(c.U_FREE):
            raise StorageFull("the UNDO log is full; retry after a local checkpoint has freed it", table_id=table_id)
        return self._append_mark(kind, table_id, 0, 0, 0)

    def _append_mark(self, kind: int, first: int, second: int, third: int, fourth: int) -> int:
        lsn = int(append_undo_mark(self._mem, kind, first, second, third, fourth))
        if lsn < 0:
            raise self._broken("the UNDO buffer has no room for a mark")
        return lsn

    def _check_marks(self, words: int) -> None:
        left = self._word(c.U_FREE) - self._word(c.U_RESERVED) + self.private_words // 2
        if left < words:
            raise StorageFull(
                f"the UNDO log ({self.geometry.capacity_bytes} bytes) has no room for the mark of a local checkpoint;"
                " end open transactions, or make the store with a larger undo_log",
                left_words=left,
            )

    def set_tail(self, sequence: int, position: int) -> None:
        """Move the tail to this group (U5). Call it after the control file that makes older groups unneeded is
        durable.
        """
        if position > self.tail:
            self.files.mark("undo_cut", position=position)
            self.tail = position
            self.tail_sequence = sequence
            self.mark = max(self.mark, position)
            self._places = {lsn: place for lsn, place in self._places.items() if place[1] >= position}
            self.update_free()

    def set_mark(self, position: int) -> None:
        """Set the mark to the group with the UNDO_LCP record of the newest complete local checkpoint; a restart undoes
        back to it.
        """
        if position > self.mark:
            self.mark = position
            self.update_free()

    def count_replayed_once(self) -> None:
        """Count the records of a restart only once from now on. The restart has written an UNDO_RESTART record, or
        found one, and has written all records after it; the next restart would write them in the same place
        (`rewind`). Durable on return: these records.
        """
        self.flush_through(self._word(c.U_LSN))
        self.set_mark(self.head)

    # --- space -----------------------------------------------------------------------------------
    @property
    def room_words(self) -> int:
        """The most words that all transactions together can reserve, once nothing in the log is needed any more."""
        return (self.geometry.capacity_bytes // 8 - self.private_words) // 2

    def update_free(self) -> None:
        waiting = self._word(c.U_USED)
        if waiting:
            waiting += GROUP_SHARE_WORDS * (1 + len(self._cuts))
        if self._batch is not None:
            waiting += sum(group.stop - group.start + GROUP_SHARE_WORDS for group in self._batch.groups)
        spent = (2 * self.head - self.tail - self.mark) // 8
        self._mem[self._at + c.U_FREE] = (self.geometry.capacity_bytes // 8 - self.private_words - spent) // 2 - waiting

    def _word(self, offset: int) -> int:
        return int(self._mem[self._at + offset])

    def has_room(self, words: int) -> bool:
        """Whether the active buffer has room for that many words; reliable only under the latch."""
        return words <= self.buffer_words - MARK_ROOM_WORDS - self._word(c.U_USED)

    def fits(self, words: int) -> bool:
        """Whether an empty buffer has room for that many words."""
        return words <= self.buffer_words - MARK_ROOM_WORDS

    def make_room(self, words: int) -> None:
        """Flush if needed until the active buffer has room for that many words. Other threads may use it: check again
        under the latch.

        Raises: InvariantBroken for more words than a buffer has; StoreFailed.
        """
        if not self.fits(words):
            raise self._broken(f"{words} words of UNDO records are more than a buffer takes")
        while not self.has_room(words):
            self.flush_through(self._word(c.U_LSN))

    def wants_flush(self) -> bool:
        """Whether a background flush should begin: the active buffer is more than half full."""
        return self._word(c.U_USED) * 2 > self.buffer_words

    # --- durability ------------------------------------------------------------------------------
    def flush_through(self, lsn: int) -> None:
        """Wait until every record made so far with an LSN up to `lsn` is durable or filtered. Never call this under the
        latch.

        Raises: StoreFailed if a write or sync fails, now or before.
        """
        wanted = min(lsn + 1, self._word(c.U_LSN))
        while self.durable_lsn < wanted:
            token = object()
            gate: threading.Lock | None = None
            try:
                with self._guard:
                    if self.flusher is None:
                        self.flusher = token
                    else:
                        gate = threading.Lock()
                        gate.acquire()
                        self._waiting.append(gate)
                if gate is not None:
                    gate.acquire(timeout=WAITER_POLL_SECONDS)
                    if self.durable_lsn < wanted:
                        self.files.failure.check()
                elif self.durable_lsn < wanted:
                    self._flush()
            finally:
                if self.flusher is token:
                    self.flusher = None  # no call comes before, so a signal cannot leave a flusher that does not run
                    self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake all waiters after a flush: the first whose records are not durable yet flushes next."""
        with self._guard:
            while self._waiting:
                self._waiting.popleft().release()

    def mark_place(self, lsn: int) -> tuple[int, int]:
        """Return (sequence, position) of the durable group whose first record is the UNDO_LCP of this LSN."""
        place = self._places.get(lsn)
        if place is None:
            raise self._broken(f"no durable UNDO group begins with a mark of LSN {lsn}")
        return place

    def mark_restart(self, lcp_id: int, lcp_lsn: int, sequence: int, position: int) -> int:
        """Write the UNDO_RESTART record, at which reading backward jumps to the group of that UNDO_LCP record; returns
        its LSN. Durable on return.

        Raises: StorageFull, StoreFailed.
        """
        with self._latch:
            self._check_marks(d.UNDO_MARK_WORDS + GROUP_SHARE_WORDS)
            lsn = self._append_mark(d.UNDO_RESTART, lcp_id, lcp_lsn, sequence, position)
        self.flush_through(lsn)
        return lsn

    def rewind(self, group: UndoGroup | None) -> None:
        """Continue right after this group, or at the tail if None: a durable sysfile says that later groups are void.

        LSNs keep rising. Allowed only before the first record of an opening.
        """
        with self._latch:
            if self._word(c.U_USED) or self._batch is not None:
                raise self._broken("the UNDO log was rewound while records were not written yet")
            if group is None:
                self.head, self.sequence = self.tail, self.tail_sequence
                self._last_position, self._last_lsn = None, LSN_FIRST
            else:
                self.head, self.sequence = group.end, group.sequence + 1
                self._last_position, self._last_lsn = group.position, group.next_lsn
            self.update_free()

    def _flush(self) -> None:
        with self._latch:
            if self._batch is None:
                self._swap()
        batch = self._batch
        if batch is None:
            return
        restorable = self._restorable_epoch() if self.is_filtering else -1
        while batch.groups:
            group = batch.groups[0]
            if not group.is_ready:
                self._prepare(batch.address, group, restorable)
            if group.words:
                self._write(group)
            self.publish(batch, group)
        self.files.mark("undo_durable", lsn=batch.next_lsn)
        with self._latch:
            # No call, so no signal, between these: the records are durable and the buffer is free, or neither.
            self.durable_lsn = batch.next_lsn
            self._batch = None
            self.flushes += 1
            self.update_free()

    def _swap(self) -> None:
        """Swap the active buffer out if it has any records; the caller holds the latch."""
        mem, at = self._mem, self._at
        used = self._word(c.U_USED)
        if used == 0:
            return
        active, other, next_lsn = self._word(c.U_ACTIVE), self._word(c.U_OTHER), self._word(c.U_LSN)
        starts = [(0, 0), *self._cuts] if not self._cuts or self._cuts[0][0] else list(self._cuts)
        ends = [*((start, lsn) for start, lsn in starts[1:]), (used, next_lsn)]
        groups = [
            _Group(start, stop, end_lsn, mark_lsn)
            for (start, mark_lsn), (stop, end_lsn) in zip(starts, ends, strict=True)
        ]
        batch = _Batch(active, next_lsn, groups)
        cuts: list[tuple[int, int]] = []
        # No call from here to the end, so no KeyboardInterrupt: the buffer is swapped out completely or not at all.
        mem[at + c.U_ACTIVE] = other
        mem[at + c.U_OTHER] = active
        mem[at + c.U_USED] = 0
        mem[at + c.U_EPOCH_MAX] = 0
        self._cuts = cuts
        self._batch = batch

    def _prepare(self, address: int, group: _Group, restorable: int) -> None:
        """Copy, filter and seal in private memory; only once, so that a repeated write has the same bytes."""
        words, state = self._private, self._filter_state
        begin = d.UNDO_GROUP_WORDS
        stop = begin + group.stop - group.start
        words[begin:stop] = self._mem[address + group.start : address + group.stop]
        if filter_records(words, begin, stop, restorable, state) != OK:
            raise self._broken("the UNDO buffer holds an invalid record")
        group.result = state.tolist()
        kept = group.result[FILTER_KEPT_WORDS]
        used = begin + kept
        # A hole that no group covers must not grow past the step of the next opening (U6).
        if kept or group.next_lsn - self._last_lsn > LSN_HOLE_BYTES:
            group.words = -(-used // ALIGN_WORDS) * ALIGN_WORDS
            words[used : group.words] = 0
            self._seal(group)
        group.is_ready = True

    def _seal(self, group: _Group) -> None:
        words = self._private
        header = header_of(words, d.UNDO_GROUP)
        write_seal(header, KIND_UNDO_GROUP, group.words, self._store, self._incarnation)
        header["sequence"] = self.sequence
        header["position"] = self.head
        header["lap"] = self.geometry.lap(self.head)
        header["first_lsn"] = self._last_lsn
        header["next_lsn"] = group.next_lsn
        header["records_words"] = group.result[FILTER_KEPT_WORDS]
        header["records"] = group.result[FILTER_KEPT]
        header["filtered"] = group.result[FILTER_DROPPED]
        header["previous_position"] = self.head if self._last_position is None else self._last_position
        header["filtered_epoch"] = max(self.filtered_epoch, group.result[FILTER_EPOCH])
        header["reserved"] = 0
        seal(words, group.words)

    def _write(self, group: _Group) -> None:
        size = group.words * 8
        if self.head + size + d.UNDO_GROUP_ALIGN_BYTES > self.tail + self.geometry.capacity_bytes:
            raise self._broken("the UNDO log would overwrite its tail")
        view = self._private.data.cast("B")
        numbers = []
        try:
            for number, offset, start, length in self.geometry.pieces(self.head, size):
                self.files.pwrite(self._handles[number], offset, view[start : start + length])
                numbers.append(number)
        except StorageFull as error:
            # The log's space was allocated when it was created, so only a copy-on-write file system can be full here.
            # The pages have the changes already (F44).
            raise self.files.failure.latch(
                IoFailed(f"{error.message}; the UNDO log cannot be written, open the store again", **error.evidence)
            ) from error
        for number in numbers:
            self.files.fdatasync(self._handles[number])

    def publish(self, batch: _Batch, group: _Group) -> None:
        """Publish a group that is durable or empty, and place the next one after it."""
        size = group.words * 8
        head, sequence, result = self.head, self.sequence, group.result
        filtered_epoch = max(self.filtered_epoch, result[FILTER_EPOCH])
        rest = batch.groups[1:]
        with self._latch:
            if size:
                if group.mark_lsn:
                    self._places[group.mark_lsn] = (sequence, head)
                # No call, so no signal, from here on: the group is published completely, or written again unchanged.
                self._last_position = head
                self._last_lsn = group.next_lsn
                self.head = head + size
                self.sequence = sequence + 1
                self.groups_written += 1
                self.bytes_written += size
            self.filtered_epoch = filtered_epoch
            self.records_filtered += result[FILTER_DROPPED]
            self.bytes_filtered += result[FILTER_DROPPED_WORDS] * 8
            batch.groups = rest
            self.update_free()

    def _broken(self, what: str) -> StoreFailed:
        return self.files.failure.latch(InvariantBroken(f"{what}; close the store, keep a copy, and report it"))

    @property
    def bytes_used(self) -> int:
        """Bytes of the records made or of the groups written since opening, whichever is more: groups are padded, and
        the newest records are not written yet.
        """
        return max(self.bytes_written, self._word(c.U_WORDS) * 8)

    def close(self) -> None:
        """Close the files; records that were not flushed are lost, as in a crash."""
        for handle in self._handles:
            self.files.close(handle)
        self._handles = []

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`; records and bytes are counted since opening."""
        return {
            "records_made": self._word(c.U_RECORDS),
            "bytes_made": self._word(c.U_WORDS) * 8,
            "records_filtered": self.records_filtered,
            "bytes_filtered": self.bytes_filtered,
            "bytes_written": self.bytes_written,
            "groups_written": self.groups_written,
            "flushes": self.flushes,
            "durable_lsn": self.durable_lsn,
            "head": self.head,
            "tail": self.tail,
            "capacity_bytes": self.geometry.capacity_bytes,
            "free_words": self._word(c.U_FREE) - self._word(c.U_RESERVED),
        }


def _aligned(words: int) -> Words:
    """Return an array whose address is a multiple of 4 KiB."""
    whole = np.zeros(words + ALIGN_WORDS, dtype=np.int64)
    start = -(whole.ctypes.data // 8) % ALIGN_WORDS
    return whole[start : start + words]
