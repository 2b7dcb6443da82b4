"""Runs the steps of a program on a store and on the model, and compares what each answers and holds."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Context, localcontext
from functools import partial
from typing import Any

import polars
import pyarrow as pa

import tidemark as tm
from tests.blackbox import forms, odd
from tests.blackbox.doors import TYPED, Doors, bound_of, class_of, column_of, partition_of
from tests.blackbox.expressions import build, build_changes
from tests.blackbox.kinds import Refused, Unsure, all_of, canonical
from tests.blackbox.kinds import order as sort_key
from tests.blackbox.model import Index, Table
from tests.blackbox.schema import State
from tests.blackbox.sqlite import answers as sqlite_answers
from tests.blackbox.sqlite import groups as sqlite_groups

SCHEMA = frozenset(
    "create_table drop_table rename add_column drop_column rename_column set_default widen_column add_partition"
    " drop_partition create_index drop_index".split()
)
ONE_ROW = frozenset("insert write update delete upsert __setitem__ __delitem__".split())
MANY_ROWS = frozenset(
    "insert_many write_many upsert_many update_many delete_many update_where delete_where load adopt".split()
)
SHOWN = 400
EVERY_TABLE = 12  # steps between comparisons of all tables
# No error of another library or of Python itself may reach a user; here each is a finding.
RAW: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError, MemoryError),
    *(
        NameError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        Warning,
        pa.ArrowException,
        polars.exceptions.PolarsError,
    ),
)
_DIVISION = Context(prec=38)
Step = tuple[Any, ...]


class Fault(Exception):
    """The store and the model disagree. `label` is the same for the same kind of disagreement."""

    def __init__(self, label: str, text: str) -> None:
        super().__init__(f"{label}: {text[: 4 * SHOWN]}")
        self.label = label
        self.step = 0


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _identical(found: Any, wanted: Any) -> bool:
    if type(found) is tuple and type(wanted) is tuple:
        return len(found) == len(wanted) and all(map(_identical, found, wanted))
    return bool(canonical(found) == canonical(wanted))


class Judge:
    """One store, its model, and what was seen of both. Use with `with`."""

    def __init__(self, **options: Any) -> None:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="tidemark-blackbox-", dir=base)
        self.doors = Doors(self.folder, **options)
        self.state = State()
        self.is_lazy = options.get("durability") == "epoch"
        self.since = [State()]  # what a kill may leave, if commits are durable with their epoch
        self.snapshots: dict[str, State] = {}
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.ways = itertools.cycle(way for way in forms.READING if way not in ("dataset", "lazy"))
        self.touched: set[str] = set()
        self.had_disk: set[str] = set()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(tm.Error, OSError, RuntimeError, ValueError):
            self.doors.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- one step --------------------------------------------------------------------------------
    def step(self, step: Step) -> None:
        """Carry out one step. Raises: Fault."""
        operation, *arguments = step
        self.steps += 1
        self.touched.clear()
        try:
            if operation in SCHEMA:
                self._schema(operation, *arguments)
            elif operation in ONE_ROW or operation in MANY_ROWS:
                self._change(operation, *arguments)
            else:
                getattr(self, f"_{operation}")(*arguments)
        except Unsure:
            self.counts["left out"] += 1
            return
        except tm.Error as error:
            raise Fault(f"{operation} raised {type(error).__name__}", str(error)) from error
        self.counts[operation] += 1
        if self.is_lazy:
            self.since.append(self.state.copy())
        everything = self.steps % EVERY_TABLE == 0
        for name in self.state.tables if everything else self.touched & set(self.state.tables):
            self.compare(name, self.doors.db[name], next(self.ways) if everything else "iter")
        if everything:
            self._compare_listings()

    def finish(self) -> None:
        """Compare everything at the end of a program, also after a restart. Raises: Fault."""
        self._check()
        self._reopen()
        self._check()

    def _outcome(self, call: Callable[[], Any]) -> tuple[str, Any]:
        """Return ("value", result) or ("error", error)."""
        try:
            return "value", call()
        except tm.RedoOverloaded:
            self.doors.db.checkpoint()
            self.doors.db.checkpoint()
            try:
                return "value", call()
            except tm.Error as error:
                return "error", error
        except tm.Error as error:
            return "error", error
        except RAW as error:
            return "error", error

    def _agree(self, label: str, wanted: tuple[str, Any], found: tuple[str, Any]) -> bool:
        """Return whether the call succeeded as it should, False if it was refused as it should. Raises: Fault."""
        kind, value = found
        if wanted[0] == "error":
            names: frozenset[str] = wanted[1]
            if kind == "value":
                raise Fault(f"{label} was not refused", f"it returned {short(value)}, right is {sorted(names)}")
            is_any = "Rejected" in names and isinstance(value, tm.Rejected)
            if type(value).__name__ not in names and not is_any:
                name = type(value).__name__
                raise Fault(f"{label} raised {name}", f"{short(str(value))}; right is {sorted(names)}") from value
            return False
        if kind == "error":
            name = type(value).__name__
            raise Fault(f"{label} raised {name}", f"{value}; right is {short(wanted[1])}") from value
        return True

    def _predicted(self, call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return "value", call()
        except Refused as error:
            return "error", error.names

    # --- schema ----------------------------------------------------------------------------------
    def _schema(self, operation: str, door: str, *arguments: Any) -> None:
        if (
            operation == "create_table"
            and any(each.disk for each in arguments[1])
            and "main" not in self.state.tablespaces
        ):
            self.state.tablespaces.add("main")
            self.doors.on_store(
                "handle", "create_tablespace", "main", size="256 KiB", page_size="4 KiB", extent="64 KiB"
            )
        wanted = self._predicted(lambda: getattr(self.state, operation)(*arguments))
        if wanted[0] == "error" and (odd.is_odd(arguments) or operation == "set_default"):
            wanted = "error", wanted[1] | {"TypeMismatch", "ValueOutOfRange"}  # a client may refuse to send the value
        given = list(odd.real(arguments))
        if operation == "create_table":
            given[1] = [column_of(each) for each in given[1]]
            given[2] = list(given[2])
            given[3] = partition_of(given[3])
        elif operation == "add_column":
            given[1] = column_of(given[1])
        elif operation == "widen_column":
            given[2] = given[2].build()
        elif operation == "add_partition":
            given[2] = bound_of(given[2])
        elif operation == "create_index":
            given[2] = list(given[2])
        named = {"ordered": given.pop()} if operation == "create_index" and len(given) > 4 else {}
        found = self._outcome(lambda: self.doors.on_store(door, operation, *given, **named))
        self._agree(operation, wanted, found)
        self.touched |= {arguments[0], arguments[1] if operation == "rename" else arguments[0]}
        self.had_disk = {name for name, each in self.state.tables.items() if each.had_disk}

    # --- changes ---------------------------------------------------------------------------------
    def _change(self, operation: str, door: str, table: str, *arguments: Any) -> None:
        model = self.state.tables.get(table)
        if model is None and odd.is_odd(arguments):
            raise Unsure  # a client may refuse to send the value
        if door == "typed" and (model is None or operation not in TYPED or not all(map(str.isidentifier, model.names))):
            door = "handle"
        if operation.startswith("__") and door not in ("handle", "remote", "typed"):
            door = "handle"
        call = self._call(door, operation, None if model is None else model.head(), table, *arguments)
        wanted = self._predicted(lambda: self._on_model(self.state, operation, table, *arguments))
        found = self._outcome(call)
        label = f"{operation} by {door}"
        self.touched.add(table)
        if wanted[0] == "error" and operation == "adopt":
            wanted = "error", wanted[1] | {"LoadRefused"}
        if wanted[0] == "error" and operation == "load" and arguments[1] in forms.FILES:
            wanted = "error", wanted[1] | {"Rejected"}
        if self._agree(label, wanted, found) and not operation.startswith("__") and operation != "adopt":
            if not _identical(found[1], wanted[1]):
                raise Fault(f"{label} returned", f"{short(found[1])}, right is {short(wanted[1])}")

    def _on_model(self, state: State, operation: str, table: str, *arguments: Any) -> Any:
        """Make a change in the model. Raises: Refused, Unsure."""
        found = state.table(table)
        given = list(arguments)
        if operation in ("insert_many", "write_many", "upsert_many", "load", "adopt"):
            rows, form, *more = given
            method = "insert_many" if operation in ("load", "adopt") else operation
            return getattr(found, method)(rows, *more)
        if operation == "update_many":
            rows, _form, *more = given
            return found.update_many(rows, *more)
        if operation == "__setitem__":
            self._key_given(found, given[0])
            return found.write(given[0])
        if operation == "__delitem__":
            return found.delete(*given)
        return getattr(found, operation)(*given)

    def _key_given(self, table: Table, row: Any) -> Any:
        if not isinstance(row, dict) and len(row) != len(table.names):
            raise Unsure
        values = row if isinstance(row, dict) else dict(zip(table.names, row, strict=True))
        if not set(table.key) <= set(values):
            raise Unsure
        return table.key_of(values)

    def _call(self, door: str, operation: str, model: Table | None, table: str, *arguments: Any) -> Callable[[], Any]:
        """Return the call of the store."""
        given = list(odd.real(arguments))
        named: dict[str, Any] = {}
        kinds = {} if model is None else model.kinds()
        form = ""
        if operation in ("update", "delete"):
            key, *more = given
            changes = [build_changes(more.pop(0))] if operation == "update" else []
            where, index = [*more, None, None][:2]
            given = [key, *changes, build(where)]
            named = {} if index is None else {"index": index}
        elif operation == "upsert":
            row, changes, index = [*given, None, None][:3]
            given = [row, None if changes is None else build_changes(changes), index]
        elif operation == "update_where":
            given = [build_changes(given[0]), build(given[1])]
        elif operation == "delete_where":
            given = [build(given[0])]
        elif operation == "delete_many":
            keys, index = [*given, None][:2]
            given, named = [keys], {} if index is None else {"index": index}
        elif operation in MANY_ROWS:
            rows, form, *more = given
            if operation == "upsert_many":
                changes, index = [*more, None, None][:2]
                more = [None if changes is None else build_changes(changes), index]
            elif operation == "update_many":
                index = [*more, None][0]
                more, named = [], {} if index is None else {"index": index}
            if operation == "adopt":
                self._entered("handle", model, rows, "batch")
                return lambda: self._adopt(
                    table, rows if model is None else forms.enter("batch", rows, kinds, self.folder)
                )
            if operation == "load":
                data = self._entered("handle", model, rows, form)
                return lambda: self.doors.on_store("aio" if door.startswith("aio") else "handle", "load", table, data)
            self._entered(door, model, rows, form)
            return lambda: self._many(door, operation, model, table, rows, form, more, named)
        elif operation == "__setitem__":
            row = given[0]
            key = self._key_given(model, row) if model is not None else 1
            given = [key, row]
        if door == "typed" and model is not None:
            if operation in ("insert", "write", "__setitem__"):
                self._entered(door, model, [given[-1]], "rows")
            return lambda: self._typed(operation, model, table, given, named)
        return lambda: self.doors.on_table(door, operation, table, *given, **named)

    def _entered(self, door: str, model: Table | None, rows: Any, form: str) -> Any:
        """Return rows in a form. Raises: Unsure if they cannot have it."""
        if model is None:
            return rows
        try:
            if door == "typed":
                return [_typed_row(model, row, dict) for row in rows]
            return forms.enter(form, rows, model.kinds(), self.folder)
        except forms.Unfit:
            raise Unsure from None

    def _many(
        self, door: str, operation: str, model: Table | None, table: str, rows: Any, form: str, more: Any, named: Any
    ) -> Any:
        if door == "typed" and model is not None:
            return self._typed(operation, model, table, [rows], {})
        kinds = {} if model is None else model.kinds()
        data = rows if model is None else forms.enter(form, rows, kinds, self.folder)
        return self.doors.on_table(door, operation, table, data, *more, **named)

    def _typed(self, operation: str, model: Table, table: str, given: list[Any], named: Any) -> Any:
        kind = class_of(model)
        handle = self.doors.db.table(table, kind)

        def made(row: Any) -> Any:
            return _typed_row(model, row, kind)

        if operation in ("insert", "write"):
            given = [made(given[0])]
        elif operation == "__setitem__":
            given = [given[0], made(given[1])]
        elif operation.endswith("_many"):
            given = [[made(row) for row in given[0]]]
        return getattr(handle, operation)(*given, **named)

    def _bad_csv(self, table: str, rows: list[dict[str, Any]]) -> None:
        """A file whose last quote has no end is refused, whatever its rows are."""
        model = self.state.tables.get(table)
        if model is None:
            raise Unsure
        texts = [name for name, kind in model.kinds().items() if kind.is_text]
        if not texts or any(set(row) != set(model.names) for row in rows):
            raise Unsure
        kinds = {name: kind for name, kind in model.kinds().items() if name != texts[-1]}
        kinds[texts[-1]] = model.kinds()[texts[-1]]
        path = self._entered("handle", model, [{name: row[name] for name in kinds} for row in rows], "csv")
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        if not text.endswith('"\n') or text.endswith('""\n'):
            raise Unsure
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text[:-2] + "\n")
        found = self._outcome(lambda: self.doors.on_store("handle", "load", table, path))
        self._agree("load of an open quote", ("error", frozenset({"Rejected"})), found)
        self.touched.add(table)

    def _adopt(self, table: str, batch: Any) -> int:
        from tidemark.recovery import load

        job = self.doors.db.plan_load(table, os.path.join(self.folder, "jobs"))
        load.publish(job, load.write_parts(job, 0, [batch], 0))
        return int(self.doors.db.adopt(job).rows)

    # --- transactions ----------------------------------------------------------------------------
    def _txn(self, door: str, inner: Sequence[Step], end: str) -> None:
        state = self.state.copy()
        if door == "aio":
            made = self.doors.aio.transaction()
            self.doors.awaited(made.__aenter__())
        else:
            made = self.doors.transaction(door).__enter__()
        try:
            self._inner(door, made, state, inner)
        except BaseException as error:
            with suppress(tm.Error):
                self._end(door, made, error)
            raise
        if end == "commit" and len(inner) % 2 and door != "aio":
            made.commit()
        elif end == "rollback" and door != "aio":
            made.rollback()
        else:
            self._end(door, made, None if end == "commit" else ValueError("the caller gives up"))
        if end == "commit":
            self.touched |= set(self.state.tables)
            self.state = state

    def _end(self, door: str, txn: Any, error: BaseException | None) -> None:
        kind = None if error is None else type(error)
        if door == "aio":
            self.doors.awaited(txn.__aexit__(kind, error, None))
        else:
            txn.__exit__(kind, error, None)

    def _inner(self, door: str, txn: Any, state: State, steps: Sequence[Step]) -> None:
        for operation, *arguments in steps:
            with suppress(Unsure):
                if operation == "savepoint":
                    self._savepoint(door, txn, state, *arguments)
                elif operation in ("get", "rows"):
                    self._read_inside(door, txn, state, operation, *arguments)
                else:
                    self._change_inside(door, txn, state, operation, *arguments)

    def _savepoint(self, door: str, txn: Any, state: State, inner: Sequence[Step], is_kept: bool) -> None:
        before = state.copy()
        point = txn.savepoint()
        if door == "aio":
            self.doors.awaited(point.__aenter__())
        else:
            point.__enter__()
        self._inner(door, txn, state, inner)
        error = None if is_kept else ValueError("the block fails")
        kind = None if error is None else ValueError
        with suppress(ValueError):
            if door == "aio":
                self.doors.awaited(point.__aexit__(kind, error, None))
            else:
                point.__exit__(kind, error, None)
        if not is_kept:
            state.tables = before.tables

    def _in(self, door: str, txn: Any, method: str, *arguments: Any, **named: Any) -> Any:
        found = getattr(txn, method)(*arguments, **named)
        return self.doors.awaited(found) if door == "aio" and method != "scan" else found

    def _change_inside(self, door: str, txn: Any, state: State, operation: str, table: str, *arguments: Any) -> None:
        model = state.tables.get(table)
        if model is None and odd.is_odd(arguments):
            raise Unsure  # a client may refuse to send the value
        made = self._call("handle", operation, None if model is None else model.head(), table, *arguments)
        wanted = self._predicted(lambda: self._on_model(state, operation, table, *arguments))
        # The call as built for a handle, sent to the transaction in its place.
        doors = self.doors

        class Sent:
            folder = self.folder

            def on_table(self, _door: str, method: str, name: str, *given: Any, **named: Any) -> Any:
                found = getattr(txn, method)(name, *given, **named)
                return doors.awaited(found) if door == "aio" else found

        self.doors = Sent()  # type: ignore[assignment]
        try:
            found = self._outcome(made)
        finally:
            self.doors = doors
        label = f"{operation} in a transaction ({door})"
        if self._agree(label, wanted, found) and not _identical(found[1], wanted[1]):
            raise Fault(f"{label} returned", f"{short(found[1])}, right is {short(wanted[1])}")

    def _read_inside(self, door: str, txn: Any, state: State, operation: str, table: str, *arguments: Any) -> None:
        model = state.tables.get(table)
        if model is None:
            raise Unsure
        if operation == "get":
            key, lock = arguments
            wanted = self._predicted(lambda: model.rows.get(model.take_key(key)))
            found = self._outcome(lambda: self._in(door, txn, "get", table, odd.real(key), lock))
            if self._agree(f"get in a transaction ({door})", wanted, found):
                self._same_row(f"get in a transaction ({door})", found[1], wanted[1])
            return
        where, lock = arguments
        expected = self._predicted(lambda: model.selected(where))
        if door == "aio":
            scan = txn.scan(table, where=build(where), lock=lock)
            seen = self._outcome(lambda: [tuple(row) for row in self.doors.awaited(_listed(scan))])
        else:
            seen = self._outcome(lambda: [tuple(row) for row in txn.scan(table, where=build(where), lock=lock)])
        if self._agree(f"scan in a transaction ({door})", expected, seen):
            self._same_rows(f"scan in a transaction ({door})", seen[1], expected[1], model)

    # --- reads -----------------------------------------------------------------------------------
    def _same_row(self, label: str, found: Any, wanted: Any) -> None:
        if found is None or wanted is None:
            if (found is None) != (wanted is None):
                raise Fault(label, f"found {short(found)}, right is {short(wanted)}")
            return
        if not _identical(tuple(found), tuple(wanted)):
            raise Fault(label, f"found {short(tuple(found))}, right is {short(wanted)}")

    def _same_rows(
        self, label: str, found: Sequence[Any], wanted: Sequence[Any], table: Table, is_loose: bool = False
    ) -> None:
        """Compare rows without their order. is_loose: NaN and NULL of floats are the same."""
        places = [table.names.index(name) for name in table.key]

        def by_key(rows: Sequence[Any]) -> dict[Any, Any]:
            return {tuple(row[place] for place in places): row for row in rows}

        here, there = by_key(found), by_key(wanted)
        if len(found) == len(wanted) == len(here) and here == there:
            floats = [number for number, each in enumerate(table.columns) if each.kind.is_float]
            types = [{each.kind.python, type(None)} for each in table.columns]
            right = all(
                set(map(type, column)) <= allowed
                for column, allowed in zip(zip(*found, strict=True), types, strict=bool(found))
            )
            if right and not floats:
                return
        loose = {number for number, each in enumerate(table.columns) if is_loose and each.kind.is_float}

        def form(row: Any) -> Any:
            return tuple(
                None if number in loose and value != value else canonical(value) if value is not None else None
                for number, value in enumerate(row)
            )

        left, right_ = Counter(map(form, found)), Counter(map(form, wanted))
        if left != right_:
            more, fewer = list((left - right_).items())[:2], list((right_ - left).items())[:2]
            raise Fault(
                label, f"has {short(more)}, right is {short(fewer)}; {len(found)} rows, right are {len(wanted)}"
            )

    def compare(self, name: str, source: Any, way: str, state: State | None = None, label: str = "rows") -> None:
        """Compare a whole table. Raises: Fault."""
        table = (state or self.state).tables[name]
        nullable = {each.name: each.nullable for each in table.columns}
        reading = source.scan() if way == "batches" and hasattr(source, "scan") else source
        found = self._outcome(lambda: forms.read(way, reading, table.kinds(), nullable))
        if self._agree(f"{label} read by {way}", ("value", "rows"), found):
            self._same_rows(f"{label} read by {way}", found[1], list(table.rows.values()), table, way == "pandas")

    def _compare_listings(self) -> None:
        db = self.doors.db
        names = _qualified(self.state)
        if db.tables() != names:
            raise Fault("tables", f"{db.tables()}, right are {names}")
        for name, table in self.state.tables.items():
            handle = db[name]
            if len(handle) != len(table.rows):
                raise Fault("len", f"{len(handle)}, right is {len(table.rows)}")
            parts = handle.partitions()
            if sum(each["rows"] for each in parts) != len(table.rows):
                raise Fault("partitions", f"{parts}, rows are {len(table.rows)}")
            if table.partition is not None and table.partition[0] in ("range", "list"):
                counts = Counter(table.partition_of(table.as_dict(row)) for row in table.rows.values())
                wanted = [(each, counts[each]) for each in table.partition_names()]
                if [(each["name"], each["rows"]) for each in parts] != wanted:
                    raise Fault("partitions", f"{parts}, right are {wanted}")
            listed = {
                each["name"]: Index(tuple(each["columns"]), each["unique"], each["ordered"])
                for each in handle.indexes()
            }
            if listed != table.indexes:
                raise Fault("indexes", f"{listed}, right are {table.indexes}")
            self._compare_indexes(name, table)

    def _compare_indexes(self, name: str, table: Table) -> None:
        handle = self.doors.db[name]
        for index, (columns, is_unique, is_ordered) in table.indexes.items():
            if is_unique:
                for row in list(table.rows.values())[: 1 + self.steps % 3]:
                    values = tuple(table.as_dict(row)[each] for each in columns)
                    if None in values:
                        continue
                    key = values if len(values) > 1 else values[0]
                    found = self._outcome(partial(handle.get, key, index=index))
                    if self._agree("get by a unique index", ("value", row), found):
                        self._same_row("get by a unique index", found[1], row)
            if not is_ordered:
                continue
            seen = self._outcome(partial(_rows_by, handle, index))
            if self._agree("scan by an index", ("value", "rows"), seen):
                self._same_rows("scan by an index", seen[1], list(table.rows.values()), table)
                keys = [table.index_key(index, row) for row in seen[1]]
                if keys != sorted(keys):
                    raise Fault("order of a scan by an index", short(seen[1]))

    def _get(self, door: str, table: str, key: Any, index: str | None = None) -> None:
        model = self.state.tables.get(table)
        if model is None and odd.is_odd(key):
            raise Unsure

        def wanted_row() -> Any:
            found = self.state.table(table)
            primary = found.take_key(key) if index is None else found.found_by(index, key)
            return None if primary is None else found.rows.get(primary)

        wanted = self._predicted(wanted_row)
        named = {} if index is None else {"index": index}
        if door == "typed":
            if model is None or not all(map(str.isidentifier, model.names)):
                door = "handle"
            else:
                found = self._outcome(lambda: self.doors.typed(table, model).get(odd.real(key), **named))
                if self._agree("get by typed", wanted, found):
                    value = found[1] if found[1] is None else tuple(getattr(found[1], each) for each in model.names)
                    self._same_row("get by typed", value, wanted[1])
                return
        found = self._outcome(lambda: self.doors.on_table(door, "get", table, odd.real(key), **named))
        if self._agree(f"get by {door}", wanted, found):
            self._same_row(f"get by {door}", found[1], wanted[1])
        if index is None and door in ("handle", "remote"):
            is_in = self._outcome(lambda: odd.real(key) in self.doors.source(door, table))
            if self._agree(f"in by {door}", wanted, is_in) and is_in[1] is not (wanted[1] is not None):
                raise Fault(f"in by {door}", f"{is_in[1]}, right is {wanted[1] is not None}")
            if wanted == ("value", None):
                wanted = "error", frozenset({"RowNotFound"})
            item = self._outcome(lambda: self.doors.source(door, table)[odd.real(key)])
            if self._agree(f"[] by {door}", wanted, item):
                self._same_row(f"[] by {door}", item[1], wanted[1])

    def _get_many(self, door: str, table: str, keys: Sequence[Any], index: str | None = None) -> None:
        def wanted_rows() -> Any:
            model = self.state.table(table)
            primary = [model.take_key(key) if index is None else model.found_by(index, key) for key in keys]
            return [model.rows[key] for key in primary if key is not None and key in model.rows]

        wanted = self._predicted(wanted_rows)
        named = {} if index is None else {"index": index}
        found = self._outcome(lambda: self.doors.on_table(door, "get_many", table, list(keys), **named))
        if self._agree(f"get_many by {door}", wanted, found):
            rows = list(zip(*(each.to_pylist() for each in found[1].columns), strict=True))
            if len(rows) != len(wanted[1]) or not all(map(_identical, rows, wanted[1])):
                raise Fault(f"get_many by {door}", f"{short(rows)}, right are {short(wanted[1])}")

    def _scan(self, door: str, table: str, where: Any, options: dict[str, Any], way: str) -> None:
        """options: columns, limit, partitions, index, lower, upper, prefix, reverse."""
        model = self.state.tables.get(table)
        index = options.get("index")

        def wanted_rows() -> Any:
            found = self.state.table(table)
            rows, *_ = all_of(
                lambda: found.selected(where, options.get("partitions")),
                *(partial(found.column, each) for each in options.get("columns") or ()),
                *([] if index is None else [partial(_check_bounds, found, index, options)]),
            )
            if index is None:
                return rows
            rows = [row for row in rows if _in_range(found, index, row, options)]
            return sorted(rows, key=lambda row: found.index_key(index, row), reverse=options.get("reverse", False))

        if door not in ("handle", "remote", "aio"):
            door = "handle"
        if way in ("dataset", "lazy") or door == "aio":
            way = "arrow"
        wanted = self._predicted(wanted_rows)
        arguments = {"where": build(where), **options}

        def scanned() -> Any:
            if door == "aio":
                return _Arrow(self.doors.awaited(self.doors.aio[table].scan(**arguments).to_arrow()))
            return self.doors.source(door, table).scan(**arguments)

        names = options.get("columns")
        kinds = (
            {}
            if model is None
            else model.kinds()
            if names is None
            else {each: model.kinds()[each] for each in names if each in model.names}
        )
        nullable = {} if model is None else {each.name: each.nullable for each in model.columns}
        found = self._outcome(lambda: forms.read(way, scanned(), kinds, nullable))
        label = f"scan by {door}, {way}"
        if not self._agree(label, wanted, found) or model is None:
            return
        self._judge_scan(label, model, found[1], wanted[1], options, kinds, way == "pandas")

    def _judge_scan(
        self, label: str, model: Table, rows: Any, wanted: Any, options: dict[str, Any], kinds: Any, is_loose: bool
    ) -> None:
        places = [model.names.index(each) for each in kinds]
        floats = {number for number, kind in enumerate(kinds.values()) if is_loose and kind.is_float}

        def form(row: Any) -> Any:
            return tuple(
                None if value is None or (number in floats and value != value) else canonical(value)
                for number, value in enumerate(row)
            )

        here = Counter(map(form, rows))
        there = Counter(form([row[place] for place in places]) for row in wanted)
        limit = options.get("limit")
        if limit is not None and limit < len(wanted):
            if len(rows) != limit or here - there:
                raise Fault(label, f"{short(rows)} with limit {limit}, right are some of {short(wanted)}")
        elif here != there:
            raise Fault(label, f"{short(rows)}, right are {short(wanted)}")
        index = options.get("index")
        if index is not None and set(model.indexes[index].columns) <= set(kinds):
            columns = [(list(kinds).index(each), model.column(each).kind) for each in model.indexes[index].columns]
            keys = [tuple(kind.order(row[place]) for place, kind in columns) for row in rows]
            right = [model.index_key(index, row) for row in wanted][: len(keys)]
            if keys != right and not is_loose:
                raise Fault(f"order of {label}", f"{short(rows)}, right are {short(wanted)}")

    def _aggregate(self, door: str, table: str, where: Any, function: str, column: str | None) -> None:
        def wanted_value() -> Any:
            model = self.state.table(table)
            rows = model.selected(where)
            if column is None:
                if function != "count":
                    raise Unsure
                return len(rows)
            kind = model.column(column).kind
            place = model.names.index(column)
            values = [row[place] for row in rows if row[place] is not None]
            return _aggregated(function, values, kind)

        if door not in ("handle", "remote", "aio", "txn"):
            door = "handle"
        wanted = self._predicted(wanted_value)

        def call() -> Any:
            arguments = [] if column is None else [column]
            if door == "aio":
                scan = self.doors.aio[table].scan(where=build(where))
                return self.doors.awaited(getattr(scan, function)(*arguments))
            if door == "txn":
                with self.doors.db.transaction() as txn:
                    return txn.scan(table, where=build(where)).aggregate(value=(function, *arguments)).value
            return getattr(self.doors.source(door, table).scan(where=build(where)), function)(*arguments)

        found = self._outcome(call)
        label = f"{function} by {door}"
        if self._agree(label, wanted, found):
            near = isinstance(wanted[1], float) and isinstance(found[1], float) and function in ("sum", "mean")
            if not (
                math.isclose(found[1], wanted[1], rel_tol=1e-9, abs_tol=1e-9)
                if near
                else _identical(found[1], wanted[1])
            ):
                raise Fault(label, f"{found[1]!r}, right is {wanted[1]!r}")

    def _groups(
        self, door: str, table: str, where: Any, by: list[str], functions: list[tuple[str, str | None]], order: Any
    ) -> None:
        """Aggregates by group. order: what the groups are sorted by, whether in reverse, and how many are wanted."""
        name, is_reversed, limit = order
        if name is not None and name not in by and len(functions) == 0:
            name = None
        wanted = self._predicted(
            lambda: grouped(self.state.table(table), where, by, functions, order=(name, is_reversed))
        )
        named = {f"f{number}": given if given[1] else given[:1] for number, given in enumerate(functions)}
        options: dict[str, Any] = {"by": by, "order": name, "reverse": is_reversed, "limit": limit, **named}

        def call() -> Any:
            if door == "aio":
                return self.doors.awaited(self.doors.aio[table].aggregate(build(where), **options))
            if door == "txn":
                with self.doors.db.transaction() as txn:
                    return txn.aggregate(table, build(where), **options)
            if door == "snapshot":
                with self.doors.db.snapshot() as snapshot:
                    return snapshot[table].aggregate(build(where), **options)
            model = self.state.tables.get(table)
            if door == "typed" and model is not None and all(map(str.isidentifier, model.names)):
                return self.doors.typed(table, model).aggregate(build(where), **options)
            return self.doors.source(door, table).aggregate(build(where), **options)

        found = self._outcome(call)
        label = f"groups by {door}"
        if door == "snapshot":
            self._durable()
        if not self._agree(label, wanted, found):
            return
        right = wanted[1][:limit]
        rows = [tuple(row) for row in found[1]]
        if [type(row).__name__ for row in found[1]] != ["Row"] * len(rows) or not same_groups(rows, right):
            raise Fault(label, f"{short(rows)}, right are {short(right)}")
        answers = sqlite_groups(self.state.table(table), where, by, functions)
        if answers is not None and name is None and not is_reversed and limit is None:
            if not same_groups(rows, answers):
                raise Fault("groups beside SQLite", f"{short(rows)}, SQLite has {short(answers)}")

    def _sql(self, table: str, where: Any) -> None:
        """Ask SQLite the same."""
        model = self.state.tables.get(table)
        if model is None:
            raise Unsure
        keys = sqlite_answers(model, where)
        found = self._outcome(
            lambda: [tuple(row) for row in self.doors.db[table].scan(list(model.key), where=build(where))]
        )
        if self._agree("scan beside SQLite", ("value", keys), found):
            if Counter(map(canonical_key, found[1])) != Counter(map(canonical_key, keys)):
                raise Fault("scan beside SQLite", f"{short(found[1])}, SQLite has {short(keys)}")

    def _pushdown(self, table: str, way: str, door: str = "handle") -> None:
        """Read a whole table in one way by one door."""
        model = self.state.tables.get(table)
        if model is None:
            raise Unsure
        if door == "snapshot":
            with self.doors.db.snapshot() as snapshot:
                self.compare(table, snapshot[table], way, None, "rows of a new snapshot")
                self._read_snapshot(snapshot[table], model)
            self._durable()
        elif door == "aio":
            self.compare(table, Awaited(self.doors, self.doors.aio[table]), way, None, "rows by aio")
        elif door == "typed" and all(map(str.isidentifier, model.names)):
            typed = self.doors.typed(table, model)
            rows = [tuple(getattr(row, each) for each in model.names) for row in typed]
            self._same_rows("rows by typed", rows, list(model.rows.values()), model)
            if len(typed) != len(rows) or any(key not in typed or typed[key] is None for key in list(model.rows)[:2]):
                raise Fault("typed", f"{len(typed)} rows, right are {len(rows)}")
        else:
            self.compare(table, self.doors.source(door, table), way, None, f"rows by {door}")

    def _read_snapshot(self, source: Any, model: Table) -> None:
        """The aggregates of a table of a snapshot."""
        keys = list(model.rows)[:3]
        if source.get_many(keys).num_rows != len(keys) or any(key not in source for key in keys):
            raise Fault("get_many of a snapshot", short(keys))
        source.explain()
        for column in model.columns:
            place = model.names.index(column.name)
            values = [row[place] for row in model.rows.values() if row[place] is not None]
            if not column.kind.is_integer:
                continue
            total = sum(values) if values else None
            wanted = (len(values), total, min(values, default=None), max(values, default=None))
            name = column.name
            found = (source.count(name), source.sum(name), source.min(name), source.max(name))
            many = source.aggregate(n=("count", name), total=("sum", name), low=("min", name), high=("max", name))
            mean = source.mean(name)
            if found != wanted or tuple(many) != wanted or (mean is None) != (total is None):
                raise Fault("aggregates of a snapshot", f"{found}, {many}, {mean}; right are {wanted}")

    def _ask(self, door: str) -> None:
        """What a store says about itself."""
        db = self.doors.remote if door == "remote" else self.doors.db
        names, short_names = _qualified(self.state), list(self.state.tables)
        counts = {name if "." in name else f"main.{name}": len(each.rows) for name, each in self.state.tables.items()}
        status = db.status()
        found = {name: each["rows"] for name, each in status["tables"].items() if name in counts}
        if db.tables() != names or not all(name in db for name in short_names) or "no.such" in db or found != counts:
            raise Fault(f"listings by {door}", f"{db.tables()}, {found}; right are {counts}")
        if set(db.tablespaces()) != self.state.tablespaces:
            raise Fault(f"tablespaces by {door}", f"{db.tablespaces()}, right are {self.state.tablespaces}")
        with db.transaction() as txn:
            for name in short_names[:1]:
                txn.scan(name).count()
        if db.outcome(txn.txid) not in ("committed", "aborted", "unknown"):
            raise Fault("outcome", db.outcome(txn.txid))
        for name, table in self.state.tables.items():
            handle = self.doors.source(door, name)
            if len(handle) != len(table.rows) or sum(each["rows"] for each in handle.partitions()) != len(table.rows):
                raise Fault(f"len by {door}", f"{len(handle)}, right is {len(table.rows)}")
            if {each["name"] for each in handle.indexes()} != set(table.indexes):
                raise Fault(f"indexes by {door}", f"{handle.indexes()}, right are {sorted(table.indexes)}")
            if [each.name for each in handle.definition.columns] != table.names or not handle.name.endswith(name):
                raise Fault(f"definition by {door}", f"{handle.definition}, right are {table.names}")
        if door == "remote":
            if tuple(db.where()["primary"]) != tuple(self.doors.serving.address):
                raise Fault("where", short(db.where()))
            return
        self._ask_here(db)

    def _ask_here(self, db: Any) -> None:
        """Calls that clients do not have."""
        for name in self.state.tables:
            if db.partitions(name) != db[name].partitions() or db.indexes(name) != db[name].indexes():
                raise Fault("partitions of a store", name)
        db.space_report()
        db.replication_rows()
        if not db.check_replication()["is_sound"]:
            raise Fault("check_replication", short(db.check_replication()["problems"]))
        before = db.parts.clockwork.advance_epoch()
        db.parts.clockwork.advance_gci()
        if db.sync() < before:
            raise Fault("sync", "the epoch went back")
        self._durable()

    def _explain(self, door: str, table: str, where: Any) -> None:
        wanted = self._predicted(lambda: len(self.state.table(table).selected(where)))
        found = self._outcome(lambda: self.doors.source(door, table).explain(where=build(where)))
        if self._agree(f"explain by {door}", wanted, found) and found[1]["access"] in ("primary key", "unique index"):
            if found[1]["rows"] < wanted[1]:
                raise Fault(f"explain by {door}", f"{found[1]['rows']} rows at most, {wanted[1]} are there")

    # --- snapshots and lives ---------------------------------------------------------------------
    def _snapshot(self, name: str) -> None:
        if name in self.snapshots:
            raise Unsure
        self.doors.snapshots[name] = self.doors.db.snapshot()
        self.snapshots[name] = self.state.copy()
        self._durable()

    def _snapshot_read(self, name: str) -> None:
        if name not in self.snapshots:
            raise Unsure
        snapshot, state = self.doors.snapshots[name], self.snapshots[name]
        for table in state.tables:
            self.compare(table, snapshot[table], next(self.ways), state, "rows of a snapshot")
            rows = state.tables[table].rows
            if snapshot[table].count() != len(rows) or len(snapshot[table]) != len(rows):
                raise Fault("count of a snapshot", f"{snapshot[table].count()}, right is {len(rows)}")
            for key, row in list(rows.items())[:2]:
                self._same_row("get of a snapshot", snapshot[table].get(key), row)
                for columns in (state.tables[table].key, *state.tables[table].unique()):
                    self._look_up(snapshot[table], state.tables[table], columns, row)

    def _look_up(self, shown: Any, table: Table, columns: tuple[str, ...], row: Any) -> None:
        """Find a row of a snapshot by a condition on all columns of a key."""
        values = [table.as_dict(row)[name] for name in columns]
        if None in values:
            return
        where = build(("==", columns[0], values[0]))
        for name, value in zip(columns[1:], values[1:], strict=True):
            where = where & build(("==", name, value))
        found = self._outcome(lambda: [tuple(each) for each in shown.scan(where=where)])
        if self._agree("lookup in a snapshot", ("value", "rows"), found):
            self._same_rows("lookup in a snapshot", found[1], [row], table)

    def _snapshot_close(self, name: str) -> None:
        if name not in self.snapshots:
            raise Unsure
        del self.snapshots[name]
        self.doors.snapshots.pop(name).close()

    def _durable(self) -> None:
        self.since = [self.state.copy()] if self.is_lazy else []

    def _all(self, label: str, source: Any = None) -> None:
        db = source or self.doors.db
        for name in self.state.tables:
            self.compare(name, db[name], next(self.ways), None, label)

    def _reopen(self) -> None:
        self.snapshots.clear()
        self.doors.reopen()
        self._durable()
        self._all("rows after a restart")
        self._compare_listings()

    def _kill(self) -> None:
        self.snapshots.clear()
        self.doors.kill()
        if self.is_lazy:
            for state in reversed(self.since):
                try:
                    self.state = state
                    if self.doors.db.tables() != _qualified(state):
                        continue
                    for name in state.tables:
                        self.compare(name, self.doors.db[name], "iter")
                    break
                except Fault:
                    continue
            else:
                raise Fault("rows after a kill", "they are of no time since the last epoch that was durable")
        self._all("rows after a kill")
        self._compare_listings()
        self._durable()

    def _checkpoint(self, door: str) -> None:
        self.doors.on_store(door, "checkpoint")
        self._durable()

    def _sync(self, door: str) -> None:
        self.doors.on_store(door, "sync")
        self._durable()

    def _check(self, door: str = "handle") -> None:
        found = self.doors.on_store(door, "check")
        if not found["is_sound"]:
            raise Fault("check", short(found["problems"]))

    def _reader(self) -> None:
        """A reader of the last local checkpoint."""
        self.doors.db.checkpoint()
        self._durable()
        with self.doors.reader() as view:
            for name, table in self.state.tables.items():
                if not any(each.disk for each in table.columns) and name not in self.had_disk:
                    self.compare(name, view[name], next(self.ways), None, "rows of a reader")

    def _backup(self, door: str, is_incremental: bool) -> None:
        """A backup, which is restored at once."""
        place, path = os.path.join(self.folder, "backups"), os.path.join(self.folder, "restored")
        if is_incremental and not os.path.exists(place):
            is_incremental = False
        verify = self.steps % 2 == 0  # a chain that cannot be restored is repaired when it is verified
        self.doors.on_store(door, "backup", place, incremental=is_incremental, verify=verify)
        self._durable()
        options = {name: value for name, value in self.doors.options.items() if name != "durability"}
        try:
            tm.restore(place, path, **options)
            with tm.open(path, **options) as db:
                self._all("rows of a restore", db)
                if not tm.diff(self.doors.db, db)["is_equal"]:
                    raise Fault("diff", "a restored store differs")
        except tm.Error as error:
            raise Fault(f"restore raised {type(error).__name__}", str(error)) from error
        finally:
            shutil.rmtree(path, ignore_errors=True)


class Awaited:
    """The calls of a table of `tm.aio`, awaited."""

    def __init__(self, doors: Doors, inner: Any) -> None:
        self._doors = doors
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self._doors.awaited(getattr(self._inner, name)(*arguments, **named))


class _Arrow:
    """An Arrow table that is read as a scan."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def to_arrow(self) -> Any:
        return self._table


