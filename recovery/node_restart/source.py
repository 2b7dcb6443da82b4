"""The live node's side of a node restart: one object for each joiner, in steps (docs/internals/node-group.md).

A slice is taken under the commit latch, after the filling group was ended and while no large commit is half applied. So
it shows the state after some group s, and it is sent between s and s + 1. No row is locked, and a joiner that handles
messages in order meets each change exactly once: in a slice, or after it in the stream.

The carrier of the messages holds one mutex around every call of a source and around taking groups out of the log, but
not around `read`, which waits for the disk.
"""

from __future__ import annotations

from bisect import insort_right
from collections import deque
from typing import TYPE_CHECKING

from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import SnapshotTooOld
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.engine.memory.arena_layout import F_PAGES
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
from tidemark.engine.store.node_copy import ChangeScan, items_of
from tidemark.engine.store.node_copy_layout import DELETED_WORDS, ROWID_END
from tidemark.recovery.node_restart import messages as m
from tidemark.recovery.node_restart.disk_slice import with_disk_parts
from tidemark.recovery.node_restart.log_tail import DeleteTail, LogTail, is_full, why_incomplete
from tidemark.recovery.system_restart.replay import schema_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.store.store import Store
    from tidemark.recovery.node_restart.messages import FragmentPlace, FromLive, Plan, Ready, Taken

# The latch is held for the slots of one slice: 0.3 ms if none has changed, 256 KiB copied if all have.
SLICE_SLOTS = 32_768
SLICE_WORDS = 32_768
DISK_SLICE_SLOTS = 4_096  # their disk parts are kept for a snapshot while they are read
UNANSWERED_WORDS = 32_768  # 256 KiB without an answer; further slices wait
NEAR_BYTES = 1 << 20  # in a replay of the log, the stream takes over when less than this is left


def order_of(message: FromLive) -> tuple[int, int]:
    """Return the sort key of a message: the parts of a group come first, then slices and the end after that group."""
    return (message.sequence, 0 if isinstance(message, m.GroupPart) else 1)


def has_tablespaces(group: GroupRead) -> bool:
    """Whether a group creates a tablespace or a data file. Raises: RedoDamaged."""
    return any("tablespace" in change or "datafile" in change for _, change in schema_changes([group]))


