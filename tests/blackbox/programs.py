"""Programs by seed: lists of plain steps, made over the model alone, so that they do something."""

from __future__ import annotations

import random
from typing import Any

from tests.blackbox import expressions, forms, odd
from tests.blackbox.doors import WRITING
from tests.blackbox.kinds import ABSENT, Kind, Refused, Unsure, draw_kind, order
from tests.blackbox.model import TOP, Col, Table
from tests.blackbox.schema import State

Step = tuple[Any, ...]
TABLES = ("a", "b", "shop.c", "d")
NAMES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")
INDEXES = ("i", "j", "k")
ROWS_MAX = 60
# How often each kind of step comes.
WEIGHTS: dict[str, float] = {
    "insert": 14,
    "write": 7,
    "setitem": 2,
    "update": 10,
    "delete": 5,
    "upsert": 7,
    "insert_many": 6,
    "write_many": 4,
    "upsert_many": 5,
    "update_many": 4,
    "delete_many": 3,
    "update_where": 5,
    "delete_where": 2,
    "load": 2,
    "bad_csv": 0.3,
    "adopt": 0.4,
    "txn": 8,
    "get": 8,
    "get_many": 3,
    "scan": 8,
    "aggregate": 5,
    "sql": 3,
    "pushdown": 2,
    "ask": 0.4,
    "explain": 1,
    "create_table": 0.5,
    "drop_table": 0.35,
    "rename": 0.6,
    "add_column": 2.5,
    "drop_column": 2.5,
    "rename_column": 0.8,
    "set_default": 1,
    "widen_column": 0.8,
    "add_partition": 0.8,
    "drop_partition": 0.5,
    "create_index": 2,
    "drop_index": 1,
    "snapshot": 0.7,
    "snapshot_read": 1,
    "snapshot_close": 0.4,
    "checkpoint": 0.8,
    "sync": 0.7,
    "check": 0.8,
    "reopen": 0.5,
    "kill": 0.4,
    "reader": 0.25,
    "backup": 0.35,
    "chain": 0.06,
}


