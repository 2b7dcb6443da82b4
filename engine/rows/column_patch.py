"""Applying some columns of a batch to existing row images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.column_buffers import NO_WORDS
from tidemark.engine.rows.column_input import Batch
from tidemark.engine.rows.column_output import decode_rows, fixed_images
from tidemark.engine.rows.column_values import conform
from tidemark.engine.rows.columnar import EncodedKeys, EncodedRows, encode_arrays, given, stamp_nulls, write_fixed
from tidemark.engine.rows.row_format import RowFormat, Words
from tidemark.engine.schema.row_layout import DISK_REFERENCE_WORDS

if TYPE_CHECKING:
    import pyarrow as pa


def encode_columns_patch(
    row_format: RowFormat,
    batch: Batch | pa.RecordBatch,
    images: Words,
    offsets_or_stride: Words | int,
    first_row: int = 0,
) -> EncodedRows:
    """Return new images: image i with the values of row i of `batch` (any columns but key columns). The given images
    stay unchanged.

    If no given column is a disk column, the images need no disk part, and the new ones have none. Raises: as
    `encode_rows`, and Rejected for key columns.
    """
    if isinstance(batch, Batch):
        batch, first_row = batch.columns, batch.first_row
    layout = row_format.layout
    given_columns = given(row_format, batch)
    count = batch.num_rows
    places = [place for place in layout.places if place.column.name in given_columns]
    for place in places:
        if place.is_key:
            raise row_format.key_change_refused(place.column.name)
    table = row_format.definition.name
    arrays = {
        place.position: conform(given_columns[place.column.name], place.column, table, first_row) for place in places
    }
    with_disk = row_format.touches_disk(given_columns)
    if not layout.has_var and not with_disk:
        result = fixed_images(row_format, layout, images, offsets_or_stride, count).copy()
        patched = [(place, arrays[place.position]) for place in places]
        write_fixed(result, layout.fixed_words, patched, count)
        for place, array in patched:
            if place.null_mask:
                stamp_nulls(result, layout.fixed_words, place, array, count)
        stride = layout.fixed_words
        if row_format.has_disk:
            result[stride - DISK_REFERENCE_WORDS :: stride] = 0
        return EncodedRows(result, stride, NO_WORDS, EncodedKeys(result, stride, layout.key_words, NO_WORDS, count))
    kept = [place for place in layout.places if place.position not in arrays and (with_disk or not place.is_disk)]
    old = decode_rows(row_format, images, offsets_or_stride, count, [place.column.name for place in kept])
    for place, array in zip(kept, old.columns, strict=True):
        arrays[place.position] = conform(array, place.column, table, first_row, place.is_key)
    return encode_arrays(row_format, arrays, count, first_row, with_disk)
