"""Plans by which values of row images are verified (`values_layout.py`), from the layout of a table's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.rows import values_layout as v
from tidemark.engine.schema.row_layout import DISK_REFERENCE_WORDS
from tidemark.engine.schema.row_shape import FIXED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.schema.row_shape import PartLayout, Place, RowLayout

    Words = NDArray[np.int64]

_WORD_MASK = (1 << 64) - 1


class ValuesPlan:
    """How images of one layout are verified. `places` are the columns by their number in the plan."""

    def __init__(self, layout: RowLayout, with_disk: bool) -> None:
        """with_disk: images have a disk part."""
        disk = layout.disk if with_disk else None
        keys = layout.key_places if layout.key_in_var else ()
        kinds: list[Sequence[Place]] = [layout.fixed_places, keys, layout.var_places]
        kinds += [(), ()] if disk is None else [disk.fixed_places, disk.var_places]
        self.places: list[Place] = [place for places in kinds for place in places]
        words = np.zeros(v.VP_WORDS + len(self.places) * v.VC_WORDS, dtype=np.int64)
        words[v.VP_FIXED_WORDS] = layout.fixed_words
        words[v.VP_HAS_VAR] = layout.has_var
        words[v.VP_KEY_WORDS] = 0 if layout.key_in_var else layout.key_words
        words[v.VP_FIXED : v.VP_DISK_VAR + 1] = list(map(len, kinds))
        reference = 0 if layout.disk is None else DISK_REFERENCE_WORDS
        words[v.VP_TAIL : v.VP_DISK_TAIL] = _tail(layout, layout.fixed_words - reference)
        if disk is not None:
            words[v.VP_DISK_WORDS] = disk.fixed_words
            words[v.VP_DISK_HAS_VAR] = disk.has_var
            words[v.VP_DISK_TAIL : v.VP_WORDS] = _tail(disk, disk.fixed_words)
        for number, place in enumerate(self.places):
            at = v.VP_WORDS + number * v.VC_WORDS
            words[at : at + v.VC_WORDS] = _column(place)
        self.words: Words = words


def _tail(layout: PartLayout, fixed_words: int) -> list[int]:
    begin = layout.null_offset + layout.null_bytes
    nullable = sum(place.null_mask != 0 for place in layout.fixed_places)
    last = begin - 1 if layout.null_bytes else -1
    return [begin, fixed_words * WORD_BYTES, last, 0xFF & -1 << nullable % 8 if nullable % 8 else 0]


def _column(place: Place) -> list[int]:
    kind = place.column.type
    is_fixed = place.part == FIXED
    width = kind.width or kind.bytes_max
    room = kind.key_bytes_max if place.is_key else kind.width
    if place.is_key and kind.key_code in ("q", "Q"):
        width = WORD_BYTES  # sign-extended
    if kind.value_class == "BYTES" and not is_fixed:
        room = room if place.is_key and kind.width else 0  # as long as the value
    rule, low, high = _rule(place, width)
    may_null = place.column.nullable or place.is_dropped
    return [
        place.offset if is_fixed else 0,
        -1 if kind.is_lob else width,
        room,
        rule,
        low,
        high,
        place.null_offset,
        place.null_mask if is_fixed else int(may_null and not place.is_key),
        # Rows from before it was added lack it; a column of the first version is in every row.
        int(place.column.added > 0),
        kind.characters_max,
    ]


def _rule(place: Place, width: int) -> tuple[int, int, int]:
    """Return the rule of a column, whose values take `width` bytes, and its bounds."""
    kind = place.column.type
    limits = kind.stored_range
    if limits is not None:
        least, most = limits
        if width > WORD_BYTES:
            low = most & _WORD_MASK
            return v.RULE_WIDE, most >> 64, low - (low >> 63 << 64)
        is_any = most - least == (1 << 8 * width) - 1
        return (v.RULE_ANY, 0, 0) if is_any else (v.RULE_RANGE, least, most)
    if place.is_key and not kind.is_canonical:
        return v.RULE_KEY_FLOAT, 0, 0
    if kind.is_text:
        return v.RULE_TEXT, 0, 0
    if kind.is_padded and place.part != FIXED and not place.is_key:
        return v.RULE_PADDED, 0, 0
    return v.RULE_ANY, 0, 0
