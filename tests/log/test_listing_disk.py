"""REDO groups with rows of tables that have disk columns, listed: whole rows, and updates that keep some columns."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.engine import types as t
from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.log.listing import Dictionary, list_group
from tidemark.engine.log.reader import GroupRead
from tidemark.engine.log.redo_layout import (
    FLAG_DISK_KEPT,
    FLAG_VAR_KEPT,
    GROUP_WORDS,
    KIND_INSERT,
    KIND_UPDATE,
    OPERATION_WORDS,
    pack_identity,
    pack_kind,
    pack_rows,
)
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

DEFINITION = TableDefinition(
    7,
    1,
    "t",
    (
        Column("cold", t.VarChar(30), storage="disk"),
        Column("id", t.Int64),
        Column("number", t.Int32, True, storage="disk"),
        Column("name", t.VarChar(20)),
        Column("hot", t.Int64),
    ),
    ("id",),
    tablespace="main",
)
ROW = {"cold": "comment", "id": 5, "number": None, "name": "n" * 9, "hot": 11}


def listed(kind, flags, images, cut=0):
    """Entries of a group with one operation record."""
    words = np.concatenate([np.zeros(OPERATION_WORDS, np.int64), *images])
    words = words[: words.size - cut]
    words[0] = pack_kind(kind, flags, words.size)
    words[1] = pack_identity(7, 0, 1)
    words[2] = pack_rows(40, len(images))
    group = GroupRead(1, 4_096, 9, 0, 0, 1, words.size, np.concatenate([np.zeros(GROUP_WORDS, np.int64), words]))
    dictionary = Dictionary()
    dictionary.add(DEFINITION)
    return list(list_group(group, dictionary))[1:], dictionary.get(7)


def image_of(row):
    dictionary = Dictionary()
    dictionary.add(DEFINITION)
    row_format = dictionary.get(7)
    image = row_format.encode_row(row)
    return image, row_format.fixed_words, row_format.image_parts(image)[0]


def test_inserted_rows_are_listed_whole_and_in_order():
    other = ROW | {"id": 6, "cold": "", "number": -3}
    entries, _ = listed(KIND_INSERT, 0, [image_of(ROW)[0], image_of(other)[0]])
    assert [entry["values"] for entry in entries] == [ROW, other]
    assert [(entry["key"], entry["rowid"]) for entry in entries] == [(5, 40), (6, 41)]


@pytest.mark.parametrize("is_var_kept", [False, True])
@pytest.mark.parametrize("is_disk_kept", [False, True])
def test_update_lists_the_columns_it_carries(is_var_kept, is_disk_kept):
    image, fixed, memory = image_of(ROW)
    carried = [image[:fixed]]
    wanted = {"id": 5, "hot": 11}
    if not is_var_kept:
        carried.append(image[fixed:memory])
        wanted["name"] = ROW["name"]
    if not is_disk_kept:
        carried.append(image[memory:])
        wanted |= {"cold": "comment", "number": None}
    flags = FLAG_VAR_KEPT * is_var_kept | FLAG_DISK_KEPT * is_disk_kept
    (entry,), _ = listed(KIND_UPDATE, flags, [np.concatenate(carried)])
    assert entry["values"] == wanted
    assert entry["key"] == 5


@pytest.mark.parametrize("flags", [0, FLAG_VAR_KEPT, FLAG_DISK_KEPT, FLAG_VAR_KEPT | FLAG_DISK_KEPT])
def test_update_whose_parts_do_not_add_up_is_redo_damaged(flags):
    image, fixed, memory = image_of(ROW)
    carried = [image[:fixed]]
    if not flags & FLAG_VAR_KEPT:
        carried.append(image[fixed:memory])
    if not flags & FLAG_DISK_KEPT:
        carried.append(image[memory:])
    with pytest.raises(RedoDamaged, match="impossible record"):
        listed(KIND_UPDATE, flags, [np.concatenate(carried)], cut=1)


def test_inserted_row_without_its_disk_part_is_redo_damaged():
    image, _, memory = image_of(ROW)
    with pytest.raises(RedoDamaged, match="impossible record"):
        listed(KIND_INSERT, 0, [image[:memory]])
