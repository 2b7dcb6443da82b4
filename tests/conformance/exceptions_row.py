"""A row of an exceptions table, built from the plan of the table and a change that was in conflict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.engine.schema.column import ABSENT
from tidemark.engine.types import Enum as EnumType
from tidemark.replication.applier.exceptions_rows import INVALID_TRANSACTION
from tidemark.replication.settings.exceptions_table import (
    Cause,
    ExceptionsPlan,
    OperationType,
    PlannedColumn,
    Source,
)

Values = Mapping[int, Any]  # values by position of the column in the main table


@dataclass(frozen=True)
class Conflict:
    """A change that was not applied. Images have the values of the event; None for an image that it does not have."""

    server_id: int
    source_server_id: int
    source_epoch: int
    count: int
    operation: OperationType
    cause: Cause
    before: Values | None
    after: Values | None
    transaction: int = INVALID_TRANSACTION


def _image(source: Source, conflict: Conflict) -> Values:
    is_delete = conflict.operation == OperationType.DELETE_ROW
    if source is Source.OLD:
        image = None if conflict.operation == OperationType.WRITE_ROW else conflict.before
    elif source is Source.NEW:
        image = None if is_delete else conflict.after
    else:
        image = conflict.before if is_delete else conflict.after
    return image if image is not None else {}


def _numbered(kind: Any, number: int) -> Any:
    return kind.members[number - 1] if isinstance(kind, EnumType) else number


def _given(planned: PlannedColumn, column: Any, conflict: Conflict) -> Any:
    """Return the value for a column, None if there is none."""
    source = planned.source
    if source is Source.OP_TYPE:
        return _numbered(column.type, conflict.operation)
    if source is Source.CAUSE:
        return _numbered(column.type, conflict.cause)
    if source is Source.TRANSACTION:
        is_known = conflict.cause == Cause.TRANS_IN_CONFLICT and conflict.transaction != INVALID_TRANSACTION
        return conflict.transaction if is_known else None if column.nullable else INVALID_TRANSACTION
    position = planned.position
    if source is Source.KEY and position is not None:
        # Minimal images omit the key from the after-image.
        images = (_image(Source.IMAGE, conflict), conflict.before or {}, conflict.after or {})
        return next((image[position] for image in images if position in image), None)
    if position is not None:
        return _image(source, conflict).get(position)
    return {
        Source.SERVER_ID: conflict.server_id,
        Source.SOURCE_SERVER_ID: conflict.source_server_id,
        Source.SOURCE_EPOCH: conflict.source_epoch,
        Source.COUNT: conflict.count,
    }.get(source)


def exceptions_row(plan: ExceptionsPlan, conflict: Conflict) -> tuple[Any, ...]:
    """Return values in the order of the exceptions table's columns. Where the event has no value, it is the column's
    default, or None.

    The transaction id is set only for TRANS_IN_CONFLICT; otherwise it is None, or the invalid id if the column is not
    nullable.
    """
    row = []
    for planned, column in zip(plan.columns, plan.exceptions.columns, strict=True):
        value = _given(planned, column, conflict)
        if value is None and planned.source is not Source.TRANSACTION:
            value = None if column.missing is ABSENT else column.missing
        row.append(value)
    return tuple(row)
