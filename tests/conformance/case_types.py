"""Types and tables of the cases, which are written as MySQL writes them."""

from __future__ import annotations

import re
from typing import Any

from engine import types as t
from engine.schema import ABSENT, Column, TableDefinition
from engine.types_base import ColumnType
from engine.types_text import Binary, Char, VarBinary, VarChar
from replication.conflict.causes import Cause, OperationType


class CaseInvalid(Exception):
    """The file is not what its README says; one line."""


_PLAIN = {
    "tinyint": t.Int8,
    "smallint": t.Int16,
    "mediumint": t.Int32,
    "int": t.Int32,
    "integer": t.Int32,
    "bigint": t.Int64,
    "float": t.Float32,
    "double": t.Float64,
    "bool": t.Bool,
    "boolean": t.Bool,
    "tinyint unsigned": t.UInt8,
    "smallint unsigned": t.UInt16,
    "mediumint unsigned": t.UInt32,
    "int unsigned": t.UInt32,
    "integer unsigned": t.UInt32,
    "bigint unsigned": t.UInt64,
    **dict.fromkeys(["text", "tinytext", "mediumtext", "longtext", "json"], t.Text),
    **dict.fromkeys(["blob", "tinyblob", "mediumblob", "longblob"], t.Blob),
    "date": t.Date,
    "datetime": t.DateTime,
    "timestamp": t.Timestamp,
    "time": t.Time,
}
_SIZED = {"varchar": VarChar, "char": Char, "varbinary": VarBinary, "binary": Binary}
_TYPE = re.compile(r"([a-z]+)\s*(?:\(([^)]*)\))?\s*(unsigned)?\s*(not null)?\s*(?:default\s+(.+))?", re.IGNORECASE)


def _length(length: int) -> int:
    """Characters of a column. There they take a byte, here up to four, so long columns are made shorter, in order."""
    return length if length <= 255 else min(256 + (length - 255) // 7, 1_000)


def type_of(text: str, name: str = "") -> tuple[ColumnType, Any]:
    """(type, default) of a column; a bare `enum` is the one the manual gives the column of that name."""
    matched = _TYPE.fullmatch(text.strip())
    if matched is None:
        raise CaseInvalid(f"type {text!r} is not understood")
    base, arguments, unsigned, _, default = matched.groups()
    base = base.lower() + (" unsigned" if unsigned else "")
    kind: ColumnType
    if base == "enum":
        members = re.findall(r"'([^']*)'", arguments or "")
        known = Cause if name.upper().endswith("CFT_CAUSE") else OperationType
        kind = t.Enum(*(members or [each.name for each in known]))
    elif base in _SIZED:
        kind = _SIZED[base](_length(int(arguments or 1)))
    elif base == "decimal":
        kind = t.Decimal(*(int(piece) for piece in (arguments or "10").split(",")))
    elif base in _PLAIN:
        kind = _PLAIN[base]
    else:
        raise CaseInvalid(f"type {text!r} is not understood")
    if default is None:
        return kind, ABSENT
    return kind, default[1:-1] if default.startswith("'") else int(default)


def column_of(name: str, text: str, nullable: bool, default: Any = ABSENT) -> Column:
    kind, own_default = type_of(text, name)
    return Column(name, kind, nullable, default if default is not ABSENT else own_default)


def table_of(database: str, name: str, columns: list[Column], key: list[str]) -> TableDefinition:
    return TableDefinition(0, 1, f"{database}.{name}", tuple(columns), tuple(key))


def table_of_case(database: str, case: dict[str, Any]) -> TableDefinition:
    """A table of a scenario: {name, columns: [{name, type, nullable}], pk}."""
    columns = [
        column_of(
            each["name"],
            each["type"],
            each.get("nullable", False) and each["name"] not in case["pk"],
            each.get("default", ABSENT),
        )
        for each in case["columns"]
    ]
    return table_of(database, case["name"], columns, case["pk"])
