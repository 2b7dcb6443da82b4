"""The judge of a batch: the program of its conflict function, with values of the events as parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.applied.applied_rows import Judge
from tidemark.engine.base.column_buffers import primitive
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.lcp_layout import ENTRY_AUTHOR_MASK
from tidemark.replication.conflict.functions import Check, Decision

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.table.table import Table
    from tidemark.replication.applier.batch import ChangeBatch
    from tidemark.replication.applier.epoch_state import EpochState
    from tidemark.replication.applier.key_set import Words
    from tidemark.replication.applier.setups import AppliedTable


def values_of(array: pa.Array) -> Words:
    """Return unsigned numbers of a resolve column as signed words; NULL counts as 0. Shape: (rows,)."""
    import pyarrow as pa

    values = array.cast(pa.uint64())
    if values.null_count:
        values = values.fill_null(0)
    return primitive(values, np.int64)


def judge_of(
    applied: AppliedTable, decision: Decision, batch: ChangeBatch, epoch: EpochState, own_id: int
) -> Judge | None:
    """Return the judge that the decision needs for a batch, None if it needs none. The images must have the resolve
    column, if the judge uses one.
    """
    check = decision.check
    program = applied.program(check)
    if program is None:
        return None
    if check is Check.AUTHOR:
        return Judge(program)
    if check is Check.EPOCH:
        return Judge(program, np.full((1, batch.rows), epoch.frozen, dtype=np.int64))
    image = batch.before if check is Check.EQUAL else batch.after
    assert image is not None and applied.column is not None
    values = values_of(image[applied.column])
    if check is Check.GREATEST:
        return GreatestJudge(program, values, batch, (epoch.source_id, own_id))
    return Judge(program, values.reshape(1, -1))


class GreatestJudge(Judge):
    """TM$GREATEST: if the values are equal, it compares the images with the stored rows, and then the sites."""

    def __init__(self, program: Program, values: Words, batch: ChangeBatch, ids: tuple[int, int]) -> None:
        super().__init__(program)
        self._values = values
        self._batch = batch
        self._source_id, self._own_id = ids
        self.names = list(batch.table.format.names)

    def accepts(self, table: Table, entries: Words, offsets: Words, places: Words) -> Words:
        """See `Judge`; the parameters are computed from the stored rows."""
        rows = decode_entries(table.format, entries, offsets, offsets.size, None)
        image = self._batch.after or {}
        images = compare_rows([image[name].take(places) for name in rows.schema.names], rows.columns)
        authors = entries[offsets - ENTRY_WORDS + 2] & ENTRY_AUTHOR_MASK
        authors = np.where(authors == 0, self._own_id, authors)
        sites = np.sign(self._source_id - authors)
        parameters = np.zeros((3, self._batch.rows), dtype=np.int64)
        parameters[0] = self._values
        parameters[1, places] = images
        parameters[2, places] = sites
        self.parameters = parameters
        return super().accepts(table, entries, offsets, places)


def compare_rows(images: list[pa.Array], rows: list[pa.Array]) -> Words:
    """Return -1, 0 or 1 for each pair of rows, given by column: the first column that differs decides, NULL first. The
    result is the same at every site. Shape: (rows,).
    """
    import pyarrow.compute as pc

    result = np.zeros(len(rows[0]), dtype=np.int64)
    for one, other in zip(images, rows, strict=True):
        one, other = plain(one), plain(other)
        if one.type != other.type:
            one = one.cast(other.type)
        has_one, has_other = _flags(one.is_valid()), _flags(other.is_valid())
        greater, less = (_flags(each(one, other).fill_null(False)) for each in (pc.greater, pc.less))
        part = np.where(has_one & has_other, greater.astype(np.int64) - less, has_one.astype(np.int64) - has_other)
        result = np.where(result == 0, part, result)
    return result


def plain(array: pa.Array) -> pa.Array:
    """Return a column with the text of an Enum."""
    import pyarrow as pa

    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _flags(array: Any) -> Any:
    return array.to_numpy(zero_copy_only=False)
