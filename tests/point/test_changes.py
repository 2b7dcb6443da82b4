"""Changes by kernels are changes by the general path: rows, log bytes, epochs, ticks, ids of transactions, errors, and
with `durability="commit"` what is in the log on disk and what `status()` counts.

Two stores get the same calls. In one of them kernels are never asked. After each call everything that commits write in
memory is compared.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.node_group.pair import Pair
from tests.point.support import EVERY, World, edge, outcome, value, wrong
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import open_memory
from tests.store.test_local_checkpoint_patterns import checkpoint_with
from tidemark.engine.index.stored import counters_of
from tidemark.engine.memory.arena_layout import (
    MODE_INSERT,
    MODE_UPDATE,
    MODE_WRITE,
    S_COPY_RESERVED,
    S_INDEX_GENERATION,
    S_REDO_FREE,
    S_REDO_RESERVED,
    S_TICK,
    S_TICK_EPOCH,
    S_TXID,
    X_OPS,
)
from tidemark.engine.point import changes as point_changes
from tidemark.engine.point.changes import CommittedChanges
from tidemark.engine.point.plan import plan_of
from tidemark.engine.point.plan_layout import T_COUNT
from tidemark.engine.programs.expressions import Arithmetic, Compare, Constant, Junction, Not, NullTest
from tidemark.engine.txn.before_images_kernels import set_capture
from tidemark.engine.types import ColumnType, Decimal, Floating, Integer
from tidemark.read_tracking import TrackingTransaction
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

WORDS = (S_TXID, S_TICK, S_TICK_EPOCH, S_REDO_FREE, S_REDO_RESERVED, S_COPY_RESERVED, S_INDEX_GENERATION)
HIDDEN = [tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Counts the changes that kernels make, by mode and by whether they were made."""
    count: Counter[Any] = Counter()
    make, change = CommittedChanges.make, point_changes.change_seen

    def counted(
        self: Any,
        table: Any,
        mode: int,
        what: Any,
        changes: Any = None,
        index: Any = None,
        where: Any = None,
        *program: Any,
    ) -> int:
        status = make(self, table, mode, what, changes, index, where, *program)
        is_judged = bool(program) or where is not None
        count["own" if index is None else "by index", is_judged, mode, status] += table.plan is not None
        return status

    class Counted:
        def entry(self, *given: Any) -> int:
            status = int(change.entry(*given))
            count["txn", given[9] is not None or given[11].size > 0, given[6], status] += 1
            return status

    monkeypatch.setattr(CommittedChanges, "make", counted)
    monkeypatch.setattr(point_changes, "change_seen", Counted())
    return count


