"""Checks added while transactions run (ADR 0039).

Order: ask the check about changes from now on; wait for older transactions; read all rows; then log the new definition
and publish it. A crash or an error before that leaves no check.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.checks import described
from tidemark.engine.access.values_check import committed_batches
from tidemark.engine.base.errors import CheckFailed, NoSuchTable, SchemaInvalid
from tidemark.engine.memory.arena_layout import S_INDEX_GENERATION
from tidemark.engine.programs.checks import Checks
from tidemark.engine.store.index_build import wait_for_older
from tidemark.engine.store.schema_changes import with_check

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.check_definition import CheckDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table


def add_check(store: Store, name: str, check: CheckDefinition) -> None:
    """Add a check to a table while transactions run. Durable on return; after an error there is no check. Raises:
    NoSuchTable, NoSuchColumn, SchemaInvalid, ProgramInvalid, LockTimeout, StoreFailed; CheckFailed if a row breaks it.
    """
    _Adding(store, name, check).run()


class _Adding:
    """A check on its way into the definition of a table."""

    def __init__(self, store: Store, name: str, check: CheckDefinition) -> None:
        self._store = store
        self._name = name
        self._check = check
        self._table: Table | None = None

    def run(self) -> None:
        users = self._store.users
        try:
            users.pin(self)  # fragments dropped meanwhile keep their rows
            table, birth = self._announce()
            name = self._check.name
            is_there = lambda: self._alive(table)  # noqa: E731
            wait_for_older(self._store.resources, is_there, table, birth, f"check {name}", check=name)
            while not self._are_rows_right(table.newest):
                pass
            self._publish(table)
        except BaseException:
            self._undo()
            raise
        finally:
            users.unpin(self)

    def _announce(self) -> tuple[Table, int]:
        """Return the table, and the generation of transactions that ask the check about each row."""
        store, check = self._store, self._check
        with store.schema.changing():
            self._table = table = store.tables.named(self._name)
            with_check(table.definition, check)  # raises if the table has one of that name, or not its columns
            if any(each.name == check.name for each in table.announced):
                raise SchemaInvalid(
                    f"a check {check.name} is being added to table {table.name}; choose another name",
                    table=table.name,
                    check=check.name,
                )
            table.announce_checks((*table.announced, check))
            return table, self._raise_generation()

    def _raise_generation(self) -> int:
        """Make kernels leave changes to the general path until plans know the checks of now."""
        resources = self._store.resources
        resources.mem[S_INDEX_GENERATION] += 1
        resources.index_generation += 1
        return int(resources.mem[S_INDEX_GENERATION])

    def _alive(self, table: Table) -> None:
        self._store.failure.check()
        if table.is_dropped:
            raise NoSuchTable(
                f"table {table.name} was dropped while check {self._check.name} was being added; see tables()",
                table=table.name,
            )

    def _are_rows_right(self, table: Table) -> bool:
        """Read all rows; False if the table was altered meanwhile, and they must be read again. Raises: CheckFailed."""
        checks = Checks(table.definition, (self._check,))
        names = [*table.definition.primary_key, *self._check.columns]
        for number in sorted(table.by_number):
            for batch in committed_batches(table, number, names):
                self._alive(table)
                found = checks.broken(table, batch.entries, np.ascontiguousarray(batch.offsets))
                if table.newest is not table:
                    return False
                if found.size:
                    at = int(batch.offsets[int(found[0])])
                    _, why = checks.reason(table, batch.entries, at)
                    raise self._broken(table, batch.entries, at, why)
        return True

    def _broken(self, table: Table, entries: Words, at: int, why: str) -> CheckFailed:
        check = self._check
        key, values, text = described(table.format, entries, at, check.columns)
        what = f"cannot be evaluated ({why})" if why else "is false"
        return CheckFailed(
            f"{table.name}: check {check.name} cannot be added: it {what} for the row with key {table.format_key(key)},"
            f" where {text}; change the row first",
            table=table.name,
            check=check.name,
            key=key,
            values=values,
        )

    def _publish(self, table: Table) -> None:
        store = self._store
        with store.schema.changing():
            self._alive(table)
            table = table.newest
            after = with_check(table.definition, self._check)
            view = table.altered(after)
            store.schema.log({"alter": json.loads(after.to_json())}, lambda: store.tables.replace(table, view))

    def _undo(self) -> None:
        """Ask a check that was not published no more. A KeyboardInterrupt is ignored: every step can be repeated."""
        while True:
            try:
                self._withdraw()
                return
            except KeyboardInterrupt:
                continue

    def _withdraw(self) -> None:
        if self._table is None:
            return
        with self._store.schema.latch:
            table = self._table.newest
            if self._check in table.announced:
                table.announce_checks(tuple(each for each in table.announced if each is not self._check))
                self._raise_generation()
