"""The columns that each binlog_type logs, and how rows share events."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replication.stage import batch_of
from tidemark.engine import types as t
from tidemark.engine.base.errors import InvariantBroken, PageDamaged
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.binlog.events import DELETE, UPDATE, WRITE
from tidemark.replication.binlog.images import BinlogOptions, RowBatch, rule_of, runs
from tidemark.replication.binlog.row_plan import PLANS_MAX, RowImages, TablePlans
from tidemark.replication.settings.binlog_type import binlog_type as type_of

DEFAULTS = BinlogOptions()
WIDE = TablePlans(
    RowFormat(
        TableDefinition(
            3,
            1,
            "d.wide",
            (Column("a", t.Int32), Column("id", t.Int64), Column("b", t.VarChar(9), True), Column("c", t.Int8, True)),
            "id",
        )
    )
)
OLD = [(1, 10, "x", 3), (1, 11, "x", 3), (1, 12, "x", 3), (1, 13, "x", None)]
NEW = [(2, 10, "x", 3), (2, 11, "y", 3), (1, 12, "x", 3), (1, 13, None, 4)]
KEY, ALL = (1,), (0, 1, 2, 3)


def shape(run):
    """Return (kind, columns before, columns after, first row, rows)."""
    before = None if run.before is None else run.before.positions
    after = None if run.after is None else run.after.positions
    return run.kind, before, after, run.first, run.rows


def shapes(kind, binlog_type, options=DEFAULTS, old=None, new=None, **more):
    return [shape(run) for run in runs(batch_of(WIDE, kind, old, new, binlog_type, **more), options)]


@pytest.mark.parametrize(
    ("binlog_type", "updates"),
    [
        (1, []),
        (2, [(WRITE, None, (0, 1), 0, 1), (WRITE, None, (0, 1, 2), 1, 1), (WRITE, None, (1, 2, 3), 3, 1)]),
        (3, [(WRITE, None, ALL, 0, 2), (WRITE, None, ALL, 3, 1)]),
        (
            4,
            [
                (UPDATE, (0, 1), (0, 1), 0, 1),
                (UPDATE, (0, 1, 2), (0, 1, 2), 1, 1),
                (UPDATE, (1, 2, 3), (1, 2, 3), 3, 1),
            ],
        ),
        (
            6,
            [
                (UPDATE, (0, 1), (0, 1), 0, 1),
                (UPDATE, (0, 1, 2), (0, 1, 2), 1, 1),
                (UPDATE, (1, 2, 3), (1, 2, 3), 3, 1),
            ],
        ),
        (7, [(UPDATE, ALL, ALL, 0, 2), (UPDATE, ALL, ALL, 3, 1)]),
        (8, [(UPDATE, KEY, (0,), 0, 1), (UPDATE, KEY, (0, 2), 1, 1), (UPDATE, KEY, (2, 3), 3, 1)]),
        (9, [(UPDATE, KEY, ALL, 0, 2), (UPDATE, KEY, ALL, 3, 1)]),
    ],
)
def test_each_binlog_type_has_its_images(binlog_type, updates):
    assert shapes(UPDATE, binlog_type, old=OLD, new=NEW) == updates
    inserts = [] if binlog_type == 1 else [(WRITE, None, ALL, 0, 4)]
    assert shapes(WRITE, binlog_type, new=NEW) == inserts
    deleted = ALL if binlog_type in (3, 7) else KEY
    assert shapes(DELETE, binlog_type, old=OLD) == ([] if binlog_type == 1 else [(DELETE, deleted, None, 0, 4)])


@pytest.mark.parametrize(
    ("updated_only", "as_write", "minimal", "expected"),
    [
        (True, True, False, 2),
        (False, True, False, 3),
        (True, False, False, 6),
        (False, False, False, 7),
        (True, False, True, 8),
        (False, False, True, 9),
        (True, True, True, 2),
        (False, True, True, 3),
    ],
)
def test_type_0_is_what_the_server_s_options_say(updated_only, as_write, minimal, expected):
    options = (updated_only, as_write, minimal)
    assert rule_of(type_of(0, *options)[0]) == rule_of(type_of(expected)[0])
    assert rule_of(type_of(7, *options)[0]) == rule_of(type_of(7)[0])


@pytest.mark.parametrize("binlog_type", [2, 3, 6, 7, 8, 9])
def test_update_that_changes_nothing_is_logged_only_if_asked_for(binlog_type):
    same = [OLD[0]] * 3
    assert shapes(UPDATE, binlog_type, old=same, new=same) == []
    (found,) = shapes(UPDATE, binlog_type, BinlogOptions(empty_update=True), old=same, new=same)
    assert found[3:] == (0, 3)
    changed = {2: KEY, 3: ALL, 6: KEY, 7: ALL, 8: (), 9: ALL}
    assert found[2] == changed[binlog_type]


def test_marks_divide_runs_and_transaction_ids_only_if_logged():
    marks = {"transaction_ids": [1, 1, 2, 2], "conflict_flags": [0, 0, 0, 4], "server_ids": [0, 0, 0, 0]}
    batch = batch_of(WIDE, WRITE, new=NEW, **marks)
    assert [run[3:] for run in runs(batch, DEFAULTS)] == [(0, 0, 0, 0, 3), (0, 4, 0, 3, 1)]
    assert [run[3:] for run in runs(batch, BinlogOptions(transaction_id=True))] == [
        (1, 0, 0, 0, 2),
        (2, 0, 0, 2, 1),
        (2, 4, 0, 3, 1),
    ]


def test_rows_as_called_are_logged_whole_even_of_a_table_that_is_not():
    assert shapes(UPDATE, 1, old=OLD, new=OLD, as_called=True) == [(UPDATE, ALL, ALL, 0, 4)]
    assert shapes(DELETE, 2, old=OLD, as_called=True) == [(DELETE, ALL, None, 0, 4)]


def test_runs_of_many_rows_cover_each_once_in_order():
    random = np.random.default_rng(11)
    old = [(0, number, "x", 0) for number in range(9_000)]
    new = [(int(random.integers(2)), number, "x", int(random.integers(2))) for number in range(9_000)]
    found = list(runs(batch_of(WIDE, UPDATE, old, new, 6), DEFAULTS))
    covered = [row for run in found for row in range(run.first, run.first + run.rows)]
    assert covered == [number for number, row in enumerate(new) if row[0] or row[3]]
    for run in found:
        for row in range(run.first, run.first + run.rows):
            changed = tuple(place for place in (0, 3) if new[row][place])
            assert run.after.positions == tuple(sorted((1, *changed)))


def test_damaged_image_is_reported_with_its_row():
    definition = TableDefinition(1, 1, "d.v", (Column("id", t.Int64), Column("v", t.VarChar(9))), "id")
    plans = TablePlans(RowFormat(definition))
    batch = batch_of(plans, UPDATE, [(1, "a"), (2, "b")], [(1, "c"), (2, "d")], 6)
    batch.rows.words[int(batch.rows.after[1]) + 1] = -1
    with pytest.raises(PageDamaged) as caught:
        list(runs(batch, DEFAULTS))
    assert caught.value.row == 1


def test_batch_without_the_images_its_kind_needs_is_refused():
    words, one = np.zeros(1, np.int64), np.zeros(1, np.int64)
    rule = rule_of(type_of(7)[0])
    for kind, rows in ((UPDATE, RowImages(words, None, one)), (WRITE, RowImages(words, one, None))):
        with pytest.raises(InvariantBroken):
            RowBatch(WIDE, rule, kind, rows)
    with pytest.raises(InvariantBroken):
        RowBatch(WIDE, rule, WRITE, RowImages(words, None, one), transaction_ids=np.zeros(2, np.int64))


def test_plans_of_many_sets_of_columns_are_forgotten_and_made_again():
    columns = [Column("id", t.Int64)] + [Column(f"c{place}", t.Int8, True) for place in range(12)]
    plans = TablePlans(RowFormat(TableDefinition(1, 1, "d.many", tuple(columns), "id")))
    sets = [tuple(place for place in range(12) if number >> place & 1) for number in range(2 * PLANS_MAX)]
    made = [plans.of(each) for each in sets]
    assert len(plans.plans) <= PLANS_MAX
    again = plans.of(sets[7])
    assert again is not made[7] and again.words.tolist() == made[7].words.tolist()
    assert plans.of(plans.key_positions) is plans.key