class Side:
    """One of the two stores."""

    def __init__(self, seed: int, is_quick: bool, types: list[ColumnType], durability: str) -> None:
        self.files = MemoryFiles()
        options = {"durability": durability, "snapshot_memory": "64 KiB" if seed % 5 == 1 else "8 MiB"}
        self.pair = None
        if seed % 7 == 3:  # a node of a group, whose log nothing frees
            self.pair = Pair((self.files, MemoryFiles()), **options, redo_log="16 MiB")
        self.db = open_memory(self.files, **options) if self.pair is None else self.pair.primary
        self.tracks_reads = seed % 6 == 4
        self.compared_lsn = 0  # what of the log on disk was compared before
        self.is_quick = is_quick
        partition = {"partition": tm.HashPartition(3)} if seed % 4 == 1 else {}
        self.world: Any = World(self.db, random.Random(seed), types, **partition)
        if seed % 3 == 1:  # as a binlog does
            set_capture(self.db.parts.store.mem, self.table.handle, seed % 2 + 1)
        self.txn: Any = None
        self.other: Any = None
        self.held: list[Any] = []
        self.points: list[Any] = []  # open savepoints of `txn`

    @property
    def table(self) -> Any:
        return self.db["t"].table.newest

    def transaction(self) -> Any:
        """A transaction, which logs its exclusive reads or not."""
        if not self.tracks_reads:
            return self.db.transaction()
        txn = TrackingTransaction(self.db.parts.store.resources)
        txn.owner = self.db
        return txn

    def do(self, call: Callable[[Side], Any]) -> Any:
        """The outcome of a call, made by kernels or not."""
        for table in self.db.parts.store.tables.by_name.values():
            if not self.is_quick:
                table.plan = table.newest.plan = None
            elif table.plan is None:  # else as calls leave it, with indexes made since or without
                plan_of(table)
        found = outcome(lambda: self._plain(call(self)))
        return found, None if self.txn is None else (self.txn.seen, self.txn.is_ended)

    def _plain(self, result: Any) -> Any:
        return (result,) if isinstance(result, (bool, int, str)) else result

    def state(self) -> tuple[Any, ...]:
        """What commits have written in memory."""
        store = self.db.parts.store
        fill = store.log.fill
        table = self.table
        return (
            [int(store.mem[word]) for word in WORDS],
            store.epochs.has_commits,
            fill[: int(fill[0])].tobytes(),
            int(store.resources.sink.current[0]) if store.resources.sink.current.size else 0,
            store.resources.sink.current[
                : int(store.resources.sink.current[0]) if store.resources.sink.current.size else 0
            ].tobytes(),
            table.count(),
            counters_of(table.listed_indexes()),
            store.resources.commit_seconds.to_dict(),
            store.log.counters(),
            self.written(),
        )

    def written(self) -> bytes:
        """What the log has on disk since the last call."""
        log, lsn = self.db.parts.store.log, self.compared_lsn
        self.compared_lsn = log.durable_lsn
        content = bytearray(log.durable_lsn - lsn)
        for number, offset, start, length in log.geometry.pieces(lsn, len(content)):
            self.files.raw.pread_into(log.handles[number], memoryview(content)[start : start + length], offset)
        return bytes(content)

    def rows(self) -> list[Any]:
        names = [each.name for each in self.table.definition.columns]
        return list(self.db["t"].scan([*names, *HIDDEN]))