def _qualified(state: State) -> list[str]:
    return sorted(name if "." in name else f"main.{name}" for name in state.tables)


def _typed_row(table: Table, row: Any, kind: Any) -> Any:
    if not isinstance(row, dict) and len(row) != len(table.names):
        raise forms.Unfit
    values = row if isinstance(row, dict) else dict(zip(table.names, row, strict=True))
    if set(values) != set(table.names):
        raise forms.Unfit
    return kind(**values)


async def _listed(scan: Any) -> list[Any]:
    return [row async for row in scan]


def canonical_key(key: Any) -> Any:
    return tuple(canonical(each) for each in key)


def _rows_by(handle: Any, index: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in handle.scan(index=index)]


def _check_bounds(table: Table, index: str, options: dict[str, Any]) -> None:
    """Raises: Refused for an index that does not scan, or a bound that its column does not hold."""
    if index not in table.indexes:
        raise Refused("NoSuchIndex")
    if not table.indexes[index].is_ordered:
        raise Refused("Unsupported")
    columns = table.indexes[index].columns
    for bound in ("lower", "upper", "prefix"):
        given = options.get(bound)
        pieces = given if isinstance(given, tuple) else () if given is None else (given,)
        for name, piece in zip(columns, pieces, strict=False):
            kind = table.column(name).kind
            if type(piece) is not kind.python or (bound == "prefix" and kind.members and not isinstance(given, tuple)):
                raise Unsure
            kind.take(piece)


