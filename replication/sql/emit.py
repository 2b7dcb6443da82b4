"""Schema changes as text: SQL that MariaDB and MySQL execute.

A comment at the end of a statement holds what SQL cannot express, and another Tidemark reads it instead of the SQL. For
CREATE TABLE it is the whole definition (disk columns, tablespaces, Tidemark's kinds of hash). For ALTER TABLE it is the
clause in its exact form (Timestamp, which is DATETIME in UTC in a binlog; defaults of LOBs; checks; expiry; partitions
that a server cannot have). An ALTER TABLE whose change a server cannot have alters nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.computed import Computed
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.partition import HashPartition, KeyPartition, ListPartition, RangePartition
from tidemark.engine.types import ColumnType
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_types import SQL_TYPES, literal_of, to_sql
from tidemark.replication.sql.tokens import OURS


def name(text: str) -> str:
    """Return a quoted name."""
    return "`" + text.replace("`", "``") + "`"


def table_name(text: str) -> str:
    """Return `database.table`, both quoted."""
    return ".".join(name(each) for each in text.split(".", 1))


def _names(columns: Sequence[str]) -> str:
    return "(" + ", ".join(name(each) for each in columns) + ")"


def _can_be_default(kind: ColumnType, value: Any) -> bool:
    """Whether a server accepts the literal as a default: LOBs have none there, and NaN and infinity are invalid.
    Computed defaults are Tidemark's: rows come with their values, and a server's moment is of its session's zone.
    """
    return not (kind.is_lob or isinstance(value, Computed) or (isinstance(value, float) and not isfinite(value)))


def _default(value: Any, kind: ColumnType | None) -> str:
    return f"{value.name}()" if isinstance(value, Computed) else literal_of(value, kind)


def column(each: Column, *, is_exact: bool = False, is_added: bool = False) -> str:
    """Return a column as in CREATE TABLE. is_exact: in the form that only Tidemark reads. is_added: existing rows get
    the default, so that of a LOB is an expression, which servers take, and one that is no number stays, so that a
    server stops instead of filling in 0.
    """
    words = [name(each.name), to_sql(each.type, is_exact=is_exact), "NULL" if each.nullable else "NOT NULL"]
    if each.has_default and (is_exact or _can_be_default(each.type, each.default)):
        words.append("DEFAULT " + _default(each.default, each.type))
    elif is_added and each.has_default and each.default is not None:
        default = _default(each.default, each.type)
        words.append(f"DEFAULT ({default})" if each.type.is_lob else f"DEFAULT {default}")
    check = "" if is_exact else SQL_TYPES[type(each.type)].check
    if check:
        words.append(f"CHECK ({check}({name(each.name)}))")
    return " ".join(words)


def _bound(values: Any) -> str:
    pieces = values if isinstance(values, tuple) else (values,)
    return "(" + ", ".join(literal_of(each) for each in pieces) + ")"


def partition(definition: TableDefinition) -> str:
    """Return the PARTITION BY clause; empty if a server has no such partitions, or does not allow them because a
    unique index lacks a partitioning column.
    """
    each = definition.partition
    types = {known.name: known.type for known in definition.columns}
    columns = set(partition_columns(definition))
    if any(index.is_unique and not columns <= set(index.columns) for index in definition.indexes):
        return ""
    if isinstance(each, (RangePartition, ListPartition)):
        if not all(SQL_TYPES[type(types[known])].divides for known in each.columns):
            return ""
        is_list = isinstance(each, ListPartition)
        pieces = ", ".join(f"PARTITION {name(known)} {_values(bound, is_list)}" for known, bound in each.partitions)
        kind = "LIST" if is_list else "RANGE"
        return f" PARTITION BY {kind} COLUMNS {_names(each.columns)} ({pieces})"
    if isinstance(each, HashPartition):
        linear = "LINEAR " if each.is_linear else ""
        if each.modulo is not None:
            return f" PARTITION BY {linear}HASH ({name(each.modulo)}) PARTITIONS {each.fragments}"
        if isinstance(each, KeyPartition):
            return f" PARTITION BY {linear}KEY {_names(each.columns or ())} PARTITIONS {each.fragments}"
    return ""


def partition_columns(definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns that determine the partition of a row."""
    each = definition.partition
    modulo = getattr(each, "modulo", None)
    return (modulo,) if modulo is not None else tuple(getattr(each, "columns", None) or definition.primary_key)


def _values(bound: Any, is_list: bool) -> str:
    """Return the clause VALUES of one partition."""
    if not is_list:
        return "VALUES LESS THAN " + _bound(bound)
    shown = [_bound(each) if isinstance(each, tuple) and len(each) > 1 else _bound(each)[1:-1] for each in bound]
    return "VALUES IN (" + ", ".join(shown) + ")"


