"""Row locks: shared locks, waiters, and the choice of deadlock victims.

Exclusive locks are in row headers, where kernels take and free them. This module owns the shared locks, the waiters and
the wait-for graph. A waiter registers with every holder; when a holder frees a row with waiters, all its waiters retry.

Invariants:

- K1: a row's shared mark is set exactly while `shared` has the row, except after its only holder has upgraded the lock
  to exclusive. A rollback to a savepoint before the upgrade sets the mark again.
- K2: a waiter is registered and its row marked as waited for under one guard, so that a holder that frees the row
  afterwards sees the mark.
- K3: a cycle is found when its last edge is added. Its victim is the transaction that began last (at its first change
  or lock). Several cycles closed at once have one victim each.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import Deadlock, LockTimeout, Rejected
from tidemark.engine.memory.arena_layout import LOCK_OP_MASK, LOCK_SHARED, LOCK_WAITED, O_TXN, ST_MEMORY, X_SLOT
from tidemark.engine.txn.operations_kernels import exchange_lock, mark_waited, upgrade_lock

if TYPE_CHECKING:
    from tidemark.engine.base.failure import Failure
    from tidemark.engine.memory.arena import Arena, Words

RowKey = tuple[int, int]  # fragment address, ROWID
FAILURE_POLL_SECONDS = 0.1
HOLDERS_SHOWN = 20


class Owner(Protocol):
    """A transaction as its place sees it."""

    def rollback(self) -> None: ...


class Place:
    """The reusable memory of a transaction, and the transaction in it as the lock table sees it.

    The table of open transactions refers to places only, so that a transaction dropped by its thread is collected.
    """

    __slots__ = (
        "buf",
        "buf_bytes",
        "desc",
        "grown",
        "locked_at",
        "owner",
        "shared",
        "slot",
        "spool",
        "thread",
        "txid",
    )

    def __init__(self, slot: int, desc: int, buf: Words, buf_bytes: memoryview) -> None:
        self.slot = slot
        self.desc = desc  # address of the descriptor in the arena
        self.buf = buf
        self.buf_bytes = buf_bytes
        self.shared: dict[RowKey, None] = {}  # rows on which the transaction holds a shared lock, in their order
        self.txid = 0
        self.thread = 0
        self.locked_at: float | None = None  # when its first call that locks rows began
        self.owner: weakref.ref[Owner] | None = None
        self.grown: Words | None = None  # the larger buffer in use in place of `buf`
        self.spool: Any = None  # that of the transaction


@dataclass(slots=True, eq=False)
class Served:
    """A client of another process, whose calls a thread of this one executes: its address, when its last call was
    answered (None during a call), how to wake that thread, and how to end the link.
    """

    client: str
    wake: Callable[[], None]
    cut: Callable[[], None]
    idle_at: float | None = None


class LockedRow(NamedTuple):
    """A row as errors name it."""

    table: str
    key: Any
    text: str


class Waiter:
    """One blocked transaction: the row, the gate at which its thread sleeps, and the holders it waits for."""

    __slots__ = ("gate", "holders", "is_victim", "key")

    def __init__(self, key: RowKey, holders: set[Place]) -> None:
        self.key = key
        self.gate = threading.Lock()
        self.gate.acquire()
        self.holders = holders
        self.is_victim = False


class LockTable:
    """Shared locks, waiters and the wait-for graph of one store."""

    def __init__(self, arena: Arena, clock: Clock, timeout_ms: int, failure: Failure) -> None:
        self._arena = arena
        self._mem = arena.mem
        self._failure = failure
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._guard = threading.Lock()
        self.shared: dict[RowKey, set[Place]] = {}
        self.waiting: dict[Place, Waiter] = {}
        self._waiters_of: dict[Place, set[Place]] = {}
        self.by_slot: dict[int, Place] = {}
        self.served: dict[int, Served] = {}  # by txid: open transactions of clients
        self.clients: dict[str, Served] = {}  # by address
        # Places of transactions that were dropped without an end and must be rolled back; a waiter does not sleep
        # while there are some, since they may hold the lock.
        self.abandoned: deque[Place] = deque()
        self.waits = 0
        self.deadlocks = 0
        self.timeouts = 0

    def open_now(self) -> list[Place]:
        """Return the places of the transactions that are open now."""
        return list(self.by_slot.values())

    def holders(self) -> list[dict[str, Any]]:
        """Return the open transactions that hold locks or belong to a client, those with the oldest locks first, at
        most HOLDERS_SHOWN: `txid`, `client` (its address, None for one of this process), `thread` (its name), `held_ms`
        since its first call that locks rows, `idle_ms` since its client's last call, and `waits`, whether it waits for
        a lock.
        """
        now, names = self._clock.monotonic(), {each.ident: each.name for each in threading.enumerate()}
        found: list[dict[str, Any]] = []
        for place in self.open_now():
            served, since = self.served.get(place.txid), place.locked_at
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
                    "waits": place in self.waiting,
                }
            )
        return sorted(found, key=itemgetter("held_ms"), reverse=True)[:HOLDERS_SHOWN]

    def deadline(self) -> float:
        """Return the deadline of a wait that begins now."""
        return self._clock.monotonic() + self._timeout_ms / 1_000

    def share(self, txn: Place, key: RowKey, lock: int) -> bool:
        """Take a shared lock on a row whose lock word was `lock` (free or shared). Return False if the word has
        changed, or if a waiter needs the shared holders to leave.
        """
        with self._guard:
            holders = self.shared.get(key)
            if holders is not None and txn in holders:
                return True
            if lock & LOCK_WAITED and holders and any(waiter.key == key for waiter in self.waiting.values()):
                return False  # a new shared holder could starve the waiter
            # Registered before the row is marked, so that the transaction's end frees the lock even after a signal in
            # between.
            txn.shared[key] = None
            holders = self.shared.setdefault(key, set())
            holders.add(txn)
            if exchange_lock(self._mem, key[0], key[1], lock, LOCK_SHARED):
                return True
            txn.shared.pop(key, None)
            holders.discard(txn)
            if not holders:
                del self.shared[key]
            return False

    def release_shared(self, txn: Place, kept: int = 0) -> None:
        """Release the shared locks of a transaction, except for the first `kept` that it has taken."""
        with self._guard:
            released = list(txn.shared)[kept:]
            for key in released:
                holders = self.shared.get(key)
                if holders is None:
                    continue  # an earlier call was interrupted by a signal
                holders.discard(txn)
                if not holders:
                    exchange_lock(self._mem, key[0], key[1], LOCK_SHARED, 0)
                    del self.shared[key]
            for key in released:
                txn.shared.pop(key, None)
            self._wake(txn)

    def wake(self, txn: Place) -> None:
        """Wake all waiters of `txn` to retry."""
        with self._guard:
            self._wake(txn)

    def dropped(self, owner: weakref.ref[Owner]) -> None:
        """Queue a transaction that was dropped without an end; a later call rolls it back. The collector may call this
        in a thread that holds a latch which the rollback takes.
        """
        for place in list(self.by_slot.values()):
            if place.owner is owner and self._failure.first is None:
                self.abandoned.append(place)
                warnings.warn(
                    f"transaction {place.txid:#x} was dropped without commit() or rollback() and is rolled back; use"
                    " `with`",
                    ResourceWarning,
                    stacklevel=2,
                )

    def is_held(self, txn: Place, key: RowKey, lock: int) -> bool:
        """Whether another transaction holds a row's lock, whose word was `lock`. If none does, the caller retries."""
        with self._guard:
            return bool(self._holders(txn, key, lock))

    def wait(self, txn: Place, key: RowKey, lock: int, deadline: float, row: LockedRow) -> None:
        """Wait until the holders of a row's lock may have released it; return at once if they have.

        Raises: Deadlock if this transaction is (or becomes) the victim, LockTimeout at the deadline, Rejected if
        another transaction of this thread holds the lock.
        """
        with self._guard:
            holders = self._holders(txn, key, lock)
            if not holders or not mark_waited(self._mem, key[0], key[1], lock):
                return
            self._refuse_own(txn, holders, row)
            waiter = Waiter(key, holders)
            victims: list[Place] = []
            while (victim := self._victim(txn, holders, victims)) is not None:
                if victim is txn:
                    self.deadlocks += 1
                    raise self._deadlock(row, holders)
                victims.append(victim)
            self.waits += 1
            self.waiting[txn] = waiter
            for holder in holders:
                self._waiters_of.setdefault(holder, set()).add(txn)
            for victim in victims:
                self.waiting[victim].is_victim = True
                self.waiting[victim].gate.release()
                self._forget(victim)
        self._sleep(txn, waiter, deadline, row)

    def _refuse_own(self, txn: Place, holders: set[Place], row: LockedRow) -> None:
        own = [holder.txid for holder in holders if holder.thread == txn.thread]
        if own:
            holder = min(own)  # the same one each time, however many share the lock
            raise Rejected(
                f"{row.text}: this thread holds the lock in transaction {holder:#x}; commit or roll it back first",
                table=row.table,
                key=row.key,
                holder=holder,
            )

    def _evidence(self, row: LockedRow, holders: set[Place]) -> dict[str, Any]:
        """Return the fields of an error about a lock: the row, and the transaction that has held locks for longest."""
        now = self._clock.monotonic()
        since, txid = min((now if each.locked_at is None else each.locked_at, each.txid) for each in holders)
        evidence = {"table": row.table, "key": row.key, "holder": txid, "held_ms": int((now - since) * 1_000)}
        served = self.served.get(txid)
        return evidence if served is None else {**evidence, "client": served.client}

    def named(self, txid: int) -> str:
        """Return a transaction as messages name it, with the address of its client."""
        served = self.served.get(txid)
        return f"transaction {txid:#x}" + ("" if served is None else f" of client {served.client}")

    def stop_waiting(self, txn: Place) -> None:
        """Let a transaction that waits for a lock retry at once."""
        with self._guard:
            waiter = self.waiting.get(txn)
            if waiter is not None:
                self._forget(txn)
                waiter.gate.release()

    def _deadlock(self, row: LockedRow, holders: set[Place]) -> Deadlock:
        """Return the error of a victim that waits for `row`. Another thread may have found the cycle, so the message
        names neither that thread nor a time.
        """
        evidence = self._evidence(row, holders)
        return Deadlock(
            f"deadlock: this transaction waits for {row.text}, which {self.named(evidence['holder'])} holds; this"
            " transaction was rolled back, run it again",
            **evidence,
        )

    def _sleep(self, txn: Place, waiter: Waiter, deadline: float, row: LockedRow) -> None:
        woken = False
        try:
            left = max(0.0, deadline - self._clock.monotonic())
            # In short waits: after the store has failed or was closed, the holder of the lock may never end.
            while not woken and left >= 0 and self._failure.first is None and not self.abandoned:
                woken = waiter.gate.acquire(timeout=min(left, FAILURE_POLL_SECONDS))
                left -= FAILURE_POLL_SECONDS
                # Forgotten but still asleep: the wake-up was interrupted by a signal.
                woken = woken or self.waiting.get(txn) is not waiter
        finally:
            if not woken:
                with self._guard:
                    self._forget(txn)
        if waiter.is_victim:
            self.deadlocks += 1
            raise self._deadlock(row, waiter.holders)
        if not woken and not self.abandoned:
            self._failure.check()
            self.timeouts += 1
            evidence = self._evidence(row, waiter.holders)
            raise LockTimeout(
                f"the lock on {row.text} was not granted within {self._timeout_ms:,} ms:"
                f" {self.named(evidence['holder'])} has held locks for {evidence['held_ms']:,} ms;"
                " this one was rolled back, run it again",
                **evidence,
            )

    def _holders(self, txn: Place, key: RowKey, lock: int) -> set[Place]:
        if lock & LOCK_SHARED:
            holders = self.shared.get(key, set()) - {txn}
            if not holders and txn in self.shared.get(key, ()):
                # The only shared holder upgrades: one kernel call makes its lock exclusive, atomically. It stays in
                # `shared`: rolling back to a savepoint restores the shared lock.
                if upgrade_lock(self._mem, txn.desc, key[0], key[1]) == ST_MEMORY:
                    raise self._arena.no_room("a lock")
            return holders
        cell = (lock & LOCK_OP_MASK) << 3
        # The cell may have been freed and reused since; `mark_waited`, under the guard, detects that.
        slot = int(self._mem[int(self._mem[cell + O_TXN]) + X_SLOT])
        holder = self.by_slot.get(slot)
        return set() if holder is None or holder is txn else {holder}

    def _victim(self, txn: Place, holders: set[Place], gone: Sequence[Place]) -> Place | None:
        """Return the youngest transaction of a cycle that the new edges close, or None. gone: victims already chosen,
        which no longer wait.
        """
        path: list[Place] = [txn]

        def search(at: Place, seen: set[Place]) -> bool:
            waiter = None if at in gone else self.waiting.get(at)
            for holder in holders if at is txn else (waiter.holders if waiter else ()):
                if holder is txn:
                    return True
                if holder not in seen:
                    seen.add(holder)
                    path.append(holder)
                    if search(holder, seen):
                        return True
                    path.pop()
            return False

        if not search(txn, set()):
            return None
        return max(path, key=lambda each: each.txid)

    def _wake(self, txn: Place) -> None:
        for waiting in list(self._waiters_of.get(txn, ())):
            waiter = self.waiting.get(waiting)
            if waiter is not None and txn in waiter.holders:
                self._forget(waiting)
                waiter.gate.release()
        self._waiters_of.pop(txn, None)

    def _forget(self, txn: Place) -> None:
        waiter = self.waiting.pop(txn, None)
        if waiter is not None:
            for holder in waiter.holders:
                others = self._waiters_of.get(holder)
                if others is not None:
                    others.discard(txn)

    def counters(self) -> dict[str, int]:
        """Return the counters for `status()`."""
        return {
            "waits": self.waits,
            "deadlocks": self.deadlocks,
            "timeouts": self.timeouts,
            "waiting": len(self.waiting),
            "shared": len(self.shared),
        }
