"""Random histories of one table: data that does not depend on how the table is stored, and a store's answers to it."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

NAME = "test.t"
KEYS = 60
ROOM: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "16 MiB",
    "undo_log": "16 MiB",
    "transaction_memory": "16 MiB",
}
LEAST = {"page_buffer": "64 KiB"}  # 25 frames, the fewest there may be
PAGE_SIZES = ["4 KiB", "8 KiB", "16 KiB", "32 KiB"]


@dataclass(frozen=True)
class Step:
    """One call; `data` is its arguments."""

    call: str
    data: Any = None


def text(rng: random.Random, most: int) -> str:
    return "".join(rng.choice("abcä€ ") for _ in range(rng.randint(0, most)))


def long_text(rng: random.Random) -> str:
    size = rng.choice([0, 3, 50, 900, 4_000, 9_000, 40_000, rng.randint(7_900, 8_300)])
    return (text(rng, 12) + "x") * (size // 8)


def bytes_of_any_length(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 5, 700, rng.randint(3_900, 4_200), 20_000, 70_000]))


VALUES: list[tuple[Any, Callable[[random.Random], Any]]] = [
    (tm.Int8, lambda rng: rng.randint(-128, 127)),
    (tm.Int32, lambda rng: rng.choice([-(2**31), 0, 7, 2**31 - 1])),
    (tm.Int64, lambda rng: rng.randint(-(2**63), 2**63 - 1)),
    (tm.Float64, lambda rng: rng.choice([0.0, -1.5, 1e300, float("inf")])),
    (tm.Bool, lambda rng: rng.random() < 0.5),
    (tm.Date, lambda rng: datetime.date(2000, 1, 1) + datetime.timedelta(rng.randint(0, 9_999))),
    (tm.Decimal(9, 2), lambda rng: Decimal(rng.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-2)),
    (tm.Char(7), lambda rng: text(rng, 7)),
    (tm.Binary(13), lambda rng: rng.randbytes(13)),
    (tm.Enum("a", "b", "c"), lambda rng: rng.choice("abc")),
    (tm.VarChar(40), lambda rng: text(rng, 40)),
    (tm.VarBinary(300), lambda rng: rng.randbytes(rng.randint(0, 300))),
    (tm.Text, long_text),
    (tm.Blob, bytes_of_any_length),
]


CHANGES = "insert write update delete insert_many write_many update_many delete_many".split()
READS = "get get get_locked get_many scan scan_locked committed arrow pandas numpy limited count".split()


class History:
    """Steps drawn from a seed; `columns` are all in memory."""

    def __init__(self, seed: int, keys: int = KEYS, has_filler: bool = False) -> None:
        """has_filler: a column of up to 3,000 bytes, on disk where columns are."""
        self.rng = rng = random.Random(seed)
        self.keys = keys
        self._draw: dict[str, Callable[[random.Random], Any]] = {}
        self.columns = [tm.Column("id", tm.Int64)]
        for number in range(rng.randint(2, 9)):
            kind, draw = rng.choice(VALUES)
            name = f"c{number}"
            self._draw[name] = draw
            if rng.random() < 0.3:
                self.columns.append(tm.Column(name, kind, default=draw(rng)))
            else:
                self.columns.append(tm.Column(name, kind, nullable=rng.random() < 0.5))
        if has_filler:
            self._draw["filler"] = lambda rng: rng.randbytes(rng.randint(2_000, 3_000))
            self.columns.append(tm.Column("filler", tm.VarBinary(3_000)))
        rng.shuffle(self.columns)
        self.names = [column.name for column in self.columns]

    def placed(self) -> list[tm.Column]:
        """The same columns, some of them on disk, at least one."""
        others = [name for name in self.names if name != "id"]
        on_disk = (
            {self.rng.choice(others)}
            | ({"filler"} & set(others))
            | {name for name in others if self.rng.random() < 0.4}
        )
        return [replace(column, storage="disk") if column.name in on_disk else column for column in self.columns]

    # --- data --------------------------------------------------------------------------------------
    def _key(self) -> int:
        return self.rng.randint(0, self.keys)

    def _keys(self) -> list[int]:
        return self.rng.sample(range(self.keys + 1), self.rng.choice([0, 1, 3, self.keys // 2]))

    def _value(self, name: str) -> Any:
        # None is refused by columns that are not nullable, a list by all: refusals are answers too.
        if self.rng.random() < 0.1:
            return None if self.rng.random() < 0.8 else ["no value"]
        return self._draw[name](self.rng)

    def _sound(self, name: str) -> Any:
        column = next(column for column in self.columns if column.name == name)
        return None if column.nullable and self.rng.random() < 0.3 else self._draw[name](self.rng)

    def _row(self, key: int, is_sound: bool) -> dict[str, Any]:
        row = {name: key if name == "id" else self._sound(name) for name in self.names}
        if not is_sound and self.rng.random() < 0.3:
            name = self.rng.choice([name for name in self.names if name != "id"])
            row[name] = self._value(name)
        if not is_sound and self.rng.random() < 0.3:
            del row[self.rng.choice([name for name in self.names if name != "id"])]
        return row

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(key, self.rng.random() < 0.98) for key in self._keys()]

    def _changes(self) -> dict[str, Any]:
        names = [name for name in self.names if name != "id"]
        return {name: self._value(name) for name in self.rng.sample(names, self.rng.randint(1, min(3, len(names))))}

    def _many_changes(self) -> list[dict[str, Any]]:
        names = [name for name in self.names if name != "id"]
        names = self.rng.sample(names, self.rng.randint(1, len(names)))
        return [{"id": key, **{name: self._sound(name) for name in names}} for key in self._keys()]

    def _columns(self) -> list[str] | None:
        others = [name for name in self.names if name != "id"]
        return self.rng.choice([None, ["id"], ["id", *self.rng.sample(others, 2)]])

    # --- steps -------------------------------------------------------------------------------------
    def _change(self) -> Step:
        call = self.rng.choice([CHANGES[0], *CHANGES[:3], "update", "update", *CHANGES[3:]])
        data: Any = {
            "insert": lambda: self._row(self._key(), False),
            "write": lambda: self._row(self._key(), False),
            "update": lambda: (self._key(), self._changes()),
            "delete": self._key,
            "insert_many": self._rows,
            "write_many": self._rows,
            "update_many": self._many_changes,
            "delete_many": self._keys,
        }[call]()
        return Step(call, data)

    def _read(self) -> Step:
        call = self.rng.choice(READS)
        if call in ("get", "get_locked"):
            return Step(call, self._key())
        return Step(call, (self._keys(), self._columns()))

    def steps(self, count: int) -> Iterator[Step]:
        """Steps of all kinds; the first one fills the table."""
        yield Step("insert_many", [self._row(key, True) for key in range(0, self.keys, 2)])
        for _ in range(count):
            kind = self.rng.random()
            if kind < 0.5:
                yield self._change()
            elif kind < 0.75:
                yield self._read()
            elif kind < 0.83:
                inner = [self._change() if self.rng.random() < 0.7 else self._read() for _ in range(3)]
                yield Step("savepoint", (inner, self.rng.random() < 0.6))
            elif kind < 0.95:
                yield Step(self.rng.choice(["begin", "begin", "commit", "rollback"]))
            else:
                call = self.rng.choice(["checkpoint", "checkpoint", "reopen", "crash", "crash", "recreate"])
                yield Step(call, self.rng.randint(0, 2**32))
        yield Step("reopen")
        yield Step("arrow", ([], None))


class Undone(Exception):
    """Leaves a savepoint so that it is rolled back."""


class World:
    """A store with one table that answers to steps."""

    def __init__(self, columns: list[tm.Column], fragments: Any, page_size: str | None = None, **options: Any) -> None:
        """fragments: how many of a hash, or a partition. page_size: of the tablespace of disk columns, if any."""
        self.files = MemoryFiles()
        self.options = {**ROOM, **options}
        self.db = open_memory(self.files, **self.options)
        if page_size is not None:
            self.db.create_tablespace("main", "1 MiB", page_size=page_size, extent="256 KiB")
        self.columns, self.fragments = columns, fragments
        self.txn: Any = None
        self._create()

    def _create(self) -> None:
        spread = tm.HashPartition(self.fragments) if isinstance(self.fragments, int) else self.fragments
        self.db.create_table(NAME, self.columns, "id", spread)

    def answer(self, step: Step) -> Any:
        """The answer of the store: rows sorted by key, counts, or the class and evidence of a refusal."""
        try:
            if step.call in CHANGES:
                return self._call(step.call, *(step.data if step.call == "update" else (step.data,)))
            return getattr(self, f"_{step.call}")(step.data)
        except tm.Rejected as error:
            evidence = [error.evidence.get(name) for name in ("row", "column", "key")]
            if step.call.endswith("_many") and isinstance(error, (tm.DuplicateKey, tm.RowNotFound)):
                evidence = []  # of several such rows, the error names the first one met, fragment by fragment
            return type(error).__name__, evidence

    def close(self) -> None:
        self.txn = None
        self.db.close()

    # --- calls -------------------------------------------------------------------------------------
    def _call(self, name: str, *arguments: Any) -> Any:
        if self.txn is not None:
            return getattr(self.txn, name)(NAME, *arguments)
        return getattr(self.db[NAME], name)(*arguments)

    def _get(self, key: int) -> Any:
        return repr(self._call("get", key))

    def _get_locked(self, key: int) -> Any:
        return repr(self.txn.get(NAME, key, lock="exclusive")) if self.txn is not None else self._get(key)

    def _get_many(self, data: Any) -> Any:
        return shown(self._call("get_many", *data))

    def _scan(self, data: Any) -> Any:
        columns = data[1]
        rows = [repr(row) for row in self._call("scan", columns)]
        return sorted(rows)

    def _committed(self, data: Any) -> Any:
        return shown(self.db[NAME].get_many(*data))

    def _arrow(self, data: Any) -> Any:
        return shown(self.db[NAME].to_arrow(data[1]).sort_by("id"))

    def _pandas(self, data: Any) -> Any:
        frame = self.db[NAME].to_pandas(data[1]).sort_values("id")
        return [str(kind) for kind in frame.dtypes], [repr(tuple(row)) for row in frame.itertuples(index=False)]

    def _numpy(self, _: Any) -> Any:
        found = self.db[NAME].to_numpy()
        return str(found.dtype), sorted(repr(row) for row in found.tolist())

    def _scan_locked(self, data: Any) -> Any:
        if self.txn is None:
            return self._scan(data)
        return sorted(repr(row) for row in self.txn.scan(NAME, data[1], lock="exclusive"))

    def _limited(self, data: Any) -> int:
        return len(list(self.db[NAME].scan(data[1], len(data[0]))))

    def _count(self, _: Any) -> int:
        return len(self.db[NAME])

    # --- transactions --------------------------------------------------------------------------------
    def _begin(self, _: Any) -> None:
        if self.txn is None:
            self.txn = self.db.transaction()

    def _commit(self, _: Any) -> None:
        if self.txn is not None:
            self.txn.__exit__(None, None, None)
            self.txn = None

    def _rollback(self, _: Any) -> None:
        if self.txn is not None:
            self.txn.rollback()
            self.txn = None

    def _savepoint(self, data: Any) -> Any:
        inner, is_undone = data
        self._begin(None)
        answers = []
        try:
            with self.txn.savepoint():
                answers = [self.answer(step) for step in inner]
                if is_undone:
                    raise Undone
        except Undone:
            pass
        return answers

    # --- files ---------------------------------------------------------------------------------------
    def _checkpoint(self, _: Any) -> None:
        self.db.checkpoint()

    def _recreate(self, _: Any) -> None:
        self._rollback(None)
        self.db.drop_table(NAME)
        self._create()

    def _reopen(self, _: Any) -> Any:
        self.close()
        self.files = MemoryFiles(self.files.disk)
        self.db = open_memory(self.files, **self.options)
        return self._count(None)

    def _crash(self, seed: int) -> Any:
        """Power loss: every commit that returned was durable."""
        rng = random.Random(seed)
        self.files = self.files.crash(rng, rng.choice(CRASH_POLICIES))
        self.close()  # on the same disk: memory and threads are gone, lost data stays lost
        self.db = open_memory(self.files, **self.options)
        return self._count(None)


def shown(table: Any) -> Any:
    """An Arrow table or batch as its schema and rows (NaN equals itself)."""
    return str(table.schema), [repr(row) for row in table.to_pylist()]