def _note(text: str, star: str, slash: str) -> str:
    """Return Tidemark's comment; text that would end the comment or begin another one is escaped."""
    return f"{OURS}{text.replace('*/', '*' + slash).replace('/*', '/' + star)} */"


def key(word: str, index: IndexDefinition) -> str:
    """Return the clause of an index. A server's unique keys have an order in any case; USING BTREE says it here."""
    if not index.is_unique:
        return f"{word} {name(index.name)} {_names(index.columns)}"
    return f"UNIQUE {word} {name(index.name)} {_names(index.columns)}{' USING BTREE' if index.is_ordered else ''}"


def _create(statement: s.CreateTable) -> str:
    definition = statement.definition
    pieces = [column(each) for each in definition.columns]
    pieces.append("PRIMARY KEY " + _names(definition.primary_key))
    pieces += [key("KEY", index) for index in definition.indexes]
    note = _note(definition.to_json().decode(), "\\u002a", "\\/")
    guard = "IF NOT EXISTS " if statement.may_exist else ""
    return f"CREATE TABLE {guard}{table_name(definition.name)} ({', '.join(pieces)}){partition(definition)} {note}"


def _alteration(statement: s.TableChange, before: TableDefinition | None, *, is_exact: bool) -> str:
    """Return the clause of ALTER TABLE after the table's name. before: the table's definition, if it is known."""
    match statement:
        case s.RenameTable():
            return "RENAME TO " + table_name(statement.to)
        case s.AddColumn():
            return "ADD COLUMN " + column(statement.column, is_exact=is_exact, is_added=True)
        case s.DropColumn():
            return "DROP COLUMN " + name(statement.column)
        case s.RenameColumn():
            return f"RENAME COLUMN {name(statement.column)} TO {name(statement.to)}"
        case s.ChangeColumn():
            return "MODIFY COLUMN " + column(statement.column, is_exact=is_exact)
        case s.SetDefault() if statement.default is ABSENT:
            return f"ALTER COLUMN {name(statement.column)} DROP DEFAULT"
        case s.SetDefault():
            kind = None if before is None else before.columns[before.position(statement.column)].type
            return f"ALTER COLUMN {name(statement.column)} SET DEFAULT {_default(statement.default, kind)}"
        case s.CreateIndex():
            return "ADD " + key("INDEX", statement.index)
        case s.DropIndex():
            return "DROP INDEX " + name(statement.index)
        case s.AddCheck():
            return f"ADD CHECK {name(statement.check.name)} {literal_of(statement.check.nodes)}"
        case s.DropCheck():
            return "DROP CHECK " + name(statement.check)
        case s.SetExpiry():
            return "EXPIRES " + literal_of(statement.expires)
        case s.DropPartition():
            return "DROP PARTITION " + name(statement.partition)
        case s.AddPartition():
            bound = statement.bound  # a Python list holds the values of a list partition
            return f"ADD PARTITION (PARTITION {name(statement.partition)} {_values(bound, isinstance(bound, list))})"
    raise TypeError(f"{statement!r} is not a change of a table")


def _executed(statement: s.TableChange, before: TableDefinition | None, after: TableDefinition | None) -> str:
    """Return the clause that a server executes; empty if the server does not have what is altered. The clause that
    drops a partition is never empty: a server that does not partition the table would keep the rows, so it must stop at
    the statement.
    """
    if isinstance(statement, (s.AddCheck, s.DropCheck, s.SetExpiry)):
        return ""  # the rows of a server come from here, where checks are asked and rows expire
    text = _alteration(statement, before, is_exact=False)
    if before is None or after is None:
        return text
    had, has = partition(before), partition(after)
    match statement:
        case s.SetDefault():
            kind = before.columns[before.position(statement.column)].type
            is_known = statement.default is ABSENT or _can_be_default(kind, statement.default)
            return text if is_known else ""
        case s.AddPartition():
            return text if had else ""
        case s.CreateIndex() if had and not has:
            return text + " REMOVE PARTITIONING"
        case s.DropIndex() if has and not had:
            return text + has
        case s.RenameColumn() if has and statement.to in partition_columns(after):
            return text + has
    return text


def emit(statement: s.Statement, before: TableDefinition | None = None, after: TableDefinition | None = None) -> str:
    """Return the statement as SQL. before, after: the definitions of the altered table, if they are known."""
    match statement:
        case s.CreateTable():
            return _create(statement)
        case s.DropTable():
            return f"DROP TABLE {'IF EXISTS ' if statement.may_be_missing else ''}{table_name(statement.table)}"
        case s.NoEffect():
            return statement.text
        case s.TableChange():
            exact = _alteration(statement, before, is_exact=True)
            executed = _executed(statement, before, after)
            words = ["ALTER TABLE", table_name(statement.table), executed]
            if exact != executed:
                words.append(_note(exact, "\\*", "\\/"))
            return " ".join(word for word in words if word)
    raise TypeError(f"{statement!r} is not a statement")
