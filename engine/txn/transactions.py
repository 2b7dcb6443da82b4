"""How transactions begin and end, and when memory of what was dropped goes.

Restart (`recovery`) builds a Store from what the files hold; the face (`tidemark`) gives it threads. Nothing in here
starts a thread or decides when.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from tidemark.engine.base.errors import (
    Error,
    LimitExceeded,
)
from tidemark.engine.base.limits import TRANSACTIONS_OPEN_MAX
from tidemark.engine.memory.arena_layout import CAPTURE_NONE, OK, S_INDEX_GENERATION, X_GENERATION
from tidemark.engine.table.table import DroppedFragment, Table
from tidemark.engine.txn.begin_kernels import begin_transaction
from tidemark.engine.txn.commit_kernels import abort_step
from tidemark.engine.txn.resources import Resources
from tidemark.engine.txn.transaction import BUFFER_WORDS, PAD_WORDS, Place, Transaction

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.options import Options
    from tidemark.engine.memory.arena import Arena
    from tidemark.engine.schema.definition import TableDefinition

T = TypeVar("T", bound=Transaction)

SPARE_PLACES = 64
# In the order they are asked. Each has a name, so that one that comes or goes leaves the others.
FOLLOWERS = ("binlog", "archive")


class Transactions(Resources):
    """The open transactions of one store."""

    def __init__(self, arena: Arena, options: Options, clock: Clock, failure: Failure, seed: int) -> None:
        super().__init__(arena, options, clock, failure, seed)
        self.schema_latch = threading.Lock()
        self.tables: dict[str, Table] = {}
        self.by_id: dict[int, Table] = {}
        self.next_table_id = 1
        # Followers that must have read the log through the epoch of a local checkpoint before that is published, and
        # the log cut: by a name of `FOLLOWERS`. Each returns when it has, or raises.
        self.followers: dict[str, Callable[[int], None]] = {}
        # What operations on a table leave in the log for its followers; asked when the table is made.
        self.capture_of: Callable[[TableDefinition], int] = lambda definition: CAPTURE_NONE
        # Tables that are made when they are first named; not asked with `schema_latch` held.
        self.make_named: Callable[[str], Table | None] = lambda name: None
        self.schema_authors: dict[int, int] = {}  # by thread: site its schema changes come from
        # The error for who begins a transaction, or a schema change, at a node that takes none; None: this one does.
        self.refusal: Callable[[], Error] | None = None
        self._applied: tuple[int, str] | None = None  # thread, and the schema change of another node it makes here
        self._slots = itertools.count(1)
        self._spare_slots: list[int] = []
        self.spare_places: list[Place] = []
        # What was dropped, and the open transactions and scans that may still be looking at its memory.
        self.dropped: list[tuple[Table | DroppedFragment, set[object]]] = []
        self.pins: set[object] = set()
        self._left: deque[object] = deque()  # users that have ended while something dropped waited for its users
        self.index_generation = 0  # raised behind the kernel that announces an index, for `begin`

    # --- transactions ----------------------------------------------------------------------------
    def open_now(self) -> list[Transaction]:
        """The transactions that are open, as of this instant."""
        return list(cast("dict[int, Transaction]", self.locks.by_slot).values())

    def begin(self, any_value: int = 0, author: int = 0, kind: type[T] = Transaction) -> T:  # type: ignore[assignment]
        """Begin a transaction of the calling thread, of a subclass `kind` if the face has one.

        Raises: StoreFailed, RedoOverloaded, BinlogOverloaded, MemoryExhausted, LimitExceeded; what `refusal` says.
        """
        if self.refusal is not None:
            raise self.refusal()
        return self.begin_applied(any_value, author, kind, BUFFER_WORDS + PAD_WORDS)

    def begin_applied(self, any_value: int, author: int, kind: type[T], redo_words: int = 0) -> T:
        """`begin` for what another node has committed, whoever is refused here. redo_words: promised room in the log;
        none for who appends a whole group, and has waited for its room: in the midst of it nothing may be waited for.
        """
        if self.failure.first is not None:
            self.failure.check()
        try:
            place = self.spare_places.pop()
        except IndexError:
            place = self._new_place()
        slot, desc, _, _ = place
        tail_word = any_value | author << 32
        generation = self.index_generation
        try:
            if begin_transaction(self.mem, desc, slot, tail_word, redo_words) != OK:
                self.wait_for_redo(lambda: bool(begin_transaction(self.mem, desc, slot, tail_word, redo_words) == OK))
            txn = kind(self, place)
            self.locks.by_slot[slot] = txn
            if self.index_generation != generation:
                # An index was announced, and whoever builds it may not have seen this one among those to wait for.
                self.mem[desc + X_GENERATION] = self.mem[S_INDEX_GENERATION]
        except BaseException:
            # Ctrl-C among others: nobody will ever end this one, so its promises are given back here (F117).
            abort_step(self.mem, desc, self.no_words, 1)
            self.spare_places.append(place)
            raise
        return txn

    def _new_place(self) -> Place:
        slot = next(self._slots) if not self._spare_slots else self._spare_slots.pop()
        try:
            if slot > TRANSACTIONS_OPEN_MAX:
                raise LimitExceeded(f"{TRANSACTIONS_OPEN_MAX} transactions are open; end some")
            buf = np.zeros(BUFFER_WORDS, dtype=np.int64)
            view = buf.data.cast("B")
            desc = self.arena.take_descriptor()
        except BaseException:
            self._spare_slots.append(slot)
            raise
        return slot, desc, buf, view

    def retire(self, txn: Transaction) -> None:
        """See `Resources`."""
        place = txn.place
        if self.locks.by_slot.get(place[0]) is not txn:
            return
        del self.locks.by_slot[place[0]]
        txn.is_ended = True  # before its place can be another's
        self._leave(txn)
        if txn.buf is place[2] and len(self.spare_places) < SPARE_PLACES:
            self.spare_places.append(place)
        else:
            self.arena.give_descriptor(place[1])
            self._spare_slots.append(place[0])

    def await_followers(self, epoch: int) -> None:
        """Before a local checkpoint is published: wait until followers have the log through its epoch. Raises:
        StorageFull, and the local checkpoint is abandoned; StoreFailed.
        """
        for name in FOLLOWERS:
            if name in self.followers:
                self.followers[name](epoch)

    # --- memory of what was dropped ---------------------------------------------------------------
    def pin(self, holder: object) -> None:
        """Keep the memory of what is dropped from now on until `unpin`: a scan or a local checkpoint looks at it."""
        self.pins.add(holder)

    def unpin(self, holder: object) -> None:
        """The holder looks at no table any more."""
        self.pins.discard(holder)
        self._leave(holder)

    def _release(self, dropped: Table | DroppedFragment) -> None:
        """Give back the memory of what was dropped when nothing looks at it any more. With `schema_latch` held.

        In the list first: a user that leaves between the two looks finds it there, or is not found by the second.
        """
        users: set[object] = {*self.locks.by_slot.values(), *self.pins}
        self.dropped.append((dropped, users))
        users.intersection_update({*self.locks.by_slot.values(), *self.pins})
        self._drop_unused()

    def _leave(self, gone: object) -> None:
        """A transaction, or the holder of a pin, looks at no table any more.

        With the latch held its memory goes when the next one leaves: the holder may be this very thread, if a finalizer
        in the middle of a change of the schema gives back a pin.
        """
        if self.dropped:
            self._left.append(gone)
            if not self.schema_latch.locked():
                with self.schema_latch:
                    self._drop_unused()

    def _drop_unused(self) -> None:
        """Give back what the users that have left were the last to look at. With `schema_latch` held."""
        while self._left:
            gone = self._left.popleft()
            for _, users in self.dropped:
                users.discard(gone)
        for dropped, users in self.dropped:
            if not users:
                dropped.drop()  # again, if Ctrl-C cut it short: what is withdrawn already is passed over
        self.dropped = [entry for entry in self.dropped if entry[1]]

    def has_dropped_fragments(self, table: Table) -> bool:
        """Whether somebody may still look at a dropped partition of a table."""
        dropped = [each for each, _ in list(self.dropped) if isinstance(each, DroppedFragment)]
        return any(each.table.handle == table.handle for each in dropped)
