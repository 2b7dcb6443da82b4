"""Whether the values of a column stay what they are when the server gives it another type.

MODIFY changes rows at the server, and no event says so. The rows are here, as they were before the statement; so the
column is read, and the change is made only if the new type holds each value as it is. Where the new type holds all
values of the column's type here, no row is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries, scan
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.column import Column
from tidemark.replication.ingest.source_types import SOURCE_TYPES
from tidemark.replication.sql.server_types import GEOMETRIES, ServerType
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.statements import ChangeColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table


def check_kept(table: Table, there: Column, step: ChangeColumn, session: Session) -> None:
    """Check that the values of a column, `there`, survive its new type at the server. Raises: Unsupported, naming the
    first value that changes.
    """
    wanted, served, is_numbered = step.column, step.served, step.is_numbered
    if served is None:
        return
    source_type = SOURCE_TYPES[type(there.type)]
    changes = [] if served == step.was else source_type.changes(there.type, served, step.was, session)
    if served != step.was and served.word in GEOMETRIES:  # which a server checks
        changes.insert(0, lambda values: True)
    if is_numbered and not session.keeps_zero_numbers:
        changes.append(lambda values: values == 0)
    refuses_null = there.nullable and (not wanted.nullable or is_numbered or not wanted.has_default)
    if not changes and not refuses_null:
        return
    for batch in scan(table, None, columns=[there.name]):
        decoded = decode_entries(table.format, batch.entries, batch.offsets, batch.count, [there.name])
        column = decoded.column(0)
        if refuses_null and column.null_count:
            raise _changed(table, there, served, "NULL")
        values = column.drop_null()
        for each in changes:
            first = _first(each(source_type.compared(there.type, values)), values)
            if first is not None:
                raise _changed(table, there, served, repr(first))


def _changed(table: Table, column: Column, served: ServerType, value: str) -> Unsupported:
    return Unsupported(
        f"{table.name}.{column.name} has the value {value[:80]}, and what the server makes of it in a column of type"
        f" {served.text} is in no event; copy the table anew, or make the same change of rows here",
        table=table.name,
        column=column.name,
    )


def _first(changes: Any, values: pa.Array) -> Any:
    found = np.flatnonzero(np.broadcast_to(changes, len(values)))
    return values[int(found[0])].as_py() if len(found) else None
