"""Query results of a MySQL server, value by value."""

from __future__ import annotations


def lenenc(value: bytes | None) -> bytes:
    """A value of a row of text."""
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes((size,)) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value


def packet(payload: bytes, sequence: int = 0) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes((sequence % 256,)) + payload


def rows_of(octets: bytes, columns: int) -> tuple[list[list[bytes | None]], int] | None:
    """(rows, where they end) of the whole packets of rows at the beginning; None if one contradicts itself."""
    rows: list[list[bytes | None]] = []
    at = 0
    while len(octets) - at >= 4:
        size = int.from_bytes(octets[at : at + 3], "little")
        payload = octets[at + 4 : at + 4 + size]
        if size == 0xFFFFFF or len(payload) < size:
            break
        if payload[:1] == b"\xff" or (payload[:1] == b"\xfe" and size < 9):
            break
        row = _row(payload, columns)
        if row is None:
            return None
        rows.append(row)
        at += 4 + size
    return rows, at


def _row(payload: bytes, columns: int) -> list[bytes | None] | None:
    row: list[bytes | None] = []
    at = 0
    for _ in range(columns):
        if at >= len(payload):
            return None
        first = payload[at]
        at += 1
        if first == 251:
            row.append(None)
            continue
        if first == 255:
            return None
        prefix = {252: 2, 253: 3, 254: 8}.get(first, 0)
        if at + prefix > len(payload):
            return None
        size = int.from_bytes(payload[at : at + prefix], "little") if prefix else first
        at += prefix
        if at + size > len(payload):
            return None
        row.append(payload[at : at + size])
        at += size
    return row if at == len(payload) else None