class Twins:
    """Two stores that get the same calls."""

    guards = 0.2  # share of updates and deletes with expressions or conditions

    def __init__(self, seed: int, types: list[ColumnType] = EVERY, durability: str = "epoch") -> None:
        """types: of the columns."""
        self.rng = random.Random(seed + 1)
        self.quick, self.general = (Side(seed, is_quick, types, durability) for is_quick in (True, False))
        self.sides = (self.quick, self.general)
        self.log: list[str] = []
        self.known: list[Any] = []  # rows that keys of the index are of
        self.judged: list[tuple[Any, Any]] = []  # changes and conditions that kernels know
        self.last: tuple[int, tuple[Any, Any]] | None = None  # how many they knew, and what may be one more
        self.awaited: Any = None  # the key of the index that the other transaction is about to give a row
        self.compare()

    def do(self, what: str, call: Callable[[Side], Any]) -> Any:
        self.log.append(what)
        quick, general = (side.do(call) for side in self.sides)
        assert quick == general, (self.log[-5:], quick, general)
        states = [side.state() for side in self.sides]
        assert states[0] == states[1], self.log[-5:]
        return quick

    def call(self, name: str, in_txn: bool, *given: Any, **by: str) -> None:
        """A call of the table, or of the transaction that is under way."""
        if in_txn:
            self.do(f"txn.{name} {given} {by}", lambda side: getattr(side.txn, name)("t", *given, **by))
        else:
            self.do(f"{name} {given} {by}", lambda side: getattr(side.db["t"], name)(*given, **by))

    def compare(self) -> None:
        rows, wanted = (side.rows() for side in self.sides)
        assert [repr(tuple(row)) for row in rows] == [repr(tuple(row)) for row in wanted], self.log[-9:]
        self.known = rows

    def run(self, steps: int) -> None:
        """Make random calls and compare."""
        for _ in range(steps):
            self.step()
        self.end()

    def end(self) -> None:
        for side in self.sides:
            if side.txn is not None:
                side.txn.rollback()
            if side.other is not None:
                side.other.rollback()
            for each in side.held:
                each.close()
        self.compare()
        for side in self.sides:
            assert side.db.check()["problems"] == []
            check_arena(side.db)
            side.db.sync()
            if side.pair is not None:
                side.pair.verify()
        shown = [open_memory(side.files.kill(), durability="epoch") for side in self.sides]
        rows = [sorted(repr(row) for row in db["t"].scan()) for db in shown]
        assert rows[0] == rows[1] == sorted(repr(row) for row in self.quick.db["t"].scan())
        for db in shown:
            db.close()
        for side in self.sides:
            side.db.close()

    # --- random calls ----------------------------------------------------------------------------
    def changes(self) -> Any:
        rng, world = self.rng, self.quick.world
        columns = [each for each in self.quick.table.definition.columns if each.name not in world.key]
        if rng.random() < 0.03:
            return rng.choice([{}, None, [], {"no": 1}, {world.key[0]: 1}, {1: 2}, tuple(columns)])
        chosen = rng.sample(columns, min(len(columns), rng.choice([1, 1, 1, 2, 3])))
        if rng.random() < 0.15 and world.index and self.known:  # a key of the unique index that another row may have
            row = rng.choice(self.known)
            return {name: row[name] for name in world.index}
        changes = self.values(chosen)
        if world.index and all(name in changes for name in world.index):
            self.known.append(changes)
        return changes

    def values(self, columns: Any) -> dict[str, Any]:
        """A value for each column. At most one is a doubtful one, so that no other decides what is done with it."""
        rng = self.rng
        found = {
            each.name: None if each.nullable and rng.random() < 0.25 else value(rng, each.type) for each in columns
        }
        if columns and rng.random() < 0.4:
            column = rng.choice(columns)
            doubtful = [edge(rng, column.type), edge(rng, column.type), edge(rng, column.type), wrong(rng), None]
            found[column.name] = rng.choice(doubtful)
        return found

    def computed(self, changes: Any) -> Any:
        """Changes with expressions in place of some values."""
        if type(changes) is not dict or self.rng.random() < 0.3:
            return changes
        kinds = {each.name: each.type for each in self.quick.table.definition.columns}
        return {
            name: self.expression(name, kinds, value) if name in kinds and self.rng.random() < 0.8 else value
            for name, value in changes.items()
        }

    def expression(self, name: str, kinds: dict[str, Any], value: Any) -> Any:
        """An expression for a column; mostly one that its type takes."""
        rng, col = self.rng, tm.col
        kind = kinds[name]
        alike = [each for each, other in kinds.items() if type(other) is type(kind)]
        if isinstance(kind, (Integer, Floating, Decimal)):
            step = rng.choice([0, 1, 2, -3, rng.choice([0.5, decimal.Decimal("0.25")])])
            made = [col(name) + step, step - col(name), col(name) * step, col(rng.choice(alike)), col(name) + value]
            return rng.choice([*made, col(name) + col(rng.choice(alike)), -col(name)])
        if rng.random() < 0.8:
            return col(rng.choice(alike))
        return rng.choice([col(name) + datetime.timedelta(days=1), col(name) + datetime.timedelta(seconds=1)])

    def guarded(self, changes: Any) -> tuple[Any, Any]:
        """Changes with expressions, and a condition: new ones, or some that kernels know, with other constants."""
        plan = self.quick.db["t"].table.plan
        trees = 0 if plan is None else int(plan.trees.words[T_COUNT])
        if self.last is not None and trees > self.last[0]:
            self.judged.append(self.last[1])
        self.last = None
        if self.judged and self.rng.random() < 0.7:
            changes, where = self.rng.choice(self.judged[-4:])
            if type(changes) is dict:
                changes = {name: self.varied(each) for name, each in changes.items()}
            return changes, self.varied(where)
        found = self.judged_anew(changes)
        self.last = trees, found
        return found

    def judged_anew(self, changes: Any) -> tuple[Any, Any]:
        """New expressions and a new condition. What Python refuses to build is left out."""
        try:
            return self.computed(changes), self.where()
        except (tm.Error, TypeError):
            return changes, None

    def varied(self, tree: Any) -> Any:
        """A tree with other constants, mostly of the types that they had."""
        if isinstance(tree, Constant):
            return Constant(self.another(tree.value))
        if isinstance(tree, Compare):
            return Compare(tree.condition, self.varied(tree.left), self.varied(tree.right))
        if isinstance(tree, Arithmetic):
            return Arithmetic(tree.operator, self.varied(tree.left), self.varied(tree.right))
        if isinstance(tree, Junction):
            return Junction(tree.is_and, tuple(map(self.varied, tree.operands)))
        if isinstance(tree, (Not, NullTest)):
            return type(tree)(self.varied(tree.inner))
        return tree

    def another(self, given: Any) -> Any:
        """Another value like this one, now and then of another kind or size."""
        rng = self.rng
        kinds = [each.type for each in self.quick.table.definition.columns]
        if rng.random() < 0.05:
            return edge(rng, rng.choice(kinds))
        if rng.random() < 0.7:
            if type(given) is int:
                return given + rng.randint(-3, 3)
            if type(given) is decimal.Decimal and given.is_finite():
                _, digits, exponent = given.as_tuple()
                return decimal.Decimal((rng.randint(0, 1), digits[:-1] + (rng.randint(0, 9),), exponent))
            return given
        if type(given) is int:
            return rng.choice([0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**64), given, given + 1, -given])
        if type(given) is decimal.Decimal and given.is_finite():
            _, digits, exponent = given.as_tuple()
            shifted = decimal.Decimal((0, digits, int(exponent) + rng.choice([0, 1, -1, 7, -20])))
            return rng.choice([shifted, -shifted, decimal.Decimal("1.10"), decimal.Decimal("NaN")])
        if type(given) is float:
            return rng.choice([0.0, -0.0, 1.5, -1e300, math.nan, math.inf, given, given / 3])
        if type(given) in (str, bytes):
            return rng.choice([given, given[1:], given * 2, given[:0], given + given[:1], given * 500])
        alike = [each for each in (value(rng, kind) for kind in kinds) if type(each) is type(given)]
        return rng.choice([given, *alike])

    def where(self) -> Any:
        """A condition, or None."""
        rng = self.rng
        if rng.random() < 0.4:
            return None
        tests = []
        rows = [list(side.db["t"].scan(limit=30)) for side in self.sides][0]
        row = rng.choice(rows) if rows and rng.random() < 0.6 else None
        for each in rng.choices(self.quick.table.definition.columns, k=rng.choice([1, 1, 2, 3])):
            column, given = (
                tm.col(each.name),
                self.values([each])[each.name] if row is None else getattr(row, each.name),
            )
            compare = rng.choice(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
            test = column.is_null() if rng.random() < 0.2 else getattr(column, compare)(given)
            tests.append(~test if rng.random() < 0.1 else test)
        made = tests[0]
        for each in tests[1:]:
            made = made & each if rng.random() < 0.5 else made | each
        return made

    def row(self) -> Any:
        rng, world = self.rng, self.quick.world
        row = self.values(self.quick.table.definition.columns)
        if rng.random() < 0.3 and world.keys:  # a key that has, or had, a row
            row.update(zip(world.key, rng.choice(world.keys), strict=True))
        elif rng.random() < 0.95:
            try:
                world.keys.append(tuple(row[name] for name in world.key))
            except TypeError:
                pass
        self.known.append(dict(row))
        kind = rng.random()
        if kind < 0.4:
            return row
        if kind < 0.5:
            items = list(row.items())
            rng.shuffle(items)
            return dict(items)
        if kind < 0.53:
            row.pop(rng.choice(list(row)))
            return row
        if kind < 0.56:
            return list(row.values())
        return tuple(row.values()) if kind < 0.97 else tuple(row.values())[1:]

    def step(self) -> None:
        rng = self.rng
        key, by = self.some_key()
        made = rng.random()
        in_txn = self.quick.txn is not None and rng.random() < 0.8
        if made < 0.40:
            changes, where = self.changes(), None
            if rng.random() < self.guards:
                changes, where = self.guarded(changes)
            self.call("update", in_txn, key, changes, where, **by)
        elif made < 0.62:
            row, name = self.row(), rng.choice(["insert", "write"])
            self.call(name, in_txn, row)
        elif made < 0.72:
            where = self.guarded(None)[1] if rng.random() < self.guards else None
            self.call("delete", in_txn, key, where, **by)
        elif made < 0.77 and in_txn:
            lock = rng.choice(["exclusive", "exclusive", "shared", None])
            self.do(f"txn.get {key} {lock} {by}", lambda side: side.txn.get("t", key, lock=lock, **by))
        elif made < 0.80 and self.quick.txn is not None and not self.quick.txn.is_ended:
            self.savepoint()
        elif made < 0.85:
            self.transaction()
        elif made < 0.90:
            self.hold()
        else:
            self.around()

    def some_key(self) -> tuple[Any, dict[str, str]]:
        """A key, and the index that it is of."""
        world = self.quick.world
        if world.index and self.rng.random() < 0.4:
            name = "u" if self.rng.random() < 0.95 else self.rng.choice(["no", *self.quick.table.indexes])
            if self.quick.other is not None and self.awaited is not None and self.rng.random() < 0.5:
                return self.awaited, {"index": name}
            return world.some_index_key(self.known), {"index": name}
        return world.some_key(), {}

    def savepoint(self) -> None:
        """Take a savepoint of the transaction that is under way, or end one: keep what was done since, or undo it."""

        def begin(side: Side) -> None:
            point = side.txn.savepoint()
            point.__enter__()
            side.points.append(point)

        def undo(side: Side) -> None:
            side.points.pop().__exit__(KeyError, KeyError("undo"), None)

        def keep(side: Side) -> None:
            side.points.pop().__exit__(None, None, None)

        if not self.quick.points or (len(self.quick.points) < 3 and self.rng.random() < 0.3):
            self.do("savepoint", begin)
        elif self.rng.random() < 0.6:
            self.do("undo", undo)
        else:
            self.do("keep", keep)

    def transaction(self) -> None:
        """Begin or end the transaction that is under way."""
        if self.quick.txn is None or self.quick.txn.is_ended:

            def begin(side: Side) -> None:
                side.txn = side.transaction()

            self.do("begin", begin)
            return
        end = self.rng.choice(["commit", "commit", "rollback"])
        self.do(end, lambda side: getattr(side.txn, end)())
        for side in self.sides:
            side.txn = None
            side.points.clear()

    def hold(self) -> None:
        """Take or free a lock of another transaction, or hold and close a view."""
        if self.rng.random() < 0.5:
            if self.quick.other is None:
                key, by = self.some_key()
                how, changes = self.rng.choice(["exclusive", "shared", "update", "update"]), self.changes()
                if self.quick.world.index and self.rng.random() < 0.7:
                    kinds = {each.name: each.type for each in self.quick.table.definition.columns}
                    changes = {name: value(self.rng, kinds[name]) for name in self.quick.world.index}
                    awaited = tuple(changes.values())
                    self.awaited = awaited if len(awaited) > 1 else awaited[0]

                def lock(side: Side) -> Any:
                    side.other = side.db.transaction()
                    if how == "update":
                        return side.other.update("t", key, changes, **by)
                    return side.other.get("t", key, lock=how, **by)

                self.do(f"lock {key} {how} {changes} {by}", lock)
            else:
                end = self.rng.choice(["commit", "rollback"])

                def free(side: Side) -> None:
                    getattr(side.other, end)()
                    side.other = None

                self.do(f"free by {end}", free)
        elif self.quick.held and self.rng.random() < 0.6:
            self.do("close a view", lambda side: side.held.pop(0).close())
        elif self.rng.random() < 0.5:
            self.do("snapshot", lambda side: side.held.append(side.db.snapshot()))
        else:

            def scan(side: Side) -> Any:
                rows = iter(side.db["t"])
                found = next(rows, None)
                side.held.append(rows)
                return found

            self.do("iterate", scan)

    def change_what_is_indexed(self, column: str) -> None:
        """Give a row another row's value of a column, of which the plan that is there knows no index."""
        rows = [list(side.db["t"].scan()) for side in self.sides][0]
        if rows and column not in self.quick.world.key:
            row, other = self.rng.choices(rows, k=2)
            key = tuple(row[name] for name in self.quick.world.key)
            key, changes = key if len(key) > 1 else key[0], {column: other[column]}
            self.do(f"update {key} {changes}", lambda side: side.db["t"].update(key, changes))

    def checkpoint(self) -> None:
        """A local checkpoint that looks at one slot a step, with changes in the middle of its scan."""
        calls: list[Callable[[Side], Any]] = []
        for _ in range(self.rng.choice([0, 2, 6])):
            key, changes, row = self.quick.world.some_key(), self.changes(), self.row()
            calls += [
                lambda side, key=key, changes=changes: side.db["t"].update(key, changes),
                lambda side, row=row: side.db["t"].write(row),
                lambda side, key=key: side.db["t"].delete(key),
            ]
        step = self.rng.randrange(30)
        found = [[] for _ in self.sides]
        for side, outcomes in zip(self.sides, found, strict=True):
            checkpoint_with(side.db, step, lambda side=side, into=outcomes: into.extend(map(side.do, calls)))
        self.log.append(f"checkpoint, {len(calls)} changes at step {step}")
        assert found[0] == found[1], self.log[-5:]
        assert self.quick.state() == self.general.state(), self.log[-5:]

    def around(self) -> None:
        """Something else of the store."""
        rng = self.rng
        what = rng.random()
        if what < 0.25:
            self.do("advance", lambda side: side.db.parts.clockwork.advance_epoch())
        elif what < 0.4:
            self.checkpoint()
        elif what < 0.55 and self.quick.txn is None and self.quick.other is None:
            for side in self.sides:
                state = side.world.rng.getstate()
                side.world.rng.seed(len(self.log))
                try:
                    side.world.change_columns()
                except tm.Rejected:
                    pass
                side.world.rng.setstate(state)
            self.compare()
        elif what < 0.85 and self.quick.txn is None and self.quick.other is None:
            name = f"i{len(self.log)}"
            columns = [each.name for each in self.quick.table.definition.columns if each.type.keyable]
            if len(self.quick.table.listed_indexes()) < 3:
                column, is_unique, is_ordered = rng.choice(columns), rng.random() < 0.6, rng.random() < 0.5
                self.do(
                    f"index {column}",
                    lambda side: side.db.create_index("t", name, column, is_unique, ordered=is_ordered),
                )
                self.change_what_is_indexed(column)
        self.compare()


@pytest.mark.parametrize("seed", [*range(few(24, 300)), *fresh_seeds(few(8, 200))])
def test_both_paths_change_alike(seed: int, made: Counter[Any]) -> None:
    print(f"seed {seed}")
    Twins(seed).run(120)
    print(sorted(made.items()))


@pytest.mark.parametrize("seed", [*range(few(8, 200)), *fresh_seeds(few(4, 200))])
def test_both_paths_make_changes_durable_alike(seed: int, made: Counter[Any]) -> None:
    print(f"seed {seed}")
    kind, types = (Twins, EVERY) if seed % 2 else (Computing, NUMBERS)
    kind(seed, types, "commit").run(100)
    print(sorted(made.items()))


NUMBERS: list[ColumnType] = [
    *(tm.Int8, tm.Int16, tm.Int32, tm.Int64, tm.UInt8, tm.UInt16, tm.UInt32, tm.UInt64, tm.Float64, tm.Bool),
    *(tm.Decimal(9, 2), tm.Decimal(18, 0), tm.Decimal(38, 10), tm.Decimal(38, 10), tm.Float32, tm.Date, tm.Timestamp),
    *(tm.VarChar(12), tm.Enum("a", "b")),
]


class Computing(Twins):
    """Mostly rows that exist, with expressions that fit."""

    guards = 0.8

    def __init__(self, seed: int, types: list[ColumnType] | None = None, durability: str = "epoch") -> None:
        super().__init__(seed, types or NUMBERS, durability)
        for side in self.sides:
            side.world = Existing(side.world, self.rng)

    def judged_anew(self, changes: Any) -> tuple[Any, Any]:
        columns = [each for each in self.quick.table.definition.columns if each.name not in self.quick.world.key]
        kinds = {each.name: each.type for each in self.quick.table.definition.columns}
        chosen = self.rng.sample(columns, min(len(columns), self.rng.choice([1, 1, 2, 3])))
        try:
            made = {each.name: self.expression(each.name, kinds, value(self.rng, each.type)) for each in chosen}
            return made, self.where()
        except (tm.Error, TypeError):
            return changes, None


class Existing:
    """A world all of whose keys have, or had, a row."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def some_key(self) -> Any:
        pieces = self._rng.choice(self._world.keys)
        return pieces[0] if len(pieces) == 1 else pieces


@pytest.mark.parametrize("seed", [*range(few(12, 200)), *fresh_seeds(few(6, 200))])
def test_both_paths_compute_alike(seed: int, made: Counter[Any]) -> None:
    print(f"seed {seed}")
    Computing(seed).run(120)
    print(sorted(made.items()))


def test_rows_of_a_table_with_dropped_columns_are_left_to_the_general_path(made: Counter[Any]) -> None:
    """Their var parts have places that no value fills."""
    db = open_memory(durability="epoch")
    columns = [tm.Column("id", tm.Int64), tm.Column("gone", tm.VarChar(9)), tm.Column("text", tm.VarChar(9))]
    table = db.create_table("t", columns, "id")
    table.insert((1, "gone", "one"))
    table.insert((2, "gone", "two"))
    db.drop_column("t", "gone")
    for number in (3, 4):
        table.insert((number, "more"))
        table.write({"id": number, "text": "again"})
    assert sorted(map(tuple, table)) == [(1, "one"), (2, "two"), (3, "again"), (4, "again")]
    assert made["own", False, MODE_INSERT, 1] == 1 and made["own", False, MODE_WRITE, 1] == 0
    assert db.check()["problems"] == []
    db.close()


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_row_that_is_refused_ends_a_record_of_inserts(is_quick: bool, made: Counter[Any]) -> None:
    """The general path makes a savepoint, after which rows are inserted by a new record. The kernel went on with the
    record that was there.
    """
    side = Side(0, is_quick, [tm.Int64], "epoch")
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
    table = side.db.create_table("r", columns, "id", partition=tm.HashPartition(1))
    table.insert((0, 0))
    with side.db.transaction() as side.txn:
        for number in (1, 2):
            side.do(lambda side, number=number: side.txn.insert("r", (number, 0)))
            assert side.do(lambda side: side.txn.update("r", 1, {"n": 1}, tm.col("n") > 0))[0][1] == "(False,)"
        records = int(side.txn.mem[side.txn.desc + X_OPS])
    assert records == 2 and made["txn", True, MODE_UPDATE, 2] == 2 * is_quick
    side.txn = None
    side.db.close()


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_quick", [False, True])
def test_a_condition_is_a_savepoint_to_the_locks_before_it(
    is_quick: bool, is_accepted: bool, made: Counter[Any]
) -> None:
    """After a savepoint a lock stays beside the change of its row. The kernel made such a lock the change itself, so
    operations ended in another order than those of the general path, and slots became free in another order.
    """
    side = Side(0, is_quick, [tm.Int64], "epoch")
    table = side.db.create_table("r", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert_many([(0, 0), (1, 1)])
    with side.db.transaction() as side.txn:
        side.do(lambda side: side.txn.get("r", 0, lock="exclusive"))
        found = side.do(lambda side: side.txn.update("r", 1, {"n": 2}, tm.col("n") == int(is_accepted)))
        assert found[0][1] == f"({is_accepted},)"
        side.do(lambda side: side.txn.delete("r", 0))
        assert int(side.txn.mem[side.txn.desc + X_OPS]) == 3
    assert made["txn", True, MODE_UPDATE, 1 if is_accepted else 2] == is_quick
    side.txn = None
    side.db.close()


def test_a_plan_that_knows_no_new_index_changes_nothing(made: Counter[Any]) -> None:
    """A call may hold the plan of a moment ago when another thread makes an index."""
    db = open_memory(durability="epoch")
    table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    table.insert((1, 1))
    plan = table.table.plan
    db.create_index("t", "by_n", "n")
    table.table.plan = plan
    assert plan is not None and table.update(1, {"n": 2})
    assert made["own", False, MODE_UPDATE, 0] == 1
    assert [row.id for row in table.scan(index="by_n", prefix=(2,))] == [1]
    assert db.check()["problems"] == []
    db.close()
