"""Whether images of rows break a check of their table, asked before a transaction has them (ADR 0039)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import CheckFailed
from tidemark.engine.memory.arena_layout import ENTRY_WORDS

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.checks import Checks
    from tidemark.engine.programs.running import Judged
    from tidemark.engine.rows.row_format import RowFormat

_SHOWN = 60  # characters of a value in a message
_BEFORE_IMAGE: Words = np.zeros(ENTRY_WORDS, dtype=np.int64)  # what programs find before an image that is read


def refuse_broken(
    table: Judged, checks: Checks, images: Words, offsets: Words, count: int, first_row: int | None
) -> None:
    """Refuse images of which one breaks a check. offsets: of each; empty: they are consecutive, of equal size.
    first_row: as of `put_each`. Raises: CheckFailed.
    """
    starts = offsets[:count] if offsets.size else np.arange(count, dtype=np.int64) * table.format.fixed_words
    entries = np.concatenate([_BEFORE_IMAGE, images])
    places = np.ascontiguousarray(starts) + ENTRY_WORDS
    found = checks.broken(table, entries, places)
    if found.size:
        row = int(found[0])
        raise check_failed(table, checks, entries, int(places[row]), None if first_row is None else first_row + row)


def check_failed(table: Judged, checks: Checks, entries: Words, at: int, row: int | None = None) -> CheckFailed:
    """Return the error for a row that breaks a check. at: of its image. row: its position in a batch."""
    check, why = checks.reason(table, entries, at)
    key, values, text = described(table.format, entries, at, check.columns)
    what = f"check {check.name} cannot be evaluated ({why})" if why else f"check {check.name} is false"
    place = "" if row is None else f"row {row}, "
    where = f"{place}the row with key {table.format_key(key)}, where {text}"
    return CheckFailed(
        f"{table.name}: {what} for {where}; nothing was changed, give other values",
        table=table.name,
        check=check.name,
        key=key,
        values=values,
        row=row,
    )


def described(
    row_format: RowFormat, entries: Words, at: int, columns: Sequence[str]
) -> tuple[Any, dict[str, Any], str]:
    """Return the key of a row, the values of some columns, and these as text. at: of its image."""
    key = row_format.decode_key(row_format.image_key(entries[at:]))
    view = np.ascontiguousarray(entries).data.cast("B")
    values = dict(zip(columns, row_format.decode_columns(view, at, columns), strict=True))
    return key, values, ", ".join(f"{name} is {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    text = repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
