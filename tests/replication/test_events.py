"""Events to bytes and back; untrusted bytes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.support import EXTREMES, every_type
from tests.rows.strategies import definitions
from tidemark.engine.base.errors import BinlogDamaged
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.cursor import Cursor, packed_length
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.table_map import MapColumn, TableMap, table_map
from tidemark.replication.binlog.types import MySqlType, incoming, outgoing

ORIGIN = Position("binlog/base.000001", 120)
STAMP = {"timestamp_s": 1_700_000_000, "server_id": 7}
seeds = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
octets = st.binary(max_size=40)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)
bitmaps = st.binary(min_size=2, max_size=2)

EVENTS = st.one_of(
    st.builds(e.FormatDescription, created_s=st.integers(0, 2**32 - 1)),
    st.builds(e.PreviousGtids, octets),
    st.builds(e.Gtid, u64, u64, st.none() | st.integers(0, 2**55 - 1)),
    st.builds(e.Gtid, u64, u64, source=st.binary(min_size=16, max_size=16), number=st.integers(1, 2**63)),
    st.builds(e.Query, text, text, octets, *[st.integers(0, 2**32 - 1)] * 2, st.integers(0, 2**16 - 1)),
    st.builds(
        e.Rows,
        st.just(e.UPDATE),
        st.integers(0, 2**48 - 1),
        st.just(12),
        bitmaps,
        bitmaps,
        octets,
        st.integers(0, 15),
        st.none() | u64,
        st.integers(0, 2**16 - 1),
    ),
    st.builds(e.Rows, st.just(e.WRITE), st.just(5), st.just(12), st.none(), bitmaps, octets, version=st.just(1)),
    st.builds(e.Rows, st.just(e.DELETE), st.just(5), st.just(12), bitmaps, st.none(), octets),
    st.builds(e.Xid, u64),
    st.builds(e.Rotate, text, u64),
    st.builds(e.Stop),
    st.builds(e.Incident, text, st.integers(0, 2)),
    st.builds(e.Other, st.sampled_from([27, 160, 161, 200]), octets),
    definitions().map(lambda definition: table_map(definition, 2**47)),
)


@given(EVENTS, st.integers(4, 2**33), st.sampled_from([0, b.FLAG_RELAY_LOG | b.FLAG_IGNORABLE, b.FLAG_IN_USE]))
@settings(max_examples=300, deadline=None)
def test_every_event_comes_back_with_its_header_and_checksum(event, position, flags):
    raw = e.frame(event, position, flags=flags, **STAMP)
    header, found = e.parse(raw, ORIGIN)
    assert found == event
    assert header == (1_700_000_000, event.type, 7, len(raw), (position + len(raw)) % 2**32, flags)
    plain = bytearray(raw)
    if event.type == b.FORMAT_DESCRIPTION_EVENT:
        plain[b.FLAGS_OFFSET] &= 0xFF ^ b.FLAG_IN_USE
    assert int.from_bytes(raw[-4:], "little") == zlib.crc32(plain[:-4])


@given(EVENTS, seeds)
@settings(max_examples=300, deadline=None)
def test_event_with_any_bit_flipped_is_refused(event, seed):
    raw = bytearray(e.frame(event, 4, **STAMP))
    random = np.random.default_rng(seed)
    place = int(random.integers(len(raw)))
    raw[place] ^= 1 << int(random.integers(8))
    if event.type == b.FORMAT_DESCRIPTION_EVENT and place == b.FLAGS_OFFSET:
        return  # the one flag that changes in place
    with pytest.raises(BinlogDamaged) as caught:
        e.parse(bytes(raw), ORIGIN)
    assert (caught.value.file, caught.value.position) == ORIGIN


@pytest.mark.parametrize("size", [0, 18, 19, 22])
def test_event_shorter_than_its_header_and_checksum_is_refused(size):
    raw = bytearray(e.frame(e.Stop(), 4, **STAMP)[:size])
    if size >= 13:
        raw[9:13] = size.to_bytes(4, "little")
    with pytest.raises(BinlogDamaged):
        e.parse(bytes(raw), ORIGIN)


def test_event_that_claims_another_length_is_refused():
    for change in (-1, 1, 2**31):
        raw = bytearray(e.frame(e.Xid(1), 4, **STAMP))
        raw[9:13] = (len(raw) + change).to_bytes(4, "little")
        with pytest.raises(BinlogDamaged):
            e.parse(bytes(raw), ORIGIN)


@given(st.integers(0, 2**64 - 1) | st.sampled_from([250, 251, 2**16 - 1, 2**16, 2**24 - 1, 2**24]))
def test_packed_length_comes_back_in_its_shortest_form(number):
    packed = packed_length(number)
    assert Cursor(packed, ORIGIN).length() == number
    assert len(packed) == (1 if number < 251 else 3 if number < 2**16 else 4 if number < 2**24 else 9)


def test_format_description_is_that_of_mysql_8():
    raw = e.frame(e.FormatDescription(), 4, **STAMP)
    assert len(raw) == 122
    assert raw[19:21] == b"\4\0" and raw[21:71].rstrip(b"\0") == b.SERVER_VERSION
    assert raw[75] == 19 and raw[76:117] == b.POST_HEADER_BYTES and raw[117] == 1


@pytest.mark.parametrize(
    ("transaction_id", "flags", "expected"),
    [
        (None, 0, "0200"),
        (0x1122334455667788, 0, "0f00000c0001008877665544332211"),
        (1, 4, "1100000e00030001000000000000000400"),
        (None, 2, "090000060002000200"),
    ],
)
def test_extra_row_info_has_the_bytes_of_ndb(transaction_id, flags, expected):
    rows = e.Rows(e.WRITE, 5, 1, None, b"\xff", b"", transaction_id=transaction_id, conflict_flags=flags)
    assert b"".join(rows.parts())[8:-2].hex() == expected


def test_unknown_extra_row_info_is_skipped():
    # MySQL's partition number: tag 1, two bytes.
    body = bytes(8) + b"\5\0\1\7\0" + b"\1\xff" + b"rows"
    rows = e.parse(e.frame(e.Other(b.WRITE_ROWS, body), 4, **STAMP), ORIGIN)[1]
    assert (rows.transaction_id, rows.conflict_flags, bytes(rows.body)) == (None, 0, b"rows")


# --- TABLE_MAP --------------------------------------------------------------------------------------
def test_table_map_has_all_metadata_in_mysql_s_order():
    event = table_map(every_type(), 9)
    raw = e.frame(event, 4, **STAMP)
    found = e.parse(raw, ORIGIN)[1]
    assert found == event
    assert (found.database, found.table, found.primary_key) == ("d", "every", (0,))
    body = raw[b.HEADER_BYTES : -4]
    cursor = Cursor(body[8 + 3 + 7 :], ORIGIN)
    count = cursor.length()
    cursor.take(count)
    cursor.take(cursor.length())
    cursor.take((count + 7) // 8)
    tags = []
    while cursor.left:
        tags.append(cursor.byte())
        cursor.take(cursor.length())
    assert tags == [b.META_SIGNEDNESS, b.META_COLUMN_CHARSET, 4, 6, 8, b.META_ENUM_DEFAULT_CHARSET]


def test_table_map_of_one_character_set_has_a_default_only():
    text_type = MySqlType(b.TYPE_BLOB, b"\4", collation=46)
    columns = (MapColumn(text_type, True, "a"),) * 9 + (MapColumn(text_type._replace(collation=63), False, "b"),)
    event = TableMap(1, "d", "t", columns)
    body = b"".join(event.parts())
    assert bytes((b.META_DEFAULT_CHARSET, 3, 46, 9, 63)) in body
    assert e.parse(e.frame(event, 4, **STAMP), ORIGIN)[1] == event


def test_table_map_of_foreign_columns_comes_back():
    columns = (
        MapColumn(MySqlType(b.TYPE_BIT, b"\3\1"), False),
        MapColumn(MySqlType(b.TYPE_STRING, bytes((b.TYPE_SET, 1)), None, None, ("x", "y")), True),
        MapColumn(MySqlType(b.TYPE_GEOMETRY, b"\4"), True),
        MapColumn(MySqlType(b.TYPE_YEAR), True),
        MapColumn(MySqlType(b.TYPE_INT24, is_unsigned=True), True),
    )
    event = TableMap(1, "", "t", columns, flags=0)
    assert e.parse(e.frame(event, 4, **STAMP), ORIGIN)[1] == event


@pytest.mark.parametrize("kind", EXTREMES, ids=repr)
def test_every_type_is_read_as_itself_or_as_a_twin_that_holds_its_values(kind):
    found = incoming(outgoing(kind))
    twins = {"Bool": "Int8", "Timestamp": "DateTime", "UUID": "Binary(16)", "JSON": "Text"}
    assert repr(found) == twins.get(repr(kind), repr(kind))


def test_column_that_claims_impossible_metadata_is_refused():
    for mysql in (
        MySqlType(b.TYPE_NEWDECIMAL, bytes((80, 2))),
        MySqlType(b.TYPE_NEWDECIMAL, bytes((5, 6))),
        MySqlType(b.TYPE_BLOB, b"\x09"),
        MySqlType(b.TYPE_DATETIME, b"\x07"),
        MySqlType(b.TYPE_BIT, b"\x00\x00"),
        MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 3))),
        MySqlType(b.TYPE_STRING, bytes((3, 9))),
        MySqlType(99),
    ):
        with pytest.raises(BinlogDamaged):
            e.parse(e.frame(TableMap(1, "d", "t", (MapColumn(mysql, True),)), 4, **STAMP), ORIGIN)
