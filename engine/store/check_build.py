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
from tidemark.engine.base.errors import CheckFailed, SchemaInvalid
from tidemark.engine.programs.checks import Checks
from tidemark.engine.store.index_build import OnlineBuild
from tidemark.engine.store.schema_changes import with_check

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.check_definition import CheckDefinition
    from tidemark.engine.store.schema_log import SchemaLog
    from tidemark.engine.table.table import Table


def add_check(schema: SchemaLog, name: str, check: CheckDefinition) -> None:
    """Add a check to a table while transactions run. Durable on return; after an error there is no check. Raises:
    NoSuchTable, NoSuchColumn, SchemaInvalid, ProgramInvalid, LockTimeout, StoreFailed; CheckFailed if a row breaks it.
    """
    _Adding(schema, name, check).run()


class _Adding(OnlineBuild):
    """A check on its way into the definition of a table."""

    kind = "check"

    def __init__(self, schema: SchemaLog, name: str, check: CheckDefinition) -> None:
        super().__init__(schema, name, check)
        self._check = check
        self.adding = f"{self._about} was being added"

    def _build(self) -> None:
        table, birth = self._announce()
        self.wait_for_older(table, birth)
        while not self._are_rows_right(table.newest):
            pass
        self._publish(table)

    def _announce(self) -> tuple[Table, int]:
        """Return the table, and the generation of transactions that ask the check about each row."""
        check = self._check
        with self._schema.changing():
            self._table = table = self.resources.tables.named(self._name)
            with_check(table.definition, check)  # raises if the table has one of that name, or not its columns
            if any(each.name == check.name for each in table.announced):
                raise SchemaInvalid(
                    f"a check {check.name} is being added to table {table.name}; choose another name",
                    table=table.name,
                    check=check.name,
                )
            table.announce_checks((*table.announced, check))
            return table, self.resources.raise_generation()

    def _are_rows_right(self, table: Table) -> bool:
        """Read all rows; False if the table was altered meanwhile, and they must be read again. Raises: CheckFailed."""
        checks = Checks(table.definition, (self._check,))
        names = [*table.definition.primary_key, *self._check.columns]
        for number in sorted(table.by_number):
            for batch in committed_batches(table, number, names):
                self.check(table)
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
        tables = self.resources.tables
        with self._schema.changing():
            self.check(table)
            table = table.newest
            after = with_check(table.definition, self._check)
            view = table.altered(after)
            self._schema.log({"alter": json.loads(after.to_json())}, lambda: tables.replace(table, view))

    def _withdraw(self) -> None:
        if self._table is None:
            return
        with self._schema.latch:
            table = self._table.newest
            if self._check in table.announced:
                table.announce_checks(tuple(each for each in table.announced if each is not self._check))
                self.resources.raise_generation()
