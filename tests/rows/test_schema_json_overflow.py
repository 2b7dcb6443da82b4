"""Definitions from damaged JSON.

Story: a statement of the binlog whose definition had a Time default of forty digits raised OverflowError from
`datetime`, where SchemaInvalid was promised. The applier would have died of it instead of stopping with a typed error.
"""

from __future__ import annotations

import json

import pytest

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import Int64


@pytest.mark.parametrize("kind", ["Time", "Date", "DateTime", "Timestamp"])
def test_default_beyond_every_number_is_no_definition(kind: str) -> None:
    column = {"default": int("9" * 40), "name": "a", "nullable": False, "storage": "memory", "type": {"type": kind}}
    definition = json.loads(TableDefinition(1, 1, "t", (Column("id", Int64),), ("id",)).to_json())
    definition["columns"].append(column)
    with pytest.raises(SchemaInvalid):
        TableDefinition.from_json(json.dumps(definition).encode())
