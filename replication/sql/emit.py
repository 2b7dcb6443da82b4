"""Text of schema changes: SQL that MariaDB and MySQL execute.

What SQL cannot say of a table (disk columns, tablespaces, our kinds of hash) stands behind it in a comment of ours, the
whole definition, which another Tidemark reads instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

from engine.partition import MAXVALUE, HashPartition, KeyPartition, ListPartition, Partition, RangePartition
from engine.schema import ABSENT, Column
from engine.types import Integer
from engine.types_base import ColumnType
from engine.types_calendar import Calendar
from engine.types_text import Binary, Char, VarBinary, VarChar
from replication.sql import statements as s
from replication.sql.column_types import quoted, to_sql
from replication.sql.tokens import OURS

# Of these MySQL's COLUMNS partitions may be; others a server keeps in one piece.
_RANGE_TYPES = (Integer, Char, VarChar, Binary, VarBinary, Calendar)


def name(text: str) -> str:
    """A quoted name."""
    return "`" + text.replace("`", "``") + "`"


def table_name(text: str) -> str:
    """`database.table`, both quoted."""
    return ".".join(name(each) for each in text.split(".", 1))


def _names(columns: Sequence[str]) -> str:
    return "(" + ", ".join(name(each) for each in columns) + ")"


def literal(value: Any) -> str:
    """A Python value of a column as SQL."""
    if value is None:
        return "NULL"
    if value is MAXVALUE:
        return "MAXVALUE"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, bytes):
        return "x'" + value.hex() + "'"
    if isinstance(value, datetime):
        return quoted(value.replace(tzinfo=None).isoformat(" "))
    if isinstance(value, (date, time)):
        return quoted(value.isoformat())
    if isinstance(value, str):
        return quoted(value)
    return repr(value) if isinstance(value, float) else str(value)


def column(each: Column) -> str:
    """A column as in CREATE TABLE."""
    words = [name(each.name), to_sql(each.type), "NULL" if each.nullable else "NOT NULL"]
    # A server gives LOBs no literal defaults, and TIMESTAMP one of its own if none is said.
    if each.has_default and not each.type.is_lob:
        words.append("DEFAULT " + literal(each.default))
    elif each.nullable and repr(each.type) == "Timestamp":
        words.append("DEFAULT NULL")
    return " ".join(words)


def _bound(values: Any) -> str:
    pieces = values if isinstance(values, tuple) else (values,)
    return "(" + ", ".join(literal(each) for each in pieces) + ")"


def partition(each: Partition, types: dict[str, ColumnType]) -> str:
    """PARTITION BY and what follows, empty if a server has nothing like it."""
    if isinstance(each, (RangePartition, ListPartition)):
        if not all(isinstance(types[column], _RANGE_TYPES) for column in each.columns):
            return ""
        if any(repr(types[column]) == "Timestamp" for column in each.columns):
            return ""
        pieces = ", ".join(f"PARTITION {name(known)} {values_of(each, bound)}" for known, bound in each.partitions)
        kind = "RANGE" if isinstance(each, RangePartition) else "LIST"
        return f" PARTITION BY {kind} COLUMNS {_names(each.columns)} ({pieces})"
    if isinstance(each, HashPartition):
        linear = "LINEAR " if each.is_linear else ""
        if each.modulo is not None:
            return f" PARTITION BY {linear}HASH ({name(each.modulo)}) PARTITIONS {each.fragments}"
        if isinstance(each, KeyPartition):
            return f" PARTITION BY {linear}KEY {_names(each.columns or ())} PARTITIONS {each.fragments}"
    return ""


def values_of(each: RangePartition | ListPartition, bound: Any) -> str:
    """VALUES LESS THAN or VALUES IN of one partition."""
    if isinstance(each, RangePartition):
        return "VALUES LESS THAN " + _bound(bound)
    return _values_in(bound)


def _create(statement: s.CreateTable) -> str:
    definition = statement.definition
    pieces = [column(each) for each in definition.columns]
    pieces.append("PRIMARY KEY " + _names(definition.primary_key))
    pieces += [
        f"{'UNIQUE ' if index.is_unique else ''}KEY {name(index.name)} {_names(index.columns)}"
        for index in definition.indexes
    ]
    types = {each.name: each.type for each in definition.columns}
    guard = "IF NOT EXISTS " if statement.may_exist else ""
    note = definition.to_json().decode().replace("*/", "*\\/")
    return (
        f"CREATE TABLE {guard}{table_name(definition.name)} ({', '.join(pieces)})"
        f"{partition(definition.partition, types)} {OURS}{note} */"
    )


def _alter(statement: s.TableChange) -> str:
    """What stands behind ALTER TABLE and the name."""
    match statement:
        case s.RenameTable():
            return "RENAME TO " + table_name(statement.to)
        case s.AddColumn():
            return "ADD COLUMN " + column(statement.column)
        case s.DropColumn():
            return "DROP COLUMN " + name(statement.column)
        case s.RenameColumn():
            return f"RENAME COLUMN {name(statement.column)} TO {name(statement.to)}"
        case s.ChangeColumn():
            return "MODIFY COLUMN " + column(statement.column)
        case s.SetDefault() if statement.default is ABSENT:
            return f"ALTER COLUMN {name(statement.column)} DROP DEFAULT"
        case s.SetDefault():
            return f"ALTER COLUMN {name(statement.column)} SET DEFAULT {literal(statement.default)}"
        case s.CreateIndex():
            index = statement.index
            unique = "UNIQUE " if index.is_unique else ""
            return f"ADD {unique}INDEX {name(index.name)} {_names(index.columns)}"
        case s.DropIndex():
            return "DROP INDEX " + name(statement.index)
        case s.DropPartition():
            return "DROP PARTITION " + name(statement.partition)
        case s.AddPartition():
            return f"ADD PARTITION (PARTITION {name(statement.partition)} {_added(statement.bound)})"
    raise TypeError(f"{statement!r} is no change of a table")


def _added(bound: Any) -> str:
    """A list's values are a list, a range's bound is none."""
    return _values_in(bound) if isinstance(bound, list) else "VALUES LESS THAN " + _bound(bound)


def _values_in(values: Any) -> str:
    shown = [_bound(each) if isinstance(each, tuple) and len(each) > 1 else _bound(each)[1:-1] for each in values]
    return "VALUES IN (" + ", ".join(shown) + ")"


def emit(statement: s.Statement) -> str:
    """The statement as SQL."""
    match statement:
        case s.CreateTable():
            return _create(statement)
        case s.DropTable():
            return f"DROP TABLE {'IF EXISTS ' if statement.may_be_missing else ''}{table_name(statement.table)}"
        case s.Nothing():
            return statement.text
        case s.TableChange():
            return f"ALTER TABLE {table_name(statement.table)} {_alter(statement)}"
    raise TypeError(f"{statement!r} is no statement")
