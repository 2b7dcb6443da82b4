"""The oracle of the stress program: what a restarted store must hold, from the lines of the ledger.

It verifies that partitions, indexes and tables are those acknowledged last, or those under way; that each writer's
transactions are there through the last acknowledged or the one under way, whole, and nothing else; that each row is
whole by itself; that each index leads to the rows of its table, in order, in both directions; and that `check` finds
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from tests.crash.programs.stress_rows import (
    EXTRA,
    MAIN,
    PROGRESS,
    SCRATCH,
    THREADS,
    Held,
    Stamps,
    is_whole,
    order_of,
    stamps_of,
)
from tidemark.recovery.crash_harness.program import Ledger

Shape = dict[str, Any]


class Dropped(NamedTuple):
    """A range that was dropped: its keys, its number, and each writer's newest transaction that had ended before."""

    low: int
    high: int
    number: int
    seen: Sequence[int]


class Change(NamedTuple):
    """A writer's transaction: its effect on rows, and how many drops had ended before it began."""

    drops: int
    rows: dict[int, Stamps | None]


def _is_extra(name: str) -> bool:
    return name.startswith(EXTRA)


def _tables(db: Any) -> dict[str, Any]:
    names = [name for name in db.tables() if name.startswith(SCRATCH)]
    return {name: [len(db[name]), [each["name"] for each in db.indexes(name)]] for name in names}


# What the changer changes, by name, as plain values.
ASPECTS: dict[str, Callable[[Any], Any]] = {
    "partitions": lambda db: [[each["name"], each["upper"]] for each in db.partitions(MAIN)],
    "indexes": lambda db: sorted(each["name"] for each in db.indexes(MAIN)),
    "tables": _tables,
    "columns": lambda db: [[each.name, each.default] for each in db[MAIN].definition.columns if _is_extra(each.name)],
}


def shape_of(db: Any) -> Shape:
    """The schema as plain values."""
    return {name: look(db) for name, look in ASPECTS.items()}


def shown_line(db: Any) -> str:
    """The state of the store, as a line to acknowledge: from here on it is promised."""
    sequences = [db[PROGRESS].get(number).sequence for number in range(THREADS)]
    rows = sorted((row.id, stamps_of(row)) for row in db[MAIN].scan())
    return f"shown {json.dumps([shape_of(db), sequences, rows])}"


def _lines(lines: Sequence[str], kind: str) -> list[Any]:
    return [json.loads(line[len(kind) :]) for line in lines if line.startswith(kind)]


class Life:
    """What is known about one life: the state it began with, what was acknowledged since, and what was under way."""

    def __init__(self, ledger: Ledger) -> None:
        lines = ledger.acknowledged
        at = max(number for number, line in enumerate(lines) if line.startswith("shown "))
        shape, self.sequences, rows = json.loads(lines[at][len("shown ") :])
        self.held: Held = {key: (first, second) for key, (first, second) in rows}
        since = lines[at + 1 :]
        self.shape: Shape = shape
        self.drops: list[Dropped] = []
        steps = 0
        for step in _lines(since, "shape "):
            steps, self.shape = step[0], step[1]
            self._add_drop(step)
        self.next_shapes = [step for step in _lines(sorted(ledger.under_way), "shape ") if step[0] == steps + 1]
        self.changes: list[dict[int, Change]] = [{} for _ in range(THREADS)]
        for number, sequence, drops, rows in _lines(since, "rows "):
            self.changes[number][sequence] = _change(drops, rows)
            self.sequences[number] = sequence
        for number, sequence, drops, rows in _lines(sorted(ledger.under_way), "rows "):
            if sequence == self.sequences[number] + 1:
                self.changes[number][sequence] = _change(drops, rows)

    def _add_drop(self, step: Any) -> None:
        _, _, dropped, number, seen = step
        if dropped is not None:
            self.drops.append(Dropped(dropped[0], dropped[1], number, seen))

    def take_shape(self, found: Shape) -> list[str]:
        """Decide whether the change under way has happened."""
        if found == self.shape:
            return []
        for step in self.next_shapes:
            if step[1] == found:
                self._add_drop(step)
                return []
        return [f"the schema is {found}, acknowledged was {self.shape}"]

    def verdict(self, key: int, number: int, sequence: int, drops: int) -> bool | None:
        """Whether a row written by that transaction (sequence 0: before this life) is there; None: maybe."""
        is_there: bool | None = True
        for drop in self.drops:
            if not drop.low <= key < drop.high or drop.number <= drops:
                continue
            if sequence == 0 or sequence <= drop.seen[number]:
                return False
            is_there = None
        return is_there


def _change(drops: int, rows: Any) -> Change:
    return Change(drops, {key: None if stamps is None else (stamps[0], stamps[1]) for key, stamps in rows})


def _verify_rows(life: Life, rows: Sequence[Any], sequences: Sequence[int]) -> list[str]:
    """Every writer's rows are what its transactions made them."""
    found = {row.id: stamps_of(row) for row in rows}
    torn = [row.id for row in rows if not is_whole(row)]
    if torn:
        return [f"row {torn[0]} is not what its stamps say ({len(torn)} rows)"]
    expected: dict[int, tuple[Stamps | None, int, int]] = {key: (stamps, 0, 0) for key, stamps in life.held.items()}
    for number in range(THREADS):
        for sequence, change in sorted(life.changes[number].items()):
            if sequence <= sequences[number]:
                for key, stamps in change.rows.items():
                    expected[key] = (stamps, sequence, change.drops)
    strays = sorted(found.keys() - expected.keys())
    if strays:
        return [f"row {strays[0]} was never written ({len(strays)} rows)"]
    for key, (stamps, sequence, drops) in expected.items():
        verdict = life.verdict(key, key % THREADS, sequence, drops) if stamps is not None else False
        seen = found.get(key)
        if verdict is False and seen is not None:
            return [f"row {key} is there, and was deleted or dropped (writer {key % THREADS}, transaction {sequence})"]
        if verdict and seen is None:
            return [f"row {key} is lost (writer {key % THREADS}, transaction {sequence})"]
        if seen is not None and seen != stamps:
            return [f"row {key} has stamps {seen}, {stamps} were committed (transaction {sequence})"]
    return []


