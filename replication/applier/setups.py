"""Tables as an applier uses them: the settings of each in `mysql.ndb_replication`, and the programs built for it.

The rows are read when the applier starts. A table is set up when it is first used, and again when its definition or
that of its exceptions table has changed; an exceptions table created later takes effect at the next start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemark.replication.conflict.functions import Check
from tidemark.replication.conflict.programs import program_of
from tidemark.replication.settings.match import ReplicationRow, find_row, row_of
from tidemark.replication.settings.setup import SiteSettings, TableSetup, exceptions_of, set_up
from tidemark.replication.settings.system_tables import replication_rows

if TYPE_CHECKING:
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

_log = logging.getLogger("tidemark.applier")


class AppliedTable:
    """A table with its settings and programs. `column` is the resolve column of its function, None if it needs none."""

    def __init__(self, table: Table, setup: TableSetup, exceptions: TableDefinition | None) -> None:
        self.table = table
        self.definition = table.definition
        self.exceptions = exceptions
        self.setup = setup
        position = setup.resolve_position
        self.column = None if position is None else self.definition.columns[position].name
        self._programs: dict[Check, Program | None] = {}

    def program(self, check: Check) -> Program | None:
        """Return the program of a check, built once; None for Check.NONE."""
        if check not in self._programs:
            function = self.setup.function
            bits = function.bits if function is not None and self.column is None else 0
            self._programs[check] = program_of(check, self.definition, self.column, bits)
        return self._programs[check]

    @property
    def lob_column(self) -> str | None:
        """A column that prevents a refresh of rows, None if there is none."""
        return next((column.name for column in self.definition.columns if column.type.is_lob), None)


class AppliedTables:
    """The tables of one store with their settings. One thread at a time may call it."""

    def __init__(self, store: Store, site: SiteSettings) -> None:
        self._store = store
        self.site = site
        self._rows: list[ReplicationRow] = []
        self._known: dict[int, AppliedTable] = {}
        self.reload()

    def reload(self) -> None:
        """Read `mysql.ndb_replication` again and forget all set-ups. A store without that table has no settings."""
        self._known.clear()
        self._rows = [row_of(values) for values in replication_rows(self._store)]

    def of(self, table: Table) -> AppliedTable:
        """Return a table, set up if needed; errors and remarks about its settings are then logged."""
        known = self._known.get(table.table_id)
        found = exceptions_of(table.name, self._store.tables.by_name)
        exceptions = None if found is None else found.definition
        if (
            known is not None
            and known.table is table
            and known.definition is table.definition
            and (known.exceptions is None or known.exceptions is exceptions)
        ):
            return known
        database, _, name = table.name.partition(".")
        match = find_row(self._rows, database, name, self.site.server_id)
        setup = set_up(table.definition, match.row, self.site, exceptions)
        for finding in (*((match.warning,) if match.warning else ()), *setup.faults, *setup.remarks):
            _log.warning("%s: %s", table.name, finding.text)
        made = self._known[table.table_id] = AppliedTable(table, setup, exceptions)
        return made

    def before_columns(self, table: Table) -> frozenset[str] | None:
        """Return the columns of before-images that decisions about the table use, its key included; None for all
        columns, if it has an exceptions table.
        """
        applied = self.of(table)
        if applied.setup.exceptions is not None:
            return None
        return frozenset((*table.definition.primary_key, *([applied.column] if applied.column is not None else ())))