class Maker:
    """Makes the steps of one program."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state = State()
        self.has_disk = self.rng.random() < 0.4
        self.doors = WRITING if self.rng.random() < 0.6 else ("handle", "handle", "txn", "run", "typed")
        self.kinds, self.weights = list(WEIGHTS), list(WEIGHTS.values())
        self.names = 0

    def options(self) -> dict[str, Any]:
        return {"durability": "epoch"} if self.rng.random() < 0.2 else {}

    def program(self, length: int) -> list[Step]:
        steps = [self._create_table("a")]
        self._note(steps[0])
        while len(steps) < length:
            kind = self.rng.choices(self.kinds, self.weights)[0]
            if not self.state.tables:
                kind = "create_table"
            if kind == "chain":
                made = self._chain(self._table())
            else:
                made = [getattr(self, f"_{kind}")(self._table())]
            for step in made:
                if step is not None:
                    steps.append(step)
                    self._note(step)
        return steps

    def _note(self, step: Step) -> None:
        """Let the state follow."""
        operation, *arguments = step
        try:
            if hasattr(self.state, operation):
                getattr(self.state, operation)(*arguments[1:])
            elif operation in ("insert", "write", "update", "delete", "upsert", "update_where", "delete_where"):
                getattr(self.state.table(arguments[1]), operation)(*arguments[2:])
            elif operation.endswith("_many") and operation != "get_many" or operation in ("load", "adopt"):
                self._note_many(operation, arguments[1:])
            elif operation == "__setitem__":
                self.state.table(arguments[1]).write(arguments[2])
            elif operation == "txn" and arguments[2] == "commit":
                for inner in arguments[1]:
                    if inner[0] not in ("savepoint", "get", "rows"):
                        self._note((inner[0], "handle", *inner[1:]))
        except (Refused, Unsure):
            pass

    def _note_many(self, operation: str, arguments: Any) -> None:
        table, rows, *more = arguments
        found = self.state.table(table)
        if operation == "delete_many":
            found.delete_many(rows, *more)
        else:
            method = "insert_many" if operation in ("load", "adopt") else operation
            getattr(found, method)(rows, *more[1:])

    # --- parts -----------------------------------------------------------------------------------
    def _table(self) -> str:
        """Return a name of a table, one that is not there now and then."""
        if self.state.tables and self.rng.random() < 0.985:
            return self.rng.choice(sorted(self.state.tables))
        return self.rng.choice(TABLES)

    def _door(self) -> str:
        return self.rng.choice(self.doors)

    def _new_name(self) -> str:
        self.names += 1
        return self.rng.choice(NAMES) if self.rng.random() < 0.5 else f"x{self.names}"

    def _column(self, name: str, is_key: bool = False, is_added: bool = False) -> Col:
        rng = self.rng
        kind = draw_kind(rng, is_key)
        if is_key:
            return Col(name, kind)
        nullable = rng.random() < 0.5
        default: Any = ABSENT
        if rng.random() < 0.3 or (is_added and not nullable):
            default = kind.draw(rng)
        is_disk = self.has_disk and not is_added and rng.random() < 0.5
        return Col(name, kind, nullable, default, is_disk)

    def _value(self, column: Col, is_key: bool = False) -> Any:
        rng = self.rng
        luck = rng.random()
        if luck < 0.008:
            return column.kind.draw_wrong(rng)
        if luck < 0.016:
            return odd.drawn(rng)
        if luck < 0.02 or (column.nullable and luck < 0.2):
            return None if not is_key else column.kind.draw(rng, True)
        return column.kind.draw(rng, is_key)

    def _row(self, table: Table, is_whole: bool = False) -> Any:
        rng = self.rng
        values = {column.name: self._value(column, column.name in table.key) for column in table.columns}
        if is_whole or rng.random() < 0.5:
            return tuple(values.values()) if rng.random() < 0.5 else values
        for column in table.columns:
            if column.name not in table.key and rng.random() < 0.3:
                del values[column.name]
        if rng.random() < 0.01:
            values["nothing"] = 1
        return values

    def _key(self, table: Table) -> Any:
        if table.rows and self.rng.random() < 0.75:
            return self.rng.choice(list(table.rows))
        return table.key_of({name: table.column(name).kind.draw(self.rng, True) for name in table.key})

    def _rows(self, table: Table, count: int | None = None) -> tuple[list[Any], str]:
        """Return rows, and the form in which they enter."""
        rng = self.rng
        form = rng.choice([each for each in forms.ENTERING if each not in forms.FILES])
        rows = [self._row(table, form != "rows") for _ in range(count or rng.choice((1, 2, 3, 5, 8, 20)))]
        if form != "rows":
            rows = forms.as_dicts(rows, table.names)
        elif rng.random() < 0.5:
            rows = [self._row(table, True) for _ in rows]
        return rows, form

    def _where(self, table: Table, is_optional: bool = True) -> Any:
        if is_optional and self.rng.random() < 0.4:
            return None
        if self.rng.random() < 0.35:
            return self._of_keys(table)
        return expressions.draw(self.rng, table.kinds())

    def _of_keys(self, table: Table) -> Any:
        """Return a condition with values for all columns of a key, often for more: a lookup."""
        rng = self.rng
        keys = [table.key, table.key, *table.unique()]
        columns = rng.choice(keys)
        rows = [table.as_dict(row) for row in rng.sample(list(table.rows.values()), min(len(table.rows), 3))]
        parts = []
        for name in columns:
            kind = table.column(name).kind
            held = [row[name] for row in rows if row[name] is not None and rng.random() < 0.9] or [kind.draw(rng)]
            if rng.random() < 0.6:
                parts.append(("==", name, held[0]))
            else:
                parts.append(("in", name, (*held, *(kind.draw(rng) for _ in range(rng.randrange(3))))))
        if rows and rng.random() < 0.3:
            name = rng.choice(table.names)
            parts += [] if rows[-1][name] is None else [("==", name, rows[-1][name])]
        elif rng.random() < 0.3:
            parts.append(expressions.draw(rng, table.kinds(), 1))
        rng.shuffle(parts)
        found = parts[0]
        for part in parts[1:]:
            found = ("and", found, part)
        return found

    def _changes(self, table: Table) -> dict[str, Any] | None:
        columns = {each.name: (each.kind, each.nullable) for each in table.columns if each.name not in table.key}
        return expressions.draw_changes(self.rng, columns) if columns else None

    def _unique(self, table: Table) -> str | None:
        """Return a unique index, seldom."""
        names = [name for name, index in table.indexes.items() if index.is_unique]
        return self.rng.choice(names) if names and self.rng.random() < 0.4 else None

    def _unique_key(self, table: Table, index: str) -> Any:
        columns = table.indexes[index].columns
        row = self.rng.choice(list(table.rows.values())) if table.rows and self.rng.random() < 0.8 else None
        if row is None:
            found = tuple(table.column(name).kind.draw(self.rng) for name in columns)
        else:
            found = tuple(table.as_dict(row)[name] for name in columns)
        return found if len(found) > 1 else found[0]

    def _of(self, name: str) -> Table:
        return self.state.tables.get(name) or Table([Col("id", Kind("Int64"))], ("id",))

    # --- changes ---------------------------------------------------------------------------------
    def _insert(self, name: str) -> Step | None:
        table = self._of(name)
        if len(table.rows) > ROWS_MAX:
            return "delete_where", self._door(), name, self._where(table, False)
        return "insert", self._door(), name, self._row(table)

    def _write(self, name: str) -> Step:
        return "write", self._door(), name, self._row(self._of(name))

    def _setitem(self, name: str) -> Step:
        table = self._of(name)
        if self.rng.random() < 0.3:
            return "__delitem__", self._door(), name, self._key(table)
        return "__setitem__", self._door(), name, self._row(table, True)

    def _update(self, name: str) -> Step | None:
        table = self._of(name)
        changes = self._changes(table)
        if changes is None:
            return None
        if self.rng.random() < 0.01:
            changes = {table.key[0]: table.column(table.key[0]).kind.draw(self.rng, True)}
        index = self._unique(table)
        key = self._key(table) if index is None else self._unique_key(table, index)
        return (
            "update",
            self._door(),
            name,
            key,
            changes,
            self._where(table) if self.rng.random() < 0.4 else None,
            index,
        )

    def _delete(self, name: str) -> Step:
        table = self._of(name)
        index = self._unique(table)
        key = self._key(table) if index is None else self._unique_key(table, index)
        return "delete", self._door(), name, key, self._where(table) if self.rng.random() < 0.4 else None, index

    def _upsert(self, name: str) -> Step:
        table = self._of(name)
        changes = self._changes(table) if self.rng.random() < 0.6 else None
        index = self._unique(table)
        return "upsert", self._no_typed(), name, self._row(table, index is not None), changes, index

    def _no_typed(self) -> str:
        door = self._door()
        return "handle" if door == "typed" else door

    def _insert_many(self, name: str) -> Step:
        return "insert_many", self._door(), name, *self._rows(self._of(name))

    def _tangled(self, table: Table, rows: list[Any]) -> list[Any]:
        """Let rows with few keys take few unique keys from each other, so that their order counts."""
        rows = forms.as_dicts(rows, table.names) if all(len(row) == len(table.names) for row in rows) else rows
        unique = [columns for columns in table.unique() if len(columns) == 1 and columns[0] not in table.key]
        if not unique or not all(isinstance(row, dict) for row in rows) or self.rng.random() < 0.4:
            return rows
        (name,) = self.rng.choice(unique)
        few = rows[:2]  # of many rows some two always take the same unique key
        rows = [*few, *(dict(row) for row in few)]
        values = [table.column(name).kind.draw(self.rng) for _ in range(2)]
        values += [table.as_dict(row)[name] for row in list(table.rows.values())[:2]]
        keys = [{each: row[each] for each in table.key} for row in rows[:2] if set(table.key) <= set(row)]
        for row in rows:
            row[name] = self.rng.choice(values)
            row.update(self.rng.choice(keys) if keys and self.rng.random() < 0.7 else {})
        return rows

    def _write_many(self, name: str) -> Step:
        table = self._of(name)
        rows, form = self._rows(table)
        return "write_many", self._door(), name, self._tangled(table, rows), form

    def _upsert_many(self, name: str) -> Step:
        table = self._of(name)
        rows, form = self._rows(table)
        changes = self._changes(table) if self.rng.random() < 0.4 else None
        rows = self._tangled(table, rows)
        return (
            "upsert_many",
            self._no_typed(),
            name,
            forms.as_dicts(rows, table.names),
            form,
            changes,
            self._unique(table),
        )

    def _update_many(self, name: str) -> Step | None:
        table = self._of(name)
        rng = self.rng
        others = [each for each in table.columns if each.name not in table.key]
        if not others or not table.rows:
            return None
        index = self._unique(table)
        by = table.key if index is None else table.indexes[index].columns
        changed = [each for each in rng.sample(others, rng.randrange(1, len(others) + 1)) if each.name not in by]
        if not changed:
            return None
        rows = []
        for row in rng.choices(list(table.rows.values()), k=rng.randrange(1, 6)):
            values = table.as_dict(row)
            rows.append({**{each: values[each] for each in by}, **{each.name: self._value(each) for each in changed}})
        form = rng.choice(("rows", "columns", "arrow", "pandas", "polars", "numpy"))
        return "update_many", self._no_typed(), name, rows, form, index

    def _delete_many(self, name: str) -> Step:
        table = self._of(name)
        index = self._unique(table)
        count = self.rng.randrange(1, 5)
        keys = [self._key(table) if index is None else self._unique_key(table, index) for _ in range(count)]
        return "delete_many", self._no_typed(), name, keys, index

    def _update_where(self, name: str) -> Step | None:
        table = self._of(name)
        changes = self._changes(table)
        return None if changes is None else ("update_where", self._no_typed(), name, changes, self._where(table))

    def _delete_where(self, name: str) -> Step:
        return "delete_where", self._no_typed(), name, self._where(self._of(name), False)

    def _load(self, name: str) -> Step:
        table = self._of(name)
        form = self.rng.choice((*forms.FILES, "arrow", "rows"))
        rows = [self._row(table, True) for _ in range(self.rng.randrange(1, 9))]
        return "load", self.rng.choice(("handle", "aio")), name, forms.as_dicts(rows, table.names), form

    def _bad_csv(self, name: str) -> Step:
        table = self._of(name)
        rows = [{each.name: each.kind.draw(self.rng) for each in table.columns} for _ in range(3)]
        return "bad_csv", name, rows

    def _adopt(self, name: str) -> Step | None:
        table = self._of(name)
        rows = [self._row(table, True) for _ in range(self.rng.randrange(1, 9))]
        return "adopt", "handle", name, forms.as_dicts(rows, table.names), "batch"

    def _txn(self, _: str) -> Step:
        door = self.rng.choice(("handle", "remote", "aio")) if "remote" in self.doors else "handle"
        end = self.rng.choice(("commit", "commit", "commit", "rollback", "raise"))
        return "txn", door, self._inner(2), end

    def _inner(self, depth: int) -> list[Step]:
        steps: list[Step] = []
        state = self.state.copy()
        own, self.state = self.state, state
        try:
            for _ in range(self.rng.randrange(1, 7)):
                name = self._table()
                luck = self.rng.random()
                if depth and luck < 0.2:
                    steps.append(("savepoint", self._inner(depth - 1), self.rng.random() < 0.5))
                    continue
                if luck < 0.3:
                    steps.append(
                        ("get", name, self._key(self._of(name)), self.rng.choice((None, "shared", "exclusive")))
                    )
                    continue
                if luck < 0.4:
                    lock = self.rng.choice((None, None, "shared", "exclusive"))
                    steps.append(("rows", name, self._where(self._of(name)), lock))
                    continue
                kind = self.rng.choice(
                    (
                        "insert",
                        "write",
                        "update",
                        "delete",
                        "upsert",
                        "insert_many",
                        "write_many",
                        "upsert_many",
                        "update_many",
                        "delete_many",
                        "update_where",
                        "delete_where",
                    )
                )
                step = getattr(self, f"_{kind}")(name)
                if step is not None:
                    self._note(step)
                    steps.append((step[0], *step[2:]))
        finally:
            self.state = own
        return steps

    # --- reads -----------------------------------------------------------------------------------
    def _get(self, name: str) -> Step:
        table = self._of(name)
        index = self._unique(table)
        key = self._key(table) if index is None else self._unique_key(table, index)
        if index is None and len(table.key) == 1 and self.rng.random() < 0.05:
            key = odd.drawn(self.rng)
        return "get", self._door(), name, key, index

    def _get_many(self, name: str) -> Step:
        table = self._of(name)
        index = self._unique(table)
        count = self.rng.randrange(1, 6)
        keys = [self._key(table) if index is None else self._unique_key(table, index) for _ in range(count)]
        return "get_many", self._no_typed(), name, keys, index

    def _scan(self, name: str) -> Step:
        table, rng = self._of(name), self.rng
        options: dict[str, Any] = {}
        ordered = [each for each, index in table.indexes.items() if index.is_ordered]
        if ordered and rng.random() < 0.6:
            index = rng.choice(ordered)
            options["index"] = index
            columns = table.indexes[index].columns
            if rng.random() < 0.5:
                options["reverse"] = True
            bounds = ("lower",), ("upper",), ("lower", "upper"), ("prefix",), ()
            for bound in rng.choice(bounds):
                taken = columns[: rng.randrange(1, len(columns) + 1)]
                options[bound] = tuple(table.column(each).kind.draw(rng) for each in taken)
                if bound == "prefix" and len(taken) == 1:
                    options[bound] = options[bound][0]
                    if table.column(taken[0]).kind.is_text or table.column(taken[0]).kind.is_bytes:
                        options[bound] = options[bound][:2]
        if rng.random() < 0.25:
            options["limit"] = rng.randrange(0, 8)
        if rng.random() < 0.3:
            options["columns"] = rng.sample(table.names, rng.randrange(1, len(table.names) + 1))
        if table.partition is not None and table.partition[0] in ("range", "list") and rng.random() < 0.5:
            names = table.partition_names()
            options["partitions"] = rng.sample(names, rng.randrange(1, len(names) + 1))
        return "scan", self._door(), name, self._where(table), options, rng.choice(forms.READING)

    def _aggregate(self, name: str) -> Step:
        table, rng = self._of(name), self.rng
        function = rng.choice(("count", "sum", "min", "max", "mean"))
        column = rng.choice(table.names) if function != "count" or rng.random() < 0.5 else None
        step = "aggregate", rng.choice((*self.doors, "txn")), name, self._where(table), function, column
        own = random.Random(repr(step))  # so the steps after it are the same whether it has groups or not
        return self._groups(step, own) if own.random() < 0.6 else step

    def _groups(self, step: Step, rng: random.Random) -> Step:
        """Aggregates by group over the rows of an aggregate."""
        _, door, name, where, *_ = step
        names = self._of(name).names
        by = rng.sample(names, min(rng.choice((1, 1, 2, 3)), len(names)))
        if rng.random() < 0.02:
            by.append("nothing")
        functions = [("count", None)] if rng.random() < 0.4 else []
        for _ in range(rng.randrange(0, 4)):
            functions.append((rng.choice(("count", "sum", "min", "max", "mean")), rng.choice(names)))
        order = rng.choice((None, None, rng.choice(by), "f0"))
        limit = rng.choice((None, None, 0, 1, 2, 5))
        found = rng.choice((door, door, "snapshot", "typed"))
        return "groups", found, name, where, by, functions, (order, rng.random() < 0.4, limit)

    def _sql(self, name: str) -> Step:
        return "sql", name, self._where(self._of(name), False)

    def _pushdown(self, name: str) -> Step:
        door = self.rng.choice(("handle", "typed", "snapshot", *(("remote", "aio") if "remote" in self.doors else ())))
        ways = ("arrow", "numpy", "pandas", "polars")
        return "pushdown", name, self.rng.choice(ways if door == "aio" else forms.READING), door

    def _ask(self, _: str) -> Step:
        return "ask", self.rng.choice(("handle", "remote")) if "remote" in self.doors else "handle"

    def _explain(self, name: str) -> Step:
        return "explain", "handle", name, self._where(self._of(name))

    # --- schema ----------------------------------------------------------------------------------
    def _store_door(self) -> str:
        return self.rng.choice(("handle", "remote", "aio")) if "remote" in self.doors else "handle"

    def _create_table(self, _: str) -> Step:
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 3))
        columns = [self._column(f"k{number}", True) for number in range(count)]
        columns += [self._column(name) for name in NAMES[: rng.randrange(1, 7)]]
        key = tuple(f"k{number}" for number in rng.sample(range(count), count))
        rng.shuffle(columns)
        return "create_table", self._store_door(), rng.choice(TABLES), columns, key, self._partition(columns, key)

    def _partition(self, columns: list[Col], key: tuple[str, ...]) -> Any:
        rng = self.rng
        rule = rng.choice((None, None, "hash", "linear", "key", "range", "range", "list", "modulo"))
        by = rng.choice(key)
        kind = next(each.kind for each in columns if each.name == by)
        if rule in ("hash", "linear", "key"):
            return rule, rng.choice((None, [by])), rng.randrange(1, 7)
        if rule == "modulo":
            return (rule, by, rng.randrange(1, 5)) if kind.is_integer else None
        values = {order(each): each for each in (kind.draw(rng, True) for _ in range(9))}
        drawn = [values[each] for each in sorted(values)]
        if rule == "range" and not kind.members:
            bounds = drawn[: rng.randrange(1, 4)]
            if rng.random() < 0.6:
                bounds = [*bounds, TOP]
            return rule, by, [(f"r{number}", bound) for number, bound in enumerate(bounds)]
        if rule == "list":
            half = max(1, len(drawn) // 2)
            parts = [("l0", drawn[:half]), ("l1", drawn[half:])]
            return rule, by, [each for each in parts if each[1]]
        return None

    def _drop_table(self, name: str) -> Step | None:
        return ("drop_table", self._store_door(), name) if len(self.state.tables) > 1 else None

    def _rename(self, name: str) -> Step:
        return "rename", self._store_door(), name, self.rng.choice((*TABLES, "e"))

    def _add_column(self, name: str) -> Step | None:
        if len(self._of(name).columns) > 12:
            return None
        return "add_column", self._store_door(), name, self._column(self._new_name(), is_added=True)

    def _drop_column(self, name: str) -> Step | None:
        return "drop_column", self._store_door(), name, self.rng.choice(self._of(name).names)

    def _rename_column(self, name: str) -> Step:
        return "rename_column", self._store_door(), name, self.rng.choice(self._of(name).names), self._new_name()

    def _set_default(self, name: str) -> Step:
        column = self.rng.choice(self._of(name).columns)
        value = self.rng.choice(((), (self._value(column),), (None,)))
        return "set_default", self._store_door(), name, column.name, *value

    def _widen_column(self, name: str) -> Step | None:
        rng = self.rng
        column = rng.choice(self._of(name).columns)
        kind = column.kind
        wider = {
            "VarChar": [Kind("VarChar", kind.a + 10), Kind("Text")],
            "VarBinary": [Kind("VarBinary", kind.a + 10), Kind("Blob")],
            "Enum": [Kind("Enum", members=(*kind.members, f"new {len(kind.members)}"))],
            "Decimal": [Kind("Decimal", min(kind.a + 2, 38), kind.b), Kind("Decimal", min(kind.a + 2, 38), kind.b + 1)],
            "Char": [Kind("Char", kind.a + 1), Kind("VarChar", kind.a + 10), Kind("Text")],
            "Float32": [Kind("Float64")],
            "Int8": [Kind("Int16"), Kind("Int64")],
            "UInt8": [Kind("UInt16"), Kind("Int16"), Kind("Int8")],
            "Int16": [Kind("Int32"), Kind("UInt64")],
            "UInt16": [Kind("UInt64"), Kind("Int32")],
            "Int32": [Kind("Int64")],
            "UInt32": [Kind("Int64"), Kind("UInt64")],
        }.get(kind.name, [Kind("Int64")] if rng.random() < 0.1 else [])
        return ("widen_column", self._store_door(), name, column.name, rng.choice(wider)) if wider else None

    def _add_partition(self, name: str) -> Step | None:
        table, rng = self._of(name), self.rng
        if table.partition is None or table.partition[0] not in ("range", "list"):
            return None
        rule, by, _ = table.partition
        kind = table.column(by).kind
        new = f"p{rng.randrange(12)}"
        if rule == "list":
            return (
                "add_partition",
                self._store_door(),
                name,
                new,
                [kind.draw(rng, True), kind.draw(rng)][: rng.randrange(1, 3)],
            )
        return "add_partition", self._store_door(), name, new, TOP if rng.random() < 0.3 else kind.draw(rng, True)

    def _drop_partition(self, name: str) -> Step | None:
        table = self._of(name)
        if table.partition is None or table.partition[0] not in ("range", "list"):
            return None
        return "drop_partition", self._store_door(), name, self.rng.choice(table.partition_names())

    def _create_index(self, name: str) -> Step:
        table, rng = self._of(name), self.rng
        columns = tuple(rng.sample(table.names, min(len(table.names), rng.choice((1, 1, 2, 3)))))
        others = [each.name for each in table.columns if each.name not in table.key and not each.disk]
        rows = [table.as_dict(row) for row in table.rows.values()]
        others = [each for each in others if len({repr(row[each]) for row in rows}) == len(rows)]
        if others and rng.random() < 0.4:  # most other unique indexes are refused, because two rows are equal
            step = "create_index", self._store_door(), name, rng.choice(INDEXES), (rng.choice(others),), True
        else:
            step = "create_index", self._store_door(), name, rng.choice(INDEXES), columns, rng.random() < 0.35
        return (*step, step[-1] and random.Random(repr(step)).random() < 0.5)

    def _drop_index(self, name: str) -> Step | None:
        table = self._of(name)
        return (
            ("drop_index", self._store_door(), name, self.rng.choice(sorted(table.indexes))) if table.indexes else None
        )

    # --- the store -------------------------------------------------------------------------------
    def _snapshot(self, _: str) -> Step:
        return "snapshot", self.rng.choice(("s", "t"))

    def _snapshot_read(self, _: str) -> Step:
        return "snapshot_read", self.rng.choice(("s", "t"))

    def _snapshot_close(self, _: str) -> Step:
        return "snapshot_close", self.rng.choice(("s", "t"))

    def _checkpoint(self, _: str) -> Step:
        return "checkpoint", self._store_door()

    def _sync(self, _: str) -> Step:
        return "sync", self._store_door()

    def _check(self, _: str) -> Step:
        return "check", self._store_door()

    def _reopen(self, _: str) -> Step:
        return ("reopen",)

    def _kill(self, _: str) -> Step:
        return ("kill",)

    def _reader(self, _: str) -> Step:
        return ("reader",)

    def _chain(self, name: str) -> list[Step]:
        """A full backup and an incremental one, with changes and a restart between them."""
        between = self.rng.choice((("checkpoint", "handle"), ("sync", "handle")))
        emptied = self._where(self._of(name), False)
        if self.rng.random() < 0.7:
            emptied = ("or", ("null", self._of(name).key[0]), ("not null", self._of(name).key[0]))
        again = self._insert(name)
        made: list[Step | None] = [("backup", "handle", False), ("delete_where", "handle", name, emptied), between]
        made += [self.rng.choice((("reopen",), ("kill",))), again, ("backup", "handle", True)]
        return [each for each in made if each is not None]

    def _backup(self, _: str) -> Step:
        return "backup", self.rng.choice(("handle", "handle", "aio")), self.rng.random() < 0.6


def make(seed: int, length: int) -> tuple[list[Step], dict[str, Any]]:
    """Return the steps of a program, and the options of its store."""
    maker = Maker(seed)
    options = maker.options()
    return maker.program(length), options
