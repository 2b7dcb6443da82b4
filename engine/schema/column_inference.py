"""Columns inferred from an Arrow schema: the inverse of `column_output.arrow_schema`, as far as there is one.

Arrow strings and bytes have no maximum length, so they become Text and Blob. These are not keyable, so columns of the
primary key become VarChar and VarBinary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import NoSuchColumn, SchemaInvalid
from tidemark.engine.schema.column import DISK, MEMORY, Column
from tidemark.engine.types.base import families

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.types import ColumnType


def columns_from_arrow(schema: pa.Schema, primary_key: Sequence[str], disk: Sequence[str] = ()) -> list[Column]:
    """Return a column for every field, nullable like the field except key columns; columns named in `disk` are on disk.

    Raises: NoSuchColumn for a key or disk column the schema lacks, SchemaInvalid for a type no column holds.
    """
    for names, purpose in ((primary_key, "for the primary key"), (disk, "to put on disk")):
        for name in names:
            if name not in schema.names:
                raise NoSuchColumn(
                    f"there is no column {name!r} {purpose}; the columns are {', '.join(schema.names)}", column=name
                )
    return [
        Column(
            field.name,
            _type_of(field, field.name in primary_key),
            field.nullable and field.name not in primary_key,
            storage=DISK if field.name in disk else MEMORY,
        )
        for field in schema
    ]


def _type_of(field: pa.Field, is_key: bool) -> ColumnType:
    import pyarrow as pa

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    for family in families():
        found = family.of_arrow(kind, is_key)
        if found is not None:
            return found
    raise SchemaInvalid(
        f"column {field.name!r} has Arrow type {field.type}, which no column holds; convert it or leave it out",
        column=field.name,
    )
