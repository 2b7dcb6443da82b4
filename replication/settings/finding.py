"""What set-up finds wrong or worth telling: data, because set-up goes on after most of it."""

from __future__ import annotations

from dataclasses import dataclass

ER_REPLICATION_SCHEMA = 1625
ER_CONFLICT_FN_PARSE = 1626


@dataclass(frozen=True)
class Finding:
    """One fault or remark: `rule` names it in fixed words, `text` is the message, in the server's words if it has any.

    `column` is the column it is about; `errno` the server's error number, if it has one.
    """

    rule: str
    text: str
    column: str | None = None
    errno: int | None = None

    def __str__(self) -> str:
        return self.text
