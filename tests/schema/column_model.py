"""Random tables whose columns come and go, beside plain dictionaries that share no code with the store.

A `Model` is a list of columns and a dictionary of rows. `Life` makes the same random change to a table, through the
public calls, and to the model; `Life.differences` reads the table by every way and says where they differ.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import tidemark as tm
from tests.rows.strategies import of_arrow as of_arrow_value

DAY = datetime.date(1970, 1, 1)
MOMENT = datetime.datetime(1970, 1, 1)
Value = Callable[[random.Random], Any]


def decimal_of(rng: random.Random, precision: int, scale: int) -> Decimal:
    """Return a number of up to `precision` digits, exactly."""
    digits = tuple(map(int, str(rng.randrange(10**precision))))
    return Decimal((int(rng.random() < 0.5 and any(digits)), digits, -scale))


# Types by their alignment and width in a row: those of one group lie beside one another, in order of creation.
GROUPS: dict[str, list[tuple[Any, Value]]] = {
    "1": [
        (tm.Int8, lambda rng: rng.randrange(-128, 128)),
        (tm.UInt8, lambda rng: rng.randrange(256)),
        (tm.Bool, lambda rng: rng.random() < 0.5),
        (tm.Binary(1), lambda rng: rng.randbytes(1)),
    ],
    "2": [
        (tm.Int16, lambda rng: rng.randrange(-(2**15), 2**15)),
        (tm.UInt16, lambda rng: rng.randrange(2**16)),
        (tm.Enum("a", "b", "c"), lambda rng: rng.choice("abc")),
        (tm.Binary(2), lambda rng: rng.randbytes(2)),
    ],
    "4": [
        (tm.Int32, lambda rng: rng.randrange(-(2**31), 2**31)),
        (tm.UInt32, lambda rng: rng.randrange(2**32)),
        (tm.Float32, lambda rng: rng.randrange(2**20) / 8),
        (tm.Date, lambda rng: DAY + datetime.timedelta(days=rng.randrange(-90_000, 90_000))),
        (tm.Char(1), lambda rng: rng.choice(["", "é", "漢", "x"])),
        (tm.Binary(4), lambda rng: rng.randbytes(4)),
    ],
    "8": [
        (tm.Int64, lambda rng: rng.randrange(-(2**63), 2**63)),
        (tm.UInt64, lambda rng: rng.randrange(2**64)),
        (tm.Float64, lambda rng: rng.randrange(2**50) / 1024),
        (tm.Time, lambda rng: datetime.time(rng.randrange(24), rng.randrange(60), 7, rng.randrange(10**6))),
        (tm.DateTime, lambda rng: MOMENT + datetime.timedelta(microseconds=rng.randrange(-(2**50), 2**50))),
        (
            tm.Timestamp,
            lambda rng: (MOMENT + datetime.timedelta(seconds=rng.randrange(2**32))).replace(tzinfo=datetime.UTC),
        ),
        (tm.Decimal(9, 2), lambda rng: decimal_of(rng, 9, 2)),
        (tm.Char(2), lambda rng: rng.choice(["", "ab", "é", "漢字"])),
        (tm.Binary(8), lambda rng: rng.randbytes(8)),
    ],
    "16": [
        (tm.Decimal(30, 10), lambda rng: decimal_of(rng, 30, 10)),
        (tm.Char(4), lambda rng: rng.choice(["", "abcd", "漢字", "é"])),
        (tm.Binary(16), lambda rng: rng.randbytes(16)),
        (tm.UUID, lambda rng: uuid.UUID(bytes=rng.randbytes(16))),
    ],
    "5": [(tm.Binary(5), lambda rng: rng.randbytes(5)), (tm.Binary(7), lambda rng: rng.randbytes(7))],
    "var": [
        (tm.VarChar(5), lambda rng: rng.choice(["", "abc", "漢字", "éé"])),
        (tm.VarBinary(9), lambda rng: rng.randbytes(rng.randrange(10))),
        (tm.Text, lambda rng: rng.choice(["", "text", "漢字" * 900])),
        (tm.JSON, lambda rng: rng.choice([{}, {"a": [1, None, "漢字"]}, "text", ["x" * 5_000]])),
        (tm.Blob, lambda rng: rng.randbytes(rng.choice([0, 3, 5_000]))),
    ],
}
WIDER = {
    tm.VarChar(5): tm.VarChar(12),
    tm.VarChar(12): tm.Text,
    tm.Int16: tm.Int32,
    tm.Int32: tm.Int64,
    tm.UInt16: tm.Int64,
    tm.UInt32: tm.UInt64,
    tm.Float32: tm.Float64,
    tm.Char(1): tm.Char(2),
    tm.Char(2): tm.VarChar(5),
    tm.Char(4): tm.Text,
    tm.VarBinary(9): tm.Blob,
    tm.Enum("a", "b", "c"): tm.Enum("a", "b", "c", "d"),
    tm.Decimal(9, 2): tm.Decimal(17, 2),
    tm.Decimal(30, 10): tm.Decimal(33, 10),
}
KEYABLE = {repr(kind) for name, group in GROUPS.items() for kind, _ in group if name != "var"}


@dataclass
class Held:
    """A column of the model."""

    name: str
    kind: Any
    value: Value
    nullable: bool
    is_disk: bool


@dataclass
class Model:
    """A table as plain values."""

    columns: list[Held] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    indexes: dict[str, list[str]] = field(default_factory=dict)


def drawn(rng: random.Random, column: Held) -> Any:
    """Return a value of a column."""
    return None if column.nullable and rng.random() < 0.3 else column.value(rng)


def drawn_row(seed: int, key: int, kinds: list[tuple[Any, Value]]) -> tuple[Any, ...]:
    """Return a row with a key and a value of each of some types."""
    rng = random.Random(seed)
    return key, *(value(rng) for _, value in kinds)


class Life:
    """One table, `t`, of one store, and its model."""

    def __init__(self, seed: int, is_disk: bool, has_partitions: bool) -> None:
        self.rng = random.Random(seed)
        self.model = Model()
        self.is_disk = is_disk
        self.partition = tm.HashPartition(3) if has_partitions else None
        self._made = 0
        self._next_key = 0
        # Most columns are of one group or two, so that nearly every dropped one has neighbours.
        self._groups = self.rng.sample(sorted(GROUPS), 2)

    def create(self, db: Any) -> None:
        """Create the table with columns of all kinds beside one another."""
        columns = [self._column(self.is_disk and self.rng.random() < 0.7) for _ in range(self.rng.randrange(3, 9))]
        made = [self._real(column) for column in columns]
        made.insert(self.rng.randrange(len(made) + 1), tm.Column("id", tm.Int64))
        db.create_table("t", made, "id", self.partition)
        self.model.columns = columns

    def _column(self, is_disk: bool) -> Held:
        group = self.rng.choice(self._groups) if self.rng.random() < 0.8 else self.rng.choice(sorted(GROUPS))
        kind, value = self.rng.choice(GROUPS[group])
        self._made += 1
        return Held(f"c{self._made}", kind, value, self.rng.random() < 0.5, is_disk)

    def _real(self, column: Held, **more: Any) -> tm.Column:
        storage = "disk" if column.is_disk else "memory"
        return tm.Column(column.name, column.kind, column.nullable, storage=storage, **more)

    # --- rows ------------------------------------------------------------------------------------
    def _row(self, key: int) -> dict[str, Any]:
        return {"id": key} | {column.name: drawn(self.rng, column) for column in self.model.columns}

    def write_rows(self, table: Any) -> None:
        """Insert, change and delete some rows, one by one and many at a time."""
        model, rng = self.model, self.rng
        fresh = [self._row(self._next_key + number) for number in range(rng.randrange(1, 5))]
        self._next_key += len(fresh)
        if rng.random() < 0.5:
            table.insert_many(fresh)
        else:
            for row in fresh:
                table.insert(row)
        model.rows.update({row["id"]: row for row in fresh})
        for key in rng.sample(sorted(model.rows), min(3, len(model.rows))):
            draw = rng.random()
            if draw < 0.25:
                row = self._row(key)
                table.write(row)
                model.rows[key] = row
            elif draw < 0.75 and model.columns:
                some = rng.sample(model.columns, rng.randrange(1, len(model.columns) + 1))
                changes = {column.name: drawn(rng, column) for column in some}
                if rng.random() < 0.3:
                    table.update_many([{"id": key, **changes}])
                else:
                    table.update(key, changes)
                model.rows[key] |= changes
            elif draw < 0.85:
                table.delete(key)
                del model.rows[key]

    # --- schema ----------------------------------------------------------------------------------
    def change_schema(self, db: Any) -> str:
        """Make one change, mostly a drop; return what it was."""
        model, rng = self.model, self.rng
        indexed = {name for names in model.indexes.values() for name in names}
        free = [column for column in model.columns if column.name not in indexed]
        draw = rng.random()
        if draw < 0.45 and free:
            gone = rng.choice(free)
            db.drop_column("t", gone.name)
            model.columns.remove(gone)
            for row in model.rows.values():
                del row[gone.name]
            return f"drop {gone.name}"
        if draw < 0.65:
            column = self._column(False)
            value = None if column.nullable and rng.random() < 0.5 else column.value(rng)
            db.add_column("t", self._real(column, default=value))
            model.columns.append(column)
            for row in model.rows.values():
                row[column.name] = value
            return f"add {column.name}"
        if draw < 0.75 and model.columns:
            column = rng.choice(model.columns)
            self._made += 1
            old, column.name = column.name, f"c{self._made}"
            db.rename_column("t", old, column.name)
            for row in model.rows.values():
                row[column.name] = row.pop(old)
            model.indexes = {
                name: [column.name if each == old else each for each in names] for name, names in model.indexes.items()
            }
            return f"rename {old} to {column.name}"
        if draw < 0.85:
            wide = [column for column in free if column.kind in WIDER and not column.is_disk]
            if wide:
                column = rng.choice(wide)
                column.kind = WIDER[column.kind]
                db.widen_column("t", column.name, column.kind)
                return f"widen {column.name}"
        return self._change_indexes(db)

    def _change_indexes(self, db: Any) -> str:
        model, rng = self.model, self.rng
        if model.indexes and rng.random() < 0.4:
            name = rng.choice(sorted(model.indexes))
            db.drop_index("t", name)
            del model.indexes[name]
            return f"drop index {name}"
        may = [column.name for column in model.columns if repr(column.kind) in KEYABLE and not column.is_disk]
        names = [*rng.sample(may, min(len(may), rng.randrange(1, 4))), "id"]
        self._made += 1
        name = f"i{self._made}"
        is_unique = rng.random() < 0.3
        db.create_index("t", name, names, unique=is_unique, ordered=is_unique and len(names) < 3)
        model.indexes[name] = names
        return f"create index {name} {names}"

    # --- what is there ---------------------------------------------------------------------------
    def differences(self, table: Any, model: Model | None = None) -> list[str]:
        """Read the table in every way; return where it differs from the model."""
        model, rng = model or self.model, self.rng
        names = [column.name for column in model.columns]
        wanted = {key: tuple(row[name] for name in names) for key, row in model.rows.items()}
        said: list[str] = []

        def compare(way: str, found: dict[int, tuple[Any, ...]], keys: Any = None) -> None:
            expected = wanted if keys is None else {key: wanted[key] for key in keys}
            said.extend(
                f"{way}: row {key} is {found.get(key)}, not {expected.get(key)}"
                for key in sorted(found.keys() | expected.keys())
                if shown(found.get(key)) != shown(expected.get(key))
            )

        compare("rows", {row.id: tuple(getattr(row, name) for name in names) for row in table})
        kinds = {column.name: column.kind for column in model.columns}

        def of_arrow(rows: Any) -> dict[int, tuple[Any, ...]]:
            return {row["id"]: tuple(of_arrow_value(row[name], kinds[name]) for name in names) for row in rows}

        compare("columns", of_arrow(table.scan(["id", *names]).to_arrow().to_pylist()))
        compare("get", {key: tuple(getattr(table.get(key), name) for name in names) for key in wanted})
        keys = sorted(wanted)
        many = table.get_many(keys).to_pylist() if keys else []
        compare("get_many", of_arrow(many))
        for column in model.columns:
            values = {key: row[column.name] for key, row in model.rows.items()}
            is_null = table.scan(["id"], where=tm.col(column.name).is_null())
            if sorted(row.id for row in is_null) != sorted(key for key, value in values.items() if value is None):
                said.append(f"{column.name}: the rows with NULL differ")
            some = [value for value in values.values() if value is not None]
            if some:
                value = rng.choice(some)
                equal = sorted(row.id for row in table.scan(["id"], where=tm.col(column.name) == value))
                if equal != sorted(key for key, each in values.items() if each is not None and each == value):
                    said.append(f"{column.name} == {value!r} accepts rows {equal}")
            if repr(column.kind) in ("Int32", "Int64", "UInt8", "Decimal(9, 2)") and some:
                if table.scan().sum(column.name) != sum(some):
                    said.append(f"{column.name}: the sum differs")
        return said

    def index_differences(self, table: Any, model: Model | None = None) -> list[str]:
        """Read the table by each index, whole rows and its own columns alone, and compare with the rows."""
        model = model or self.model
        said = []
        names = [column.name for column in model.columns]
        listed = {each["name"]: each for each in table.indexes()}
        for index, columns in model.indexes.items():
            if listed[index]["unique"]:
                for key, row in model.rows.items():
                    values = tuple(row[name] for name in columns)
                    if None not in values:
                        found = table.get(values[0] if len(values) == 1 else values, index=index)
                        if found is None or found.id != key:
                            said.append(f"{index}: {values} is not found")
            if not listed[index]["ordered"]:
                continue
            for wanted in (["id", *names], list(columns)):
                found = [tuple(row) for row in table.scan(wanted, index=index)]
                expected = [tuple(row[name] for name in wanted) for row in model.rows.values()]
                if sorted(map(shown, found)) != sorted(map(shown, expected)):
                    said.append(f"{index}: {wanted} differ")
            whole = {row.id: row for row in table.scan(index=index)}
            if whole.keys() != model.rows.keys():
                said.append(f"{index}: whole rows differ")
        return said


def shown(row: Any) -> str:
    """A row as text, in which True is not 1 and times are in UTC under one name."""
    return repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
