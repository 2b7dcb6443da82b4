"""From the changes of an epoch, made by hand, to its epoch transaction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replication.site import epochs_in, transactions_in
from tests.replication.stage import ManualClock
from tests.replication.support import entries_of
from tidemark.engine import types as t
from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_INSERT, KIND_REFRESH, KIND_UPDATE
from tidemark.engine.log.row_changes import RowChanges, SchemaChange
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog.images import BinlogOptions
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import TablePlans
from tidemark.replication.binlog.writer import BinlogWriter, WriterOptions
from tidemark.replication.injector.found_epochs import epochs_between, last_epoch
from tidemark.replication.injector.injector import Injector, InjectorOptions
from tidemark.replication.injector.table_rules import TableRules
from tidemark.replication.settings.any_value import NO_LOGGING, READ, REFLECT, REFRESH, RESERVED
from tidemark.replication.settings.options import settings
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS_TABLE, NDB_BINLOG_INDEX_TABLE

OWN = 7
T = RowFormat(TableDefinition(5, 1, "d.t", (Column("id", t.Int64), Column("a", t.VarChar(9), True)), "id"))
STATUS = RowFormat(replace(NDB_APPLY_STATUS_TABLE, table_id=2))


class Changes:
    """An epoch in the form that the follower yields."""

    def __init__(self, epoch, *changes, wall_us=1_700_000_000_000_000):
        self.epoch, self.wall_us, self._changes = epoch, wall_us, changes

    def parts(self):
        return iter(self._changes)


def changes(kind, rows_before, rows_after, any_values=0, row_format=T, txid=1):
    """Return row changes of Python rows; images that a kind does not have are None."""
    before, after = rows_before or [], rows_after or []
    words, starts = entries_of(row_format, [*before, *after])
    count = max(len(before), len(after))
    values = np.full(count, any_values) if isinstance(any_values, int) else np.array(any_values)
    return RowChanges(
        row_format,
        kind,
        words,
        starts[: len(before)].copy() if rows_before is not None else None,
        starts[len(before) :].copy() if rows_after is not None else None,
        True,
        True,
        np.full(count, txid),
        values.astype(np.int64),
        np.zeros(count, np.int64),
    )


def inserts(*ids, any_values=0):
    return changes(KIND_INSERT, None, [(each, f"r{each}") for each in ids], any_values)


def updates(*ids, any_values=0):
    return changes(KIND_UPDATE, [(n, "old") for n in ids], [(n, "new") for n in ids], any_values)


def positions(*rows, any_values):
    return changes(KIND_INSERT, None, [(*row, "x.000001", 4, 99) for row in rows], any_values, STATUS)


class Stage:
    """An injector over files in memory."""

    def __init__(self, rows=(), cache_bytes=1 << 20, **options):
        values = settings({"server_id": OWN, "log_bin": "binlog", **options})
        self.files = MemoryFiles()
        self.values = values
        rules = TableRules(values, lambda: rows)
        images = BinlogOptions(empty_update=values["log_empty_update"])
        self.writer = BinlogWriter(self.files, ManualClock(), options=WriterOptions(OWN, images=images))
        chosen, plans = InjectorOptions.of({**values, "binlog_cache_size": cache_bytes}), TablePlans(STATUS)
        self.injector = Injector(self.writer, chosen, rules, lambda: plans)

    def write(self, epoch, *parts):
        return self.injector.write(Changes(epoch, *parts))

    def rows(self):
        return [row for each in epochs_in(self.files) for row in each.rows]

    def said(self):
        return [(row.kind, (row.after or row.before)["id"], row.server_id, row.flags) for row in self.rows()]

    def index_rows(self, written, log_orig=True):
        rows = written.counts.index_rows(written.epoch, written.start, written.end, OWN, log_orig)
        names = ("epoch", "orig_server_id", "orig_epoch", "inserts", "updates", "deletes", "schemaops")
        places = [NDB_BINLOG_INDEX_TABLE.position(name) for name in names]
        return [tuple(row[place] for place in places) for row in rows]


@pytest.mark.parametrize(
    ("any_value", "replica_updates", "expected"),
    [
        (0, False, ("UPDATE_ROW", OWN, 0)),
        (3, False, None),
        (3, True, ("UPDATE_ROW", 3, 0)),
        (NO_LOGGING, True, None),
        (REFRESH, False, ("WRITE_ROW", OWN, 2)),
        (REFLECT, False, ("UPDATE_ROW", OWN, 1)),
        (READ, False, ("UPDATE_ROW", OWN, 4)),
        (RESERVED | 1, True, None),
    ],
)
def test_any_value_says_whether_as_whose_and_how_an_update_is_logged(any_value, replica_updates, expected):
    stage = Stage(log_update_as_write=False, log_replica_updates=replica_updates)
    written = stage.write(20, updates(1, 2, any_values=any_value))
    found = stage.said()
    if expected is None:
        assert written is None and found == []
    else:
        kind, server_id, flags = expected
        assert found == [(kind, 1, server_id, flags), (kind, 2, server_id, flags)]


def test_rows_with_several_any_values_keep_their_order_and_are_divided_by_origin():
    stage = Stage(log_replica_updates=True, log_orig=True)
    given = [0, 3, NO_LOGGING, REFLECT, 4, 4]
    written = stage.write(20, inserts(1, 2, 3, 4, 5, 6, any_values=given))
    w = "WRITE_ROW"
    assert stage.said() == [(w, 1, OWN, 0), (w, 2, 3, 0), (w, 4, OWN, 1), (w, 5, 4, 0), (w, 6, 4, 0)]
    counted = {row[1]: row[3] for row in stage.index_rows(written)}
    assert counted == {OWN: 2, 3: 1, 4: 2}


def test_refreshed_rows_between_others_are_written_whole_in_their_place():
    stage = Stage(log_update_as_write=False)
    part = changes(
        KIND_UPDATE,
        [(1, "a"), (1, "b"), (1, "b"), (1, "b")],
        [(1, "b"), (1, "b"), (1, "b"), (1, "c")],
        [0, REFRESH, 0, 0],
    )
    stage.write(20, part)
    assert [(row.kind, row.before, row.after) for row in stage.rows()] == [
        ("UPDATE_ROW", {"id": 1, "a": "a"}, {"id": 1, "a": "b"}),
        ("WRITE_ROW", None, {"id": 1, "a": "b"}),
        ("UPDATE_ROW", {"id": 1, "a": "b"}, {"id": 1, "a": "c"}),
    ]


def test_refresh_of_a_missing_row_is_a_delete_by_its_key_whatever_the_type():
    stage = Stage(log_updated_only=False, log_update_as_write=False)
    stage.write(20, changes(KIND_REFRESH, [(9, None)], None, REFRESH))
    (row,) = stage.rows()
    assert (row.kind, row.before, row.flags) == ("DELETE_ROW", {"id": 9}, 2)


@pytest.mark.parametrize("options", [{}, {"log_update_as_write": False, "log_update_as_minimal": True}])
def test_tracked_read_is_an_update_of_its_key(options):
    stage = Stage(**options)
    stage.write(20, changes(KIND_UPDATE, [(9, "a")], [(9, "a")], READ))
    (row,) = stage.rows()
    assert (row.kind, row.before, row.after, row.flags) == ("UPDATE_ROW", {"id": 9}, {"id": 9}, 4)


# --- epochs that are written ----------------------------------------------------------------------
def test_epoch_without_logged_rows_is_written_only_if_empty_epochs_are():
    part = inserts(1, any_values=3)
    stage = Stage()
    assert stage.write(20, part) is None and stage.write(21) is None
    assert epochs_in(stage.files) == [] and stage.write(22, inserts(2)) is not None
    stage = Stage(log_empty_epochs=True)
    assert stage.write(20, part) is not None
    assert [(each.epoch, each.rows) for each in epochs_in(stage.files)] == [(20, [])]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_updates_that_change_nothing_are_logged_only_if_asked_for(cache_bytes):
    part = changes(KIND_UPDATE, [(1, "a"), (2, "b")], [(1, "a"), (2, "b")])
    stage = Stage(cache_bytes=cache_bytes)
    assert stage.write(20, part) is None and epochs_in(stage.files) == []
    written = stage.write(21, part, inserts(5))
    assert stage.index_rows(written, False) == [(21, 0, 0, 1, 0, 0, 0)]
    stage = Stage(log_empty_update=True, cache_bytes=cache_bytes)
    written = stage.write(20, part)
    assert [row.after for row in stage.rows()] == [{"id": 1}, {"id": 2}]
    assert stage.index_rows(written, False) == [(20, 0, 0, 0, 2, 0, 0)]


def test_no_rows_are_logged_while_log_rows_is_off():
    stage = Stage(log_rows=False, log_apply_status=True)
    assert stage.write(20, inserts(1, any_values=3), inserts(2)) is None
    assert stage.write(21, SchemaChange({"create": {}}, None, T.definition, 1)) is not None
    assert [each.epoch for each in epochs_in(stage.files)] == [21]


# --- positions of other sites ---------------------------------------------------------------------
def test_applied_position_is_logged_as_the_own_server_s_and_what_it_passed_on_keeps_its_name():
    stage = Stage(log_apply_status=True)
    given = positions((3, 100), (OWN, 19), (4, 200), any_values=[3, 3, 3])
    assert stage.write(20, given) is None, "a position alone is no reason to write an epoch"
    assert stage.write(21, given, inserts(1, any_values=3)) is not None
    assert [(row.kind, row.after["server_id"], row.after["epoch"], row.server_id) for row in stage.rows()] == [
        ("WRITE_ROW", 3, 100, OWN),
        ("WRITE_ROW", OWN, 19, 3),
        ("WRITE_ROW", 4, 200, 3),
    ]
    assert stage.rows()[0].after["log_name"] == "x.000001"


def test_positions_are_not_logged_without_the_option():
    stage = Stage()
    stage.write(20, positions((3, 100), any_values=3), inserts(1))
    assert [row.table for row in stage.rows()] == ["d.t"]


def test_index_rows_of_epoch_209_with_origin_13_are_those_of_the_manual():
    """Example in RonDB's documentation: epoch 13 of cluster A (server 1), applied in B (server 7) in epoch 209."""
    stage = Stage(log_apply_status=True, log_orig=True, log_replica_updates=True)
    written = stage.write(
        209, positions((1, 13), any_values=1), inserts(1, 2, any_values=1), updates(3, any_values=1), updates(4)
    )
    assert stage.index_rows(written) == [(209, OWN, 209, 0, 1, 0, 0), (209, 1, 13, 2, 1, 0, 0)]
    assert stage.index_rows(written, log_orig=False) == [(209, 0, 0, 2, 2, 0, 0)]
    (found,) = epochs_between(stage.files, "binlog", "binlog", Position("binlog.000001", 4), stage.writer.end, OWN)
    assert (found.epoch, found.start, found.end) == (209, written.start, written.end)
    # The file does not show which writes were updates.
    assert stage.index_rows(found) == [(209, OWN, 209, 1, 0, 0, 0), (209, 1, 13, 3, 0, 0, 0)]


