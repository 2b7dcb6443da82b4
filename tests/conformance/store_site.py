"""Sites that are real stores, over files in memory, each with the binlog it makes of its own REDO log.

Commits of users and of the applier at one site reach the other as in production: REDO log, follower, binlog files,
reader, applier. No state is kept outside the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tests.applier.logs import status_of
from tests.conformance.judgements import stop_of
from tests.conformance.scenario import SiteCase
from tests.store.support import SMALL
from tidemark.database import Database
from tidemark.engine.access import row_operations
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import Error
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.applier import Applier, ApplierOptions
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, transactions
from tidemark.replication.binlog.position import Position
from tidemark.replication.settings.options import split_keywords
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_REPLICATION
from tidemark.session import Transaction

Row = tuple[Any, ...]
Key = tuple[Any, ...]


class StoreSite:
    """One site."""

    def __init__(self, case: SiteCase, options: ApplierOptions | None = None) -> None:
        self.case = case
        self.server_id = case.server_id
        self.files = MemoryFiles()
        self.db = open_site(self.files, case)
        self.store = self.db.parts.store
        self.db.create_replication_table()
        with self.db.transaction() as txn:
            for row in case.replication:
                settings = (row.binlog_type, None if row.conflict_fn is None else row.conflict_fn.encode())
                txn.insert(NDB_REPLICATION, (row.database.encode(), row.table.encode(), row.server_id, *settings))
        # Exceptions tables first: one made later counts from the next set-up of its table.
        for definition in (*case.exceptions.values(), *case.tables.values()):
            self.make(definition)
        self.settings = SiteSettings(case.server_id, case.role)
        self.options = options
        self.taken: Position | None = None
        self.error: str | None = None
        self.applier: Applier

    def make(self, definition: TableDefinition) -> None:
        self.db.create_table(definition.name, definition.columns, definition.primary_key)

    def fill(self, peer_id: int) -> None:
        """The history of a scenario, which ends with its GCI."""
        for author in (0, peer_id):
            txn = self.store.transactions.begin(0, author)
            for name, rows in self.case.rows.items():
                table = self.store.tables.named(self.case.tables[name].name)
                key = table.definition.key_positions
                for row in rows:
                    is_peers = tuple(row[at] for at in key) in self.case.from_peer[name]
                    if is_peers == (author != 0):
                        row_operations.insert(txn, table, row)
            txn.commit(False)
        end = ((self.store.epochs.current >> 32) + 1 << 32) - 1
        with self.db.transaction() as status:
            status.write(NDB_APPLY_STATUS, (self.server_id, end, "", 0, 0))
        self.db.parts.clockwork.advance_gci()
        self.applier = Applier(self.store, self.settings, self.options)

    def end(self) -> Position:
        """Where the binlog ends."""
        assert self.db.binlog is not None
        return self.db.binlog.durable_end()

    # --- a user's transaction ---------------------------------------------------------------------------
    def commit(self, transaction: str, operations: Sequence[Mapping[str, Any]]) -> None:
        with self.db.transaction(log_exclusive_reads=True) as txn:
            for operation in operations:
                self._run(txn, operation)

    def name_of(self, table: str) -> str:
        """With its database."""
        return self.case.tables[table].name

    def _run(self, txn: Any, operation: Mapping[str, Any]) -> None:
        table = self.name_of(operation["table"])
        names = self.case.tables[operation["table"]].primary_key
        if operation["op"] == "insert":
            txn.insert(table, tuple(operation["row"]))
            return
        key = _plain(tuple(operation["key"][each] for each in names))
        if operation["op"] == "delete":
            txn.delete(table, key)
        elif operation["op"] == "read_exclusive":
            read = txn.get if operation.get("tracked") else partial(Transaction.get, txn)
            read(table, key, lock="exclusive")
        elif any(operation["set"].get(name, value) != value for name, value in operation["key"].items()):
            row = txn.get(table, key)._asdict() | operation["set"]
            txn.delete(table, key)
            txn.insert(table, row)
        else:
            txn.update(table, key, {each: value for each, value in operation["set"].items() if each not in names})

    # --- replication ----------------------------------------------------------------------------------------
    def epoch(self) -> None:
        self.db.parts.clockwork.advance_epoch()

    def replicate(self, source: StoreSite, keep_epoch_open: bool) -> None:
        if self.error is not None:
            return
        for each in transactions(LogFolder(source.files), self.taken, source.end()):
            assert isinstance(each, EpochTransaction)
            try:
                applied = self.applier.apply(each)
            except Error as error:
                self.error = stop_of(error).value
                self.stopped_by = error
                return
            self.taken = applied.next
            if not keep_epoch_open:
                self.epoch()

    # --- what is looked at ------------------------------------------------------------------------------------
    def rows(self, table: str) -> list[Row]:
        return [tuple(row) for row in self.db[self.name_of(table)].scan()]

    def exceptions(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for definition in self.case.exceptions.values():
            names = [column.name for column in definition.columns]
            rows = [dict(zip(names, row, strict=True)) for row in self.db[definition.name].scan()]
            found += [(definition.name.partition(".")[2], row) for row in rows]
        return found

    def counters(self) -> Mapping[str, int]:
        return status_of(self.applier)

    def applier_error(self) -> str | None:
        return self.error

    def close(self) -> None:
        self.db.close()


def open_site(files: MemoryFiles, case: SiteCase) -> Database:
    """The store of a site, driven by hand, with the options a case asks for."""
    given = {
        **SMALL,
        "server_id": case.server_id,
        "log_bin": "binlog",
        "log_transaction_id": case.log_transaction_ids,
        "log_apply_status": case.is_circular,
        "log_empty_update": True,  # as servers did when the results of cases were recorded
        "conflict_role": case.role,
        "sync_binlog": 0,
    }
    parsed, replication = split_keywords(given)
    return Database(files, parsed, ManualClock(), None, None, None, replication)


def _plain(key: Key) -> Any:
    return key[0] if len(key) == 1 else key


def store_sites(cases: Mapping[str, SiteCase], options: ApplierOptions | None = None) -> Mapping[str, StoreSite]:
    """The adapter. The content from before a scenario is not replicated."""
    sites = {name: StoreSite(case, options) for name, case in cases.items()}
    for name, site in sites.items():
        site.fill(next((other.server_id for key, other in sites.items() if key != name), 0))
    for name, site in sites.items():
        site.taken = next((other.end() for key, other in sites.items() if key != name), None)
    return sites
