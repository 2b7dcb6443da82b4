"""The local clients of a simulated site, and a ledger of their transactions: committed ones, and durable ones.

Transactions of one site commit one after the other. A crash therefore loses only the last ones, those not durable yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.sites.plan import ANY_SITE, OWNER, TWO_SOURCES
from tests.simulation.sites.tables import COMMON_FROM, JOURNAL, MAIN, OWNER_SPAN, SHARED_FROM, owner_of, rows_of
from tidemark.engine.base.errors import DuplicateKey, Retryable

if TYPE_CHECKING:
    from tests.simulation.sites.site import SimulatedSite
    from tests.simulation.sites.world import World

OWN_KEYS, COMMON_KEYS = 4, 4
CODES = ("a", "b", "c", None)  # few, so that two sites take the same
NUMBER_BITS = 32
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """A transaction's change of a row of the main table."""

    key: int
    kind: str
    tag: int
    stamp: int
    code: str | None = None


@dataclass
class Done:
    """A transaction: its row of the journal, the moment of the run and the epoch of its commit, its changes, and the
    epochs of sources that its site had applied when it began.
    """

    number: int
    moment: int
    epoch: int
    txid: int
    changes: list[Change] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)


class Work:
    """The clients of one site."""

    def __init__(self, world: World, site: SimulatedSite) -> None:
        self.world = world
        self.site = site
        self.done: list[Done] = []
        self.rewritten: set[tuple[int, int]] = set()  # epochs, and keys of rows written again as they were
        self._durable = 0
        self._doubtful: Done | None = None
        self._count = self._inserted = self._coded = 0
        self._was_inserted: set[int] = set()
        self._stamps: dict[int, int] = {}

    # --- the ledger -------------------------------------------------------------------------------
    def is_durable_now(self) -> None:
        """Record that everything committed is durable."""
        self._durable = len(self.done)

    def own_numbers(self, db: Any) -> set[int]:
        """Return the numbers of this site's journal rows in a store."""
        return {row[0] for row in rows_of(db, JOURNAL) if row[0] >> NUMBER_BITS == self.site.server_id}

    def recovered(self) -> None:
        """Check the store against the ledger after a crash, and forget what the crash lost."""
        there = self.own_numbers(self.site.db)
        doubtful, self._doubtful = self._doubtful, None
        if doubtful is not None and doubtful.number in there:
            self.done.append(doubtful)
        is_rejected = self.world.plan.case.is_transactional and self.site.number != 0
        for done in self.done[: self._durable]:
            if done.number not in there and not is_rejected:
                self.world.break_promise(f"{self.site.name} has lost transaction {done.number:x}, which was durable")
        while len(self.done) > self._durable and self.done[-1].number not in there:
            self.done.pop()
            self.world.tally.add("transactions lost before they were durable")
        for done in self.done[self._durable :]:
            if done.number not in there:
                self.world.break_promise(f"{self.site.name} has lost {done.number:x}, and not what followed it")

    # --- transactions -----------------------------------------------------------------------------
    def commit(self) -> None:
        """Run one transaction of a local client."""
        rows = {row[0]: row for row in rows_of(self.site.db, MAIN)}
        if rows and self.world.rng.random() < 0.1:
            self._change_nothing(rows)
        changes = self._drawn(rows)
        if changes:
            self._commit(changes)

    def _change_nothing(self, rows: dict[int, Row]) -> None:
        """Run a transaction that leaves rows as they are. The ledger does not count it: no other site may lose a change
        for good because of it, or end with other rows.
        """
        db, r = self.site.db, self.world.rng
        owners = (self.site.number, None) if self.world.plan.case.is_epoch else (self.site.number,)
        mine = [key for key in rows if owner_of(key) in owners]  # it moves a row's epoch, which other functions use
        if not mine:
            return
        key = r.choice(mine)
        _, tag, stamp, note, code = rows[key]
        self.rewritten.add((db.parts.store.epochs.current, key))
        try:
            with db.transaction() as txn:
                if r.random() < 0.3:
                    txn.update(MAIN, key, {"note": "other"})
                    txn.update(MAIN, key, {"note": note})
                else:
                    txn.update(MAIN, key, {"tag": tag, "stamp": stamp, "note": note, "code": code})
            self.world.tally.add("updates of nothing")
        except Retryable as error:
            self.world.tally.add(f"updates of nothing refused by {type(error).__name__}")

    def _commit(self, changes: list[Change]) -> None:
        db, world = self.site.db, self.world
        self._count += 1
        done = Done(
            self.site.server_id << NUMBER_BITS | self._count,
            world.next_moment(),
            db.parts.store.epochs.current,
            0,
            changes,
            {source: self.site.seen(source) for source in self.site.channels},
        )
        self._doubtful = done
        try:
            with db.transaction() as txn:
                done.txid = txn.txid
                for change in changes:
                    self._change(txn, change)
                txn.insert(JOURNAL, (done.number, self._count))
        except (DuplicateKey, Retryable) as error:
            world.tally.add(f"transactions refused by {type(error).__name__}")
            self._doubtful = None
            return
        self._doubtful = None
        self.done.append(done)
        world.tally.add("transactions")
        if db.parts.store.resources.waits_for_disk:
            self.is_durable_now()

    def _change(self, txn: Any, change: Change) -> None:
        note = f"n{change.tag:x}"  # each change sets every column: images of changed columns are complete
        if change.kind == "insert":
            txn.insert(MAIN, (change.key, change.tag, change.stamp, note, change.code))
        elif change.kind == "update":
            values = {"tag": change.tag, "stamp": change.stamp, "note": note, "code": change.code}
            txn.update(MAIN, change.key, values)
        else:
            txn.delete(MAIN, change.key)

    def _drawn(self, rows: dict[int, Row]) -> list[Change]:
        changes: dict[int, Change] = {}
        for _ in range(self.world.rng.choice((1, 1, 2, 3))):
            change = self._shared(rows) if self._has_shared() else self._owned(rows)
            if change is not None:
                changes.setdefault(change.key, change)
        return list(changes.values())

    def _has_shared(self) -> bool:
        plan = self.world.plan
        if not plan.case.is_shared or self.world.rng.random() < 0.25:
            return False
        is_merged = plan.topology == TWO_SOURCES and plan.case.inserts == ANY_SITE and self.site.number != 2
        return plan.is_closed or (is_merged and plan.case.is_equal)

    def _owned(self, rows: dict[int, Row]) -> Change | None:
        """Draw a change of a row that only this site changes."""
        r = self.world.rng
        key = self.site.number * OWNER_SPAN + r.randrange(OWN_KEYS)
        if key not in rows:
            case = self.world.plan.case
            # If its transaction is refused, it returns as a delete of a missing row, and removes what was made since.
            if key in self._was_inserted and case.is_transactional and not case.has_roles:
                return None
            self._was_inserted.add(key)
            return self._made(key, "insert", None)
        return self._made(key, "delete" if r.random() < 0.25 else "update", rows[key])

    def _shared(self, rows: dict[int, Row]) -> Change | None:
        """Draw a change of a row that several sites change."""
        r, case = self.world.rng, self.world.plan.case
        if case.inserts == OWNER:
            there = [key for key in rows if owner_of(key) is None]
            if len(there) < COMMON_KEYS and r.random() < 0.4:
                self._inserted += 1
                return self._made(self.site.number * OWNER_SPAN + SHARED_FROM + self._inserted, "insert", None)
            if not there:
                return None
            key = r.choice(there)
        else:
            key = COMMON_FROM + r.randrange(COMMON_KEYS)
            if key not in rows:
                return self._made(key, "insert", None)
        is_deleted = case.deletes == ANY_SITE and r.random() < 0.2
        return self._made(key, "delete" if is_deleted else "update", rows[key])

    def _made(self, key: int, kind: str, row: Row | None) -> Change:
        world, number = self.world, self.site.number
        # The stamp of a row that is inserted again keeps rising: delete and insert in one epoch arrive as an update.
        before = self._stamps.get(key, 0) if row is None else int(row[2])
        if world.plan.case.name == "TM$GREATEST":
            stamp = before + world.rng.choice((1, 2))
        elif world.plan.case.name == "NDB$OLD":
            stamp = world.next_moment()  # no two are equal, which is all that OLD requires
        else:
            stamp = ((before >> 4) + world.rng.randrange(1, 50)) << 4 | number
        self._stamps[key] = stamp
        code = None
        if codes := self._codes(key):
            code = world.rng.choice([each for each in codes if row is None or each != row[4]])
        return Change(key, kind, world.next_moment() << 4 | number, stamp, code)

    def _codes(self, key: int) -> tuple[str | None, ...]:
        """Return the values that the unique column of a row may have, none if it stays NULL.

        Several sites take the same only where a function of epochs decides: functions without a winner keep a row at
        each site. Elsewhere values move between the rows that one site owns. A shared row never gets a value again: a
        column that changes and changes back within an epoch is not in the images of changed columns, and another site
        would keep its own.
        """
        plan, owner = self.world.plan, owner_of(key)
        if not plan.has_unique or (plan.case.is_epoch and owner is not None):
            return ()
        if plan.case.is_epoch:
            return CODES
        if owner is None:
            self._coded += 1
            return (f"{self.site.number}.{self._coded}",)
        return tuple(each and f"{owner}{each}" for each in CODES)