# --- statements -----------------------------------------------------------------------------------
def test_statement_stands_before_the_epoch_transaction_that_names_its_epoch():
    stage = Stage()
    written = stage.write(20, SchemaChange({"create": {}}, None, T.definition, 1))
    said = transactions_in(stage.files)
    assert [each.epoch for each in said] == [0, 0, 20]
    assert said[0].statement == "CREATE DATABASE IF NOT EXISTS `d`" and "CREATE TABLE `d`.`t`" in said[1].statement
    assert written.start == Position("binlog.000001", 157) and written.counts.statements == 2
    assert stage.index_rows(written, False) == [(20, 0, 0, 0, 0, 0, 2)]


def test_statements_cut_off_from_their_epoch_are_not_written_twice():
    whole = Stage()
    change = SchemaChange({"create": {}}, None, T.definition, 1)
    whole.write(20, change)
    texts = [each.statement for each in transactions_in(whole.files) if each.statement]
    for kept in (1, 2):
        stage = Stage()
        stage.write(19, inserts(1))
        for text in texts[:kept]:
            stage.writer.statement(text)
        tail = last_epoch(stage.files, "binlog", "binlog", stage.writer.end, OWN)
        assert (tail.epoch, tail.statements) == (19, tuple(texts[:kept]))
        stage.injector.already_written_statements.extend(tail.statements)
        stage.write(20, change)
        assert [each.statement for each in transactions_in(stage.files)] == [None, *texts, None]


