"""Rows of an exceptions table for a batch of conflicts, as columns, without Python code for each row.

All changes of a batch are of one table and one kind, and their images have the same columns, as in a row event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tidemark.engine.schema.column import ABSENT
from tidemark.replication.settings.exceptions_table import (
    Cause,
    ExceptionsPlan,
    OperationType,
    PlannedColumn,
    Source,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemark.engine.schema.column import Column

    # Values of a column of the main table, one for each conflict; None stands for NULL in arrays of objects.
    Values: TypeAlias = NDArray[Any] | pa.Array
    Images: TypeAlias = Mapping[int, Values]

INVALID_TRANSACTION = 0xFFFF_FFFF_FFFF_FFFF
_NONE = np.array(None, dtype=object)


@dataclass(frozen=True)
class ConflictBatch:
    """Conflicts in order. first_count: running number of the first. causes: numbers of `Cause`, one for each conflict.
    transactions: ids at the source, INVALID_TRANSACTION where none is known.
    """

    server_id: int
    source_server_id: int
    source_epoch: int
    first_count: int
    operation: OperationType
    causes: NDArray[np.int64]
    transactions: NDArray[np.uint64]
    before: Images | None
    after: Images | None

    @property
    def rows(self) -> int:
        return len(self.causes)


def _labels(column: Column, numbers: NDArray[np.int64]) -> NDArray[Any]:
    members = column.type.members
    return np.array(members, dtype=object)[numbers - 1] if members else numbers


def _transactions(column: Column, batch: ConflictBatch) -> NDArray[Any]:
    is_known = (batch.causes == Cause.TRANS_IN_CONFLICT) & (batch.transactions != INVALID_TRANSACTION)
    if not column.nullable:
        return np.where(is_known, batch.transactions, np.uint64(INVALID_TRANSACTION))
    ids = batch.transactions.astype(object)
    ids[~is_known] = None
    return ids


def _image(source: Source, batch: ConflictBatch) -> Images:
    is_delete = batch.operation == OperationType.DELETE_ROW
    if source is Source.OLD:
        image = None if batch.operation == OperationType.WRITE_ROW else batch.before
    elif source is Source.NEW:
        image = None if is_delete else batch.after
    else:
        image = batch.before if is_delete else batch.after
    return image if image is not None else {}


def _given(planned: PlannedColumn, column: Column, batch: ConflictBatch) -> Values | None:
    """Return a column's values, None if the events have none."""
    source, position, rows = planned.source, planned.position, batch.rows
    if source is Source.OP_TYPE:
        return _labels(column, np.full(rows, int(batch.operation), dtype=np.int64))
    if source is Source.CAUSE:
        return _labels(column, batch.causes)
    if source is Source.TRANSACTION:
        return _transactions(column, batch)
    if source is Source.COUNT:
        return np.arange(batch.first_count, batch.first_count + rows, dtype=np.uint64)
    if position is not None:
        images = [_image(source, batch)]
        if source is Source.KEY:  # minimal images omit the key from the after-image
            images += [batch.before or {}, batch.after or {}]
        return next((image[position] for image in images if position in image), None)
    number = {
        Source.SERVER_ID: batch.server_id,
        Source.SOURCE_SERVER_ID: batch.source_server_id,
        Source.SOURCE_EPOCH: batch.source_epoch,
    }.get(source)
    return None if number is None else np.full(rows, number, dtype=np.uint64)


def exceptions_columns(plan: ExceptionsPlan, batch: ConflictBatch) -> dict[str, Values]:
    """Return values by column name, in the order of the exceptions table's columns; Arrow arrays where the images have
    them.

    Shapes: `batch.rows` each.
    """
    columns: dict[str, Values] = {}
    for planned, column in zip(plan.columns, plan.exceptions.columns, strict=True):
        values = _given(planned, column, batch)
        missing = None if column.missing is ABSENT else column.missing
        if values is None:
            values = np.full(batch.rows, missing, dtype=object)
        elif missing is not None and planned.source is not Source.TRANSACTION:
            if not isinstance(values, np.ndarray):
                values = values.fill_null(missing)
            elif values.dtype == object:
                values = np.where(np.equal(values, _NONE), missing, values)
        columns[column.name] = values
    return columns
