"""Sites that are real stores, over files in memory: their binlogs hold what they and their appliers have done.

What a store commits is written to its binlog here, at the end of each epoch, by the binlog's own writer; the applier of
another site reads it from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from engine.applied_rows import touch_rows_again
from engine.batch_operations import get_many
from engine.errors import Error
from engine.file_doubles.memory import MemoryFiles
from engine.schema import TableDefinition
from replication.any_value import FLAG_READ, FLAG_REFLECT, FLAG_REFRESH
from replication.applier.applier import Applier, ApplierOptions
from replication.applier.batch import ChangeBatch
from replication.applier.one_pass import OnePass
from replication.applier.stops import stop_of
from replication.applier.transactions import EpochTransaction, LogFolder, transactions
from replication.binlog import events as e
from replication.binlog.images import BinlogOptions, RowBatch, image_rule
from replication.binlog.index import Position
from replication.binlog.row_plan import RowImages, TablePlans
from replication.binlog.writer import BinlogWriter, WriterOptions
from replication.conflict.batches import APPLIED
from replication.conflict.functions import Decision
from replication.settings.binlog_type import BinlogType
from replication.settings.match import find_row
from replication.settings.setup import SiteSettings, set_up
from replication.system_tables import MADE_WITH_STORE, NDB_APPLY_STATUS, NDB_REPLICATION_TABLE
from tests.conformance.scenario import SiteCase
from tests.replication.support import entries_of
from tests.store.support import open_memory

Row = tuple[Any, ...]
Key = tuple[Any, ...]
_BLANKS = (0, "", b"", 0.0, False)


@dataclass
class Change:
    """A row's change as the binlog is told; `as_called`: with full images, whatever the table's rule."""

    table: str
    kind: int
    old: Row | None
    new: Row | None
    transaction: int = 0
    flag: int = 0
    binlog_type: int = 7
    as_called: bool = False


@dataclass
class OpenEpoch:
    """What the binlog will be told of the epoch that is open; positions are (server id, epoch, logger)."""

    changes: list[Change] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    replicated_rows: int = 0


class RecordingPass(OnePass):
    """A pass that notes what the binlog must tell."""

    site: StoreSite

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.noted = OpenEpoch()
        self.transaction = self.site.new_transaction()
        self.site.newest_pass = self

    def _seen(self, batch: ChangeBatch) -> dict[Key, Row]:
        found = get_many(batch.table, batch.changes(with_values=False), None, self.txn)
        key = batch.table.definition.key_positions
        return {tuple(row[at] for at in key): row for row in map(tuple, map(dict.values, found.to_pylist()))}

    def _keys(self, batch: ChangeBatch) -> list[Key]:
        return [tuple(row.values()) for row in batch.changes(with_values=False).to_pylist()]

    def _apply(self, applied: Any, decision: Decision, batch: ChangeBatch) -> Any:
        before = self._seen(batch)
        codes = super()._apply(applied, decision, batch)
        after = self._seen(batch)
        name = batch.table.name.partition(".")[2]
        for key, code in zip(self._keys(batch), codes.tolist(), strict=True):
            if code == APPLIED and decision.reflects:
                change = self.site.change_of(name, before.get(key), after.get(key), self.transaction, FLAG_REFLECT)
                self.noted.changes += [change] if change else []
            elif code == APPLIED:
                self.noted.replicated_rows += 1
        return codes

    def refresh(self, batch: ChangeBatch) -> None:
        name = batch.table.name.partition(".")[2]
        rows = self._seen(batch)
        for key in self._keys(batch):
            change = Change(name, e.WRITE, None, rows.get(key), self.transaction, FLAG_REFRESH, 7, True)
            if key not in rows:
                blank = self.site.blank_row(name, key)
                change = Change(name, e.DELETE, blank, None, self.transaction, FLAG_REFRESH, 6)
            if self.site.rules[name]:
                self.noted.changes.append(change)
        super().refresh(batch)


class StoreSite:
    """One site."""

    def __init__(self, case: SiteCase, options: ApplierOptions | None = None) -> None:
        self.case = case
        self.server_id = case.server_id
        self.files = MemoryFiles()
        self.db = open_memory(self.files)
        self.store = self.db._store
        for definition in (*MADE_WITH_STORE, NDB_REPLICATION_TABLE):
            if definition.name not in self.store.tables:
                self._make(definition)
        for definition in (*case.tables.values(), *case.exceptions.values()):
            self._make(definition)
        with self.db.transaction() as txn:
            for row in case.replication:
                settings = (row.binlog_type, None if row.conflict_fn is None else row.conflict_fn.encode())
                key = (row.database.encode(), row.table.encode(), row.server_id)
                txn.insert(NDB_REPLICATION_TABLE.name, (*key, *settings))
        self.settings = SiteSettings(case.server_id, case.role)
        self.rules = {name: _number(self._binlog_type(name)) for name in case.tables}
        self.options = options
        self.open = OpenEpoch()
        self.next_transaction = case.server_id << 32
        self.plans: dict[str, TablePlans] = {}
        images = BinlogOptions(transaction_id=case.log_transaction_ids, empty_update=True)
        self.writer = BinlogWriter(
            self.files, self.store.clock, options=WriterOptions(self.server_id, sync_binlog=0, images=images)
        )
        self.taken: Position | None = None
        self.error: str | None = None
        self.newest_pass: RecordingPass
        self.applier: Applier

    def _make(self, definition: TableDefinition) -> None:
        self.db.create_table(definition.name, definition.columns, definition.primary_key)

    def _binlog_type(self, name: str) -> BinlogType:
        table = self.case.tables[name]
        database, _, plain = table.name.partition(".")
        row = find_row(self.case.replication, database, plain, self.case.server_id).row
        return set_up(table, row, self.settings, self.case.exceptions.get(name)).binlog

    def fill(self, peer_id: int) -> None:
        """The history of a scenario, which ends with its GCI."""
        from engine import row_operations

        for author in (0, peer_id):
            txn = self.store.begin(0, author)
            for name, rows in self.case.rows.items():
                table = self.store.table(self.case.tables[name].name)
                key = table.definition.key_positions
                for row in rows:
                    is_peers = tuple(row[at] for at in key) in self.case.from_peer[name]
                    if is_peers == (author != 0):
                        row_operations.insert(txn, table, row)
            txn.commit(False)
        end = ((self.store.epochs.current >> 32) + 1 << 32) - 1
        with self.db.transaction() as status:
            status.write(NDB_APPLY_STATUS, (self.server_id, end, "", 0, 0))
        self.db.advance_gci()
        self.applier = Applier(self.store, self.settings, self.options)
        self.applier.pass_kind = type("RecordingPassHere", (RecordingPass,), {"site": self})  # type: ignore[assignment]

    def new_transaction(self) -> int:
        self.next_transaction += 1
        return self.next_transaction

    # --- a user's transaction ---------------------------------------------------------------------------
    def commit(self, transaction: str, operations: Sequence[Mapping[str, Any]]) -> None:
        before: dict[tuple[str, Key], Row | None] = {}
        reads: dict[tuple[str, Key], None] = {}
        touched: dict[tuple[str, Key], None] = {}
        with self.db.transaction() as txn:
            for operation in operations:
                name = operation["table"]
                for key in self._keys(name, operation):
                    before.setdefault((name, key), _tuple(txn.get(self._name(name), _plain(key))))
                if operation["op"] == "read_exclusive":
                    self._read(txn, name, operation, reads)
                else:
                    touched.update(dict.fromkeys((name, key) for key in self._keys(name, operation)))
                    self._run(txn, name, operation)
        number = self.new_transaction()
        for name, key in [*touched, *(each for each in reads if each not in touched)]:
            old = before[name, key]
            if (name, key) not in touched:
                if not self.rules[name]:
                    continue
                rule = self.rules[name] if self.rules[name] >= 6 else 6
                self.open.changes.append(Change(name, e.UPDATE, old, old, number, FLAG_READ, rule))
                continue
            new = _tuple(self.db[self._name(name)].get(_plain(key)))
            if old != new:
                change = self.change_of(name, old, new, number, 0)
                self.open.changes += [change] if change else []

    def _name(self, table: str) -> str:
        return self.case.tables[table].name

    def _keys(self, name: str, operation: Mapping[str, Any]) -> list[Key]:
        definition = self.case.tables[name]
        if operation["op"] == "insert":
            return [tuple(operation["row"][at] for at in definition.key_positions)]
        key = tuple(operation["key"][each] for each in definition.primary_key)
        if operation["op"] == "read_exclusive" and not operation.get("tracked"):
            return []
        moved = tuple({**operation["key"], **operation.get("set", {})}[each] for each in definition.primary_key)
        return [key] if moved == key else [key, moved]

    def _read(self, txn: Any, name: str, operation: Mapping[str, Any], reads: dict[tuple[str, Key], None]) -> None:
        for key in self._keys(name, operation):
            row = txn.get(self._name(name), _plain(key), lock="exclusive")
            if row is not None and operation.get("tracked"):
                table = self.store.table(self._name(name))
                columns = {each: [value] for each, value in zip(table.definition.primary_key, key, strict=True)}
                touch_rows_again(txn, table, pa.RecordBatch.from_pydict(columns))
                reads[name, key] = None

    def _run(self, txn: Any, name: str, operation: Mapping[str, Any]) -> None:
        table = self._name(name)
        if operation["op"] == "insert":
            txn.insert(table, tuple(operation["row"]))
            return
        key, *moved = self._keys(name, operation)
        if operation["op"] == "delete":
            txn.delete(table, _plain(key))
        elif moved:
            row = txn.get(table, _plain(key))._asdict() | operation["set"]
            txn.delete(table, _plain(key))
            txn.insert(table, row)
        else:
            changes = {each: value for each, value in operation["set"].items() if each not in operation["key"]}
            txn.update(table, _plain(key), changes)

    # --- the binlog -----------------------------------------------------------------------------------------
    def change_of(self, name: str, old: Row | None, new: Row | None, transaction: int, flag: int) -> Change | None:
        """A change from one row to another; None if the table is not logged, or nothing is there before and after."""
        if not self.rules[name] or (old is None and new is None):
            return None
        kind = e.WRITE if old is None else e.DELETE if new is None else e.UPDATE
        return Change(name, kind, old, new, transaction, flag, self.rules[name])

    def blank_row(self, name: str, key: Key) -> Row:
        """A row of which only the key means anything."""
        definition = self.case.tables[name]
        given = dict(zip(definition.primary_key, key, strict=True))
        return tuple(
            given[column.name] if column.name in given else None if column.nullable else _blank(column.type)
            for column in definition.columns
        )

    def _plans(self, name: str) -> TablePlans:
        if name not in self.plans:
            self.plans[name] = TablePlans(self.store.table(name).format)
        return self.plans[name]

    def _batch(self, name: str, change: Change, server_id: int = 0) -> RowBatch:
        plans = self._plans(name)
        words, starts = entries_of(plans.row_format, [row for row in (change.old, change.new) if row is not None])
        before = starts[:1] if change.old is not None else None
        after = starts[-1:] if change.new is not None else None
        words_of = {
            "transaction_ids": change.transaction,
            "conflict_flags": change.flag,
            "server_ids": server_id,
        }
        more = {each: np.array([value], dtype=np.int64) for each, value in words_of.items()}
        rule = image_rule(change.binlog_type, self.writer.options.images)
        return RowBatch(plans, rule, change.kind, RowImages(words, before, after), as_called=change.as_called, **more)

    def _position(self, server_id: int, epoch: int, logger_id: int) -> RowBatch:
        change = Change("", e.WRITE, None, (server_id, epoch, "", 0, 0), as_called=True)
        return self._batch(NDB_APPLY_STATUS, change, logger_id)

    def epoch(self) -> None:
        closed, opened = self.open, self.store.epochs.current
        self.open = OpenEpoch()
        self.db.advance_epoch()
        if not closed.changes and not (self.case.is_circular and closed.replicated_rows):
            return
        self.writer.begin((), self._position(self.server_id, opened, self.server_id))
        for position in closed.positions if self.case.is_circular else ():
            self.writer.append(self._position(*position))
        for change in closed.changes:
            self.writer.append(self._batch(self._name(change.table), change))
        self.writer.commit()

    def replicate(self, source: StoreSite, keep_epoch_open: bool) -> None:
        if self.error is not None:
            return
        for each in transactions(LogFolder(source.files), self.taken, source.writer.end):
            assert isinstance(each, EpochTransaction)
            try:
                applied = self.applier.apply(each)
            except Error as error:
                self.error = stop_of(error).value
                self.stopped_by = error
                return
            self.taken = applied.next
            self._noted(each.source_id)
            if not keep_epoch_open:
                self.epoch()

    def _noted(self, source_id: int) -> None:
        """What an epoch transaction did goes into the own binlog; the immediate source's position under the own id."""
        done = self.newest_pass
        self.open.changes += done.noted.changes
        self.open.replicated_rows += done.noted.replicated_rows
        for server_id, epoch, logger_id in done.statuses:
            self.open.positions.append((server_id, epoch, self.server_id if server_id == source_id else logger_id))

    # --- what is looked at ------------------------------------------------------------------------------------
    def rows(self, table: str) -> list[Row]:
        return [tuple(row) for row in self.db[self._name(table)].scan()]

    def exceptions(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for definition in self.case.exceptions.values():
            names = [column.name for column in definition.columns]
            rows = [dict(zip(names, row, strict=True)) for row in self.db[definition.name].scan()]
            found += [(definition.name.partition(".")[2], row) for row in rows]
        return found

    def counters(self) -> Mapping[str, int]:
        return self.applier.counters.totals

    def applier_error(self) -> str | None:
        return self.error

    def close(self) -> None:
        self.db.close()


def _tuple(row: Any) -> Row | None:
    return None if row is None else tuple(row)


def _plain(key: Key) -> Any:
    return key[0] if len(key) == 1 else key


def _blank(kind: Any) -> Any:
    for value in _BLANKS:
        try:
            kind.stored(value)
        except Error:
            continue
        return value
    raise AssertionError(f"no blank value of {kind!r}")


def _number(binlog: BinlogType) -> int:
    """The number of a binlog type; 0 for one that is not logged."""
    if not binlog.is_logged:
        return 0
    if not binlog.is_update:
        return 3 if binlog.is_full else 2
    if binlog.is_minimal:
        return 9 if binlog.is_full else 8
    return 7 if binlog.is_full else 6


def store_sites(cases: Mapping[str, SiteCase], options: ApplierOptions | None = None) -> Mapping[str, StoreSite]:
    """The adapter."""
    sites = {name: StoreSite(case, options) for name, case in cases.items()}
    for name, site in sites.items():
        site.fill(next((other.server_id for key, other in sites.items() if key != name), 0))
    return sites
