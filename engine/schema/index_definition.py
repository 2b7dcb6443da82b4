"""Definition of a secondary index: name and columns, checked against its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.names import check_name, no_such_column
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column


@dataclass(frozen=True)
class IndexDefinition:
    """An index: name, and columns in comparison order; valid by construction, but not checked against a table.

    `is_ordered`: whether it has an order; one that is not unique always has.
    """

    name: str
    columns: tuple[str, ...]
    is_unique: bool = False
    is_ordered: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "index", "./\\")
        names: Sequence[str] = (self.columns,) if isinstance(self.columns, str) else self.columns
        if not isinstance(names, Iterable) or not all(isinstance(each, str) for each in names):
            raise SchemaInvalid(f"index {self.name!r} needs a list of column names, got {shown(self.columns)}")
        object.__setattr__(self, "columns", tuple(names))
        for what, value in (("unique", self.is_unique), ("ordered", self.is_ordered)):
            if not isinstance(value, bool):
                raise SchemaInvalid(f"index {self.name!r}: {what} must be True or False, got {shown(value)}")
        object.__setattr__(self, "is_ordered", self.is_ordered or not self.is_unique)
        if not 1 <= len(self.columns) <= limits.INDEX_COLUMNS_MAX or len(set(self.columns)) != len(self.columns):
            raise SchemaInvalid(
                f"index {self.name!r} needs 1 to {limits.INDEX_COLUMNS_MAX} different columns, got {len(self.columns)}"
            )

    @property
    def kind(self) -> str:
        """What it is over, and of which kind, for a message."""
        unique = ", unique" if self.is_unique else ""
        ordered = ", ordered" if self.is_unique and self.is_ordered else ""
        return f"over {', '.join(self.columns)}{unique}{ordered}"

    def check_columns(self, table: str, columns: dict[str, Column]) -> None:
        """Check the columns against a table's. Raises: NoSuchColumn, SchemaInvalid for one that cannot be indexed."""
        for name in self.columns:
            column = columns.get(name)
            if column is None:
                raise no_such_column(table, name, columns)
            if column.is_disk:
                raise SchemaInvalid(
                    f"index {self.name}: {table}.{name} is a disk column and cannot be indexed; keep it in memory",
                    table=table,
                )
            if not column.type.keyable:
                raise SchemaInvalid(
                    f"index {self.name}: {table}.{name} is of type {column.type!r} and cannot be indexed",
                    table=table,
                )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `index_from_json` turns into an equal definition."""
        value = {"columns": list(self.columns), "name": self.name, "unique": self.is_unique}
        if self.is_unique and self.is_ordered:  # other indexes have the same bytes as before there were these
            value["ordered"] = True
        return value


def index_from_json(value: Any) -> IndexDefinition:
    """Return the definition that `IndexDefinition.to_json` described. Raises: SchemaInvalid if the value is not one."""
    try:
        return IndexDefinition(value["name"], tuple(value["columns"]), value["unique"], value.get("ordered", False))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SchemaInvalid(f"not an index: {shown(value)}") from error
