"""Column types and table definitions: what they take, what they refuse, and their JSON."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pytest
from hypothesis import given, settings

from tests.rows.strategies import definitions
from tidemark.engine import types as t
from tidemark.engine.base.errors import InvalidName, SchemaInvalid, TypeMismatch, ValueOutOfRange
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import qualified_name
from tidemark.engine.schema.partition import HashPartition

ZONED = dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))


def table(*columns, key="id", name="t"):
    return TableDefinition(0, 1, name, (Column("id", t.Int64), *columns), key)


@pytest.mark.parametrize(
    ("kind", "value", "back"),
    [
        (t.Int8, np.int64(-128), -128),
        (t.Float64, 3, 3.0),
        (t.Float64, np.float32(0.5), 0.5),
        (t.Bool, np.True_, True),
        (t.Char(3), "äöü", "äöü"),
        (t.Binary(3), bytearray(b"a"), b"a\0\0"),
        (t.Decimal(5, 2), 7, decimal.Decimal("7.00")),
        (t.Decimal(38, 0), decimal.Decimal("9" * 38), decimal.Decimal("9" * 38)),
        (t.Decimal(5, 2), decimal.Decimal("1.2E+2"), decimal.Decimal("120.00")),
        (t.Timestamp, ZONED, dt.datetime(2019, 12, 31, 22, tzinfo=dt.UTC)),
        (t.DateTime, np.datetime64("2020-01-01T00:00:00", "us"), dt.datetime(2020, 1, 1)),
    ],
)
def test_value_of_the_right_kind_is_taken(kind, value, back):
    assert kind.loaded(kind.stored(value)) == back


@pytest.mark.parametrize(
    ("kind", "value", "refusal"),
    [
        (t.Int8, 128, ValueOutOfRange),
        (t.UInt64, -1, ValueOutOfRange),
        (t.Int64, True, TypeMismatch),
        (t.Int64, 1.0, TypeMismatch),
        (t.Bool, 1, TypeMismatch),
        (t.Float64, "1", TypeMismatch),
        (t.Float64, 2**53 + 1, ValueOutOfRange),
        (t.Float32, 1e39, ValueOutOfRange),
        (t.Decimal(5, 2), decimal.Decimal("0.001"), ValueOutOfRange),
        (t.Decimal(5, 2), decimal.Decimal("1000"), ValueOutOfRange),
        (t.Decimal(5, 2), decimal.Decimal("NaN"), ValueOutOfRange),
        (t.Decimal(5, 2), decimal.Decimal("1E+999999"), ValueOutOfRange),
        (t.Decimal(5, 2), decimal.Decimal("1E-999999"), ValueOutOfRange),
        (t.Decimal(5, 2), 0.5, TypeMismatch),
        (t.Char(3), "abcd", ValueOutOfRange),
        (t.Char(3), "a\0", ValueOutOfRange),
        (t.VarChar(3), "\ud800", ValueOutOfRange),
        (t.VarBinary(3), "abc", TypeMismatch),
        (t.Date, dt.datetime(2020, 1, 1), TypeMismatch),
        (t.Time, dt.time(1, tzinfo=dt.UTC), TypeMismatch),
        (t.DateTime, ZONED, TypeMismatch),
        (t.Timestamp, dt.datetime(2020, 1, 1), TypeMismatch),
        (t.Timestamp, dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-2))), ValueOutOfRange),
        (t.Enum("a"), "b", ValueOutOfRange),
        (t.Enum("a"), 0, TypeMismatch),
    ],
)
def test_value_that_does_not_fit_is_refused(kind, value, refusal):
    with pytest.raises(refusal):
        kind.stored(value)


def test_number_too_long_for_python_to_write_is_refused_like_any_other():
    for kind in (t.Int64, t.Float64, t.Decimal(5, 2)):
        with pytest.raises(ValueOutOfRange):
            kind.stored(10**5_000)
    with pytest.raises(ValueOutOfRange):
        t.Decimal(5, 2).stored(decimal.Decimal("1." + "0" * 5_000 + "1"))


def test_char_ending_in_nul_names_the_way_out():
    with pytest.raises(ValueOutOfRange, match="use VarChar"):
        t.Char(3).stored("a\0")


@given(definitions())
@settings(max_examples=100, deadline=None)
def test_definition_json_comes_back_equal_and_canonical(definition):
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition and hash(again) == hash(definition)
    assert again.to_json() == definition.to_json()


def test_defaults_of_every_storage_survive_json():
    definition = table(
        Column("a", t.Decimal(30, 2), default=decimal.Decimal("-1.50")),
        Column("b", t.Float32, default=0.1),
        Column("c", t.Binary(3), default=b"a"),
        Column("d", t.Timestamp, default=ZONED),
        Column("e", t.Enum("x", "y"), default="y"),
        Column("f", t.Text, True, default=None),
        Column("g", t.VarChar(3), default="ä"),
    )
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition
    assert again.columns[3].default == b"a\0\0"
    assert again.columns[6].has_default and again.columns[6].default is None


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "a\0", "a\nb", "\ud800", " a", "a.b.c", ".", "a.", 5])
def test_bad_table_name_is_refused(name):
    with pytest.raises(InvalidName):
        qualified_name(name)


def test_plain_name_lives_in_main_and_case_counts():
    assert qualified_name("T") == "main.T"
    assert qualified_name("mysql.t$EX") == "mysql.t$EX"


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ([Column("id", t.Int8)], "id"),
        ([], "other"),
        ([], ()),
        ([], ("id", "id")),
        ([Column("x", t.Int8, nullable=True)], "x"),
        ([Column("x", t.Text)], "x"),
        ([Column("x", t.VarChar(1_000))], "x"),
        ([Column(f"x{i}", t.Char(250)) for i in range(9)], "id"),
        ([Column(f"x{i}", t.VarChar(4_001)) for i in range(2)], "id"),
    ],
)
def test_impossible_definition_is_refused(columns, key):
    with pytest.raises(SchemaInvalid):
        table(*columns, key=key)


def test_text_and_blob_do_not_count_towards_the_var_part():
    assert table(Column("v", t.VarChar(8_000)), *(Column(f"x{i}", t.Text) for i in range(50)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: t.Char(0),
        lambda: t.VarChar(8_001),
        lambda: t.Decimal(39, 0),
        lambda: t.Decimal(5, 6),
        lambda: t.Enum(),
        lambda: t.Enum("a", "a"),
        lambda: HashPartition(0),
        lambda: Column("x", t.VarChar),
        lambda: Column("x", t.Int8, default=300),
        lambda: Column("x", t.Int8, default=None),
        lambda: Column("x", t.Int8, storage="tape"),
        lambda: TableDefinition.from_json(b"{}"),
        lambda: TableDefinition.from_json(b"\xff"),
        lambda: TableDefinition.from_json(table().to_json().replace(b"Int64", b"Int65")),
    ],
)
def test_impossible_part_of_a_schema_is_refused(make):
    with pytest.raises(SchemaInvalid):
        make()
