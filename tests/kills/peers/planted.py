"""Planted defects of a dump, in the process of the store, to check that the loop finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.mysql_source import dump, screen
from tidemark.replication.mysql_source.served_events import heartbeat

_EVERY = 40


def rows_left_out() -> None:
    """Leave out one event of rows in forty."""
    take = screen.Screen.take
    seen = 0

    def leaving_out(self: Any, at: Any, raw: bytes) -> list[screen.Shown]:
        nonlocal seen
        found = take(self, at, raw)
        if found and found[0].raw is not None and found[0].raw[b.TYPE_OFFSET] == b.UPDATE_ROWS:
            seen += 1
            if not seen % _EVERY:
                found[0] = found[0]._replace(is_hidden=True)
        return found

    screen.Screen.take = leaving_out  # type: ignore[method-assign]


def heartbeat_ahead() -> None:
    """Let heartbeats name a position that is not the true one."""

    def ahead(name: str, position: int, server_id: int) -> bytes:
        return heartbeat(name, position + 100, server_id)

    dump.s.heartbeat = ahead  # type: ignore[attr-defined]


DEFECTS: dict[str, Callable[[], None]] = {
    "rows-left-out": rows_left_out,
    "heartbeat-ahead": heartbeat_ahead,
}
