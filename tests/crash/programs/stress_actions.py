"""What the changer of the stress program does to the schema: a list of actions, each one step or nothing.

An action looks at the *shape* (partitions, indexes, tables, as plain values) and hands `Changer.change` the shape there
will be and the call that makes it. To try another kind of change, write such a function, put it into ACTIONS, and let
`stress_verify.shape_of` see what it changes.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tests.crash.programs.stress_rows import EXTRA, INDEX_KEYS, MAIN, ORDERED, SCRATCH, UNIQUE_KEYS, WIDTH
from tests.crash.programs.stress_threads import Worker
from tidemark.engine.base.errors import LockTimeout, RedoOverloaded
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Int64, VarChar
from tidemark.recovery.crash_harness.program import Ledger, Violation

if TYPE_CHECKING:
    from tests.crash.programs.stress_verify import Shape

RANGES_MAX = 6
WINDOW_RANGES = 4  # keys are written in the last ranges only, so that their number does not grow for ever
SCRATCH_MAX = 3
SCRATCH_ROWS = 300
SCRATCH_INDEX = "by_turn"
COLUMNS_MAX = 4  # of those that come and go, at a time
COLUMNS_EVER = 900  # of a table, those dropped included: it may have 1,024
# Errors of a change that did not happen: others held locks or the log too long.
REFUSED = (LockTimeout, RedoOverloaded)


class Acknowledging(Protocol):
    """A writer, as the changer sees it."""

    acknowledged: int  # its newest transaction that has returned


class Changer(Worker):
    """The thread that changes the schema and verifies the store while others use it."""

    def __init__(self, db: Any, seed: int, ledger: Ledger, shape: Shape, is_over: threading.Event) -> None:
        super().__init__("changer", seed, is_over)
        self.db = db
        self.label = seed
        self.ledger = ledger
        self.shape = shape
        self.writers: Sequence[Acknowledging] = ()
        self.actions = [action for action, weight in ACTIONS for _ in range(weight)]
        self.steps = 0
        self.refused = 0
        self.drops_begun = 0
        self.drops_done = 0
        self.counts: dict[str, int] = {}
        self._look_at_ranges()

    def step(self) -> None:
        """One action, drawn by weight, that finds something to do."""
        action = self.rng.choice(self.actions)
        if action(self):
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1

    def _look_at_ranges(self) -> None:
        self.high = self.shape["partitions"][-1][1]
        self.low = max(0, self.high - WINDOW_RANGES * WIDTH)

    def change(self, after: Shape, call: Callable[[], object], dropped: tuple[int, int] | None = None) -> bool:
        """Make a change and log it; dropped: the range of keys whose rows are dropped with it."""
        self.steps += 1
        if dropped is not None:
            self.drops_begun += 1
        seen = [writer.acknowledged for writer in self.writers]
        line = f"shape {json.dumps([self.steps, after, dropped, self.drops_begun, seen])}"
        self.ledger.begin(line)
        try:
            call()
        except REFUSED:
            # It has not happened: log the old shape as the next change.
            self.refused += 1
            self.steps += 1
            line = f"shape {json.dumps([self.steps, self.shape, None, self.drops_begun, seen])}"
        else:
            self.shape = after
            self._look_at_ranges()
        if dropped is not None:
            self.drops_done += 1
        self.ledger.acknowledge(line)
        return True


Action = Callable[[Changer], bool]
Actions = Sequence[tuple[Action, int]]


def build_or_drop_index(changer: Changer) -> bool:
    """An index of the main table, ordered, unique or both, built while the writers continue, or dropped."""
    keys = {**INDEX_KEYS, **UNIQUE_KEYS}
    name = changer.rng.choice(sorted(keys))
    after = copy.deepcopy(changer.shape)
    if name in after["indexes"]:
        after["indexes"].remove(name)
        return changer.change(after, lambda: changer.db.drop_index(MAIN, name))
    after["indexes"] = sorted([*after["indexes"], name])
    is_unique, is_ordered = name in UNIQUE_KEYS, name in ORDERED
    return changer.change(after, lambda: changer.db.create_index(MAIN, name, keys[name], is_unique, ordered=is_ordered))


def abort_a_build(changer: Changer) -> bool:
    """A build that its caller ends in the middle leaves no index."""
    missing = sorted(set(INDEX_KEYS) - set(changer.shape["indexes"]))
    if not missing:
        return False

    def stop(*_: Any) -> None:
        raise _Stopped

    try:
        changer.db.create_index(MAIN, missing[0], INDEX_KEYS[missing[0]], progress=stop)
    except (_Stopped, *REFUSED):
        return True
    # No row: there was nothing to report on, and the index is there.
    return _forget_index(changer, missing[0])


class _Stopped(Exception):
    """A caller no longer wants the index."""


def _forget_index(changer: Changer, name: str) -> bool:
    try:
        changer.db.drop_index(MAIN, name)
    except REFUSED:
        raise Violation(f"index {name}, built over no rows, could not be dropped") from None
    return True


def add_range(changer: Changer) -> bool:
    """A range after the last one."""
    after = copy.deepcopy(changer.shape)
    if len(after["partitions"]) >= RANGES_MAX:
        return False
    upper = after["partitions"][-1][1] + WIDTH
    after["partitions"].append([f"r{upper}_{changer.steps}_{changer.label}", upper])
    name = after["partitions"][-1][0]
    return changer.change(after, lambda: changer.db.add_partition(MAIN, name, upper))


def drop_range(changer: Changer) -> bool:
    """Any range, rows and all."""
    after = copy.deepcopy(changer.shape)
    ranges = after["partitions"]
    if len(ranges) < 2:
        return False
    place = changer.rng.randrange(len(ranges))
    low = ranges[place - 1][1] if place else -(1 << 62)
    name, high = ranges.pop(place)
    return changer.change(after, lambda: changer.db.drop_partition(MAIN, name), (low, high))


def make_or_drop_table(changer: Changer) -> bool:
    """A table that is made, filled in one transaction, indexed, and dropped again, one step at a time."""
    after, db = copy.deepcopy(changer.shape), changer.db
    tables = after["tables"]
    empty = sorted(name for name, (rows, _) in tables.items() if rows == 0)
    if empty:
        data = {"id": list(range(SCRATCH_ROWS)), "turn": [-number for number in range(SCRATCH_ROWS)]}
        tables[empty[0]][0] = SCRATCH_ROWS
        return changer.change(after, lambda: db[empty[0]].insert_many(data))
    bare = sorted(name for name, (_, indexes) in tables.items() if not indexes)
    if bare:
        tables[bare[0]][1] = [SCRATCH_INDEX]
        return changer.change(after, lambda: db.create_index(bare[0], SCRATCH_INDEX, ("turn",)))
    if len(tables) < SCRATCH_MAX:
        name = f"{SCRATCH}_{changer.label}_{changer.steps}"
        tables[name] = [0, []]
        columns = [Column("id", Int64), Column("turn", Int64)]
        return changer.change(after, lambda: db.create_table(name, columns, primary_key="id"))
    gone = changer.rng.choice(sorted(tables))
    del tables[gone]
    return changer.change(after, lambda: db.drop_table(gone))


def rename_table(changer: Changer) -> bool:
    """Another name for a table that was made."""
    after = copy.deepcopy(changer.shape)
    tables = after["tables"]
    if not tables:
        return False
    name, to = changer.rng.choice(sorted(tables)), f"{SCRATCH}_{changer.label}_{changer.steps}"
    tables[to] = tables.pop(name)
    return changer.change(after, lambda: changer.db.rename(name, to))


def add_or_drop_column(changer: Changer) -> bool:
    """Add a column whose default every row has at once, replace one by another, or drop one."""
    after = copy.deepcopy(changer.shape)
    columns = after["columns"]
    if len(columns) >= COLUMNS_MAX or (columns and changer.rng.random() < 0.4):
        name, _ = columns.pop(changer.rng.randrange(len(columns)))
        return changer.change(after, lambda: changer.db.drop_column(MAIN, name))
    if len(changer.db[MAIN].definition.physical) > COLUMNS_EVER:
        return False
    name, default = f"{EXTRA}_{changer.label}_{changer.steps}", f"of step {changer.steps}"
    columns.append([name, default])
    column = Column(name, VarChar(40), changer.rng.random() < 0.5, default)
    return changer.change(after, lambda: changer.db.add_column(MAIN, column))


def rename_or_widen_column(changer: Changer) -> bool:
    """Another name, or more room, for a column that was added."""
    after = copy.deepcopy(changer.shape)
    columns = after["columns"]
    if not columns:
        return False
    place = changer.rng.randrange(len(columns))
    name = columns[place][0]
    if changer.rng.random() < 0.5:
        length = changer.db[MAIN].definition.columns[changer.db[MAIN].definition.position(name)].type.length
        wider = VarChar(min(length + 10, 400))
        return changer.change(after, lambda: changer.db.widen_column(MAIN, name, wider))
    columns[place][0] = to = f"{EXTRA}_{changer.label}_{changer.steps}"
    return changer.change(after, lambda: changer.db.rename_column(MAIN, name, to))


def verify_beside_writers(changer: Changer) -> bool:
    """`check` finds nothing wrong while all threads work."""
    found = changer.db.check()["problems"]
    if found:
        raise Violation(f"check beside the writers: {found[0]}")
    return True


# Each with its weight.
ACTIONS: Actions = (
    (build_or_drop_index, 6),
    (abort_a_build, 1),
    (add_range, 3),
    (drop_range, 2),
    (make_or_drop_table, 3),
    (rename_table, 1),
    (add_or_drop_column, 3),
    (rename_or_widen_column, 2),
    (verify_beside_writers, 1),
)