def _in_range(table: Table, index: str, row: Any, options: dict[str, Any]) -> bool:
    key = table.index_key(index, row)

    def pieces(name: str) -> tuple[Any, ...] | None:
        bound = options.get(name)
        if bound is None:
            return None
        given = bound if isinstance(bound, tuple) else (bound,)
        kinds = [table.column(each).kind for each in table.indexes[index].columns]
        return tuple(kind.order(each) for each, kind in zip(given, kinds, strict=False))

    lower, upper, prefix = pieces("lower"), pieces("upper"), pieces("prefix")
    if lower is not None and key[: len(lower)] < lower:
        return False
    if upper is not None and key[: len(upper)] >= upper:
        return False
    if prefix is not None:
        given = options["prefix"]
        if isinstance(given, (str, bytes)):
            first = key[0]
            octets = given.encode() if isinstance(given, str) else given
            return len(first) > 1 and isinstance(first[1], bytes) and first[1].startswith(octets)
        return key[: len(prefix)] == prefix
    return True


def _aggregated(function: str, values: list[Any], kind: Any, zeros_are_one: bool = False) -> Any:
    if function == "count":
        return len(values)
    has_order = kind.name != "Enum" and function in ("min", "max")
    if not (kind.is_integer or kind.is_float or kind.name == "Decimal" or has_order):
        raise Refused("ProgramInvalid")
    if not values:
        return None
    if function in ("min", "max"):
        found = sorted(values, key=kind.order)[0 if function == "min" else -1]
        if kind.is_float and found == 0 and not zeros_are_one:
            raise Unsure  # 0.0 or -0.0
        return found
    if kind.is_float:
        if not all(map(math.isfinite, values)) or max(map(abs, values)) > 1e9:
            raise Unsure
        total: Any = math.fsum(values)
    else:
        with localcontext(Context(prec=80)):
            total = sum(values[1:], values[0])
    if function == "sum":
        return total
    return _DIVISION.divide(total, len(values)) if kind.name == "Decimal" else total / len(values)


