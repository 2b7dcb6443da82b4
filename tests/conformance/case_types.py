"""Types and tables of the cases, which are written as MySQL writes them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from tidemark.engine import types as t
from tidemark.engine.base.errors import Error
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Binary, Char, ColumnType, VarBinary, VarChar
from tidemark.replication.settings.exceptions_table import Cause, OperationType


class CaseInvalid(Exception):
    """The file is not what its README says; one line."""


# Errors that a file can cause that is not as its README says.
NOT_RUN = (Error, AssertionError, LookupError, TypeError, ValueError, AttributeError, StopIteration)
_PLAIN: dict[str, ColumnType] = {
    "tinyint": t.Int8,
    "smallint": t.Int16,
    **dict.fromkeys(["mediumint", "int", "integer"], t.Int32),
    "bigint": t.Int64,
    "float": t.Float32,
    **dict.fromkeys(["double", "double precision", "real"], t.Float64),
    **dict.fromkeys(["bool", "boolean"], t.Bool),
    "tinyint unsigned": t.UInt8,
    **dict.fromkeys(["smallint unsigned", "year"], t.UInt16),
    **dict.fromkeys(["mediumint unsigned", "int unsigned", "integer unsigned"], t.UInt32),
    **dict.fromkeys(["bigint unsigned", "bit", "serial"], t.UInt64),
    **dict.fromkeys(["text", "tinytext", "mediumtext", "longtext", "json", "set"], t.Text),
    **dict.fromkeys(["blob", "tinyblob", "mediumblob", "longblob"], t.Blob),
    "date": t.Date,
    "datetime": t.DateTime,
    "timestamp": t.Timestamp,
    "time": t.Time,
}
_SIZED = {
    **dict.fromkeys(["varchar", "character varying"], VarChar),
    **dict.fromkeys(["char", "character"], Char),
    "varbinary": VarBinary,
    "binary": Binary,
}
_NUMBERS = (t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64, t.Float32, t.Float64)
_DECIMALS = ("decimal", "numeric", "dec", "fixed")
_TYPE = re.compile(
    r"(double precision|character varying|[a-z]+)\s*(?:\(([^)]*)\))?\s*((?:signed|unsigned|zerofill|\s)*)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_DEFAULT = re.compile(r"\bdefault\s+('(?:[^']|'')*'|[^\s,]+)", re.IGNORECASE)


def _length(length: int) -> int:
    """Characters of a column. There they take a byte, here up to four, so long columns are made shorter, in order."""
    return length if length <= 255 else min(256 + (length - 255) // 7, 1_000)


def type_of(text: str, name: str = "") -> tuple[ColumnType, Any]:
    """(type, default) of a column; a bare `enum` is the one the manual gives the column of that name."""
    matched = _TYPE.fullmatch(text.strip())
    if matched is None:
        raise CaseInvalid(f"type {text!r} is not understood")
    base, arguments, signs, rest = matched.groups()
    base = base.lower() + (" unsigned" if re.search("unsigned|zerofill", signs, re.IGNORECASE) else "")
    kind: ColumnType
    if base == "enum":
        members = re.findall(r"'([^']*)'", arguments or "")
        known = Cause if name.upper().endswith("CFT_CAUSE") else OperationType
        kind = t.Enum(*(members or [each.name for each in known]))
    elif base in _SIZED:
        kind = _SIZED[base](_length(int(arguments or 1)))
    elif base.removesuffix(" unsigned") in _DECIMALS:
        kind = t.Decimal(*(int(piece) for piece in (arguments or "10").split(",")))
    elif base in _PLAIN:
        kind = _PLAIN[base]
    else:
        raise CaseInvalid(f"type {text!r} is not understood")
    return kind, _default(kind, rest)


def _default(kind: ColumnType, rest: str) -> Any:
    matched = _DEFAULT.search(rest)
    if matched is None:
        return ABSENT
    word = matched[1]
    if word.startswith("'"):
        return value_of(kind, word[1:-1].replace("''", "'"))
    if word.upper() == "NULL":
        return None
    if re.fullmatch(r"[+-]?[0-9.]+", word):
        return value_of(kind, float(word) if "." in word else int(word))
    return ABSENT  # the current time, an expression: a caller that gives rows gives these columns too


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and re.search(r"[.eE]", value) else int(value)


def value_of(kind: ColumnType, value: Any) -> Any:
    """Convert a value of a case, a JSON number or text, to the store's form; unchanged if it does not convert."""
    if value is None or isinstance(value, (list, dict)):
        return value
    try:
        if kind == t.Bool:
            return bool(_number(value))
        if isinstance(kind, t.Decimal):
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
        if isinstance(kind, Binary):
            return value.encode().ljust(kind.length, b"\0")
        if isinstance(kind, VarBinary) or kind == t.Blob:
            return value.encode()
        if kind == t.Float32:
            return float(np.float32(value))
        if kind == t.Date:
            return date.fromisoformat(value)
        if kind in (t.DateTime, t.Timestamp):
            found = datetime.fromisoformat(value)
            return found if kind == t.DateTime or found.tzinfo else found.replace(tzinfo=UTC)
        if kind == t.Time:
            return time.fromisoformat(value)
        if kind in _NUMBERS and isinstance(value, str):
            return _number(value)
    except (ValueError, TypeError, ArithmeticError):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isinstance(kind, (VarChar, Char)):
        return str(value)
    return value


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