def _verify_sequences(life: Life, sequences: Sequence[int]) -> list[str]:
    for number, (there, promised) in enumerate(zip(sequences, life.sequences, strict=True)):
        if not 0 <= there - promised <= 1:
            return [f"writer {number} ends at transaction {there}, acknowledged was {promised}"]
        if there > promised and there not in life.changes[number]:
            return [f"writer {number} ends at transaction {there}, which was not begun"]
    return []


def index_problems(db: Any, table: str) -> list[str]:
    """Each index leads to the rows of a full scan, sorted by its columns, NULLs first; backwards too."""
    rows = [tuple(row) for row in db[table].scan()]
    # Entries of a dropped range are kept as long as a local checkpoint, say, may look at its rows.
    is_kept = db.parts.store.users.has_dropped_fragments(db.parts.store.tables.named(table))
    for index in db.indexes(table):
        places = [db[table].definition.position(name) for name in index["columns"]]
        if index["unique"]:
            found = _unique_problems(db, table, index, rows, places, is_kept)
            if found:
                return found
        if not index["ordered"]:
            continue

        def key_of(row: tuple[Any, ...], places: Sequence[int] = places) -> tuple[tuple[bool, Any], ...]:
            return order_of([row[place] for place in places])

        expected = sorted(key_of(row) for row in rows)
        for is_reverse in (False, True):
            by_index = [tuple(row) for row in db[table].scan(index=index["name"], reverse=is_reverse)]
            keys = [key_of(row) for row in by_index]
            where = f"{table}, index {index['name']}{', backwards' if is_reverse else ''}"
            if sorted(by_index, key=repr) != sorted(rows, key=repr):
                return [f"{where}: leads to {len(by_index)} rows, the table has {len(rows)}, or others"]
            if (keys[::-1] if is_reverse else keys) != expected:
                return [f"{where}: out of order"]
    return []


def _unique_problems(
    db: Any, table: str, index: dict[str, Any], rows: Sequence[tuple[Any, ...]], places: Sequence[int], is_kept: bool
) -> list[str]:
    """Every row whose key has no NULL is found by its key, and no other rows are. is_kept: the index may also keep
    entries of other rows that no search finds any more.
    """
    keys = [tuple(row[place] for place in places) for row in rows]
    there = [(key, row) for key, row in zip(keys, rows, strict=True) if None not in key]
    found = db[table].get_many([key[0] if len(key) == 1 else key for key, _ in there], index=index["name"])
    columns = [column.to_pylist() for column in found.columns]
    if list(zip(*columns, strict=True)) != [row for _, row in there]:
        return [f"{table}, unique index {index['name']}: {found.num_rows} of {len(there)} rows found by key, or others"]
    entries, wanted = index["entries"], len(rows if index["ordered"] else there)
    if entries < wanted or (entries > wanted and not is_kept):
        return [f"{table}, unique index {index['name']}: {entries} entries for {wanted} rows"]
    return []


def leftovers(db: Any) -> list[str]:
    """Resources still held after every thread of the store has ended: dropped memory, pins, transactions, locks."""
    store = db.parts.store
    # A local checkpoint holds a pin, and the binlog writes the rows of its own tables in transactions.
    rows_turn = nullcontext() if db.binlog is None else db.binlog.rows.turn
    with db.parts.clockwork.lcp_turn, rows_turn:
        kept = {
            "dropped tables and partitions": len(store.users.dropped),
            "pins": len(store.users.pins),
            "open transactions": len(store.locks.by_slot),
            "shared locks": len(store.locks.shared),
            "waiters for locks": len(store.locks.waiting),
            "holders of an epoch": len(store.epochs.holders),
        }
    return [f"{count} {name} are left" for name, count in kept.items() if count]


def _extra_problems(db: Any, shape: Shape) -> list[str]:
    """Columns that come and go have their default in every row."""
    for name, default in shape["columns"]:
        wrong = [row for row in db[MAIN].scan(columns=["id", name]) if row[1] != default]
        if wrong:
            return [f"row {wrong[0].id} has {wrong[0][1]!r} in column {name}, not {default!r} ({len(wrong)} rows)"]
    return []


def verify(db: Any, ledger: Ledger) -> list[str]:
    """Every violation; if there is none, the state that the store shows is promised from now on."""
    is_prepared = MAIN in db and PROGRESS in db and len(db[PROGRESS]) == THREADS
    if not any(line.startswith("shown ") for line in ledger.acknowledged):
        if is_prepared:
            ledger.acknowledge(shown_line(db))
        return []
    if not is_prepared:
        return ["the tables are gone"]
    life = Life(ledger)
    sequences = [db[PROGRESS].get(number).sequence for number in range(THREADS)]
    found = life.take_shape(shape_of(db))
    found = found or _verify_sequences(life, sequences)
    found = found or _verify_rows(life, list(db[MAIN].scan()), sequences)
    found = found or _extra_problems(db, shape_of(db))
    for name in [MAIN, *_tables(db)]:
        found = found or index_problems(db, name)
    found = found or db.check()["problems"]
    if not found:
        ledger.under_way.clear()
        ledger.acknowledge(shown_line(db))
    return found
