"""The live node's side of a node restart: one object for each joiner, in steps (docs/node-group.md, 4).

A slice is taken under the commit latch, with the filling group ended and no large commit half applied: it is the state
behind a group s, and goes out between s and s + 1. So no row is locked, and a joiner that handles everything in order
meets each change exactly once: in a slice, or behind it in the stream.

Whoever carries the messages holds one mutex around every call of a source and around taking groups out of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InvariantBroken
from engine.kernels.node_copy import (
    N_LOOKED,
    N_POSITION,
    N_ROWS,
    N_USED,
    NODE_COPY_STATE_WORDS,
    scan_changed,
)
from engine.layout.arena import F_PAGES, OK, ST_MORE, ST_SPACE
from engine.layout.node_copy import ROWID_END
from engine.layout.redo import GROUP_WORDS
from engine.log.spool_reader import SpoolReader, referred
from recovery.node_restart.messages import (
    ROWID_SYNC,
    Begin,
    End,
    GroupPart,
    Slice,
    TablespaceShape,
    Welcome,
)
from recovery.node_restart.progress import Progress

if TYPE_CHECKING:
    from engine.file_protocol import Files
    from engine.log.reader import GroupRead
    from engine.memory.arena import Words
    from engine.store import Store
    from recovery.node_restart.messages import FragmentPlace, FromLive, Plan, Ready, Taken

# The latch is held for the slots of one slice: 0.3 ms if none has changed, 256 KiB copied if all have.
SLICE_SLOTS = 32_768
SLICE_WORDS = 32_768
UNANSWERED_WORDS = 32_768  # 256 KiB on their way: slices wait beyond


class Source:
    """Serves one joiner from one open store. Made for one try: a joiner that comes again gets another."""

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
        self._out: Words = np.empty(slice_words, dtype=np.int64)
        self._state: Words = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
        self._registered: int | None = None  # groups behind this one are the joiner's business
        self._sent = 0  # newest group that went out
        self._held: deque[tuple[int, FromLive]] = deque()  # what goes out behind a group, in order
        self._to_copy: deque[tuple[FragmentPlace, int]] | None = None
        self._unanswered_words = 0
        self._has_ended = False
        self.progress = Progress(store.clock, store.clock.monotonic())

    def welcome(self) -> Welcome:
        """What a joiner must know before it restarts."""
        return Welcome(*self._identity)

    @property
    def is_waiting(self) -> bool:
        """Whether `step` has nothing to do before the joiner answers or the stream goes on."""
        return self._to_copy is None or self._has_ended or bool(self._unanswered_words >= UNANSWERED_WORDS)

    @property
    def held_behind(self) -> int:
        """The group that must go out before anything else does, 0 if nothing waits: see that it becomes durable."""
        return self._held[0][0] if self._held else 0

    # --- what the joiner says --------------------------------------------------------------------
    def begin(self, ready: Ready) -> list[FromLive]:
        """Let the joiner take part: from here on the groups of the stream are its business. Raises: StoreFailed."""
        store = self._store
        why = "" if ready.through else "full copy: the joiner has no state that counts"
        with store.latch:
            store.epochs.settle()
            sequence = store.log.divide()
            space = store.space
            message = Begin(
                ROWID_SYNC,
                why,
                sequence,
                tuple(table.definition for table in store.by_id.values()),
                tuple(
                    TablespaceShape(each.definition, tuple(file.extents for file in each.files))
                    for each in space.tablespaces()
                ),
                store.next_table_id,
                space.next_tablespace_id,
                space.next_file_id,
            )
            self._registered = self._sent = sequence
        self.progress.variant, self.progress.why = message.variant, message.why
        return [message]

    def plan(self, plan: Plan) -> None:
        """What the joiner wants copied."""
        self._to_copy = deque(sorted(plan.since.items()))
        self._state[N_POSITION] = 0
        self.progress.fragments = len(self._to_copy)
        for place in plan.since:
            fragment = self._fragment(place)
            self.progress.pages += int(self._store.mem[fragment + F_PAGES]) if fragment else 0

    def taken(self, taken: Taken) -> None:
        """A slice has arrived."""
        self._unanswered_words -= taken.words

    # --- the stream ------------------------------------------------------------------------------
    def group(self, group: GroupRead) -> Iterator[FromLive]:
        """What goes out for the next group of the log, to be taken to its end before anything else is asked: its
        records, those of files it names, and slices that waited for it. Raises: SpoolDamaged, InvariantBroken.
        """
        if self._registered is None or group.sequence <= self._registered:
            return
        if group.sequence != self._sent + 1:
            raise InvariantBroken(f"the stream goes on with group {group.sequence} behind {self._sent}; join again")
        self.progress.groups += 1
        yield from self._parts(group)
        self._sent = group.sequence
        yield from self._released()

    def _parts(self, group: GroupRead) -> Iterator[GroupPart]:
        what = referred(group)
        if what is not None:
            reader = SpoolReader(self._files, self._identity[0], what)
            reader.verify()
            for block in reader.blocks():
                yield GroupPart(group.sequence, group.epoch, block.words, block.start, block.stop, False)
        # Of a group that names files its own records change nothing, but it is the last of them.
        stop = GROUP_WORDS + group.records_words
        yield GroupPart(group.sequence, group.epoch, group.words, GROUP_WORDS, stop, True)

    def _released(self) -> Iterator[FromLive]:
        while self._held and self._held[0][0] <= self._sent:
            yield self._held.popleft()[1]

    # --- the scan --------------------------------------------------------------------------------
    def step(self) -> list[FromLive]:
        """Take the next slice, or the end behind the last. Nothing may go out before groups that are to be written
        first: see `held_behind`. Raises: StoreFailed.
        """
        if self.is_waiting:
            return []
        assert self._to_copy is not None
        message = self._next_slice() if self._to_copy else self._end()
        if message is not None:
            self._held.append((message.sequence, message))
        return list(self._released())

    def _fragment(self, place: FragmentPlace) -> int:
        """Descriptor of a fragment, 0 if it was dropped."""
        table = self._store.by_id.get(place[0])
        return 0 if table is None else table.by_number.get(place[1], 0)

    def _next_slice(self) -> Slice | None:
        assert self._to_copy is not None
        store, state = self._store, self._state
        place, since = self._to_copy[0]
        while True:
            with store.latch:
                store.epochs.settle()
                fragment = self._fragment(place)
                if not fragment:  # its end is in the stream
                    self._go_on()
                    return None
                start = int(state[N_POSITION])
                state[N_USED] = state[N_ROWS] = 0
                sequence = store.log.divide()
                status = int(scan_changed(store.mem, fragment, since, 1, self._slice_slots, self._out, state))
                epoch = store.epochs.current
                version = store.by_id[place[0]].definition.version
            if status > ST_SPACE or int(state[N_POSITION]) > start:
                break
            self._out = np.empty(ST_SPACE - status, dtype=np.int64)  # not even one row found room
        if status not in (OK, ST_MORE) and status > ST_SPACE:
            raise InvariantBroken(f"the scan of table {place[0]} ended with status {status}; join again")
        words = self._out[: int(state[N_USED])].copy()
        stop = int(state[N_POSITION])
        made = Slice(place, version, start, stop, epoch, sequence, words, int(state[N_ROWS]))
        self._unanswered_words += made.size_words
        self.progress.rows += made.rows
        self.progress.bytes += words.nbytes
        self.progress.pages_done += min(stop >> 16, self._pages(fragment)) - min(start >> 16, self._pages(fragment))
        if stop == ROWID_END:
            self._go_on()
        return made

    def _pages(self, fragment: int) -> int:
        return int(self._store.mem[fragment + F_PAGES])

    def _go_on(self) -> None:
        assert self._to_copy is not None
        self._to_copy.popleft()
        self._state[N_POSITION] = 0
        self.progress.fragments_done += 1

    def _end(self) -> End:
        store = self._store
        with store.latch:
            store.epochs.settle()
            message = End(store.log.divide(), store.epochs.current)
        self._has_ended = self.progress.is_done = True
        return message


assert N_LOOKED < NODE_COPY_STATE_WORDS
