"""A store with every column type at its extremes, changed in every way, and what each peer of it must then have.

What is expected comes from the values that were given, never from the store, from its binlog or from its texts.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.support import EXTREMES, every_type, extreme_rows
from tests.replication.test_stock_tools import as_library_gives, changed_rows, library_value
from tidemark.engine import types as t

# What the store needs next to the options of the rig of the port.
ROOM = {"undo_log": "8 MiB", "page_buffer": "2 MiB", "transaction_memory": "8 MiB"}
NO_NUMBERS = (math.inf, -math.inf, math.nan)
_GREATEST = "1.7976931348623157e308"
Rows = dict[Any, tuple[Any, ...]]


class Held(NamedTuple):
    """A table as peers must have it: its columns, and its rows by key."""

    columns: list[tm.Column]
    rows: Rows


class Everything:
    """The store's tables, and what was done to them."""

    def __init__(self, db: tm.Database) -> None:
        self.db = db
        self.tables: dict[str, Held] = {}

    def steps(self) -> Iterator[str]:
        """Change the store step by step; yield the name of each step after it."""
        self._create()
        yield "inserted"
        self._update()
        self._rotate()
        yield "updated"
        for place, (kind, values) in enumerate(EXTREMES.items()):
            self._add_columns(f"d.k{place}", kind, values)
        for name in ("d.every", "d.far"):
            self._add_columns(name, tm.VarChar(9), ["", "later"])
        yield "columns added"
        for place, values in enumerate(EXTREMES.values()):
            self._fill_added(f"d.k{place}", values)
        self._rotate()
        yield "added columns filled"
        self._delete()
        yield "deleted"
        for name in [*self.tables]:
            self.insert(name, self._removed[name])
        yield "inserted again"

    def _rotate(self) -> None:
        assert self.db.binlog is not None
        self.db.binlog.rotate()

    def _create(self) -> None:
        self.db.create_tablespace("main", size="16 MiB", page_size="8 KiB", extent="64 KiB")
        for name, storage in (("d.every", "memory"), ("d.far", "disk")):
            self.create(name, list(every_type(storage).columns), extreme_rows())
        for place, (kind, values) in enumerate(EXTREMES.items()):
            value = tm.Column("v", tm.Int32, nullable=True)
            rows: list[tuple[Any, ...]]
            if kind.is_lob:  # no key
                columns = [tm.Column("id", tm.Int64), tm.Column("a", kind), value]
                rows = [(number, each, number) for number, each in enumerate(values)]
            else:
                columns = [tm.Column("a", kind), value]
                rows = [(_without_sign_of_zero(each), n) for n, each in enumerate(dict.fromkeys(values))]
            self.create(f"d.k{place}", columns, rows)
        numbers = [tm.Column(name, kind, nullable=True) for name, kind in (("f", tm.Float32), ("d", tm.Float64))]
        places = [(each, other) for each in (*NO_NUMBERS, -0.0, None) for other in (*NO_NUMBERS, -0.0)]
        self.create("d.real", [tm.Column("id", tm.Int64), *numbers], [(n, *each) for n, each in enumerate(places)])
        # The longest of each: 32,000 bytes.
        for place, (kind, value) in enumerate(((tm.VarChar(7_990), "\U0010ffff"), (tm.VarBinary(31_990), b"\xff"))):
            rows = [(0, value * kind.length), (1, value * 0), (2, None)]
            self.create(f"d.long{place}", [tm.Column("id", tm.Int64), tm.Column("a", kind, nullable=True)], rows)

    def _update(self) -> None:
        for name in ("d.every", "d.far"):
            self.update(name, changed_rows([*self.tables[name].rows.values()]))
        for place, values in enumerate(EXTREMES.values()):
            name = f"d.k{place}"
            rows = [(*row[:-1], None) for row in self.tables[name].rows.values()]
            if len(self.tables[name].columns) > 2:  # its extremes are no key, so they change too
                rows = [(row[0], values[number - 1], None) for number, row in enumerate(rows)]
            self.update(name, rows)
        for name in ("d.real", "d.long0", "d.long1"):
            rows = list(self.tables[name].rows.values())
            self.update(name, [(row[0], *after[1:]) for row, after in zip(rows, [*rows[1:], rows[0]], strict=True)])

    def _add_columns(self, name: str, kind: Any, values: list[Any]) -> None:
        self.add_column(name, tm.Column("none", kind, nullable=True))
        # Servers refuse defaults of over 64 KiB, and MariaDB has no default of -0.0.
        defaults = [_without_sign_of_zero(value) for value in values if len(repr(value)) < 60_000]
        for number, value in enumerate(defaults):
            self.add_column(name, tm.Column(f"n{number}", kind, default=value))
        self.add_column(name, tm.Column("null_or", kind, nullable=True, default=defaults[-1]))

    def _fill_added(self, name: str, values: list[Any]) -> None:
        """Let all values go through the added columns, and NULLs where they may be."""
        held = self.tables[name]
        first = next(place for place, column in enumerate(held.columns) if column.name == "none")
        rows = []
        for number, row in enumerate(held.rows.values()):
            fresh = [values[(number + place) % len(values)] for place in range(len(held.columns) - first)]
            rows.append((*row[:first], None if number % 2 else fresh[0], *fresh[1:-1], None))
        self.update(name, rows)

    def _delete(self) -> None:
        self._removed = {}
        for name, held in self.tables.items():
            keys = [*held.rows][:: 2 if len(held.rows) > 2 else 1]
            # What is inserted again has other values.
            kept = [*held.rows.values()][-1]
            self._removed[name] = [
                (key, *(kept if number % 2 else held.rows[key])[1:]) for number, key in enumerate(keys)
            ]
            self.delete(name, keys)

    # --- changes, at the store and in what is expected --------------------------------------------
    def create(self, name: str, columns: list[tm.Column], rows: Iterable[tuple[Any, ...]]) -> None:
        self.db.create_table(name, columns, columns[0].name)
        self.tables[name] = Held(columns, {})
        self.insert(name, rows)

    def insert(self, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self.db.transaction() as txn:
            for row in rows:
                txn.insert(name, row)
                self.tables[name].rows[row[0]] = row

    def update(self, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        held = self.tables[name]
        with self.db.transaction() as txn:
            for row in rows:
                names = [column.name for column in held.columns]
                txn.update(name, row[0], dict(zip(names[1:], row[1:], strict=True)))
                held.rows[row[0]] = row

    def delete(self, name: str, keys: Iterable[Any]) -> None:
        with self.db.transaction() as txn:
            for key in keys:
                txn.delete(name, key)
                del self.tables[name].rows[key]

    def add_column(self, name: str, column: tm.Column) -> None:
        self.db.add_column(name, column)
        held = self.tables[name]
        value = column.default if column.has_default else None
        held.columns.append(column)
        for key, row in held.rows.items():
            held.rows[key] = (*row, value)


def _without_sign_of_zero(value: Any) -> Any:
    """Return 0.0 for -0.0, which no key has."""
    return value + 0.0 if isinstance(value, float) else value


# --- what a server must have ------------------------------------------------------------------------
def _is_text(kind: Any) -> bool:
    return isinstance(kind, (t.Char, t.VarChar, t.LongText, t.Enum, t.Document))


def _expression(column: tm.Column) -> str:
    """Return the expression by which a server shows a value of a column exactly."""
    name, kind = f"`{column.name}`", column.type
    if isinstance(kind, t.Floating):
        # Servers show infinity and NaN as 0, MariaDB -0.0 too, and FLOAT with six digits; they hold all of them.
        return (
            f"CASE WHEN {name} IS NULL THEN 'NULL' WHEN {name} <> {name} THEN 'nan'"
            f" WHEN {name} > {_GREATEST} THEN 'inf' WHEN {name} < -{_GREATEST} THEN '-inf'"
            f" WHEN {name} = 0 AND ATAN2({name}, -1) < 0 THEN '-0.0' ELSE CONCAT(COALESCE({name}, 1e0)) END"
        )
    if _is_text(kind) or isinstance(kind, (t.Binary, t.VarBinary, t.LongBinary, t.Uuid)):
        return f"HEX(CONCAT({name}))"
    return name


def _shown(kind: Any, value: Any) -> str:
    """Return a value as `_expression` shows it."""
    if value is None:
        return "NULL"
    if isinstance(kind, t.Floating):
        return _bits(single(value) if kind.bits == 32 else value)
    if isinstance(kind, t.Document):
        value = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if _is_text(kind):
        return value.encode().hex().upper()
    if isinstance(kind, t.Uuid):
        return value.hex.upper()
    if isinstance(kind, t.Binary):
        return value.ljust(kind.length, b"\0").hex().upper()
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(kind, t.Decimal):
        return f"{value:.{kind.scale}f}"
    if isinstance(kind, t.Boolean):
        return str(int(value))
    if isinstance(kind, (t.LocalDateTime, t.Instant)):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(kind, t.TimeOfDay):
        return value.isoformat("microseconds")
    return str(value)


def single(value: float) -> float:
    """Return the float of 32 bits next to a value."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _bits(value: float) -> str:
    return "NaN" if math.isnan(value) else value.hex()


def rows_at(server: Server, tables: dict[str, Held]) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of tables at a server, sorted."""
    statements = [
        f"SELECT 'table {name}'; SELECT {', '.join(map(_expression, held.columns))} FROM {name};"
        for name, held in tables.items()
    ]
    found: dict[str, list[tuple[str, ...]]] = {}
    rows: list[tuple[str, ...]] = []
    for line in server.sql("".join(statements)).splitlines():
        if line.startswith("table "):
            found[line.removeprefix("table ")] = rows = []
            continue
        columns = tables[[*found][-1]].columns
        rows.append(
            tuple(
                _bits(float(text)) if isinstance(column.type, t.Floating) and text != "NULL" else text
                for column, text in zip(columns, line.split("\t"), strict=True)
            )
        )
    return {name: sorted(each) for name, each in found.items()}


def expected_at_server(tables: dict[str, Held]) -> dict[str, list[tuple[str, ...]]]:
    return {
        name: sorted(
            tuple(_shown(column.type, value) for column, value in zip(held.columns, row, strict=True))
            for row in held.rows.values()
        )
        for name, held in tables.items()
    }


def assert_same_at(server: Server, everything: Everything) -> None:
    """Compare all rows, value by value."""
    assert_same(rows_at(server, everything.tables), expected_at_server(everything.tables))


def assert_same(found: dict[str, list[Any]], wanted: dict[str, list[Any]]) -> None:
    """Compare rows by tables; name the first difference, since values are long."""
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        for row, other in zip(rows, found[name], strict=False):
            for place, (value, there) in enumerate(zip(row, other, strict=True)):
                assert there == value, f"{name}, column {place} of the row {str(row[0])[:60]}"
        assert len(found[name]) == len(rows), name


# --- what a reader of row events must have ----------------------------------------------------------
class Reader:
    """The tables that the changes of a tool make. It is strict: what is said to be before a change must be there."""

    def __init__(self, everything: Everything, value_of: Callable[[Any, Any], Any]) -> None:
        """value_of: a value of a type as the tool gives it."""
        self._everything = everything
        self._value_of = value_of
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}

    def take(self, name: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        """Take the change of a row; its images have all columns of their time by name."""
        key_name = self._everything.tables[name].columns[0].name
        rows = self.tables.setdefault(name, {})
        old, new = ({key: _comparable(value) for key, value in (image or {}).items()} for image in (before, after))
        if before is not None:
            held = rows.pop(old[key_name])
            # Columns that were added since have their defaults, which events do not say.
            assert old == {**{each: old[each] for each in old.keys() - held.keys()}, **held}, name
        if after is not None:
            assert new[key_name] not in rows, name
            rows[new[key_name]] = new

    def assert_same(self) -> None:
        """Compare with what is expected, once all changes were taken. A row that no event brought since a column was
        added lacks the column.
        """
        for name, held in self._everything.tables.items():
            found = self.tables.get(name, {})
            for row in held.rows.values():
                wanted = {
                    column.name: _comparable(self._value_of(column.type, value))
                    for column, value in zip(held.columns, row, strict=True)
                }
                for key, value in found[wanted[held.columns[0].name]].items():
                    assert value == wanted[key], (name, key, str(row[0])[:60])
            assert len(found) == len(held.rows), name


def _comparable(value: Any) -> Any:
    return _bits(value) if isinstance(value, float) else value


def library_changes(everything: Everything, event: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield table, row before and row after of each change of an event of python-mysql-replication."""
    rows = getattr(event, "rows", None)
    if rows is None or event.schema != "d":
        return
    name = f"{event.schema}.{event.table}"
    columns = everything.tables[name].columns
    for row in rows:
        images = row.get("before_values"), row.get("after_values")
        if "values" in row:
            images = (row["values"], None) if "Delete" in type(event).__name__ else (None, row["values"])
        before, after = (None if each is None else as_library_gives(columns, each) for each in images)
        yield name, before, after


def stream_change(everything: Everything, event: Any) -> tuple[str, Any, Any]:
    """Return table, row before and row after of an event of mysql-event-stream."""
    name = f"{event.database}.{event.table}"
    padded = {each.name for each in everything.tables[name].columns if isinstance(each.type, (t.Binary, t.Uuid))}
    before, after = (
        None
        if image is None
        else {key: value.rstrip(b"\0") if key in padded and value else value for key, value in image.items()}
        for image in (event.before, event.after)
    )
    return name, before, after


def stream_value(kind: Any, value: Any) -> Any:
    """Return a value as mysql-event-stream gives it."""
    if value is None:
        return None
    if isinstance(kind, t.Enum):
        return kind.members.index(value) + 1
    if isinstance(kind, t.Integer) and value > t.Int64.maximum:
        return str(value)
    if isinstance(kind, (t.Decimal, t.CalendarDate, t.TimeOfDay, t.LocalDateTime, t.Instant)):
        return _shown(kind, value)
    return library_value(kind, value)