class Source:
    """Serves one joiner from one open store, for one attempt: a joiner that tries again gets a new source."""

    def __init__(
        self,
        store: Store,
        files: Files,
        identity: tuple[bytes, int],
        slice_slots: int = SLICE_SLOTS,
        slice_words: int = SLICE_WORDS,
    ) -> None:
        """identity: UUID and incarnation of the store."""
        self._store = store
        self._files = files
        self._identity = identity
        self._slice_slots = slice_slots
        self._changes = ChangeScan(store.mem, slice_words)
        self._position = 0  # ROWID from which the first fragment to copy is still to be scanned
        self.registered: int | None = None  # groups after this one come from the stream
        self._sent = 0  # newest group that was sent in full
        self._queue: list[FromLive] = []  # in the order in which they go out
        self._through = 0
        self.to_copy: deque[tuple[FragmentPlace, int]] | None = None
        self._deletes: DeleteTail | None = None
        self._is_full = False  # everything is copied, though the joiner has rows
        self._tail: LogTail | None = None
        self._sought: Ready | None = None  # set while it must be checked whether the log reaches back to this joiner
        self._why: str | None = None  # result of this check: "" if it does, else why not
        self._next_group: GroupRead | None = None
        self._unanswered_words = 0
        self._has_ended = False
        self.wants_read = False  # `read` is to be called: a slice needs disk parts, or the log is to be read
        self._read: m.Slice | None = None
        self.progress = m.Progress(store.clock, store.clock.monotonic())

    def welcome(self) -> m.Welcome:
        """Return what a joiner must know before it restarts."""
        return m.Welcome(*self._identity, FORMAT_VERSION)

    def close(self) -> None:
        """Stop serving: the log may be cut."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    @property
    def awaited_sequence(self) -> int:
        """The group that must go out before the first waiting message, 0 if none waits. The caller makes the log write
        it.
        """
        if self._queue:
            return order_of(self._queue[0])[0]
        # Replay of the log ends with the group at which the joiner was registered, which is also read from the files.
        is_written = self.registered is None or self.registered <= self._store.log.durable_sequence
        return 0 if self._tail is None or is_written else self.registered or 0

    # --- what the joiner says --------------------------------------------------------------------
    def begin(self, ready: Ready) -> list[FromLive]:
        """Admit the joiner, with the variant that it requests if possible, else ROWID_SYNC. Raises: StoreFailed."""
        self._through = ready.through
        if ready.through and ready.variant == m.REPLAY_LOG:
            self._tail = LogTail(self._store, self._files, self._identity[0])
            self._sought = ready
            self.wants_read = True
            return []
        return self.begin_copy(
            ready.why, m.DELETE_LOG if ready.through and ready.variant == m.DELETE_LOG else m.ROWID_SYNC
        )

    def _begin_replay(self, ready: Ready, why: str) -> list[FromLive]:
        """Replay the log from the first group that the joiner lacks; copy rows instead if the log does not have it
        (`why`).
        """
        self._sought = self._why = None
        if why:
            self.close()
            return self.begin_copy(why)
        self._sent = ready.next_sequence - 1
        self.progress.variant = m.REPLAY_LOG
        return [m.Begin(m.REPLAY_LOG, "", self._sent)]

    def begin_copy(self, why: str, variant: str = m.ROWID_SYNC) -> list[FromLive]:
        store = self._store
        with store.latch:
            store.epochs.settle()
            sequence = store.log.divide()
            if variant == m.DELETE_LOG:
                missing = why_incomplete(store.deletes, self._through)
                if missing:
                    variant, why = m.ROWID_SYNC, self._full(missing)
                elif store.deletes is not None:
                    self._deletes = DeleteTail(store.deletes, self._through, store.epochs.current)
            space = store.space
            message = m.Begin(
                variant,
                why,
                sequence,
                tuple(table.definition for table in store.tables.by_id.values()),
                self._shapes(),
                store.tables.next_id,
                space.next_tablespace_id,
                space.next_file_id,
            )
            self.registered = self._sent = sequence
        self.progress.variant, self.progress.why = message.variant, why
        return [message]

    def _full(self, why: str) -> str:
        """Request a copy of everything, whatever rows the joiner has; return the reason to send."""
        self._is_full = True
        return f"full copy: {why}"

    def plan(self, plan: Plan) -> None:
        """Take the joiner's list of rows to copy."""
        since = dict.fromkeys(plan.since, 0) if self._is_full else plan.since
        self.to_copy = deque(sorted(since.items()))
        if self._deletes is not None:
            self._deletes.keep(place for place, epoch in since.items() if epoch)
        self._position = 0
        self.progress.fragments = len(self.to_copy)
        self.progress.pages = sum(self._pages(self._fragment(place)) for place in plan.since)

    def taken(self, taken: Taken) -> None:
        """Count an answer of the joiner for flow control."""
        self._unanswered_words -= taken.words

    # --- the stream ------------------------------------------------------------------------------
    def group(self, group: GroupRead) -> list[FromLive]:
        """Return the messages for the next group of the log: its records, records of files that it names, and the
        messages that waited for it.

        Raises: SpoolDamaged, InvariantBroken.
        """
        if self.registered is None or group.sequence <= self.registered:
            return []
        self._queue_parts(group)
        return list(self.released())

    def _queue_parts(self, group: GroupRead) -> None:
        self.progress.groups += 1
        for part in self._parts(group):
            insort_right(self._queue, part, key=order_of)

    def _parts(self, group: GroupRead) -> Iterator[m.GroupPart]:
        what = referred(group)
        if what is not None:
            reader = SpoolReader(self._files, self._identity[0], what)
            reader.verify()
            for block in reader.blocks():
                yield m.GroupPart(group.sequence, group.epoch, block.words, block.start, block.stop, False)
        # The records of a group that names files change nothing, but they are its last part.
        stop = GROUP_WORDS + group.records_words
        shapes = self._shapes() if has_tablespaces(group) else ()
        yield m.GroupPart(group.sequence, group.epoch, group.words, GROUP_WORDS, stop, True, shapes)

    def _shapes(self) -> tuple[m.TablespaceShape, ...]:
        found = self._store.space.tablespaces()
        return tuple(m.TablespaceShape(each.definition, tuple(file.extents for file in each.files)) for each in found)

    def released(self) -> Iterator[FromLive]:
        """Yield the messages that may go out now: groups one by one, each followed by the slices and the end that show
        the state after it.
        """
        while self._queue and not self.wants_read and self._read is None:
            message = self._queue[0]
            if isinstance(message, m.GroupPart):
                if message.sequence != self._sent + 1:
                    return
                if message.is_last:
                    self._sent = message.sequence
                if self._tail is not None:
                    self._unanswered_words += message.stop - message.start
            elif order_of(message)[0] > self._sent:
                return
            yield self._queue.pop(0)

    # --- steps -----------------------------------------------------------------------------------
    def step(self) -> list[FromLive]:
        """Take the next slice, or groups of the log, or the end message after the last one. No message goes out before
        groups that are still to be written: see `awaited_sequence`. Raises: StoreFailed, RedoDamaged.
        """
        message: FromLive | None = None
        if self.wants_read:
            return []
        if self._sought is not None and self._why is not None:
            return self._begin_replay(self._sought, self._why)
        if self._read is not None:
            message, self._read = self._counted(self._read), None
        elif self._tail is not None:
            if self._unanswered_words < UNANSWERED_WORDS:
                return self._replay_step()
        elif self.to_copy is not None and not self._has_ended:
            if self._unanswered_words < UNANSWERED_WORDS:
                if self._deletes is not None:
                    return self._delete_step()
                message = self._next_slice() if self.to_copy else self.end_copy()
        if message is not None:
            insort_right(self._queue, message, key=order_of)
        return list(self.released())

    def _replay_step(self) -> list[FromLive]:
        """Take a group of the kept log. Near its end the stream takes over, and the log is no longer needed."""
        assert self._tail is not None
        if self.registered is None:
            if is_full(self._store.log):
                self.close()
                self._unanswered_words = 0
                self._queue.clear()
                return self.begin_copy("transactions needed the room in the log before the joiner had read it")
            if self._tail.left_bytes < NEAR_BYTES:
                with self._store.latch:
                    self.registered = self._store.log.divide()
        if self._next_group is not None:
            group, self._next_group = self._next_group, None
            self._queue_parts(group)
        elif self.registered is not None and self._sent >= self.registered:
            self.close()
            insort_right(self._queue, self.end_copy(), key=order_of)
        else:
            self.wants_read = True
        return list(self.released())

    def _delete_step(self) -> list[FromLive]:
        """Send entries of the delete log without waiting for a group: no slot was copied yet, so their order does not
        matter.
        """
        assert self._deletes is not None and self.registered is not None
        with self._store.latch:
            is_cut = self._deletes.is_cut
            words = self._store.resources.no_words if is_cut else self._deletes.next()
        if is_cut:
            self._deletes = self.to_copy = None
            self._queue.clear()
            return self.begin_copy(self._full("the delete log was cut before the joiner had read it"))
        message = m.Deletes(self._deletes.epoch, self.registered, words)
        if not self._deletes.left:
            self._deletes = None
        if words.size:
            self._unanswered_words += m.size_words(message)
            self.progress.deletes += words.size // DELETED_WORDS
            self.progress.bytes += words.nbytes
            insort_right(self._queue, message, key=order_of)
        return list(self.released())

    def _fragment(self, place: FragmentPlace) -> int:
        """Return the handle of a fragment, 0 if it was dropped."""
        table = self._store.tables.by_id.get(place[0])
        return 0 if table is None else table.by_number.get(place[1], 0)

    def _pages(self, fragment: int) -> int:
        return self._store.arena.word(fragment, F_PAGES) if fragment else 0

    def _next_slice(self) -> m.Slice | None:
        """Return the next slice of a table in memory; None if the fragment was dropped or needs `read` (disk
        columns).
        """
        assert self.to_copy is not None
        store = self._store
        place, since = self.to_copy[0]
        with store.latch:
            store.epochs.settle()
            fragment = self._fragment(place)
            if not fragment:  # the stream has the change that dropped it
                self._next_fragment()
                return None
            if store.tables.by_id[place[0]].format.has_disk:
                self.wants_read = True
                return None
            sequence = store.log.divide()
            found = self._scan(place, fragment, since, sequence, store.epochs.current, self._slice_slots)
        return self._counted(found)

    def _scan(self, place: FragmentPlace, fragment: int, since: int, sequence: int, epoch: int, slots: int) -> m.Slice:
        """Return a slice that starts at the current position. The latch must be held."""
        with_empty = self.progress.variant != m.DELETE_LOG  # the delete log has reported the empty slots
        found = self._changes.next(fragment, self._position, since, with_empty, slots)
        self.progress.slots += found.slots
        version = self._store.tables.by_id[place[0]].definition.version
        return m.Slice(place, version, found.start, found.stop, epoch, sequence, found.words, found.rows)

    def _counted(self, made: m.Slice) -> m.Slice:
        self._position = made.stop
        self._unanswered_words += m.size_words(made)
        self.progress.rows += made.rows
        self.progress.bytes += made.words.nbytes
        pages = self._pages(self._fragment(made.place))
        self.progress.pages_done += min(made.stop >> 16, pages) - min(made.start >> 16, pages)
        if made.stop == ROWID_END:
            self._next_fragment()
        return made

    def _next_fragment(self) -> None:
        assert self.to_copy is not None
        self.to_copy.popleft()
        self._position = 0
        self.progress.fragments_done += 1

    def read(self) -> None:
        """Read the next group of the log, or take the slice that needs disk parts; no message goes out meanwhile.
        Called without the mutex; `step` continues afterwards.

        Raises: RedoDamaged, PageDamaged, StoreFailed, and SnapshotTooOld if writers change more than `snapshot_memory`
        holds while a single slot is read.
        """
        if not self.wants_read:
            return
        if self._tail is not None:
            if self._sought is not None:
                self._why = self._tail.find(self._sought.next_sequence, self._sought.through)
            else:
                self._next_group = self._tail.next()
            self.wants_read = False
            return
        assert self.to_copy is not None
        place, since = self.to_copy[0]
        slots = min(self._slice_slots, DISK_SLICE_SLOTS)
        while True:
            try:
                self._read = self._read_slice(place, since, slots)
                break
            except SnapshotTooOld:
                if slots == 1:
                    raise
                slots = max(1, slots // 8)
        if self._read is None:
            self._next_fragment()
        self.wants_read = False

    def _read_slice(self, place: FragmentPlace, since: int, slots: int) -> m.Slice | None:
        """Return a slice with disk parts; None if its fragment was dropped."""
        store = self._store
        scanned: list[m.Slice] = []

        def look(snapshot: Snapshot) -> None:
            fragment = self._fragment(place)
            if fragment:
                sequence, epoch = snapshot.log_start[1] - 1, store.epochs.current
                scanned.append(self._scan(place, fragment, since, sequence, epoch, slots))

        snapshot = store.snapshots.begin(Snapshot, look)
        try:
            if not scanned:
                return None
            made = scanned[0]
            table = next(each for each in snapshot.by_name.values() if each.table_id == place[0])
            words = with_disk_parts(snapshot, table, items_of(made.words, table))
        finally:
            snapshot.close()
        numbers = (made.version, made.start, made.stop, made.epoch, made.sequence)
        return m.Slice(place, *numbers, words, made.rows)

    def end_copy(self) -> m.End:
        store = self._store
        with store.latch:
            epoch, _, sequence = store.epochs.close()
            message = m.End(sequence - 1, epoch, store.epochs.current)
        self._has_ended = self.progress.is_done = True
        return message
