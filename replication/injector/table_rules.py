"""How each table is logged, by `mysql.ndb_replication` and the options, which are read when a table is set up.

A table is set up when the store is opened and when the table is created; a later change of its row takes effect at the
next opening. The rule belongs to the number of the table, so a renamed table keeps its rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.owner import call_owner
from tidemark.engine.memory.arena_layout import CAPTURE_CHANGED, CAPTURE_NONE, CAPTURE_WHOLE, TAG_BITS
from tidemark.engine.rows.key_hashes import hash_images
from tidemark.engine.rows.row_format import RowFormat, Words
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import is_system_table
from tidemark.engine.schema.partitions_layout import HH_FIXED_WORDS, HH_FRAGMENTS, HH_WORDS
from tidemark.engine.txn.tables import set_capture
from tidemark.replication.binlog.events import UPDATE
from tidemark.replication.binlog.images import FULL_RULE, ImageRule, Present, rule_of
from tidemark.replication.binlog.row_plan import TablePlans
from tidemark.replication.settings.binlog_type import binlog_type
from tidemark.replication.settings.conflict_function import compares_epochs
from tidemark.replication.settings.match import Match, find_row, row_of
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

_log = logging.getLogger("tidemark.binlog")

_SLICE_COUNT, _SLICE_ID = "binlog_row_slice_count", "binlog_row_slice_id"
_PLANS_MAX = 4_096


@dataclass(frozen=True)
class TableRule:
    """How a table is logged; `rule` is None if it is not logged. Its rows are divided into `slice_count` slices, of
    which this site logs number `slice_id`.
    """

    rule: ImageRule | None
    slice_count: int = 1
    slice_id: int = 0
    has_function: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether updates are logged as updates, and all images have all columns."""
        rule = self.rule
        return rule is None or (
            rule.update_kind == UPDATE and rule.update_before is rule.update_after is rule.delete is Present.FULL
        )

    @property
    def capture(self) -> int:
        """Which images operations write to the log: whole ones if updates are logged with unchanged columns, or if a
        conflict function may send rows again.
        """
        if self.rule is None:
            return CAPTURE_NONE
        is_whole = Present.FULL in (self.rule.update_before, self.rule.update_after)
        return CAPTURE_WHOLE if is_whole or self.has_function else CAPTURE_CHANGED


@dataclass(frozen=True)
class LoggedTable:
    """One version of a logged table; `is_status`: it is `ndb_apply_status`."""

    plans: TablePlans
    rule: ImageRule
    is_status: bool = False
    slice_count: int = 1
    slice_id: int = 0

    def slices_of(self, images: Words, starts: Words) -> Words:
        """Return the slice of each row, by the hash of its key."""
        row_format = self.plans.row_format
        header = np.zeros(HH_WORDS, np.int64)
        header[HH_FRAGMENTS], header[HH_FIXED_WORDS] = self.slice_count, row_format.fixed_words
        hashes, _ = hash_images(header, row_format.key_words, images, starts, len(starts))
        return hashes >> TAG_BITS


class TableRules:
    """The rules of the tables of one store."""

    def __init__(self, values: Mapping[str, Any], rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """`values` are those of `options.settings`, `rows` reads `mysql.ndb_replication`."""
        self._values = values
        self._rows = rows
        self._rules: dict[int, TableRule] = {}
        # Called with the name of a table before rows of it are logged that are not whole, or look like other changes.
        self.on_partial: Callable[[str], None] = lambda name: None
        self._plans: dict[tuple[int, int], TablePlans] = {}

    def set_up(self, definition: TableDefinition) -> TableRule:
        """Determine how a table is logged from now on."""
        name = definition.name
        if name == NDB_APPLY_STATUS:
            is_wanted = self._values["log_apply_status"] or self._values["log_orig"]
            made = TableRule(FULL_RULE if is_wanted else None)
        elif is_system_table(name):  # exceptions tables too: they record what this site refused
            made = TableRule(None)
        else:
            made = self._made(name)
        self._rules[definition.table_id] = made
        return made

    def capture_of(self, definition: TableDefinition) -> int:
        """Set up a table that is created or opened; return what its operations write to the log."""
        return self.set_up(definition).capture

    def _made(self, name: str) -> TableRule:
        database, _, table = name.partition(".")
        values = list(self._rows())
        found = find_row([row_of(each) for each in values], database, table, self._values["server_id"])
        if found.warning is not None:
            _log.warning("%s", found.warning.text)
        # Only binlog_type 0 depends on the options, as they are when the table is set up.
        options = ("log_updated_only", "log_update_as_write", "log_update_as_minimal")
        number = None if found.row is None else found.row.binlog_type
        how, unknown = binlog_type(number, *(self._values[each] for each in options))
        if unknown is not None:
            _log.warning("%s: %s", name, unknown.text)
        spec = None if found.row is None else found.row.conflict_fn
        rule = replace(rule_of(how), logs_empty=compares_epochs(spec))
        return TableRule(rule if rule.is_logged else None, *self._slices(found, values), spec is not None)

    def _slices(self, found: Match, values: list[Mapping[str, Any]]) -> tuple[int, int]:
        """Return (number of slices, own slice) from the table's row of `ndb_replication`, else from the site's
        options.
        """
        for each in values if found.row is not None else ():
            count, number = each.get(_SLICE_COUNT), each.get(_SLICE_ID)
            if row_of(each) == found.row and count and number is not None and number < count:
                return int(count), int(number)
        return self._values["row_slice_count"], self._values["row_slice_id"]

    def changed(self, before: TableDefinition | None, after: TableDefinition | None) -> None:
        """Follow a schema change: drop the rule of a dropped table."""
        if before is not None and after is None:
            self._rules.pop(before.table_id, None)

    def rule_of(self, definition: TableDefinition) -> TableRule:
        """Return the rule of a table; set the table up if it has none yet."""
        found = self._rules.get(definition.table_id)
        return self.set_up(definition) if found is None else found

    @property
    def are_whole(self) -> bool:
        """Whether the rows of all tables that were set up are logged whole."""
        return all(each.is_whole for each in list(self._rules.values()) if each.rule is not FULL_RULE)

    def logged(self, row_format: RowFormat) -> LoggedTable | None:
        """Return how the rows of a version of a table are logged, None if not at all."""
        definition = row_format.definition
        found = self.rule_of(definition)
        if found.rule is None:
            return None
        is_status = definition.name == NDB_APPLY_STATUS
        if not is_status and not found.is_whole:
            self.on_partial(definition.name)
        return LoggedTable(self.plans(row_format), found.rule, is_status, found.slice_count, found.slice_id)

    def plans(self, row_format: RowFormat) -> TablePlans:
        """Return the plans of a version of a table."""
        definition = row_format.definition
        key = (definition.table_id, definition.version)
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            known = self._plans[key] = TablePlans(row_format)
        return known


def capture(store: Store, rules: TableRules, tables: Iterable[Table] | None = None) -> None:
    """Make operations on `tables` (None: on all) write to the store's log the images that a binlog by these rules
    needs. The caller keeps the rules alive.
    """
    store.resources.follows_log = True
    store.tables.capture_of = call_owner(rules.capture_of)
    for table in list(store.tables.by_name.values()) if tables is None else tables:
        set_capture(table, rules.capture_of(table.definition))
