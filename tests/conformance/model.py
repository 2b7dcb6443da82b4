"""A reference model of a site: dicts, no store, no network, directly on the modules of replication.

The cases were first checked against it, and stores are compared with it. Epochs are closed one after the other within
one GCI; the history of a case is in the GCI before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.images import DELETE_ROW, UPDATE_ROW, WRITE_ROW, Image, Images
from tests.conformance.model_applier import Applier, Judge, judge_in_words
from tests.conformance.scenario import SiteCase
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.conflict.epochs import starting_epoch
from tidemark.replication.settings.conflict_function import compares_epochs
from tidemark.replication.settings.match import ReplicationRow, find_row
from tidemark.replication.settings.setup import SiteSettings, TableSetup, set_up

HISTORY = 1 << 32
HISTORY_END = HISTORY | 0xFFFF_FFFF
Values = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class ModelRow:
    """A row and its hidden columns."""

    values: Values
    author: int
    epoch: int


@dataclass
class Event:
    """A row event as the binlog has it; `flag` is "", REFRESH, REFLECT or READ."""

    table: str
    kind: str
    key: Key
    before: Values | None
    after: Values | None
    transaction: int | None
    server_id: int
    flag: str = ""


@dataclass
class Epoch:
    """What was logged in one epoch; `status` has (server id, epoch, id of the server named as its logger)."""

    number: int
    events: list[Event] = field(default_factory=list)
    status: list[tuple[int, int, int]] = field(default_factory=list)
    replicated_rows: int = 0


class ModelSite:
    """One site."""

    def __init__(self, case: SiteCase, judge: Judge = judge_in_words) -> None:
        self.case = case
        self.server_id = case.server_id
        self.definitions = case.tables
        self.settings = SiteSettings(case.server_id, case.role)
        rows = {name: self._row_of(name) for name in case.tables}
        self.setups = {name: self._set_up(name, row) for name, row in rows.items()}
        self.by_epochs = {name for name, row in rows.items() if row is not None and compares_epochs(row.conflict_fn)}
        self.tables: dict[str, dict[Key, ModelRow]] = {name: {} for name in case.tables}
        self.exception_rows: list[tuple[str, dict[str, Any]]] = []
        self.epochs: list[Epoch] = []
        self.open = Epoch(2 << 32)
        self.next_transaction = case.server_id << 32
        self.status = {case.server_id: HISTORY_END}
        self.peer_id = 0
        self.applier = Applier(self, starting_epoch(self.status.items(), case.server_id), judge)

    def _row_of(self, name: str) -> ReplicationRow | None:
        """The row of `ndb_replication` that applies to its table."""
        database, _, plain = self.case.tables[name].name.partition(".")
        return find_row(self.case.replication, database, plain, self.case.server_id).row

    def _set_up(self, name: str, row: ReplicationRow | None) -> TableSetup:
        return set_up(self.case.tables[name], row, self.settings, self.case.exceptions.get(name))

    def fill(self, peer_id: int) -> None:
        """The history of a scenario."""
        self.peer_id = peer_id
        for name, rows in self.case.rows.items():
            for row in rows:
                values = dict(zip([column.name for column in self.definitions[name].columns], row, strict=True))
                key = self.key_of(name, values)
                author = peer_id if key in self.case.from_peer[name] else 0
                self.tables[name][key] = ModelRow(values, author, HISTORY)

    def key_of(self, table: str, values: Mapping[str, Any]) -> Key:
        return tuple(values[name] for name in self.definitions[table].primary_key)

    def new_transaction(self) -> int:
        self.next_transaction += 1
        return self.next_transaction

    # --- a user's transaction ---------------------------------------------------------------------------
    def commit(self, transaction: str, operations: Sequence[Mapping[str, Any]]) -> None:
        before = copy.deepcopy(self.tables)
        # Rows in the order of the last operation on each, and whether they were only read.
        touched: dict[tuple[str, Key], bool] = {}
        for operation in operations:
            name, is_read = operation["table"], operation["op"] == "read_exclusive"
            for key in self._run(name, operation):
                if not is_read or (operation.get("tracked") and key in self.tables[name]):
                    touched[name, key] = touched.pop((name, key), True) and is_read
        number = self.new_transaction()
        for (name, key), is_read in touched.items():
            row = self.tables[name].get(key)
            if row is not None:
                row.author, row.epoch = 0, self.open.number
            old = before[name].get(key)
            if old is None and row is None:
                continue  # made and deleted again
            self.log_change(name, key, old, row, number, "READ" if is_read else "")

    def _run(self, name: str, operation: Mapping[str, Any]) -> list[Key]:
        """Run one operation; returns the keys it touched. A change of the key is a delete and an insert."""
        rows, columns = self.tables[name], self.definitions[name].columns
        if operation["op"] == "insert":
            values = dict(zip([column.name for column in columns], operation["row"], strict=True))
            key = self.key_of(name, values)
            assert key not in rows, f"{name} {key} exists at {self.case.name}"
            rows[key] = ModelRow(values, 0, self.open.number)
            return [key]
        key = self.key_of(name, operation["key"])
        if operation["op"] == "read_exclusive":
            return [key]
        assert key in rows, f"{name} {key} does not exist at {self.case.name}"
        if operation["op"] == "delete":
            del rows[key]
            return [key]
        values = rows.pop(key).values | operation["set"]
        moved = self.key_of(name, values)
        assert moved not in rows, f"{name} {moved} exists at {self.case.name}"
        rows[moved] = ModelRow(values, 0, self.open.number)
        return [key] if moved == key else [key, moved]

    # --- the binlog -----------------------------------------------------------------------------------------
    def log_change(
        self, name: str, key: Key, old: ModelRow | None, new: ModelRow | None, transaction: int, flag: str
    ) -> None:
        """The event of a change from one row to another, by the table's binlog_type."""
        binlog = self.setups[name].binlog
        definition, images = self.definitions[name], Images(binlog)
        columns, keys = [column.name for column in definition.columns], definition.primary_key
        if not binlog.is_logged:
            return
        if old is None:
            image = images.insert(columns, keys)
        elif new is None:
            image = images.delete(columns, keys)
        else:
            changed = [each for each in columns if old.values[each] != new.values[each]]
            image = images.update(columns, keys, changed)
            if flag == "READ" and image.event == WRITE_ROW:
                image = Image(UPDATE_ROW, tuple(keys), tuple(keys))
            elif flag != "READ" and not changed and name in self.by_epochs:
                image = Image(image.event, image.before, tuple(columns))
        self.log(
            Event(
                name,
                image.event,
                key,
                _part(old, image.before),
                _part(new, image.after),
                transaction,
                self.server_id,
                flag,
            )
        )

    def log_refresh(self, name: str, key: Key, row: ModelRow | None, transaction: int) -> None:
        """A row as it is, or its absence, to be applied as it stands."""
        if not self.setups[name].binlog.is_logged:
            return
        if row is None:
            keys = dict(zip(self.definitions[name].primary_key, key, strict=True))
            event = Event(name, DELETE_ROW, key, keys, None, transaction, self.server_id, "REFRESH")
        else:
            event = Event(name, WRITE_ROW, key, None, dict(row.values), transaction, self.server_id, "REFRESH")
        self.log(event)

    def log(self, event: Event) -> None:
        if not self.case.log_transaction_ids:
            event.transaction = None
        self.open.events.append(event)

    def epoch(self) -> None:
        closed, self.open = self.open, Epoch(self.open.number + 1)
        if closed.events or (self.case.is_circular and closed.replicated_rows):
            self.epochs.append(closed)

    def replicate(self, source: ModelSite, keep_epoch_open: bool) -> None:
        self.applier.take(source, keep_epoch_open)

    # --- what is looked at ------------------------------------------------------------------------------------
    def rows(self, table: str) -> list[tuple[Any, ...]]:
        names = [column.name for column in self.definitions[table].columns]
        return [tuple(row.values[name] for name in names) for row in self.tables[table].values()]

    def exceptions(self) -> list[tuple[str, dict[str, Any]]]:
        return list(self.exception_rows)

    def counters(self) -> Mapping[str, int]:
        conflict = self.applier.last_conflict
        return {
            **self.applier.counters.totals,
            "conflict_last_conflict_epoch": conflict.last_conflict,
            "conflict_last_stable_epoch": conflict.last_stable,
            "replica_max_replicated_epoch": self.applier.mre.value,
        }

    def applier_error(self) -> str | None:
        return self.applier.error


def _part(row: ModelRow | None, names: tuple[str, ...] | None) -> Values | None:
    return None if names is None or row is None else {name: row.values[name] for name in names}


def row_of(definition: TableDefinition, given: Mapping[str, Any]) -> Values | None:
    """A new row from the columns of an event; None if a required one is missing."""
    if any(
        not column.nullable and not column.has_default and column.name not in given for column in definition.columns
    ):
        return None
    return {
        column.name: given.get(column.name, None if column.missing is ABSENT else column.missing)
        for column in definition.columns
    }


def model_sites(cases: Mapping[str, SiteCase], judge: Judge = judge_in_words) -> Mapping[str, ModelSite]:
    """The adapter."""
    sites = {name: ModelSite(case, judge) for name, case in cases.items()}
    for name, site in sites.items():
        site.fill(next((other.server_id for key, other in sites.items() if key != name), 0))
    return sites
