"""Faults and remarks found by set-up. They are data and not errors, because set-up continues after most of them."""

from __future__ import annotations

from dataclasses import dataclass

ER_REPLICATION_SCHEMA = 1625
ER_CONFLICT_FN_PARSE = 1626


@dataclass(frozen=True)
class Finding:
    """One fault or remark. rule: its kind, in fixed words. text: the message, in the words of MySQL's server if it has
    such a message. column: the column in question. errno: the error number of MySQL's server, if there is one.
    """

    rule: str
    text: str
    column: str | None = None
    errno: int | None = None

    def __str__(self) -> str:
        return self.text
