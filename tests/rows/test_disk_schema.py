"""Definitions of tables with disk columns: what is refused and why, and their JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from tests.rows.strategies import definitions, disk_definitions
from tidemark.engine import types as t
from tidemark.engine.base.errors import InvalidName, SchemaInvalid
from tidemark.engine.base.limits import disk_part_words_max
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.row_shape import check_disk_part_fits, disk_part_words

DISK = "disk"


def table(*columns, key="id", **rest):
    return TableDefinition(0, 1, "t", (Column("id", t.Int64), *columns), key, **rest)


@pytest.mark.parametrize(
    ("columns", "rest", "message"),
    [
        ([Column("k", t.Int8, storage=DISK)], {"key": ("id", "k")}, "'k' has storage='disk', but key columns live in"),
        ([Column("x", t.Int8)], {"tablespace": "cold"}, "'cold' is given, but no column has storage='disk'"),
        (
            [Column(f"x{i}", t.Char(250)) for i in range(8)],
            {},
            "columns take 8008 bytes, more than 8000; use VarChar or",
        ),
    ],
)
def test_impossible_disk_definition_is_refused_with_its_reason(columns, rest, message):
    with pytest.raises(SchemaInvalid, match=message) as refused:
        table(*columns, **rest)
    assert refused.value.table == "main.t"


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, 5])
def test_bad_tablespace_name_is_refused(name):
    with pytest.raises(InvalidName, match="tablespace name"):
        table(Column("d", t.Int8, storage=DISK), tablespace=name)


def test_unknown_storage_is_refused():
    with pytest.raises(SchemaInvalid, match="one of"):
        Column("x", t.Int8, storage="tape")


def test_reference_word_counts_towards_the_fixed_image():
    wide = [Column(f"x{i}", t.Binary(248)) for i in range(32)]  # 7,936 bytes, and 8 for the key
    rest = [Column("y", t.Binary(56))]
    assert table(*wide, *rest)
    assert table(*wide, Column("d", t.Int8, storage=DISK))
    with pytest.raises(SchemaInvalid, match="8008 bytes"):
        table(*wide, *rest, Column("d", t.Int8, storage=DISK))


def test_disk_columns_do_not_count_towards_the_image_in_memory():
    assert table(*(Column(f"x{i}", t.Char(250), storage=DISK) for i in range(20)))
    assert table(*(Column(f"x{i}", t.VarBinary(32_000), storage=DISK) for i in range(3)))


def test_page_of_8_kib_holds_1006_words_of_a_disk_part():
    assert disk_part_words_max(8_192) == 1_006
    # Header word, 4 columns of 250 words, 5 more.
    fits = table(
        *(Column(f"x{i}", t.Binary(250), storage=DISK) for i in range(32)), Column("y", t.Binary(40), storage=DISK)
    )
    assert disk_part_words(fits) == 1_006
    check_disk_part_fits(fits, 8_192)
    too_long = table(*fits.columns[1:], Column("z", t.Int8, storage=DISK))
    with pytest.raises(SchemaInvalid, match="may take 8056 bytes, more than the 8048 of one page of 8192") as refused:
        check_disk_part_fits(too_long, 8_192)
    assert (refused.value.needed_bytes, refused.value.most_bytes) == (8_056, 8_048)
    check_disk_part_fits(too_long, 16_384)


def test_declared_length_of_variable_disk_columns_counts_and_text_does_not():
    check_disk_part_fits(table(Column("v", t.VarBinary(8_024), storage=DISK)), 8_192)
    with pytest.raises(SchemaInvalid, match="use Text or Blob"):
        check_disk_part_fits(table(Column("v", t.VarBinary(8_025), storage=DISK)), 8_192)
    check_disk_part_fits(table(*(Column(f"x{i}", t.Text, storage=DISK) for i in range(50))), 8_192)
    check_disk_part_fits(table(), 8_192)


def test_longest_row_has_as_many_words_as_the_definition_says():
    definition = table(
        Column("a", t.Int32, True, storage=DISK),
        Column("b", t.Binary(13), storage=DISK),
        Column("v", t.VarBinary(11), storage=DISK),
        Column("w", t.VarChar(5), storage=DISK),
        Column("text", t.Text, storage=DISK),
    )
    longest = (1, 5, b"x" * 13, b"y" * 11, "\U0001f600" * 5, "")
    assert RowFormat(definition).image_parts(RowFormat(definition).encode_row(longest)) == (
        2,
        disk_part_words(definition),
    )


@given(disk_definitions())
@settings(max_examples=60, deadline=None)
def test_definition_with_disk_columns_comes_back_equal_from_json(definition):
    again = TableDefinition.from_json(definition.to_json())
    assert again == definition and again.tablespace == "main" and again.has_disk
    assert again.to_json() == definition.to_json()


@given(definitions())
@settings(max_examples=30, deadline=None)
def test_json_of_a_table_in_memory_has_no_tablespace(definition):
    value = json.loads(definition.to_json())
    assert sorted(value.keys() - {"dropped"}) == [
        "columns",
        "format",
        "name",
        "partition",
        "primary_key",
        "table_id",
        "version",
    ]
    assert {column["storage"] for column in value["columns"]} == {"memory"}


def test_json_without_tablespace_is_read_and_a_wrong_one_refused():
    definition = table(Column("d", t.Int8, storage=DISK))
    value = json.loads(definition.to_json())
    assert value.pop("tablespace", "missing") is None
    assert TableDefinition.from_json(json.dumps(value).encode()) == definition
    with pytest.raises(InvalidName):
        TableDefinition.from_json(json.dumps(value | {"tablespace": 7}).encode())