def grouped(
    table: Table, where: Any, by: list[str], functions: list[tuple[str, str | None]], order: tuple[str | None, bool]
) -> list[tuple[Any, ...]]:
    """Return the groups of rows with equal keys, sorted. Raises: Refused with the errors of all faults, Unsure."""
    kinds, columns, rows = all_of(
        lambda: [table.column(name).kind for name in by],
        lambda: [None if name is None else table.column(name).kind for _, name in functions],
        lambda: table.selected(where),
    )
    names = [*by, *(name for _, name in functions if name is not None)]
    places = {name: table.names.index(name) for name in names}
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        key = tuple(kind.order(row[places[name]]) for kind, name in zip(kinds, by, strict=True))
        groups.setdefault(key, []).append(row)
    found = []
    for key, some in groups.items() if groups else ((None, []),):
        values = []
        for (function, name), kind in zip(functions, columns, strict=True):
            given = [1] * len(some) if name is None else [row[places[name]] for row in some]
            values.append(aggregated(function, [each for each in given if each is not None], kind))
        if key is not None:
            found.append((key, (*(_key_value(some[0][places[name]]) for name in by), *values)))
    name, is_reversed = order
    by_key = [(place, is_reversed if name is None else False) for place in range(len(by))]
    results = [*by, *(f"f{number}" for number in range(len(functions)))]
    for place, turn in reversed([*([] if name is None else [(results.index(name), is_reversed)]), *by_key]):
        found.sort(
            key=lambda each, place=place: each[0][place] if place < len(by) else sort_key(each[1][place]), reverse=turn
        )
    if name is not None and name not in by and any(isinstance(row[results.index(name)], float) for _, row in found):
        raise Unsure  # sums of floats may differ in the last bit
    return [row for _, row in found]


