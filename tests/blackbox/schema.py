"""What a store must do when its schema changes; see `model`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from tests.blackbox.kinds import ABSENT, Kind, Refused, Unsure, order
from tests.blackbox.model import TOP, Col, Index, Table


@dataclass
class State:
    """All tables by name."""

    tables: dict[str, Table] = field(default_factory=dict)
    tablespaces: set[str] = field(default_factory=set)

    def copy(self) -> State:
        return State({name: table.copy() for name, table in self.tables.items()}, set(self.tablespaces))

    def table(self, name: str) -> Table:
        """Raises: Refused."""
        if name not in self.tables:
            raise Refused("NoSuchTable")
        return self.tables[name]

    def create_table(self, name: str, columns: list[Col], key: tuple[str, ...], partition: Any = None) -> None:
        names = [each.name for each in columns]
        if name in self.tables:
            raise Refused("TableExists")
        if len(set(names)) != len(names) or not set(key) <= set(names):
            raise Refused("SchemaInvalid")
        if any(each.disk for each in columns):
            self.tablespaces.add("main")
        self.tables[name] = Table(list(columns), tuple(key), partition, had_disk=any(each.disk for each in columns))

    def drop_table(self, name: str) -> None:
        self.table(name)
        del self.tables[name]

    def rename(self, name: str, to: str) -> None:
        table = self.table(name)
        if to in self.tables and to != name:
            raise Refused("TableExists")
        if to == name:
            raise Unsure
        del self.tables[name]
        self.tables[to] = table

    def add_column(self, name: str, column: Col) -> None:
        table = self.table(name)
        if column.name in table.names:
            raise Refused("SchemaInvalid")
        if column.disk:
            raise Refused("Unsupported")
        if column.missing == ABSENT:
            raise Refused("SchemaInvalid")
        table.columns.append(column)
        table.rows = {key: (*row, column.missing) for key, row in table.rows.items()}

    def drop_column(self, name: str, column: str) -> None:
        table = self.table(name)
        table.column(column)
        if column in table.key or column in table.index_columns():
            raise Refused("SchemaInvalid")
        place = table.names.index(column)
        del table.columns[place]
        table.rows = {key: (*row[:place], *row[place + 1 :]) for key, row in table.rows.items()}

    def rename_column(self, name: str, old: str, new: str) -> None:
        table = self.table(name)
        place = table.names.index(table.column(old).name)
        if new in table.names:
            raise Refused("SchemaInvalid")

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new if each == old else each for each in names)

        table.columns[place] = replace(table.columns[place], name=new)
        table.key = renamed(table.key)
        table.indexes = {name: index._replace(columns=renamed(index.columns)) for name, index in table.indexes.items()}
        if table.partition is not None and table.partition[0] in ("range", "list"):
            rule, by, parts = table.partition
            table.partition = (rule, new if by == old else by, parts)

    def set_default(self, name: str, column: str, default: Any = ABSENT) -> None:
        table = self.table(name)
        found = table.column(column)
        if default is None and not found.nullable:
            raise Refused("SchemaInvalid")
        if default is not None and default != ABSENT:
            try:
                default = found.kind.take(default)
            except Refused:
                raise Refused("SchemaInvalid") from None
            if column in table.key and found.kind.is_float:
                raise Unsure
        table.columns[table.names.index(column)] = replace(found, default=default)

    def widen_column(self, name: str, column: str, kind: Kind) -> None:
        table = self.table(name)
        found = table.column(column)
        if not _is_wider(found.kind, kind):
            raise Refused("SchemaInvalid")
        if column in table.key:
            if not _has_same_keys(found.kind, kind) or column in _deciding(table):
                raise Refused("Unsupported")
        elif found.disk:
            raise Refused("Unsupported")
        if column in table.index_columns() and not kind.is_keyable:
            raise Refused("SchemaInvalid")
        place = table.names.index(column)
        given = found.default in (None, ABSENT)
        table.columns[place] = replace(found, kind=kind, default=found.default if given else kind.take(found.default))
        for key, row in table.rows.items():
            if row[place] is not None:
                table.rows[key] = (*row[:place], kind.take(row[place]), *row[place + 1 :])

    def add_partition(self, name: str, partition: str, bound: Any) -> None:
        table = self.table(name)
        if table.partition is None or table.partition[0] not in ("range", "list"):
            raise Refused("SchemaInvalid")
        rule, by, parts = table.partition
        if partition in [each for each, _ in parts]:
            raise Refused("SchemaInvalid")
        kind = table.column(by).kind
        try:
            for each in bound if rule == "list" else [bound]:
                if each != TOP:
                    kind.take(each, True)
        except (Refused, TypeError):
            raise Refused("SchemaInvalid") from None
        if rule == "range":
            last = parts[-1][1]
            if last == TOP or (bound != TOP and not order(last) < order(bound)):
                raise Refused("SchemaInvalid")
        else:
            taken = [order(each) for _, listed in parts for each in listed]
            given = [order(each) for each in bound]
            if len({*taken, *given}) < len(taken) + len(given):
                raise Refused("SchemaInvalid")
        table.partition = (rule, by, [*parts, (partition, bound)])

    def drop_partition(self, name: str, partition: str) -> None:
        table = self.table(name)
        if table.partition is None or table.partition[0] not in ("range", "list"):
            raise Refused("SchemaInvalid")
        rule, by, parts = table.partition
        if partition not in [each for each, _ in parts]:
            raise Refused("NoSuchPartition")
        if len(parts) == 1:
            raise Refused("SchemaInvalid")
        table.rows = {
            key: row for key, row in table.rows.items() if table.partition_of(table.as_dict(row)) != partition
        }
        table.partition = (rule, by, [each for each in parts if each[0] != partition])

    def create_index(
        self, name: str, index: str, columns: tuple[str, ...], unique: bool = False, ordered: bool = False
    ) -> None:
        table = self.table(name)
        if index in table.indexes:
            raise Refused("IndexExists")
        wrong: set[str] = set()
        for each in columns:
            if each not in table.names:
                wrong.add("NoSuchColumn")
            elif table.column(each).disk or not table.column(each).kind.is_keyable:
                wrong.add("SchemaInvalid")
        if wrong:
            raise Refused(*wrong)
        if unique:
            keys = [table.unique_key(tuple(columns), table.as_dict(row)) for row in table.rows.values()]
            keys = [each for each in keys if each is not None]
            if len(set(keys)) < len(keys):
                raise Refused("DuplicateKey")
        table.indexes[index] = Index(tuple(columns), unique, ordered or not unique)

    def drop_index(self, name: str, index: str) -> None:
        table = self.table(name)
        if index not in table.indexes:
            raise Refused("NoSuchIndex")
        del table.indexes[index]


def _is_wider(before: Kind, after: Kind) -> bool:
    if before == after:
        return True
    if before.is_integer and after.is_integer:
        (least, most), (low, high) = before.bounds(), after.bounds()
        return low <= least and most <= high
    if before.name == "Float32":
        return after.name == "Float64"
    if before.name == "Char":
        return after.name == "Text" or (after.name in ("Char", "VarChar") and after.a >= before.a)
    if before.name in ("VarChar", "VarBinary"):
        long = {"VarChar": "Text", "VarBinary": "Blob"}[before.name]
        return after.name == long or (after.name == before.name and after.a >= before.a)
    if before.name == "Enum":
        return after.name == "Enum" and after.members[: len(before.members)] == before.members
    if before.name == "Decimal" and after.name == "Decimal":
        return after.b >= before.b and after.a - after.b >= before.a - before.b
    return False


def _has_same_keys(before: Kind, after: Kind) -> bool:
    """Whether keys of a wider type have the bytes of those of the type."""
    if before.is_integer or before.name == "Enum":
        return True
    if before.name == "Decimal":
        return before.b == after.b and (before.a <= 18) == (after.a <= 18)
    return before.name in ("VarChar", "VarBinary") and after.name == before.name


def _deciding(table: Table) -> Collection[str]:
    """The columns of the key whose type the rule of partitions has."""
    if table.partition is None:
        return ()
    rule, by, _ = table.partition
    if by is None:
        return () if rule == "hash" else table.key
    names = [by] if isinstance(by, str) else list(by)
    if not set(names) <= set(table.key):
        raise Unsure  # renamed since
    return names
