"""Finds the row of `mysql.ndb_replication` that applies to a table: the one that names the table most exactly.

Names are compared case-insensitively, as in the server's system collation. The order of rows never matters. In
patterns `%` stands for any number of characters, `_` for one, and a backslash escapes; `?` stands for itself. The
server's manual swaps `%` and `_`, but the server behaves as described here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.replication.settings.finding import Finding

ALL_SERVERS = 0
NO_QUALITY = -1

# Every match counts 1. An exact database outranks an exact table, which outranks an exact server id.
MATCHED = 1
EXACT_DATABASE = 4
EXACT_TABLE = 2
EXACT_SERVER = 1
EXACT = MATCHED + EXACT_DATABASE + EXACT_TABLE + EXACT_SERVER


@dataclass(frozen=True)
class ReplicationRow:
    """A row of `mysql.ndb_replication`; `binlog_type` None is 0, `conflict_fn` None is no function."""

    database: str
    table: str
    server_id: int = ALL_SERVERS
    binlog_type: int | None = None
    conflict_fn: str | None = None

    @property
    def key(self) -> str:
        """The name of the row in messages."""
        return f"{self.database}.{self.table}:{self.server_id}"


def _text(value: bytes | str) -> str:
    """Return a name as text; in the table it is bytes. A name that is not UTF-8 keeps its bytes, and so matches no
    other name.
    """
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def row_of(values: Mapping[str, Any]) -> ReplicationRow:
    """Return the row with these values, by column name; columns that a table may lack may be missing."""
    function = values.get("conflict_fn")
    return ReplicationRow(
        _text(values["db"]),
        _text(values["table_name"]),
        values["server_id"],
        values["binlog_type"],
        None if function is None else _text(function),
    )


@dataclass(frozen=True)
class Match:
    """The row found; None, with quality -1, stands for the defaults. `warning` is set if rows were ambiguous."""

    row: ReplicationRow | None
    quality: int
    warning: Finding | None = None


def quality_of(row: ReplicationRow, database: str, table: str, server_id: int) -> int:
    """Return 1 (all wildcards) to 8 (all exact), or -1 if the row does not apply to that table on that server."""
    if row.server_id not in (ALL_SERVERS, server_id):
        return NO_QUALITY
    quality = MATCHED
    for pattern, name, exact in ((row.database, database, EXACT_DATABASE), (row.table, table, EXACT_TABLE)):
        if pattern.casefold() == name.casefold():
            quality += exact
        elif not matches(pattern, name):
            return NO_QUALITY
    return quality + (EXACT_SERVER if row.server_id != ALL_SERVERS else 0)


def find_row(rows: Iterable[ReplicationRow], database: str, table: str, server_id: int) -> Match:
    """Return the row of the highest quality. Several rows of that quality are ambiguous: then the defaults apply, with
    a warning.
    """
    found = [(quality_of(row, database, table, server_id), row) for row in rows]
    best = max((quality for quality, _ in found), default=NO_QUALITY)
    if best == NO_QUALITY:
        return Match(None, NO_QUALITY)
    candidates = [row for quality, row in found if quality == best]
    if len(candidates) == 1:
        return Match(candidates[0], best)
    named = ", ".join(sorted(row.key for row in candidates))
    text = (
        f"Ambiguous matches in mysql.ndb_replication for {database}.{table} on server {server_id}: {named};"
        " the defaults are used, make one of them more exact"
    )
    return Match(None, NO_QUALITY, Finding("ambiguous", text))


ANY_NUMBER = "%"
ANY_ONE = "_"
ESCAPE = "\\"


def _tokens(pattern: str) -> list[tuple[bool, str]]:
    """Return (is a wildcard, character) for each step; a backslash at the end stands for itself."""
    tokens = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == ESCAPE and at + 1 < len(pattern):
            at += 1
            tokens.append((False, pattern[at]))
        else:
            tokens.append((character in (ANY_NUMBER, ANY_ONE), character))
        at += 1
    return tokens


def matches(pattern: str, name: str, is_exact: bool = False) -> bool:
    """Return whether the whole name matches, ignoring case unless `is_exact`. The time is at most proportional to
    length of pattern times length of name.
    """
    fold = str if is_exact else str.casefold
    tokens = [(is_wildcard, fold(character)) for is_wildcard, character in _tokens(pattern)]
    # Each character alone: case folding may lengthen a character, and `_` matches one character of the name.
    text = [fold(character) for character in name]
    token = at = 0
    retry_token, retry_at = -1, 0  # the token after the last %, and where in the name the match of that % ends
    while at < len(text):
        if token < len(tokens) and tokens[token] == (True, ANY_NUMBER):
            token += 1
            retry_token, retry_at = token, at
        elif token < len(tokens) and (tokens[token] == (True, ANY_ONE) or tokens[token] == (False, text[at])):
            token += 1
            at += 1
        elif retry_token >= 0:
            retry_at += 1
            token, at = retry_token, retry_at
        else:
            return False
    return all(each == (True, ANY_NUMBER) for each in tokens[token:])
