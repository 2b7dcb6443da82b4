"""Check whether the row images of a binlog can be applied to the tables of a backup, before a restore writes anything.

Rows are not decoded: the table and the columns of an event are enough. Statements are followed to know which tables
exist; the columns of a table that a statement alters are checked when it is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.errors import NoSuchTable, NoSuchTablespace, Rejected, SchemaInvalid, Unsupported
from tidemark.engine.schema.definition import DEFAULT_TABLESPACE
from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX, is_system_table
from tidemark.replication.applier.stops import located
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import STATUS_TABLE, BinlogReader, StatementMaps, present
from tidemark.replication.binlog.row_plan import BodyReader
from tidemark.replication.settings.any_value import FLAG_REFLECT
from tidemark.replication.settings.match import find_row, row_of
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_REPLICATION
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.parse import parse

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.recovery.backup.later_changes import RestoredState
    from tidemark.replication.applier.transactions import LogFolder
    from tidemark.replication.binlog.table_map import TableMap

_COMBINATIONS_MAX = 4_096
_NOT_LOGGED = 1  # as a binlog_type


class ImageCheck:
    """One check of a part of a binlog. `rows_events`: number of events with rows of users; `has_replicated`: some of
    them are changes of other sites; `has_positions`: `ndb_apply_status` has positions of other sites.
    """

    def __init__(self, log: LogFolder, restored_state: RestoredState | None) -> None:
        """`restored_state` is None if no tables are known."""
        self._log = log
        self.rows_events = 0
        self.has_replicated = self.has_positions = False
        self._tables: dict[str, TableDefinition | None] | None = None  # None for an altered table
        self._tablespaces = {DEFAULT_TABLESPACE}
        if restored_state is not None and restored_state.is_schema_known:
            self._tables = {table.name: table for table in restored_state.manifest.tables}
            self._tablespaces |= {definition.name for definition, _ in restored_state.manifest.tablespaces}
        # The table map of each checked combination. The maps are kept, so that no later map gets the same id().
        self._seen: dict[object, TableMap] = {}

    def run(self, start: Position, end: Position) -> None:
        """Check everything between two positions.

        Raises: Unsupported for images, types and statements that cannot be applied, NoSuchTable, SchemaInvalid,
        NoSuchTablespace, BinlogDamaged, and the errors of reading.
        """
        maps = StatementMaps()
        own_id = positions = 0
        with BinlogReader(self._log.files, self._log.folder, self._log.base, start) as reader:
            for read in reader.events(end):
                maps.observe(read.event)
                if isinstance(read.event, e.Gtid):
                    own_id, positions = read.header.server_id, 0
                elif isinstance(read.event, e.Query) and read.is_boundary:
                    self._follow(read.event, read.at)
                elif isinstance(read.event, e.Rows) and read.event.body:
                    origin = read.at
                    table = maps.of(read.event, origin)
                    if not table.name.startswith("mysql."):
                        self.rows_events += 1
                        is_other = read.header.server_id != own_id or bool(read.event.conflict_flags & FLAG_REFLECT)
                        self.has_replicated |= is_other
                        self._look(table, read.event, origin)
                    elif table.name == STATUS_TABLE:
                        positions += sum(
                            chunk.count for chunk in maps.reader(read.event, origin).chunks(read.event.body, origin)
                        )
                        self.has_positions |= positions > 1  # the first one is the site's own

    # --- statements --------------------------------------------------------------------------------
    def _follow(self, query: e.Query, origin: Position) -> None:
        if query.statement == "COMMIT":
            return
        try:
            statements = parse(query.statement, query.database)
        except Rejected as error:
            raise located(error, origin) from error
        self._seen.clear()
        if self._tables is None:
            return
        for each in statements:
            if isinstance(each, s.CreateTable):
                self._make(each.definition, origin)
            elif isinstance(each, s.DropTable):
                self._tables.pop(each.table, None)
            elif isinstance(each, s.RenameTable):
                self._tables[each.to] = self._tables.pop(each.table, None)
            elif isinstance(each, s.TableChange):
                self._tables[each.table] = None

    def _make(self, definition: TableDefinition, origin: Position) -> None:
        assert self._tables is not None
        has_disk = any(column.is_disk for column in definition.columns)
        if has_disk and definition.tablespace not in (None, *self._tablespaces):
            text = (
                f"table {definition.name} is in tablespace {definition.tablespace}, which was made after the backup: a"
                " binlog does not have tablespaces; restore a later backup"
            )
            raise located(NoSuchTablespace(text, tablespace=definition.tablespace), origin)
        self._tables[definition.name] = definition

    # --- rows --------------------------------------------------------------------------------------
    def _look(self, table: TableMap, rows: e.Rows, origin: Position) -> None:
        combination = (id(table), rows.kind, rows.before, rows.after)
        if combination in self._seen:
            return
        if len(self._seen) >= _COMBINATIONS_MAX:
            self._seen.clear()
        self._seen[combination] = table
        definition = self._definition(table, origin)
        names = [column.name for column in table.columns]
        before, after = present(rows)
        key = set(table.primary_key)
        if definition is not None and None not in names:
            key = {names.index(name) for name in definition.primary_key}
        if not key or not (key <= set(before) or key <= set(after)):
            text = f"rows of {table.name} have no image with the primary key; log it, or restore from the archive"
            raise located(Unsupported(text, table=table.name), origin)
        try:
            BodyReader(table.types, before, after)
        except Rejected as error:
            raise located(error, origin) from error

    def _definition(self, table: TableMap, origin: Position) -> TableDefinition | None:
        """Return the table as it is at that point, None if it is unknown. Raises: NoSuchTable, SchemaInvalid."""
        if self._tables is None:
            return None
        if table.name not in self._tables:
            text = f"the binlog has rows of {table.name}, which is neither in the backup nor made by a statement"
            raise located(NoSuchTable(f"{text}; it is another store's, or lacks statements", table=table.name), origin)
        definition = self._tables[table.name]
        names = [column.name for column in table.columns]
        if definition is not None and None not in names:
            wanted = [column.name for column in definition.columns]
            if names != wanted:
                text = f"{table.name} has the columns {', '.join(map(str, names))} in the binlog and"
                text += f" {', '.join(wanted)} in the backup; the binlog is another store's, or lacks statements"
                raise located(SchemaInvalid(text, table=table.name), origin)
        return definition


def notes_of(restored_state: RestoredState, check: ImageCheck) -> list[str]:
    """Return notes on changes that the binlog lacks because of settings. Plan and report show them, because reading the
    binlog does not show what is missing.
    """
    manifest = restored_state.manifest
    notes: list[str] = []
    rows = [
        row_of(values)
        for batch in restored_state.rows(NDB_REPLICATION, ["db", "table_name", "server_id", "binlog_type"])
        for values in batch.to_pylist()
    ]
    for table in manifest.tables:
        database, _, name = table.name.partition(".")
        found = find_row(rows, database, name, manifest.server_id).row
        if found is not None and found.binlog_type == _NOT_LOGGED and not is_system_table(table.name):
            notes.append(f"{table.name} is not logged (binlog_type 1): it stays as at epoch {restored_state.epoch}")
    exceptions = [table.name for table in manifest.tables if table.name.upper().endswith(EXCEPTIONS_SUFFIX)]
    if exceptions:
        notes.append(f"rows of {', '.join(exceptions)} are not logged: they stay as at epoch {restored_state.epoch}")
    others = [
        server_id
        for batch in restored_state.rows(NDB_APPLY_STATUS, ["server_id"])
        for server_id in batch.column(0).to_pylist()
        if server_id != manifest.server_id
    ]
    if others and not check.has_replicated:
        shown = ", ".join(map(str, sorted(others)))
        notes.append(f"the store was a replica of {shown}, and the binlog has nothing of them: see log_replica_updates")
    if check.has_replicated and not check.has_positions:
        notes.append(
            "how far other sites were applied is not in the binlog (log_apply_status was off): ndb_apply_status stays"
            f" as at epoch {restored_state.epoch}"
        )
    return notes
