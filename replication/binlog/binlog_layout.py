"""MySQL's binlog, version 4: event header and the fixed part of each body (docs/internals/replication.md).

These are MySQL's structures, not the store's: fields are where MySQL has them, unaligned. The variable part after a
fixed part is handled by `replication/binlog/events.py` and `table_map.py`, row bodies by
`replication/binlog/rows_kernels.py`. No structure here has the store's seal: every event ends with its own CRC32.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

MAGIC = b"\xfebin"
VERSION = 4

EVENT_HEADER = np.dtype(
    [
        ("timestamp_s", "<u4"),  # seconds since 1970
        ("type", "u1"),
        ("server_id", "<u4"),  # server at which the change was first made
        ("event_bytes", "<u4"),  # header and CRC included
        ("end_position", "<u4"),  # position after the event, modulo 2^32
        ("flags", "<u2"),
    ]
)
FORMAT_DESCRIPTION = np.dtype(
    [
        ("binlog_version", "<u2"),
        ("server_version", "S50"),
        ("created_s", "<u4"),  # 0 in files that were begun by a rotation
        ("header_bytes", "u1"),
    ]
)
QUERY = np.dtype(
    [
        ("thread_id", "<u4"),
        ("duration_s", "<u4"),
        ("database_bytes", "u1"),
        ("error_code", "<u2"),
        ("status_bytes", "<u2"),
    ]
)
GTID = np.dtype(
    [
        ("gtid_flags", "u1"),
        ("source", "V16"),
        ("number", "<u8"),
        ("clock", "u1"),  # 2: the next two fields are present
        ("last_committed", "<u8"),
        ("sequence_number", "<u8"),
    ]
)
# MariaDB has its own GTID event, whose flags also say that a transaction begins.
MARIADB_GTID = np.dtype([("number", "<u8"), ("domain", "<u4"), ("gtid_flags", "u1")])
# A set of GTIDs; only the form that the store writes: the numbers of one server from the first to before the end. An
# empty set ends after the number of servers.
PREVIOUS_GTIDS = np.dtype(
    [("servers", "<u8"), ("source", "V16"), ("intervals", "<u8"), ("first", "<u8"), ("numbers_end", "<u8")]
)
# For TABLE_MAP and both versions of row events; the table number has 48 bits.
TABLE = np.dtype([("table_low", "<u4"), ("table_high", "<u2"), ("table_flags", "<u2")])
ROTATE = np.dtype([("position", "<u8")])
XID = np.dtype([("xid", "<u8")])
INCIDENT = np.dtype([("number", "<u2"), ("message_bytes", "u1")])
# NDB's part of the extra data of row events; the fields that `info_flags` names follow.
EXTRA_INFO = np.dtype([("tag", "u1"), ("block_bytes", "u1"), ("format", "u1"), ("info_flags", "<u2")])

STRUCTURES: dict[str, np.dtype[Any]] = {
    "binlog event header": EVENT_HEADER,
    "binlog format description": FORMAT_DESCRIPTION,
    "binlog query": QUERY,
    "binlog gtid": GTID,
    "binlog gtid of MariaDB": MARIADB_GTID,
    "binlog previous gtids": PREVIOUS_GTIDS,
    "binlog table": TABLE,
    "binlog rotate": ROTATE,
    "binlog xid": XID,
    "binlog incident": INCIDENT,
    "binlog extra row info": EXTRA_INFO,
}

assert EVENT_HEADER.itemsize == 19
assert [EVENT_HEADER.fields[name][1] for name in ("type", "event_bytes", "flags")] == [4, 9, 17]  # type: ignore[index]
assert FORMAT_DESCRIPTION.itemsize == 57
assert QUERY.itemsize == 13
assert GTID.itemsize == 42
assert MARIADB_GTID.itemsize == 13
assert PREVIOUS_GTIDS.itemsize == 48
assert TABLE.itemsize == 8
assert ROTATE.itemsize == XID.itemsize == 8
assert INCIDENT.itemsize == 3
assert EXTRA_INFO.itemsize == 5

_CODES = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}


def packer(layout: np.dtype[Any]) -> struct.Struct:
    """Return the `struct.Struct` of a layout. For one event at a time it takes a tenth of the time of a NumPy
    record.
    """
    codes = ""
    for name in layout.names or ():
        base = layout[name].str[1:]
        codes += _CODES[base] if base in _CODES else f"{layout[name].itemsize}s"
    made = struct.Struct("<" + codes)
    assert made.size == layout.itemsize
    return made


HEADER_BYTES = EVENT_HEADER.itemsize
CHECKSUM_BYTES = 4
FIRST_POSITION = len(MAGIC)  # of the format description
TYPE_OFFSET = EVENT_HEADER.fields["type"][1]  # type: ignore[index]
FLAGS_OFFSET = EVENT_HEADER.fields["flags"][1]  # type: ignore[index]
CHECKSUM_NONE = 0
CHECKSUM_CRC32 = 1
EXTRA_LENGTH_BYTES = 2  # of row events v2: length of the extra data, these two bytes included
SERVER_VERSION = b"8.0.36-tidemark"

# Types of events.
QUERY_EVENT = 2
STOP_EVENT = 3
ROTATE_EVENT = 4
FORMAT_DESCRIPTION_EVENT = 15
XID_EVENT = 16
TABLE_MAP_EVENT = 19
WRITE_ROWS_V1 = 23
UPDATE_ROWS_V1 = 24
DELETE_ROWS_V1 = 25
INCIDENT_EVENT = 26
WRITE_ROWS = 30
UPDATE_ROWS = 31
DELETE_ROWS = 32
GTID_EVENT = 33
ANONYMOUS_GTID_EVENT = 34
PREVIOUS_GTIDS_EVENT = 35
# Events that are read from servers and never written.
HEARTBEAT_EVENT = 27
XA_PREPARE_EVENT = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD_EVENT = 40
HEARTBEAT_V2_EVENT = 41
MARIADB_GTID_EVENT = 162
# Events of servers that change nothing, or belong to a statement that has its own event: the end of a server's log (3),
# values of variables (5, 13, 14), notes for tools (28, 29, 160), sets of GTIDs (35, 163), GTIDs with a tag (42), group
# replication (36, 37), the state of InnoDB (161), encryption of the server's file (164).
IGNORED_EVENTS = frozenset((STOP_EVENT, 5, 13, 14, 28, 29, PREVIOUS_GTIDS_EVENT, 36, 37, 42, 160, 161, 163, 164))
MARIADB_COMPRESSED = range(165, 172)
LOAD_DATA_EVENTS = (6, 8, 9, 10, 11, 12, 17, 18)

# Length of the fixed part of each type of event, from type 1 on, as in MySQL 8.0.36.
POST_HEADER_BYTES = bytes.fromhex(
    "00 0d 00 08 00 00 00 00 04 00 04 00 00 00 62 00 04 1a 08 00 00 00 08 08 08 02 00 00 00 0a 0a 0a 2a 2a 00 12 34 00"
    "0a 28 00"
)
assert POST_HEADER_BYTES[QUERY_EVENT - 1] == QUERY.itemsize
assert POST_HEADER_BYTES[ROTATE_EVENT - 1] == ROTATE.itemsize
assert POST_HEADER_BYTES[FORMAT_DESCRIPTION_EVENT - 1] == FORMAT_DESCRIPTION.itemsize + len(POST_HEADER_BYTES)
assert POST_HEADER_BYTES[TABLE_MAP_EVENT - 1] == POST_HEADER_BYTES[WRITE_ROWS_V1 - 1] == TABLE.itemsize
assert POST_HEADER_BYTES[WRITE_ROWS - 1] == TABLE.itemsize + EXTRA_LENGTH_BYTES
assert POST_HEADER_BYTES[ANONYMOUS_GTID_EVENT - 1] == GTID.itemsize

# Flags of the event header.
FLAG_IN_USE = 0x1  # of a format description: the file is being written; its CRC is computed without the flag
FLAG_ARTIFICIAL = 0x20
FLAG_RELAY_LOG = 0x40
FLAG_IGNORABLE = 0x80

# Flags of TABLE_MAP and of row events.
TABLE_BIT_LENGTH_EXACT = 1
ROWS_STATEMENT_END = 1

GTID_CLOCK = 2
# Flags of MariaDB's GTID.
MARIADB_STANDALONE = 1  # one statement, without an event that ends it
MARIADB_XA = 0x40 | 0x80  # prepared, completed
# After the fixed part of a GTID event: 7 bytes of µs since 1970; if COMMIT_TIME_ORIGINAL is set in them, 7 more for the
# first commit.
COMMIT_TIME_BYTES = 7
COMMIT_TIME_ORIGINAL = 1 << 55

INCIDENT_LOST_EVENTS = 1

# Status variables of QUERY: tag, then their bytes.
STATUS_CHARSET = 4  # u16 client, u16 connection, u16 server

# NDB's extra row info.
EXTRA_TAG_NDB = 0
EXTRA_FORMAT_NDB = 0
EXTRA_HAS_TRANSACTION_ID = 1
EXTRA_HAS_CONFLICT_FLAGS = 2
TRANSACTION_ID_BYTES = 8
CONFLICT_FLAGS_BYTES = 2

# Optional metadata of TABLE_MAP: tag, length, value.
META_SIGNEDNESS = 1
META_DEFAULT_CHARSET = 2
META_COLUMN_CHARSET = 3
META_COLUMN_NAME = 4
META_SET_MEMBERS = 5
META_ENUM_MEMBERS = 6
META_PRIMARY_KEY = 8
META_PRIMARY_KEY_PREFIX = 9
META_ENUM_DEFAULT_CHARSET = 10
META_ENUM_COLUMN_CHARSET = 11

# Type codes of columns.
TYPE_DECIMAL_OLD = 0
TYPE_TINY = 1
TYPE_SHORT = 2
TYPE_LONG = 3
TYPE_FLOAT = 4
TYPE_DOUBLE = 5
TYPE_NULL = 6
TYPE_TIMESTAMP_OLD = 7
TYPE_LONGLONG = 8
TYPE_INT24 = 9
TYPE_DATE = 10
TYPE_TIME_OLD = 11
TYPE_DATETIME_OLD = 12
TYPE_YEAR = 13
TYPE_VARCHAR = 15
TYPE_BIT = 16
TYPE_TIMESTAMP = 17
TYPE_DATETIME = 18
TYPE_TIME = 19
TYPE_BLOB_COMPRESSED = 140  # MariaDB's
TYPE_VARCHAR_COMPRESSED = 141
TYPE_VECTOR = 242
TYPE_JSON = 245
TYPE_NEWDECIMAL = 246
TYPE_ENUM = 247
TYPE_SET = 248
TYPE_BLOB = 252
TYPE_VAR_STRING = 253
TYPE_STRING = 254
TYPE_GEOMETRY = 255

# Bytes of metadata that each type code has in TABLE_MAP; others have none.
METADATA_BYTES = {
    TYPE_FLOAT: 1,
    TYPE_DOUBLE: 1,
    TYPE_VARCHAR: 2,
    TYPE_BIT: 2,
    TYPE_TIMESTAMP: 1,
    TYPE_DATETIME: 1,
    TYPE_TIME: 1,
    TYPE_BLOB_COMPRESSED: 1,
    TYPE_VARCHAR_COMPRESSED: 2,
    TYPE_VECTOR: 1,
    TYPE_JSON: 1,
    TYPE_NEWDECIMAL: 2,
    TYPE_ENUM: 2,
    TYPE_SET: 2,
    TYPE_BLOB: 1,
    TYPE_VAR_STRING: 2,
    TYPE_STRING: 2,
    TYPE_GEOMETRY: 1,
}
COLUMN_TYPES = frozenset(
    [
        *METADATA_BYTES,
        *(TYPE_TINY, TYPE_SHORT, TYPE_LONG, TYPE_LONGLONG, TYPE_INT24, TYPE_DATE, TYPE_YEAR),
        *(TYPE_DECIMAL_OLD, TYPE_NULL, TYPE_TIMESTAMP_OLD, TYPE_TIME_OLD, TYPE_DATETIME_OLD),
    ]
)
# Types with a bit in the signedness of the optional metadata.
NUMERIC_TYPES = frozenset(
    (TYPE_TINY, TYPE_SHORT, TYPE_INT24, TYPE_LONG, TYPE_LONGLONG, TYPE_NEWDECIMAL, TYPE_FLOAT, TYPE_DOUBLE)
)
# Types with an entry in the character sets there. In MariaDB geometry has one too (binary).
CHARACTER_TYPES = frozenset(
    (TYPE_VARCHAR, TYPE_VAR_STRING, TYPE_STRING, TYPE_BLOB, TYPE_BLOB_COMPRESSED, TYPE_VARCHAR_COMPRESSED)
)

COLLATION_BINARY = 63
COLLATION_UTF8MB4_BIN = 46
COLLATION_LATIN1_BIN = 47
