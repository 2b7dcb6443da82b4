"""Naive twin of the variable header of row events v2, with NDB's extra row info."""

from __future__ import annotations


def variable_header(transaction_id: int | None, conflict_flags: int | None) -> bytes:
    info = b""
    flags = 0
    if transaction_id is not None:
        flags += 1
        info += transaction_id.to_bytes(8, "little")
    if conflict_flags:
        flags += 2
        info += conflict_flags.to_bytes(2, "little")
    if not flags:
        return b"\x02\x00"
    block = bytes([4 + len(info), 0]) + flags.to_bytes(2, "little") + info
    return (2 + 1 + len(block)).to_bytes(2, "little") + b"\x00" + block
