"""Faults and remarks found by set-up: data, because set-up continues after most of them."""

from __future__ import annotations

from dataclasses import dataclass

ER_REPLICATION_SCHEMA = 1625
ER_CONFLICT_FN_PARSE = 1626


@dataclass(frozen=True)
class Finding:
    """One fault or remark: `rule` names it in fixed words, `text` is the message, in the server's words if the server
    has such a message.

    `column` is the column it is about; `errno` the server's error number, if there is one.
    """

    rule: str
    text: str
    column: str | None = None
    errno: int | None = None

    def __str__(self) -> str:
        return self.text
