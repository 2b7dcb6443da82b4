"""PyPI's mysql-replication on files: it reads from servers only, so each event is passed to it as a server's packet.

This uses an internal constructor, which may change with any release: the version is pinned in pyproject.toml.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest


class _Connection:
    """What the reader asks of a connection."""

    charset = "utf8mb4"

    @staticmethod
    def _get_dbms() -> str:
        return "mysql"

    @staticmethod
    def _get_table_information(schema: str, table: str) -> list[Any]:
        return []


def events_of(content: bytes) -> Iterator[Any]:
    """Yield the events of a file's bytes that the library knows; skip the test without the library."""
    pytest.importorskip("pymysqlreplication", reason="mysql-replication is not installed")
    from pymysql.protocol import MysqlPacket
    from pymysqlreplication import event as e
    from pymysqlreplication import row_event as r
    from pymysqlreplication.packet import BinLogPacketWrapper

    wanted = frozenset(
        (
            *(e.QueryEvent, e.RotateEvent, e.FormatDescriptionEvent, e.XidEvent, e.GtidEvent, e.StopEvent),
            *(r.UpdateRowsEvent, r.WriteRowsEvent, r.DeleteRowsEvent, r.TableMapEvent),
        )
    )
    assert content[:4] == b"\xfebin"
    tables: dict[int, Any] = {}
    at = 4
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at + 9)
        packet = MysqlPacket(b"\0" + content[at : at + size], "utf8")
        at += size
        wrapped = BinLogPacketWrapper(
            packet,
            tables,
            _Connection,
            (8, 0, 36),
            True,
            wanted,
            None,
            None,
            None,
            None,
            False,
            False,
            True,
            True,
            False,
        )
        if wrapped.event is None:
            continue
        if isinstance(wrapped.event, r.TableMapEvent):
            tables[wrapped.event.table_id] = wrapped.event.get_table()
        assert wrapped.event._is_event_valid or wrapped.event_type == 15, "the checksum is wrong"
        yield wrapped.event
