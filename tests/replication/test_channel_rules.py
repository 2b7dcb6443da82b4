"""Functions and channels that do not go together are refused before a channel is made."""

from __future__ import annotations

import pytest

from tidemark.engine import types as t
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.settings.match import ReplicationRow
from tidemark.replication.settings.setup import SiteSettings, check_functions

SITE = SiteSettings(server_id=1)
TABLE = TableDefinition(2, 1, "shop.item", (Column("id", t.Int64), Column("stamp", t.UInt64)), ("id",))
TABLES = {TABLE.name: TABLE}


def row(function, server_id=1, table="item", binlog_type=7):
    return ReplicationRow("shop", table, server_id, binlog_type, function)


def test_epoch_functions_have_one_channel():
    for function in ("NDB$EPOCH()", "NDB$EPOCH_TRANS()"):
        check_functions(TABLES, [row(function)], SITE, ["main"])
        with pytest.raises(SchemaInvalid, match=r"shop\.item.*east, west"):
            check_functions(TABLES, [row(function)], SITE, ["west", "east"])


def test_other_functions_may_have_several():
    check_functions(TABLES, [row("NDB$MAX(stamp)")], SITE, ["west", "east"])
    check_functions(TABLES, [], SITE, ["west", "east"])
    check_functions(TABLES, [row("NDB$EPOCH()", server_id=5)], SITE, ["west", "east"])
    check_functions(TABLES, [row("NDB$EPOCH()", table="other")], SITE, ["west", "east"])


def test_both_sides_of_a_pair_cannot_be_primary_and_both_rows_are_named():
    own, theirs = row("NDB$EPOCH()"), row("NDB$EPOCH_TRANS()", server_id=2)
    check_functions(TABLES, [own], SITE, ["main"], ([], 2))
    with pytest.raises(SchemaInvalid) as raised:
        check_functions(TABLES, [own], SITE, ["main"], ([theirs], 2))
    assert str(own.key) in raised.value.message and str(theirs.key) in raised.value.message