def _key_value(value: Any) -> Any:
    """Return a value as a group has it: -0.0 is 0.0."""
    return value + 0.0 if isinstance(value, float) else value


def same_groups(found: Sequence[tuple[Any, ...]], wanted: Sequence[tuple[Any, ...]]) -> bool:
    """Whether both are the same rows in the same order. Floats may differ in the last bits, and by the sign of 0."""
    return len(found) == len(wanted) and all(
        len(one) == len(other) and all(map(_near, one, other)) for one, other in zip(found, wanted, strict=True)
    )


def _near(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        if not math.isfinite(wanted):
            return repr(found) == repr(wanted)
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return _identical(found, wanted)


def aggregated(function: str, values: list[Any], kind: Any) -> Any:
    """Return an aggregate of a group; of floats, either zero is right."""
    zeros = kind is not None and kind.is_float and function in ("min", "max")
    return _aggregated(function, [each + 0.0 for each in values] if zeros else values, kind, zeros)


# A call by a client changes threads several times.
SWITCH_SECONDS = 0.0001


def run(
    steps: Sequence[Step], options: dict[str, Any] | None = None, counts: Counter[str] | None = None
) -> Fault | None:
    """Run a program; return the fault that ends it, if any, with the number of its step."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with Judge(**(options or {})) as judge:
        number = 0
        try:
            for number, step in enumerate(steps):  # noqa: B007
                judge.step(step)
            judge.finish()
        except Fault as fault:
            fault.step = number
            return fault
        finally:
            if counts is not None:
                counts.update(judge.counts)
    return None
