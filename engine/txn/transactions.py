"""Begin and end of transactions, and freeing the memory of dropped tables and partitions.

Nothing here starts a thread or a timer; the public floor (`tidemark`) runs the store's threads.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tidemark.engine.base.errors import LimitExceeded, Rejected
from tidemark.engine.base.ids import NO_EPOCH
from tidemark.engine.base.limits import TRANSACTIONS_OPEN_MAX
from tidemark.engine.memory.arena_layout import CAPTURE_NONE
from tidemark.engine.table.table import DroppedFragment, Table
from tidemark.engine.txn.in_call import is_in_call
from tidemark.engine.txn.locks import Place
from tidemark.engine.txn.resources import Resources
from tidemark.engine.txn.transaction import BUFFER_WORDS, Transaction

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.base.options import Options
    from tidemark.engine.memory.arena import Arena
    from tidemark.engine.schema.definition import TableDefinition

T = TypeVar("T", bound=Transaction)

SPARE_PLACES = 64
KILL_SECONDS = 10.0
KILL_POLL_SECONDS = 0.002
HOLDERS_SHOWN = 20
# In calling order. Each has a name, so that one can be added or removed without the others.
FOLLOWERS = ("binlog", "archive")


class Transactions(Resources):
    """The open transactions of one store."""

    def __init__(self, arena: Arena, options: Options, clock: Clock, failure: Failure, seed: int) -> None:
        super().__init__(arena, options, clock, failure, seed)
        self.schema_latch = threading.Lock()
        self.tables = {}
        self.qualified = {}
        self.by_id: dict[int, Table] = {}
        self.next_table_id = 1
        # Followers that must have read the log through the epoch of a local checkpoint before it is published and the
        # log is cut, by a name of `FOLLOWERS`. Each call returns when the follower has read it, or raises.
        self.followers: dict[str, Callable[[int], None]] = {}
        # Returns which before-images a table logs for followers; called when the table is created.
        self.capture_of: Callable[[TableDefinition], int] = lambda definition: CAPTURE_NONE
        # Creates a table when it is first named; not called with `schema_latch` held.
        self.make_named: Callable[[str], Table | None] = lambda name: None
        self.schema_epoch = NO_EPOCH  # of the last schema change that was made here
        self.schema_authors: dict[int, int] = {}  # by thread: site of origin of its schema changes
        self.refusal = None
        self._applied: tuple[int, str] | None = None  # thread, and the schema change of another node it applies
        self._slots = itertools.count(1)
        self._spare_slots: list[int] = []
        self.spare_places = []
        self.place_of_calls: Place | None = None
        # Dropped tables and partitions, each with the open transactions and scans that may still use its memory.
        self.dropped: list[tuple[Table | DroppedFragment, set[object]]] = []
        self.pins: set[object] = set()
        self._left: deque[object] = deque()  # users that ended while dropped memory waited for its last one
        self.index_generation = 0  # raised after the kernel that announces an index

    # --- transactions ----------------------------------------------------------------------------
    def open_now(self) -> list[Place]:
        """Return the places of the transactions that are open now."""
        return list(self.locks.by_slot.values())

    def end_abandoned(self) -> None:
        """Roll back the transactions that were dropped without an end, see `Resources`."""
        abandoned = self.locks.abandoned
        while abandoned:
            try:
                place = abandoned.popleft()
            except IndexError:  # another thread has taken the last one
                return
            Transaction.of_dropped(self, place).rollback()

    def roll_back_all(self) -> None:
        """Roll back all transactions that have begun, of all threads."""
        self.end_abandoned()
        for place in self.open_now():
            txn = None if place.owner is None else place.owner()
            if txn is not None:
                txn.rollback()

    def kill(self, txid: int, why: str) -> bool:
        """Roll back an open transaction of any thread. Its thread gets TransactionKilled at its next call, or in the
        call that waits for a lock. why: what that error says.

        Return False if another call of the transaction did not end within KILL_SECONDS: then it is rolled back at its
        thread's next call, or by another `kill`. A commit that is under way completes. Raises: Rejected if no such
        transaction is open.
        """
        place = next((each for each in self.open_now() if each.txid == txid), None)
        txn = None if place is None or place.owner is None else place.owner()
        if place is None or not isinstance(txn, Transaction) or txn.is_ended:
            raise Rejected(f"transaction {txid:#x} is not open; status()['transactions'] lists those that hold locks")
        is_own = place.thread == threading.get_ident()
        txn.kill(why)
        served = self.locks.served.get(txid)
        self.locks.stop_waiting(place)
        deadline = self.clock.monotonic() + KILL_SECONDS
        while not txn.is_ended:
            if is_own or not is_in_call(place.thread):
                txn.end_killed()
            elif self.clock.monotonic() >= deadline:
                return False
            else:
                self.clock.sleep(KILL_POLL_SECONDS)
        if served is not None:
            served.wake()  # the thread of the link forgets it
        return True

    def kill_client(self, address: str) -> bool:
        """End the link of a client, and roll back its transaction. Return False if its call did not end within
        KILL_SECONDS; its thread then does that after the call. Raises: Rejected if no such client is connected.
        """
        client = self.locks.clients.get(address)
        if client is None:
            raise Rejected(f"no client {address!r} is connected; status()['transactions'] lists those that hold locks")
        client.cut()
        for txid in [txid for txid, served in list(self.locks.served.items()) if served is client]:
            with suppress(Rejected):  # it has ended meanwhile
                self.kill(txid, "its client was killed")
        deadline = self.clock.monotonic() + KILL_SECONDS
        while self.locks.clients.get(address) is client:
            if self.clock.monotonic() >= deadline:
                return False
            self.clock.sleep(KILL_POLL_SECONDS)
        return True

    def holders(self) -> list[dict[str, Any]]:
        """Return the open transactions that hold locks or belong to a client, those with the oldest locks first, at
        most HOLDERS_SHOWN: `txid`, `client` (its address, None for one of this process), `thread` (its name), `held_ms`
        since its first call that locks rows, `idle_ms` since its client's last call, and `waits`, whether it waits for
        a lock.
        """
        now, names = self.clock.monotonic(), {each.ident: each.name for each in threading.enumerate()}
        found: list[dict[str, Any]] = []
        for place in self.open_now():
            served, since = self.locks.served.get(place.txid), place.locked_at
            if since is None and served is None:
                continue
            idle_at = None if served is None else served.idle_at
            found.append(
                {
                    "txid": place.txid,
                    "client": None if served is None else served.client,
                    "thread": names.get(place.thread),
                    "held_ms": 0 if since is None else int((now - since) * 1_000),
                    "idle_ms": None if idle_at is None else int((now - idle_at) * 1_000),
                    "waits": place in self.locks.waiting,
                }
            )
        return sorted(found, key=itemgetter("held_ms"), reverse=True)[:HOLDERS_SHOWN]

    def _users(self) -> set[object]:
        """Return the transactions, by id, and the holders of pins that may use a table now."""
        return {*(place.txid for place in self.open_now()), *self.pins}

    def admit(self) -> None:
        """Check that a transaction may be made now. Raises: StoreFailed; the error of `refusal`."""
        if self.refusal is not None:
            raise self.refusal()
        if self.failure.first is not None:
            self.failure.check()
        if self.locks.abandoned:
            self.end_abandoned()

    def begin(self, any_value: int = 0, author: int = 0, kind: type[T] = Transaction) -> T:  # type: ignore[assignment]
        """Return a transaction of the calling thread, of the subclass `kind` if given, which has begun. Raises: as
        `Transaction.begin`.
        """
        txn = kind(self)
        txn.begin(any_value | author << 32)
        return txn

    def begin_applied(self, any_value: int, author: int, kind: type[T], redo_words: int = 0) -> T:
        """Begin a transaction for commits of another node, regardless of `refusal`. redo_words: words of log to
        reserve; 0 for a caller that has waited for room for a whole group, since it must not wait within the group.
        """
        txn = kind(self)
        txn.begin(any_value | author << 32, redo_words, is_applied=True)
        return txn

    def new_place(self) -> Place:
        """Return a new place for a transaction, see `Resources`."""
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
        return Place(slot, desc, buf, view)

    def own_place(self) -> Place:
        """Return the place for transactions of one kernel call, see `Resources`."""
        if self.place_of_calls is None:
            self.place_of_calls = self.new_place()
        return self.place_of_calls

    def retire(self, txn: Transaction) -> None:
        """Return the resources of a transaction that ends, see `Resources`."""
        place = txn.place
        if txn.is_ended or self.locks.by_slot.get(place.slot) is not place:
            return
        del self.locks.by_slot[place.slot]
        txn.is_ended = True  # before another transaction can get its place
        place.owner = None
        self.spare_shown.append(txn.shown)
        if self.dropped:
            self._leave(txn.txid)
        if txn.buf is place.buf and len(self.spare_places) < SPARE_PLACES:
            self.spare_places.append(place)
        else:
            self.arena.free_descriptor(place.desc)
            self._spare_slots.append(place.slot)

    def await_followers(self, epoch: int) -> None:
        """Wait, before a local checkpoint is published, until followers have read the log through its epoch. Raises:
        StorageFull, with which the local checkpoint is abandoned; StoreFailed.
        """
        for name in FOLLOWERS:
            if name in self.followers:
                self.awaited = name
                self.followers[name](epoch)
        self.awaited = None

    # --- memory of dropped tables and partitions --------------------------------------------------
    def pin(self, holder: object) -> None:
        """Until `unpin`, keep the memory of tables dropped from now on, for a scan or a local checkpoint."""
        self.pins.add(holder)

    def unpin(self, holder: object) -> None:
        """End a pin: the holder no longer uses any table."""
        self.pins.discard(holder)
        if self.dropped:
            self._leave(holder)

    def _release(self, dropped: Table | DroppedFragment) -> None:
        """Free the memory of a dropped table or partition when it has no more users. Call with `schema_latch` held.

        It is listed before the users are read again: a user that leaves in between finds it in the list, or is missing
        from the second reading.
        """
        users = self._users()
        self.dropped.append((dropped, users))
        users.intersection_update(self._users())
        self._drop_unused()

    def _leave(self, gone: object) -> None:
        """Note that a transaction, or the holder of a pin, no longer uses any table, while dropped ones wait for it.

        If the latch is held, memory is freed when the next user leaves: the holder may be this very thread, if a
        finalizer ends a pin in the middle of a schema change.
        """
        self._left.append(gone)
        if not self.schema_latch.locked():
            with self.schema_latch:
                self._drop_unused()

    def _drop_unused(self) -> None:
        """Free dropped memory whose last users have left. Call with `schema_latch` held."""
        while self._left:
            gone = self._left.popleft()
            for _, users in self.dropped:
                users.discard(gone)
        for dropped, users in self.dropped:
            if not users:
                dropped.drop()  # repeated if Ctrl-C interrupted it; it skips structures already withdrawn
        self.dropped = [entry for entry in self.dropped if entry[1]]

    def has_dropped_fragments(self, table: Table) -> bool:
        """Whether a dropped partition of a table may still be in use."""
        dropped = [each for each, _ in list(self.dropped) if isinstance(each, DroppedFragment)]
        return any(each.table.handle == table.handle for each in dropped)