def test_system_table_s_changes_are_no_statements_and_rows_before_a_change_are_refused():
    stage = Stage()
    assert stage.write(20, SchemaChange({"create": {}}, None, STATUS.definition, 1)) is None
    with pytest.raises(InvariantBroken):
        stage.write(21, inserts(1), SchemaChange({"create": {}}, None, T.definition, 1))
    assert transactions_in(stage.files) == []


# --- tables ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("binlog_type", "kind", "before", "after"),
    [
        (1, None, None, None),
        (2, "WRITE_ROW", None, {"id": 1, "a": "new"}),
        (3, "WRITE_ROW", None, {"id": 1, "a": "new"}),
        (6, "UPDATE_ROW", {"id": 1, "a": "old"}, {"id": 1, "a": "new"}),
        (8, "UPDATE_ROW", {"id": 1}, {"a": "new"}),
        (9, "UPDATE_ROW", {"id": 1}, {"id": 1, "a": "new"}),
        (5, "WRITE_ROW", None, {"id": 1, "a": "new"}),
    ],
)
def test_ndb_replication_s_row_says_how_a_table_is_logged(binlog_type, kind, before, after):
    row = {"db": b"d", "table_name": b"%", "server_id": 0, "binlog_type": binlog_type, "conflict_fn": None}
    stage = Stage([row])
    stage.write(20, updates(1))
    found = [(each.kind, each.before, each.after) for each in stage.rows()]
    assert found == ([] if kind is None else [(kind, before, after)])


def test_slices_of_all_sites_together_are_all_rows_once():
    ids = list(range(200))
    found = []
    for number in range(3):
        stage = Stage(row_slice_count=3, row_slice_id=number)
        stage.write(20, inserts(*ids))
        found += [row.after["id"] for row in stage.rows()]
        assert 30 < len(stage.rows()) < 110
        stage.write(21, changes(KIND_DELETE, [(each, f"r{each}") for each in ids], None))
        assert {row.before["id"] for row in stage.rows() if row.before} <= set(found)
    assert sorted(found) == ids


@pytest.mark.parametrize("cache_bytes", [0, 4_000, 1 << 20])
def test_epochs_held_or_passed_on_say_the_same(cache_bytes):
    stage = Stage(cache_bytes=cache_bytes)
    other = RowFormat(replace(T.definition, table_id=6, name="d.u"))
    parts = [inserts(1, 2), updates(3), changes(KIND_INSERT, None, [(1, "u")], 0, other), inserts(*range(10, 60))]
    stage.write(20, *parts)
    tables = [row.table for row in stage.rows()]
    assert tables == ["d.t"] * 3 + ["d.u"] + ["d.t"] * 50
    assert len(epochs_in(stage.files)) == 1
