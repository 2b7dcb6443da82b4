"""The comparable parts of two definitions of a table, and their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import NoSuchTable
from tidemark.engine.schema.names import is_system_table, qualified_name

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition


@dataclass(frozen=True)
class Comparable:
    """A table of both sides: the columns both have, in the order of side A; `key` is the primary key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class SchemaDifference:
    """A part of a definition that differs between the sides; `a` and `b` are its values, None if a side lacks it."""

    table: str
    column: str | None
    what: str
    a: str | None
    b: str | None


def chosen_tables(
    a: dict[str, TableDefinition], b: dict[str, TableDefinition], names: Sequence[str] | None
) -> list[str]:
    """Return the names of the tables to compare: `names`, or all but system tables. Raises: NoSuchTable if both sides
    lack one.
    """
    if names is None:
        return sorted(name for name in {*a, *b} if not is_system_table(name))
    found = [name if name in a or name in b else qualified_name(name) for name in names]
    for name in found:
        if name not in a and name not in b:
            raise NoSuchTable(f"table {name} is on neither side; see tables()", table=name)
    return list(dict.fromkeys(found))


def compare_definitions(
    name: str, a: TableDefinition | None, b: TableDefinition | None
) -> tuple[Comparable | None, list[SchemaDifference]]:
    """Return (the comparable part of a table, the differences); no part if a side lacks the table or the keys
    differ.
    """
    if a is None or b is None:
        return None, [
            SchemaDifference(name, None, "table is missing", None if a is None else name, None if b is None else name)
        ]
    found: list[SchemaDifference] = []
    kinds_a = {column.name: column.type for column in a.columns}
    kinds_b = {column.name: column.type for column in b.columns}
    columns = []
    for column in [*kinds_a, *(each for each in kinds_b if each not in kinds_a)]:
        left, right = kinds_a.get(column), kinds_b.get(column)
        if left is None or right is None:
            shown = [None if each is None else repr(each) for each in (left, right)]
            found.append(SchemaDifference(name, column, "column is missing", *shown))
            continue
        if repr(left) != repr(right):
            found.append(SchemaDifference(name, column, "type differs", repr(left), repr(right)))
        if left.digest_class == right.digest_class:
            columns.append(column)
    if a.primary_key != b.primary_key or not set(a.primary_key) <= set(columns):
        keys = [", ".join(each.primary_key) for each in (a, b)]
        found.append(SchemaDifference(name, None, "primary key differs", *keys))
        return None, found
    return Comparable(name, tuple(columns), tuple(a.primary_key)), found
