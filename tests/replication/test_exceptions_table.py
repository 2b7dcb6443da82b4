"""Exceptions tables: those printed in the manual, every fault, and the rows that are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.exceptions_row import Conflict, exceptions_row
from tidemark.engine import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.applier.exceptions_rows import INVALID_TRANSACTION, ConflictBatch, exceptions_columns
from tidemark.replication.settings.exceptions_table import (
    Cause,
    OperationType,
    Source,
    plan_exceptions,
)

OPS = t.Enum(*(each.name for each in OperationType))
CAUSES = t.Enum(*(each.name for each in Cause))
T2 = TableDefinition(
    0,
    1,
    "test.t2",
    (Column("a", t.UInt32), Column("b", t.Char(25)), Column("mycol", t.UInt32), Column("d", t.Int32, nullable=True)),
    ("a", "b"),
)


def table(*columns: Column, name: str = "test.t2$EX") -> TableDefinition:
    return TableDefinition(0, 1, name, columns, tuple(column.name for column in columns[:4]))


def first(prefix: str = "", id_type: Any = t.UInt32, count_type: Any = t.UInt32) -> tuple[Column, ...]:
    names = ("server_id", "master_server_id", "master_epoch", "count")
    types = (id_type, t.UInt32, t.UInt64, count_type)
    return tuple(Column(prefix + name, kind) for name, kind in zip(names, types, strict=True))


KEYS = (Column("a", t.UInt32), Column("b", t.Char(25)))
SPECIAL = (Column("NDB$OP_TYPE", OPS), Column("NDB$CFT_CAUSE", CAUSES), Column("NDB$ORIG_TRANSID", t.UInt64))


def test_tables_the_manual_prints_are_accepted() -> None:
    """t2$EX has a SMALLINT server id and a BIGINT count; employee$EX has its special columns before the key."""
    plain = table(*first("", t.UInt16, t.UInt64), *KEYS)
    plan, faults, notes = plan_exceptions(T2, plain)
    assert plan is not None and not plan.is_extended and not faults
    assert [note.rule for note in notes] == ["narrow server id"]
    extended = table(*first("NDB$", t.UInt16, t.UInt64), KEYS[0], *SPECIAL, Column("note", t.Text, nullable=True))
    plan, faults, _ = plan_exceptions(T2, extended)
    assert plan is not None and plan.is_extended and not faults
    employee = TableDefinition(
        0,
        1,
        "main.employee",
        (Column("id", t.Int32), Column("name", t.VarChar(2000), nullable=True), Column("dept", t.Int32)),
        ("id",),
    )
    printed = table(*first("NDB$"), *SPECIAL[:2], Column("id", t.Int32), name="main.employee$EX")
    plan, faults, _ = plan_exceptions(employee, printed)
    assert plan is not None and [each.source for each in plan.columns[4:]] == [
        Source.OP_TYPE,
        Source.CAUSE,
        Source.KEY,
    ]


def test_larger_key_types_and_names_of_ones_own_are_accepted_in_the_plain_form() -> None:
    plan, faults, _ = plan_exceptions(T2, table(*first(), Column("first", t.UInt64), Column("second", t.Char(30))))
    assert not faults and plan is not None and not plan.is_extended
    assert [(each.source, each.position) for each in plan.columns[4:]] == [(Source.KEY, 0), (Source.KEY, 1)]


def test_data_columns_of_a_plain_table_stay_empty() -> None:
    plan, _, notes = plan_exceptions(T2, table(*first(), *KEYS, Column("d", t.Int32, nullable=True)))
    assert plan is not None and plan.columns[6].source is Source.DEFAULT and not notes


NULLABLE = {"nullable": True}


@pytest.mark.parametrize(
    ("columns", "rule", "named"),
    [
        ((Column("A", t.Int32),), "matching name but wrong type", "A"),
        ((Column("d", t.Int64, **NULLABLE),), "matching name but wrong type", "d"),
        ((Column("d", t.Int32),), "data column is not nullable and has no default", "d"),
        ((Column("d$old", t.Int32),), "old or new column reference is not nullable and has no default", "d$old"),
        (
            (Column("a$NEW", t.UInt32, **NULLABLE),),
            "old or new values of primary key columns cannot be referenced",
            "a$NEW",
        ),
        ((*KEYS, Column("B", t.Char(25))), "multiple references to the same key column", "b"),
        ((Column("b", t.Char(25), **NULLABLE),), "key column is nullable", "b"),
        ((Column("other", t.Int32),), "extra column is not nullable and has no default", "other"),
        ((Column("NDB$OP_TYPE", t.Int32),), "incorrect type for NDB$OP_TYPE", "NDB$OP_TYPE"),
        ((Column("ndb$cft_cause", t.Enum("one")),), "incorrect type for NDB$CFT_CAUSE", "ndb$cft_cause"),
        ((Column("NDB$ORIG_TRANSID", t.UInt32),), "incorrect type for NDB$ORIG_TRANSID", "NDB$ORIG_TRANSID"),
    ],
)
def test_fault_is_found_and_names_its_column(columns: tuple[Column, ...], rule: str, named: str) -> None:
    plan, faults, _ = plan_exceptions(T2, table(*first("NDB$"), *columns))
    assert plan is None and (faults[0].rule, faults[0].column) == (rule, named)
    assert "t2$EX" in faults[0].text


def test_fault_of_the_last_column_is_reported_first() -> None:
    _, faults, _ = plan_exceptions(T2, table(*first("NDB$"), Column("x", t.Int32), Column("d$NEW", t.Int32)))
    assert [fault.column for fault in faults] == ["d$NEW", "x"]
    assert faults[0].text == (
        "exceptions table t2$EX has wrong definition (column 5): Old or new column reference d$NEW in table t2$EX is"
        " not nullable and doesn't have a default value"
    )


@pytest.mark.parametrize(
    "columns",
    [
        first()[:3],
        (*first()[:2], Column("e", t.UInt32), first()[3], *KEYS),
        (Column("s", t.Int32), *first()[1:], *KEYS),
        (Column("s", t.UInt8), *first()[1:], *KEYS),
    ],
)
def test_first_four_columns_must_be_what_they_are(columns: tuple[Column, ...]) -> None:
    _, faults, _ = plan_exceptions(T2, table(*columns))
    assert [fault.text for fault in faults] == ["exceptions table t2$EX has wrong definition (initial 4 columns)"]


def test_key_of_three_or_five_columns_is_refused() -> None:
    columns = (*first(), *KEYS)
    for count in (3, 5):
        key = tuple(column.name for column in columns[:count])
        _, faults, _ = plan_exceptions(T2, TableDefinition(0, 1, "test.t2$EX", columns, key))
        assert faults[0].rule == "wrong definition (initial 4 columns)"


def test_extended_table_needs_the_prefix_on_all_four() -> None:
    mixed = (*first("NDB$")[:2], *first()[2:])
    for columns in ((*first(), KEYS[1], KEYS[0]), (*first(), *KEYS, SPECIAL[0]), (*mixed, *KEYS)):
        _, faults, _ = plan_exceptions(T2, table(*columns))
        assert {fault.rule for fault in faults} == {"mandatory column without prefix"}
    assert faults[0].text == (
        "Exceptions table t2$EX is extended, but mandatory column count  doesn't have the 'NDB$' prefix"
    )


def test_key_columns_out_of_order_make_a_table_extended_though_their_types_are_alike() -> None:
    main = TableDefinition(0, 1, "test.t2", (Column("x", t.Int32), Column("y", t.Int32)), ("x", "y"))
    swapped = (Column("y", t.Int32), Column("x", t.Int32))
    plan, faults, _ = plan_exceptions(main, table(*first(), *swapped))
    assert plan is None and {fault.rule for fault in faults} == {"mandatory column without prefix"}
    plan, _, _ = plan_exceptions(main, table(*first("NDB$"), *swapped))
    assert plan is not None and [each.position for each in plan.columns[4:]] == [1, 0]


def test_copies_under_names_of_their_own_are_unknown_columns_in_an_extended_table() -> None:
    copies = (Column("one", t.UInt32), Column("two", t.Char(25)))
    _, faults, _ = plan_exceptions(T2, table(*first("NDB$"), *copies))
    assert [(fault.rule, fault.column) for fault in faults] == [
        ("extra column is not nullable and has no default", "two"),
        ("extra column is not nullable and has no default", "one"),
    ]


def test_unknown_nullable_column_is_suspicious_only() -> None:
    plan, faults, notes = plan_exceptions(T2, table(*first(), *KEYS, Column("note", t.VarChar(9), **NULLABLE)))
    assert plan is not None and not faults
    assert notes[0].text == (
        "exceptions table t2$EX has suspicious definition ((column 6): Column note in extension table t2$EX not found"
        " in t2"
    )


FULL = table(
    *first("NDB$"),
    *SPECIAL,
    KEYS[1],
    KEYS[0],
    Column("mycol", t.UInt32, default=7),
    Column("d$old", t.Int32, **NULLABLE),
    Column("d$NEW", t.Int32, **NULLABLE),
    Column("note", t.VarChar(9), default="none"),
)
BEFORE, AFTER = {0: 1, 1: "k", 2: 5, 3: 50}, {0: 1, 1: "k", 2: 6, 3: 60}


def made(
    operation: str, cause: str, before: Any, after: Any, transaction: int = INVALID_TRANSACTION
) -> tuple[Any, ...]:
    plan, _, _ = plan_exceptions(T2, FULL)
    assert plan is not None
    conflict = Conflict(1, 3, 77, 4, OperationType[operation], Cause[cause], before, after, transaction)
    return exceptions_row(plan, conflict)


def test_row_takes_each_column_from_the_image_it_names() -> None:
    row = made("UPDATE_ROW", "DATA_IN_CONFLICT", BEFORE, AFTER)
    head = (1, 3, 77, 4, "UPDATE_ROW", "DATA_IN_CONFLICT", INVALID_TRANSACTION)
    assert row == (*head, "k", 1, 6, 50, 60, "none")
    row = made("DELETE_ROW", "TRANS_IN_CONFLICT", BEFORE, None, 99)
    assert row[6:] == (99, "k", 1, 5, 50, None, "none")
    row = made("WRITE_ROW", "ROW_ALREADY_EXISTS", None, AFTER, 99)
    assert row[6:] == (INVALID_TRANSACTION, "k", 1, 6, None, 60, "none"), "ids are given for TRANS_IN_CONFLICT alone"


def test_row_of_minimal_images_finds_its_key_and_defaults_the_rest() -> None:
    row = made("UPDATE_ROW", "DATA_IN_CONFLICT", {0: 1, 1: "k"}, {3: 60})
    assert row[7:] == ("k", 1, 7, None, 60, "none")


def test_numbers_stand_where_the_columns_are_numbers_and_null_for_no_transaction() -> None:
    columns = (
        *first("NDB$"),
        Column("NDB$OP_TYPE", t.UInt32),
        Column("NDB$CFT_CAUSE", t.UInt32),
        Column("NDB$ORIG_TRANSID", t.UInt64, **NULLABLE),
    )
    plan, faults, _ = plan_exceptions(T2, table(*columns))
    assert plan is not None, faults
    conflict = Conflict(1, 3, 77, 4, OperationType.READ_ROW, Cause.ROW_DOES_NOT_EXIST, BEFORE, AFTER)
    assert exceptions_row(plan, conflict)[4:] == (5, 1, None)


NULLABLE_ID = table(
    *first("NDB$"), Column("NDB$ORIG_TRANSID", t.UInt64, **NULLABLE), Column("mycol$NEW", t.UInt32, default=7)
)
TABLES = [FULL, NULLABLE_ID, table(*first(), *KEYS, Column("d", t.Int32, **NULLABLE))]
CONFLICTS = st.tuples(
    st.sampled_from(list(Cause)),
    st.sampled_from([INVALID_TRANSACTION, 5, 2**63 + 1]),
    st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.none() | st.integers(0, 9), st.none() | st.integers(-9, 9)),
    st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.none() | st.integers(0, 9), st.none() | st.integers(-9, 9)),
)


@given(
    st.sampled_from(TABLES),
    st.sampled_from(list(OperationType)),
    st.lists(CONFLICTS, max_size=6),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 3)),
)
def test_batch_makes_the_rows_that_are_made_one_by_one(
    exceptions: TableDefinition, operation: OperationType, conflicts: list[Any], old: set[int], new: set[int]
) -> None:
    plan, _, _ = plan_exceptions(T2, exceptions)
    assert plan is not None
    old |= {0, 1}  # at least one image has the keys

    def image(at: int, places: set[int]) -> dict[int, np.ndarray]:
        return {place: np.array([each[at][place] for each in conflicts], dtype=object) for place in places}

    causes = np.array([each[0] for each in conflicts], dtype=np.int64)
    ids = np.array([each[1] for each in conflicts], dtype=np.uint64)
    batch = ConflictBatch(1, 3, 77, 4, operation, causes, ids, image(2, old), image(3, new))
    found = exceptions_columns(plan, batch)
    rows = [
        exceptions_row(
            plan,
            Conflict(
                1,
                3,
                77,
                4 + number,
                operation,
                cause,
                {place: before[place] for place in old},
                {place: after[place] for place in new},
                transaction,
            ),
        )
        for number, (cause, transaction, before, after) in enumerate(conflicts)
    ]
    assert list(found) == [column.name for column in exceptions.columns]
    assert [tuple(row) for row in zip(*(values.tolist() for values in found.values()), strict=True)] == rows
