"""Pending rows of system tables that describe the binlog: rows of `ndb_binlog_index` and of `ndb_schema`.

They are written after their epoch, by transactions that may wait for space in the log. A local checkpoint frees the
space, and waits for the binlog. To avoid a deadlock, the thread that writes the rows holds no lock that writing
epochs needs. If the store refuses rows, the next call retries them; if there are too many, rows of the index are
rebuilt from the files.

In a group the primary writes the rows of `ndb_schema`, once, after an epoch that all members have. A node that takes
over writes the rows that the previous primary may not have written.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Damaged, Retryable
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.found_epochs import epochs_between
from tidemark.replication.injector.mark import FOLDER
from tidemark.replication.injector.schema_events import SchemaRow, schema_row, write_schema_row
from tidemark.replication.settings.system_tables import NDB_SCHEMA, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.replication.binlog.writer import BinlogWriter
    from tidemark.replication.injector.epoch_counts import IndexRow
    from tidemark.replication.injector.found_epochs import FoundEpoch
    from tidemark.replication.injector.index_table import IndexTable
    from tidemark.replication.injector.injector import WrittenEpoch

_log = logging.getLogger("tidemark.binlog")

_ROWS_AT_ONCE = 1_000


class PendingSystemRows:
    """The pending rows, and the code that writes them. Every method may be called by any thread."""

    def __init__(
        self,
        store: Store,
        index: IndexTable | None,
        files: Files,
        writer: BinlogWriter,
        values: Mapping[str, Any],
    ) -> None:
        """`index` is None if no rows of `ndb_binlog_index` are wanted; `values` are those of `options.settings`."""
        self._store = store
        self.index = index
        self._files = files
        self._writer = writer
        self._values = values
        self.turn = threading.RLock()  # held by a thread that writes rows
        self._guard = threading.Lock()  # guards the fields below
        self._pending: list[WrittenEpoch] = []  # epochs without rows in the index
        self._schema: dict[str, SchemaRow] = {}  # by table
        self._has_followed = False
        self.lags = False  # whether the files have epochs that lack rows and are not in `_pending`
        self._indexed = self._noted = writer.end  # ends of the last epoch with rows, and of the last epoch noted
        self.files_have_gone = False

    def note(self, written: WrittenEpoch) -> None:
        """Add the next epoch that is in the binlog: its rows are pending."""
        with self._guard:
            for entry in written.schema:
                node_id = entry.author or self._values["server_id"]
                self._schema[entry.table] = schema_row(entry, written.epoch, node_id)
            self._noted = written.end
            if self.index is None:
                return
            if len(self._pending) < _ROWS_AT_ONCE:
                self._pending.append(written)
            else:
                self.lags = True

    # --- opening ----------------------------------------------------------------------------------
    def begin(self, is_member: bool) -> None:
        """Write the pending rows. With `is_member`, the store is a node of a group and writes nothing before it is
        primary, because its rows would be in no other log. As primary it writes only rows that no earlier primary has
        written.
        """
        self._has_followed = is_member
        if not is_member:
            self.write()

    def known_end(self, recovered: Position) -> tuple[tuple[int, Position] | None, int]:
        """Return (newest epoch in the index that is still in the files, with its end, or None; newest epoch in the
        index that the files have lost, or 0). Deletes the rows of epochs that a crash took from an unsynced file: this
        file is never written again.
        """
        assert self.index is not None
        files, lost_epoch = self._writer.index, 0
        while True:
            known = self.index.newest()
            if known is None:
                return None, lost_epoch
            end = known[1]
            held = 0
            if end.file in files.names:
                held = recovered.position if end.file == recovered.file else self._files.size(files.path(end.file))
            if end.position <= held:
                return known, lost_epoch
            lost_epoch = max(lost_epoch, known[0])
            try:
                self.index.delete_behind(Position(end.file, held))
            except Retryable as error:
                # For example, the log is out of space. The store must open anyway; it rebuilds all rows later.
                _log.warning("ndb_binlog_index names places that no longer exist: %s", error)
                return None, lost_epoch

    def found(self, indexed: Position, end: Position | None) -> None:
        """Set the state found in the files: epochs up to `indexed` have rows, and the last epoch ends at `end`. Write
        the missing rows.
        """
        with self._guard:
            self._indexed = indexed
            self._noted = end or indexed
            self.lags = end not in (None, indexed)
            self.files_have_gone = True  # possibly
        self.write()

    # --- writing ----------------------------------------------------------------------------------
    def write(self) -> None:
        """Write the pending rows. If the store refuses rows, the next call retries them. Rows of the index are durable
        with the epoch that commits them, rows of `ndb_schema` as by any commit.
        """
        with self.turn:
            if self.index is not None:
                self._write_index(self.index)
            self._write_schema()

    def _write_index(self, index: IndexTable) -> None:
        with self._guard:
            pending, lags, end = self._pending, self.lags, self._noted
            self._pending, self.lags = [], False
        try:
            if lags:
                self._remake(index, end)
            elif pending:
                index.write(row for each in pending for row in self._rows_of(each))
            self._indexed = end
        except (Retryable, Damaged) as error:
            _log.warning("ndb_binlog_index falls behind: %s", error)
            with self._guard:
                self._pending = pending + self._pending
                self.lags |= lags
            return
        if self.files_have_gone:
            self.files_have_gone = False
            self._sweep(index)

    def _rows_of(self, each: WrittenEpoch | FoundEpoch) -> list[IndexRow]:
        own_id, log_orig = self._values["server_id"], self._values["log_orig"]
        return each.counts.index_rows(each.epoch, each.start, each.end, own_id, log_orig)

    def _remake(self, index: IndexTable, end: Position) -> None:
        rows: list[IndexRow] = []
        names, base, own_id = self._writer.index.names, self._writer.index.base, self._values["server_id"]
        start = self._indexed if self._indexed.file in names else Position(names[0], b.FIRST_POSITION)
        for each in epochs_between(self._files, FOLDER, base, start, end, own_id):
            if each.epoch:
                rows += self._rows_of(each)
            if len(rows) >= _ROWS_AT_ONCE:
                index.write(rows)
                self._indexed, rows = each.end, []
        index.write(rows)

    def _sweep(self, index: IndexTable) -> None:
        """Delete rows of files that were purged."""
        try:
            for name in index.files() - set(self._writer.index.names):
                index.delete_file(name)
        except Retryable as error:
            self.files_have_gone = True
            _log.warning("rows of purged files stay in ndb_binlog_index: %s", error)

    def _write_schema(self) -> None:
        if self._store.resources.refusal is not None:
            self._has_followed = True
            return
        if NDB_SCHEMA not in self._store.tables.by_name:
            return  # a node that has just begun to lead has not created it yet
        try:
            if self._has_followed and self._schema:
                self._drop_written()
            while self._schema:
                with self._guard:
                    name, row = next(iter(self._schema.items()))
                write_schema_row(self._store, row)
                with self._guard:
                    if self._schema[name] is row:
                        del self._schema[name]
        except Retryable as error:
            _log.warning("ndb_schema falls behind: %s", error)

    def _drop_written(self) -> None:
        """Drop the pending rows that the previous primary has written."""
        written = {(row["db"], row["name"]): row["epoch"] for row in rows_of(self._store.tables.named(NDB_SCHEMA))}
        with self._guard:
            for name, row in list(self._schema.items()):
                if written.get((row.db, row.name), 0) >= row.epoch:
                    del self._schema[name]
        self._has_followed = False
