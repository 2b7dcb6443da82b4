"""Numbers of the MySQL protocol: capabilities, status, commands, plugins, errors."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION = 10
PACKET_BYTES_MAX = (1 << 24) - 1  # a longer message continues in the next packet

# Capabilities of both sides.
LONG_PASSWORD = 1 << 0
FOUND_ROWS = 1 << 1
LONG_FLAG = 1 << 2
CONNECT_WITH_DB = 1 << 3
PROTOCOL_41 = 1 << 9
SSL = 1 << 11
TRANSACTIONS = 1 << 13
SECURE_CONNECTION = 1 << 15
PLUGIN_AUTH = 1 << 19
CONNECT_ATTRIBUTES = 1 << 20
PLUGIN_AUTH_LENGTHS = 1 << 21

STATUS_AUTOCOMMIT = 2
CHARSET_UTF8MB4 = 45

# Commands, and the first byte of an acknowledgement.
COM_QUIT, COM_INIT_DB, COM_QUERY, COM_PING = 0x01, 0x02, 0x03, 0x0E
COM_BINLOG_DUMP, COM_REGISTER_SLAVE, COM_BINLOG_DUMP_GTID = 0x12, 0x15, 0x1E
COM_STATEMENTS: Final = frozenset((0x16, 0x17, 0x18, 0x19, 0x1A, 0x1C))  # prepared ones
SEMI_SYNC = 0xEF
# Flags of dumps.
DUMP_NON_BLOCK, DUMP_THROUGH_GTID = 1 << 0, 1 << 2

# First bytes of answers.
OK, END, ERROR = 0x00, 0xFE, 0xFF
AUTH_SWITCH, AUTH_MORE = 0xFE, 0x01
FAST_AUTH_DONE = 0x03
NULL = 0xFB

CACHING_SHA2 = "caching_sha2_password"
NATIVE = "mysql_native_password"
NONCE_BYTES = 20

# Error numbers with their SQL states.
ER_ACCESS_DENIED: Final = (1045, "28000")
ER_UNKNOWN_COMMAND: Final = (1047, "08S01")
ER_HANDSHAKE: Final = (1043, "08S01")
ER_PACKET_TOO_LARGE: Final = (1153, "08S01")
ER_PACKETS_OUT_OF_ORDER: Final = (1156, "08S01")
ER_TOO_MANY_CONNECTIONS: Final = (1040, "08004")
ER_PREPARED: Final = (1295, "HY000")
ER_MALFORMED_PACKET: Final = (1835, "HY000")
ER_LIMIT: Final = (1226, "42000")
ER_SECURE_TRANSPORT_REQUIRED: Final = (3159, "HY000")
ER_SOURCE_FATAL: Final = (1236, "HY000")  # what ends a dump; replicas stop at it

# Of statements.
ER_OUT_OF_MEMORY: Final = (1041, "HY000")
ER_NO_DATABASE: Final = (1046, "3D000")
ER_UNKNOWN_DATABASE: Final = (1049, "42000")
ER_UNKNOWN_COLUMN: Final = (1054, "42S22")
ER_UNKNOWN_THREAD: Final = (1094, "HY000")
ER_UNKNOWN_ERROR: Final = (1105, "HY000")
ER_UNKNOWN_SCHEMA_TABLE: Final = (1109, "42S02")
ER_TOO_MANY_COLUMNS: Final = (1117, "HY000")
ER_SELECT_DENIED: Final = (1142, "42000")
ER_NO_SUCH_TABLE: Final = (1146, "42S02")
ER_UNKNOWN_VARIABLE: Final = (1193, "HY000")
ER_SPECIFIC_ACCESS_DENIED: Final = (1227, "42000")
ER_WRONG_VALUE: Final = (1231, "42000")
ER_NOT_SUPPORTED: Final = (1235, "42000")
ER_READ_ONLY_VARIABLE: Final = (1238, "HY000")
ER_TRUNCATED: Final = (1292, "22007")
ER_UNKNOWN_TIME_ZONE: Final = (1298, "HY000")
ER_MALFORMED_GTIDS: Final = (1772, "HY000")

# Types of columns in answers, where they are not those of TABLE_MAP, and their flags.
TYPE_TIMESTAMP: Final = 7
TYPE_TIME: Final = 11
TYPE_DATETIME: Final = 12
FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_BLOB, FLAG_UNSIGNED, FLAG_BINARY, FLAG_ENUM = 1, 2, 16, 32, 128, 256
