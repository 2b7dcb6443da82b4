"""The REDO log: one stream of sealed groups, written by a leader among the waiting threads (D5).

Under the store's commit latch: `fill`, `room`, `sequence`, `adopt`, `close_epoch`. Outside it: `wait`, `share`,
`flush`. The filling group takes records until a thread waits for it or its epoch closes; then it is numbered, placed
and queued. The leader writes the queue in order, all groups queued by then in one batch.

A commit partner, if there is one, gets a group before it is written here, and the group counts as durable only after
its confirmation. A commit that does not wait for the disk waits until every member has the group in memory: `share`.

Invariants:

- L1: a batch of groups is written only after the batch before it is durable, and each group stores how many groups of
  its batch precede it (ADR 0016).
- L2: a durable group is rewritten only with identical bytes.
- L3: a transaction is in one group.
- L4: head - tail never exceeds the capacity.
- L5: the tail moves only by `set_tail`.
- L6: a group that ends past the durable reach is not written (ADR 0007).
- L7: no group is written into a file of the ring before both copies of the sysfile have the file (ADR 0043).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import (
    CommitInterrupted,
    CommitOnFailedStore,
    InvariantBroken,
    IoFailed,
    StorageFull,
    StoreFailed,
    TooManyFiles,
)
from tidemark.engine.base.histogram import SYNC_BOUNDS, Histogram
from tidemark.engine.log.geometry import Geometry, make_next, open_files
from tidemark.engine.log.group import Group, Position, Sealer, content_of
from tidemark.engine.log.group_layout import GROUP_ALIGN_WORDS
from tidemark.engine.log.leaders import Leaders
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.log.tail import RESTART, TailNeeds
from tidemark.engine.memory.arena_layout import S_REDO_FREE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.log.partner import CommitPartner
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.memory.arena import Words

FILL_WORDS = 1 << 17  # 1 MiB
SPARE_BUFFERS = 8
# Bytes of one write: enough to be worth a sync, few enough not to delay a waiter for the first group much.
BATCH_BYTES = 1 << 20
# Reserved for restarts, schema records and the padding of groups in flight; transactions cannot use it.
PRIVATE_BYTES = 64 << 10


def commit_interrupted(txid: int) -> CommitInterrupted:
    """Return the error for Ctrl-C in the commit of a transaction that the log may have."""
    return CommitInterrupted(f"the commit was interrupted on its way to the disk; ask outcome({txid})", txid=txid)


class RedoLog:
    """The log of an open store. It takes groups from `open` on."""

    def __init__(
        self,
        files: Files,
        geometry: Geometry,
        mem: Words,
        latch: threading.Lock,
        clock: Clock,
        identity: tuple[bytes, int],
        next_txid: Callable[[], int],
    ) -> None:
        self.files = files
        self.geometry = geometry
        self._mem = mem
        self._latch = latch
        self._clock = clock
        self._sealer = Sealer(*identity)
        self._next_txid = next_txid
        self.handles: list[File] = []
        self.epoch = 0
        self.pending: deque[Group] = deque()
        self.spares = [np.zeros(FILL_WORDS, dtype=np.int64) for _ in range(2)]
        self.fill = self._fresh()
        self._sending = threading.Lock()  # taken before the latch where a thread needs both
        self._needs = TailNeeds(clock)
        self.on_pressure: Callable[[], None] | None = None
        # Declares durably that the log may reach this LSN, and returns the reach now declared. None for a log alone.
        self.extend_reach: Callable[[int], int] | None = None
        self.reach_lsn = 0
        # Declares durably, in both copies of the sysfile, which files of the ring there are. None for a log alone.
        self.declare_files: Callable[[Geometry], None] | None = None
        self._growing = threading.Lock()  # taken before the latch
        self._next_file: File | None = None  # made, and maybe declared already
        self.partner: CommitPartner | None = None
        self.groups_written = 0
        self.batches_written = 0
        self.bytes_written = 0
        self.transactions_written = 0
        self.sync_seconds = Histogram(SYNC_BOUNDS)
        self._continue_at(Position())

    def open(self, position: Position) -> None:
        """Open the files; the log continues at this position. Raises: FileMissing, FileTruncated."""
        self.handles = open_files(self.files, self.geometry, True)
        self._continue_at(position)
        self.files.mark("cut", lsn=position.tail_lsn)
        self._update_free()

    def _continue_at(self, position: Position) -> None:
        self.tail_lsn = position.tail_lsn
        self.tail_sequence = position.tail_sequence
        self._limit_lsn = self._limit(self.geometry)
        self.head_lsn = self.durable_lsn = position.lsn
        self.sequence = position.sequence  # of the group being filled
        self.writing = Leaders(self.files.failure, position.sequence - 1)
        self.sharing = Leaders(self.files.failure, position.sequence - 1)
        self._sent_sequence = position.sequence - 1  # last group sent to the partner
        self.writing_sequence = position.sequence - 1  # last group whose write has begun

    @property
    def durable_sequence(self) -> int:
        """The last durable group."""
        return self.writing.reached

    # --- under the commit latch ------------------------------------------------------------------
    def room(self, words: int) -> Words:
        """Return the filling group with room for `words` more words; fill[0] counts words, fill[1] transactions."""
        if int(self.fill[0]) + words + GROUP_ALIGN_WORDS > self.fill.size:
            self._seal_fill()
            if words + GROUP_WORDS + GROUP_ALIGN_WORDS > self.fill.size:
                self.fill = np.zeros(words + GROUP_WORDS + 2 * GROUP_ALIGN_WORDS, dtype=np.int64)
                self.fill[0] = GROUP_WORDS
        return self.fill

    def adopt(self, group: Group) -> None:
        """Queue a transaction's own buffer as a group, without copying. The log owns the buffer from now on."""
        self._seal_fill()
        if group.words.size < group.written_words:
            grown = np.zeros(group.written_words, dtype=np.int64)
            grown[: group.used] = group.words[: group.used]
            group.words = grown
        self._queue(group, self.fill)

    def close_epoch(self, new_epoch: int) -> tuple[int, int]:
        """Begin a new epoch; return (LSN, sequence) of the next group: everything of older epochs is before it."""
        self._seal_fill()
        self.epoch = new_epoch
        if self.partner is not None:
            self.partner.epoch_closed(new_epoch, self.sequence)
        return self.head_lsn, self.sequence

    def copy_of(self, group: GroupRead) -> Group:
        """Copy another node's group, to be queued here: same records, time and transaction ids. Needs no latch."""
        used = GROUP_WORDS + group.records_words
        words = self.spares.pop() if used + GROUP_ALIGN_WORDS <= FILL_WORDS and self.spares else None
        made = Group(np.zeros(0, dtype=np.int64), used, group.transactions)
        made.words = np.empty(max(FILL_WORDS, made.written_words), dtype=np.int64) if words is None else words
        made.words[GROUP_WORDS:used] = group.words[GROUP_WORDS:used]
        made.stamp = (group.wall_us, group.next_txid)
        return made

    def append(self, group: Group) -> None:
        """Queue a group that `copy_of` returned, at the end of the log."""
        self._seal_fill()
        self._queue(group, self.fill)

    def divide(self) -> int:
        """End the filling group; return the sequence of the last group: everything logged is in it or before it."""
        self._seal_fill()
        return self.sequence - 1

    def hold_tail(self, holder: object, what: str, lsn: int | None) -> None:
        """Keep the log from this LSN on for `holder`, which `what` names; None: it no longer needs the log."""
        self._needs.set(holder, what, lsn)

    def has_records(self) -> bool:
        """Whether the filling group holds any records."""
        return int(self.fill[0]) > GROUP_WORDS

    def _fresh(self) -> Words:
        fill = self.spares.pop() if self.spares else np.zeros(FILL_WORDS, dtype=np.int64)
        fill[0] = GROUP_WORDS
        fill[1] = 0
        return fill

    def _seal_fill(self) -> None:
        fill = self.fill
        used = int(fill[0])
        if used > GROUP_WORDS:
            self._queue(Group(fill, used, int(fill[1])), self._fresh())

    def _queue(self, group: Group, fill: Words) -> None:
        sequence = self.sequence
        lsn = self.head_lsn
        # There is no call before the append, so no KeyboardInterrupt can divide these steps: the group gets number and
        # LSN, the next group is filled, and the group is queued.
        group.epoch = self.epoch
        group.lsn = lsn
        group.sequence = sequence
        self.sequence = sequence + 1
        self.head_lsn = lsn + group.written_words * 8
        self.fill = fill
        self.pending.append(group)
        self._update_free()
        if len(self.pending) > SPARE_BUFFERS and self.on_pressure is not None:
            self.on_pressure()

    # --- space -----------------------------------------------------------------------------------
    @property
    def room_bytes(self) -> int:
        """The most that transactions can reserve, when no part of the log is needed any more."""
        return self.geometry.capacity_bytes - PRIVATE_BYTES - GROUP_WORDS * 8

    def _limit(self, geometry: Geometry) -> int:
        """Return the LSN before which the head must stay: it may pass neither the tail nor the files that there are."""
        return min(self.tail_lsn + geometry.capacity_bytes, geometry.limit_lsn)

    def _update_free(self) -> None:
        free = self._limit_lsn - self.head_lsn - PRIVATE_BYTES
        self._mem[S_REDO_FREE] = max(0, free // 8 - int(self.fill[0]))

    def set_tail(self, lsn: int, sequence: int, what: str) -> None:
        """Move the tail to `lsn` (L5): a local checkpoint, which `what` names, needs nothing before it. If another
        holder does, the tail stays until the next call. The caller holds the latch, and the control file that allows
        this is durable.
        """
        self._needs.set(RESTART, what, lsn)
        # The log of a copied store may begin at its first byte with a group later than the first.
        if (lsn, sequence) > (self.tail_lsn, self.tail_sequence) and self._needs.allow(lsn):
            self.files.mark("cut", lsn=lsn)
            self.tail_lsn = lsn
            self.tail_sequence = sequence
            self._limit_lsn = self._limit(self.geometry)
            self._update_free()

    def grow(self, geometry: Geometry) -> None:
        """Make the next file of the ring, if it still has this geometry and lacks files. Durable on return: the file,
        and that the log has it.

        Raises: StorageFull, TooManyFiles, with nothing changed; StoreFailed.
        """
        with self._growing:
            if self.geometry is not geometry or not geometry.unmade_count:
                return
            grown = geometry.grown()
            # After a signal, a file that may be declared already is not made again: a crash would then cut it.
            if self._next_file is None:
                self._next_file = make_next(self.files, geometry)
            if self.declare_files is not None:
                self.declare_files(grown)
            handles = [*self.handles, self._next_file]
            with self._latch:
                limit_lsn = self._limit(grown)
                # No call between these assignments, as in `_queue`.
                self.handles = handles
                self.geometry = grown
                self._next_file = None
                self._limit_lsn = limit_lsn
                self._update_free()

    def used_bytes(self) -> int:
        """Return the bytes between tail and head."""
        return self.head_lsn - self.tail_lsn

    # --- durability ------------------------------------------------------------------------------
    def make_durable(self, sequence: int) -> None:
        """Return when the group is durable; lead the writing if no other thread does.

        Raises: StoreFailed if the log failed first, or if the process had no memory for the write.
        """
        try:
            self.writing.wait(sequence, self._lead)
        except MemoryError as error:
            raise self._had_no_memory() from error

    def _had_no_memory(self) -> StoreFailed:
        """Fail the store, whose rows have what the log lacks; return the error."""
        failed = StoreFailed("there was no memory to write the REDO log; open the store again")
        self.files.failure.latch(failed)
        return failed

    def wait(self, sequence: int, txid: int = 0) -> None:
        """Do `make_durable` for a commit's group. txid: of its transaction, for the errors; 0: Ctrl-C comes out as
        it is.

        Raises: CommitOnFailedStore; the outcome is then unknown until the store is opened again. CommitInterrupted.
        """
        try:
            self.writing.wait(sequence, self._lead)
        except (StoreFailed, MemoryError) as error:
            failed = error if isinstance(error, StoreFailed) else self._had_no_memory()
            raise CommitOnFailedStore(
                f"the store failed before the commit was durable ({failed.message}); open it again and ask"
                " outcome(txid)",
                **({"txid": txid} if txid else {}),
            ) from error
        except KeyboardInterrupt as error:
            if not txid:
                raise
            raise commit_interrupted(txid) from error

    def flush(self) -> None:
        """Return when everything committed so far is durable. Raises: see `make_durable`."""
        with self._latch:
            self._seal_fill()
            last = self.sequence - 1
        self.make_durable(last)

    def secure(self, epoch: int, on_disk: bool) -> None:
        """Return when everything visible by now that commits up to `epoch` have made is durable. Without `on_disk`:
        when every member of the node group has it in memory, at once if there is no node group.

        Raises: StoreFailed.
        """
        if not on_disk and self.partner is None:
            return
        last = self.last_visible(epoch)
        if last and on_disk:
            self.make_durable(last)
        elif last:
            self.sharing.wait(last, self._share)

    def last_visible(self, epoch: int) -> int:
        """Return the last group of what is visible by now of commits up to `epoch`; 0 if all of that is durable. Call
        without the latch.
        """
        if epoch < self.epoch:  # closed, so its groups were queued before: they are pending or durable
            try:
                if not self.pending or epoch < self.pending[0].epoch:
                    return 0
            except IndexError:  # the last one has become durable in between
                return 0
        # The filling group first: by the time it is replaced, `sequence` has grown.
        if not self.has_records() and self.durable_sequence >= self.sequence - 1:
            return 0
        with self._latch:
            last = self.sequence if self.has_records() else self.sequence - 1
            return last if last > self.durable_sequence else 0

    def share(self, sequence: int, txid: int) -> None:
        """Return when every member of the node group has a commit's group in memory; at once if there is no node group.
        txid: as for `wait`.

        Raises: CommitOnFailedStore if the log or the node group failed first; CommitInterrupted.
        """
        try:
            if self.partner is not None:
                self.sharing.wait(sequence, self._share)
        except StoreFailed as error:
            raise CommitOnFailedStore(
                "the store failed before all nodes had the commit; open it again and ask outcome(txid)", txid=txid
            ) from error
        except KeyboardInterrupt as error:
            raise commit_interrupted(txid) from error

    def _share(self, _sequence: int) -> None:
        """Send everything committed so far to the partner, and wait for it; later commits go with the next call."""
        with self._sending:
            with self._latch:
                self.files.failure.check()
                self._seal_fill()
                last = self.sequence - 1
                unsent = [group for group in self.pending if group.sequence > self._sent_sequence]
            for group in unsent:
                self._send(group)
        if self.partner is not None:
            self._agree(self.partner.share, last)
        self.sharing.reached = last
        self.sharing.wake_followers()

    def _lead(self, sequence: int) -> None:
        interrupt: KeyboardInterrupt | None = None
        writing = self.writing
        while writing.reached < sequence:
            batch = self._batch()
            if not batch:
                return
            last = batch[-1]
            while True:
                try:
                    if writing.reached < last.sequence:  # else its buffer may already be reused
                        self.write(batch)
                        if self.partner is not None:
                            self._agree(self.partner.wait, last.sequence)
                    self._publish(last)
                    break
                except KeyboardInterrupt as error:
                    # Only the main thread gets here. It writes the same bytes to the same place again. If a write or
                    # sync failed before the signal, the files have latched the failure, and StoreFailed is raised now.
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def _batch(self) -> list[Group]:
        """Return the next groups to write: those queued, up to BATCH_BYTES; the filling group if none is queued."""
        failure, pending = self.files.failure, self.pending
        with self._latch:
            if failure.first is not None:
                failure.check()  # the filling group may have records of a commit that broke off
            if not pending:
                self._seal_fill()
            if len(pending) < 2:
                return list(pending)
            found: list[Group] = []
            for group in pending:
                if found and group.end_lsn - found[0].lsn > BATCH_BYTES:
                    break
                found.append(group)
            return found

    def _agree(self, step: Callable[[Any], None], argument: Any) -> None:
        """Call the partner. If that fails, fail the store: only a restart finds out which groups the members have."""
        try:
            step(argument)
        except StoreFailed as error:
            self.files.failure.latch(error)
            raise
        except Exception as error:
            broken = InvariantBroken(f"the commit partner failed ({error!r}); open the store again")
            self.files.failure.latch(broken)
            raise broken from error

    def _seal(self, group: Group) -> None:
        lap, stamp = self.geometry.lap(group.lsn), (self._clock.wall_us(), self._next_txid())
        self._sealer.seal(group, lap, stamp, group.sequence - 1 - self.writing.reached)

    def _send(self, group: Group) -> None:
        """Send the next group to the partner before it is written: the round trip overlaps the sync here."""
        if self.partner is not None and group.sequence > self._sent_sequence:
            if not group.is_sealed:
                self._seal(group)
            self._agree(self.partner.send, group)
            self._sent_sequence = group.sequence

    def write(self, batch: list[Group]) -> None:
        last = batch[-1]
        start_lsn, end_lsn = batch[0].lsn, last.end_lsn
        if end_lsn - self.tail_lsn > self.geometry.capacity_bytes:  # L4: the write would overwrite log that is needed
            broken = InvariantBroken("the REDO log would overwrite groups that are needed; open the store again")
            self.files.failure.latch(broken)
            raise broken
        self.writing_sequence = last.sequence
        with self._sending:  # a sharing thread writes into headers of groups not sent yet
            for group in batch:
                if not group.is_sealed:  # only once: a second write, after a signal, must have the same bytes
                    self._seal(group)
                    group.is_sealed = True
                if self.partner is not None:
                    self._send(group)
        words = content_of(batch)
        began = self._clock.monotonic()
        try:
            while end_lsn > self.geometry.limit_lsn:  # transactions have room there; commits of another node may not
                self.grow(self.geometry)
            if end_lsn > self.reach_lsn and self.extend_reach is not None:
                self.reach_lsn = self.extend_reach(end_lsn)
            self._write_words(start_lsn, words)
        except (StorageFull, TooManyFiles) as error:
            # Room in files that there are was reserved, so this happens on a copy-on-write file system, or in a node
            # that follows others. The rows have the changes already: nothing is rolled back, and no error may claim a
            # rollback (F44).
            failure = IoFailed(f"{error.message}; the log cannot be written, open the store again", **error.evidence)
            self.files.failure.latch(failure)
            raise failure from error
        self.sync_seconds.observe(self._clock.monotonic() - began)

    def _write_words(self, lsn: int, words: Words) -> None:
        """Make words durable at their place in the ring."""
        pieces = self.geometry.pieces(lsn, words.nbytes)
        if len(pieces) == 1:
            number, offset, _, _ = pieces[0]
            self.files.pwrite_synced(self.handles[number], offset, words)
            return
        view = words.data.cast("B")
        for number, offset, start, length in pieces:
            self.files.pwrite(self.handles[number], offset, view[start : start + length])
        for number, *_ in pieces:
            self.files.fdatasync(self.handles[number])

    def _publish(self, last: Group) -> None:
        """Drop the groups up to this one, which are durable, and wake their followers."""
        self.files.mark("ack", sequence=last.sequence)
        end_lsn = last.end_lsn
        writing = self.writing
        with self._latch:
            written, bytes_ = last.sequence - writing.reached, end_lsn - self.durable_lsn
            # No call between these assignments: after a signal between them, the groups would be written again.
            writing.reached = last.sequence
            self.durable_lsn = end_lsn
            self.groups_written += written
            self.batches_written += written > 0
            self.bytes_written += bytes_
            while self.pending and self.pending[0].sequence <= last.sequence:
                group = self.pending.popleft()
                self.transactions_written += group.transactions
                words = group.words
                if words.size == FILL_WORDS and len(self.spares) < SPARE_BUFFERS:
                    self.spares.append(words)
        writing.wake_followers()

    def close(self) -> None:
        """Close the files; groups that were not flushed are lost, as in a crash."""
        for handle in self.handles:
            self.files.close(handle)
        self.handles = []

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`."""
        with self._latch:
            held_by = [need.to_dict(self.head_lsn) for need in self._needs.all()]
        return {
            "head_lsn": self.head_lsn,
            "tail_lsn": self.tail_lsn,
            "durable_lsn": self.durable_lsn,
            "capacity_bytes": self.geometry.capacity_bytes,
            "used_bytes": self.used_bytes(),
            "groups_written": self.groups_written,
            "batches_written": self.batches_written,
            "bytes_written": self.bytes_written,
            "transactions_written": self.transactions_written,
            "sync_seconds": self.sync_seconds.to_dict(),
            "held_by": held_by,
        }
