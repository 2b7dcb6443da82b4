"""The built-in program over tables whose columns and names change, also within transactions and local checkpoints.

As `history`, and columns are added, dropped, indexed and renamed, defaults changed, columns made wider with their
indexes, tables renamed, between the calls of open transactions and between the fragments of a local checkpoint. One
table has a var part from the beginning, the other gets side pages. The promised state has column names and defaults
besides the rows; each index finds all rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal as PythonDecimal
from typing import Any

from tests.crash.programs.history import COLUMNS, MAIN, OTHER, History, Model, Row, program
from tidemark.engine.base.errors import RedoOverloaded
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Binary, Bool, Char, ColumnType, Decimal, Float64, Int8, Int64, Text, VarChar
from tidemark.recovery.crash_harness.program import Ledger, digest_of, state_of

PLAIN_COLUMNS = [Column("id", Int64), Column("owner", Int8, nullable=True), Column("balance", Float64)]
DISK_COLUMNS = [
    *PLAIN_COLUMNS,
    Column("note", Text, nullable=True, storage="disk"),
    Column("code", Int64, storage="disk"),
]
WIDER = {Int8: Int64, Char(3): VarChar(8), Decimal(30, 2): Decimal(38, 2)}
KINDS: list[ColumnType] = [Int8, Int64, Float64, Bool, Decimal(30, 2), Char(3), Binary(6), VarChar(8), Text]
SCHEMA = "columns of tables"
COLUMNS_MAX = 9
NAMES = ("test.other", "moved.other")


class SchemaHistory(History):
    """A run of the program; `schema` has the columns of each table after the last acknowledged step."""

    main_columns = PLAIN_COLUMNS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.schema: dict[str, list[Column]] = {}
        self.made = 0

    # --- schema ----------------------------------------------------------------------------------
    def ddl(self, name: str) -> None:
        """Make a table, change one, or, at times, drop one."""
        if name in self.model or (name != MAIN and len(self.model) == 2):
            if self.rng.random() < 0.9:
                self.alter(self.rng.choice(sorted(self.model)), self.model)
                return
        if name != MAIN:
            name = next((each for each in self.model if each != MAIN), OTHER)
        schema = {each: columns for each, columns in self.schema.items() if each != name}
        if name not in self.model:
            schema[name] = list(self.main_columns if name == MAIN else COLUMNS)
        before, self.schema = self.schema, schema
        if name in before:
            after = {each: rows for each, rows in self.model.items() if each != name}
            line = self.begin(after)
            self.schema_change(lambda: self.db.drop_table(name))
        else:
            after = {**self.model, name: {}}
            line = self.begin(after)
            self.schema_change(lambda: self.create(name))
        self.done(after, line, True)

    def create(self, name: str) -> None:
        """Make a table."""
        self.db.create_table(name, self.schema[name], primary_key="id", partition=self.partition(name))

    def begin(self, after: Model) -> str:
        """A change is under way; its line has the columns, too."""
        line = digest_of({**{name: rows.values() for name, rows in after.items()}, SCHEMA: shown(self.schema)})
        self.ledger.begin(line)
        return line

    def alter(self, name: str, pending: Model) -> Model:
        """Make one change of a table's columns or name. Return `pending`, the uncommitted rows, as they
        are after it.
        """
        # A column gets other bytes only when the transactions that are open have ended.
        call, columns, row_after = self._change(name, moves=pending is self.model or not pending)
        to = name
        if call is None:
            to = NAMES[1 - NAMES.index(name)]
            call = functools.partial(self.db.rename, name, to)

        def changed(model: Model) -> Model:
            return {
                to if each == name else each: {key: row_after(row) for key, row in rows.items()}
                if each == name
                else rows
                for each, rows in model.items()
            }

        after = changed(self.model)
        self.schema = {to if each == name else each: held for each, held in self.schema.items()}
        self.schema[to] = columns
        line = self.begin(after)
        self.schema_change(call)
        self.done(after, line, True)
        return changed(pending)

    def _change(self, name: str, moves: bool) -> tuple[Callable[[], object] | None, list[Column], Callable[[Row], Row]]:
        """(the call, None to rename the table; the columns then; what becomes of a row)."""
        rng, columns = self.rng, list(self.schema[name])
        draw = rng.random()
        at = rng.randrange(1, len(columns)) if len(columns) > 1 else 0
        column = columns[at]
        call = self._index_change(name, column) if at and moves else None
        if call is not None:
            return call, columns, lambda row: row
        is_indexed = any(column.name in index.columns for index in self.db[name].definition.indexes)
        if is_indexed and (draw < 0.6 or not moves):  # built anew only when the transactions that are open have ended
            draw = 1.0
        if not at or (draw < 0.4 and len(columns) < COLUMNS_MAX):
            added = self._column()
            call = functools.partial(self.db.add_column, name, added)
            return call, [*columns, added], lambda row: (*row, added.missing)
        if draw < 0.6:
            call = functools.partial(self.db.drop_column, name, column.name)
            return call, [*columns[:at], *columns[at + 1 :]], lambda row: (*row[:at], *row[at + 1 :])
        if draw < 0.7:
            self.made += 1
            to = f"r{self.made}"
            columns[at] = Column(to, column.type, column.nullable, column.default, column.storage)
            return functools.partial(self.db.rename_column, name, column.name, to), columns, lambda row: row
        if draw < 0.8 and isinstance(column.type, VarChar) and not column.is_disk:
            wider = VarChar(column.type.length + rng.randrange(1, 5))
            columns[at] = Column(column.name, wider, column.nullable, column.default)
            return functools.partial(self.db.widen_column, name, column.name, wider), columns, lambda row: row
        if moves and draw < 0.9 and column.type in WIDER and not column.is_disk:
            kind = WIDER[column.type]
            columns[at] = Column(column.name, kind, column.nullable, column.default)
            return functools.partial(self.db.widen_column, name, column.name, kind), columns, lambda row: row
        if name in NAMES and 0.95 < draw < 1.0:
            return None, columns, lambda row: row
        default = self.value(column.type)
        columns[at] = Column(column.name, column.type, column.nullable, default, column.storage)
        return functools.partial(self.db.set_default, name, column.name, default), columns, lambda row: row

    def _index_change(self, name: str, column: Column) -> Callable[[], object] | None:
        """At times, a call that gives a column an index, or drops that."""
        if column.is_disk or not column.type.keyable or self.rng.random() < 0.7:
            return None
        index = next((each for each in self.db[name].definition.indexes if column.name in each.columns), None)
        if index is not None:
            return functools.partial(self.db.drop_index, name, index.name) if self.rng.random() < 0.4 else None
        self.made += 1
        is_unique = self.rng.random() < 0.5
        options = {"unique": is_unique, "ordered": is_unique}
        return functools.partial(self.db.create_index, name, f"i{self.made}", [column.name, "id"], **options)

    def _column(self) -> Column:
        self.made += 1
        kind = self.rng.choice(KINDS)
        name = self.rng.choice(["again", f"c{self.made}"])
        if any(column.name == name for columns in self.schema.values() for column in columns):
            name = f"c{self.made}"
        if self.rng.random() < 0.4:
            return Column(name, kind, True)
        return Column(name, kind, self.rng.random() < 0.5, self.value(kind))

    # --- rows ------------------------------------------------------------------------------------
    def value(self, kind: ColumnType) -> Any:
        """A value of a type."""
        number = self.rng.randrange(-99, 99)
        if kind == Bool:
            return number > 0
        if isinstance(kind, Decimal):
            return kind.loaded(kind.stored(PythonDecimal(number) * 10**20))
        if isinstance(kind, Binary):
            return bytes([number % 7 + 1]) * 6
        if isinstance(kind, (Char, VarChar)):
            return "é" * self.rng.randrange(kind.length + 1)
        if kind == Text:
            return "t" * self.rng.randrange(3_000)
        return float(number) if kind == Float64 else number

    def row_of(self, name: str, key: int) -> Row:
        """A row of a table."""
        return (
            key,
            *(
                None if column.nullable and self.rng.random() < 0.3 else self.value(column.type)
                for column in self.schema[name][1:]
            ),
        )

    def commit(self) -> None:
        """One transaction on both tables; at times a table changes while it is open."""
        after = {name: dict(rows) for name, rows in self.model.items()}
        with self.db.transaction() as txn:
            for _ in range(self.rng.randrange(1, 4)):
                for name in sorted(after):
                    for _ in range(self.rng.randrange(1, 4)):
                        self.change(txn, name, after[name])
                if self.rng.random() < 0.15:
                    after = self.alter(self.rng.choice(sorted(after)), after)
            line = self.begin(after)
        self.done(after, line, self.waits_for_disk)

    def change(self, txn: Any, name: str, rows: dict[int, Row]) -> None:
        """One call of any kind, made on the table and on the model."""
        key = self.rng.randrange(self.keys)
        draw = self.rng.random()
        columns = self.schema[name]
        if draw < 0.3:
            rows[key] = self.row_of(name, key)
            txn.write(name, rows[key])
        elif draw < 0.5 and key in rows:
            txn.delete(name, key)
            del rows[key]
        elif draw < 0.7 and key in rows and len(columns) > 1:
            at = self.rng.randrange(1, len(columns))
            value = self.value(columns[at].type)
            rows[key] = (*rows[key][:at], value, *rows[key][at + 1 :])
            txn.update(name, key, {columns[at].name: value})
        elif draw < 0.8:
            fresh = {other: self.row_of(name, other) for other in self.rng.sample(range(self.keys), 4)}
            txn.write_many(name, list(fresh.values()))
            rows.update(fresh)
        elif draw < 0.9:
            self.undone(txn, name, key)
        elif key not in rows:
            given = {
                column.name: value
                for column, value in zip(columns, self.row_of(name, key), strict=True)
                if not column.has_default or self.rng.random() < 0.5
            }
            rows[key] = tuple(given.get(column.name, column.missing) for column in columns)
            txn.insert(name, given)

    def undone(self, txn: Any, name: str, key: int) -> None:
        """Changes after a savepoint that is rolled back."""
        try:
            with txn.savepoint():
                txn.write(name, self.row_of(name, key))
                txn.write(name, self.row_of(name, self.keys + key))
                raise _RolledBack
        except _RolledBack:
            return

    def commit_beside(self) -> None:
        """One transaction, or one change of a table, while a local checkpoint is being made."""
        schema, self.is_beside = dict(self.schema), True
        try:
            if self.rng.random() < 0.4:
                self.alter(self.rng.choice(sorted(self.model)), {})
            else:
                self.commit()
        except RedoOverloaded:
            self.schema = schema
        finally:
            self.is_beside = False


class _RolledBack(Exception):
    """Ends a savepoint."""


class DiskSchemaHistory(SchemaHistory):
    """The same with disk columns in the table that has no var part in memory."""

    main_columns = DISK_COLUMNS


def shown(schema: dict[str, list[Column]]) -> list[tuple[str, str]]:
    """Names, types and defaults of the columns of each table."""
    return [
        (name, repr([(column.name, column.type, column.nullable, repr(column.missing)) for column in columns]))
        for name, columns in sorted(schema.items())
    ]


def verify(db: Any, ledger: Ledger) -> list[str]:
    """`whole_state`, columns included."""
    schema = {name: list(db[name].definition.columns) for name in db.tables() if not name.startswith("crash_harness.")}
    for name in schema:
        keys = sorted(row.id for row in db[name])
        for index in db[name].indexes():
            found = sorted(row.id for row in db[name].scan(index=index["name"]))
            if found != keys:
                return [f"index {index['name']} of {name} finds {len(found)} of {len(keys)} rows"]
    state = digest_of({**state_of(db), SCHEMA: shown(schema)})
    last = ledger.acknowledged[-1] if ledger.acknowledged else digest_of({SCHEMA: []})
    if state in {last, *ledger.under_way}:
        return []
    which = ledger.acknowledged.index(state) + 1 if state in ledger.acknowledged else 0
    rows = {name: len(rows) for name, rows in state_of(db).items()}
    return [f"state {which or 'that never was'} of {len(ledger.acknowledged)} (rows {rows}, {shown(schema)})"]


# The program, for crash states: 50 steps.
work = program(SchemaHistory, 50)
# The program with disk columns, for crash states: 30 steps.
disk_work = program(DiskSchemaHistory, 30)
# The program with disk columns, for a look at every point in seconds: 14 steps, some of them local checkpoints.
tiny_disk_work = program(DiskSchemaHistory, 14, lcp_every=4)
# The program, for anomaly loops.
short_work = program(SchemaHistory, 20)
