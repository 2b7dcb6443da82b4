"""Definition of a check: its name, and the expression that must not be false for a row, as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.names import check_name, no_such_column
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column

COLUMN_NODE = "Col"


def _text(nodes: Any) -> str:
    return json.dumps(nodes, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, repr=False)
class CheckDefinition:
    """A check: name, and the nodes of its condition as canonical JSON (`engine/programs/expression_nodes.py`), which
    the table's version compiles.
    """

    name: str
    nodes: str

    def __post_init__(self) -> None:
        check_name(self.name, "check")

    def __repr__(self) -> str:
        return f"check {self.name!r} {self.nodes}"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, each once."""
        return tuple(dict.fromkeys(node[2] for node in json.loads(self.nodes) if node[0] == COLUMN_NODE))

    def check_columns(self, table: str, columns: dict[str, Column]) -> None:
        """Check the columns against a table's. Raises: NoSuchColumn; SchemaInvalid for a disk column."""
        for name in self.columns:
            column = columns.get(name)
            if column is None:
                raise no_such_column(table, name, columns)
            if column.is_disk:
                raise SchemaInvalid(
                    f"check {self.name}: {table}.{name} is a disk column and cannot be checked; keep it in memory",
                    table=table,
                    check=self.name,
                )

    def renamed(self, old: str, new: str) -> CheckDefinition:
        """Return the check after a column got another name."""
        if old not in self.columns:
            return self
        column = [COLUMN_NODE, 0, old]
        nodes = [[COLUMN_NODE, 0, new] if node == column else node for node in json.loads(self.nodes)]
        return CheckDefinition(self.name, _text(nodes))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `check_from_json` turns into an equal definition."""
        return {"name": self.name, "nodes": json.loads(self.nodes)}


def check_from_json(value: Any) -> CheckDefinition:
    """Return the definition that `CheckDefinition.to_json` described. Raises: SchemaInvalid if the value is not one."""
    try:
        made = CheckDefinition(value["name"], _text(value["nodes"]))
        if not all(isinstance(name, str) for name in made.columns):
            raise TypeError("columns are named by text")
        return made
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise SchemaInvalid(f"not a check: {shown(value)}") from error
