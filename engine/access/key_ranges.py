"""Ranges of the keys of an ordered index, as targets of its tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import LOWEST

if TYPE_CHECKING:
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.memory.arena import Words


# Less and greater than every word of a key.
_BELOW_ALL = LOWEST - 1
_ABOVE_ALL = ~LOWEST + 1


class Bounds(NamedTuple):
    """Both ends of a range of keys, as targets of the tree; keys between them are in it."""

    low: Words
    high: Words


class KeyRange:
    """Keys from `lower` on and before `upper`, or keys that begin with `prefix`; both ends as targets of the tree.

    A bound is one value or a tuple of values of leading columns; fewer than all columns stand for every key that begins
    with them. `lower` is in the range, `upper` is not. A `prefix` that is a str or bytes is a prefix of the first
    column's values; a tuple is equal values of the leading columns.
    """

    def __init__(self, shape: KeyShape, lower: Any = None, upper: Any = None, prefix: Any = None) -> None:
        """Encode both ends. Raises: SchemaInvalid, TypeMismatch, ValueOutOfRange."""
        self._shape = shape
        self.is_whole = prefix is lower is upper is None
        if self.is_whole:
            self.low, self.high = shape.whole
            return
        if prefix is not None:
            if lower is not None or upper is not None:
                raise SchemaInvalid("an index scan has a prefix, or lower and upper; give one or the other")
            if isinstance(prefix, (str, bytes)):
                self.low, self.high = shape.starting((), prefix)
            else:
                self.low, self.high = shape.below(_values(prefix)), shape.above(_values(prefix))
            return
        self.low = shape.below(() if lower is None else _values(lower))
        self.high = shape.above() if upper is None else shape.below(_values(upper))

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether a whole key, given by its values, is in the range."""
        key = self._shape.encode(values)
        return _follows(key, self.low) and not _follows(key, self.high)

    def common(self, bounds: Bounds) -> Bounds:
        """Return the keys that are in this range and in another."""
        if self.is_whole:
            return bounds
        return Bounds(max(self.low, bounds.low, key=place_of), min(self.high, bounds.high, key=place_of))


def place_of(bound: Words) -> list[int]:
    """Return what sorts bounds of one index: a bound is below all keys that begin with its words, or above them."""
    words: list[int] = bound[ix.TG_KEY : ix.TG_KEY + int(bound[ix.TG_WORDS])].tolist()
    return [*words, _BELOW_ALL if int(bound[ix.TG_PLACE]) == ix.PLACE_BELOW else _ABOVE_ALL]


def _follows(key: list[int], bound: Words) -> bool:
    place = place_of(bound)
    return key + [LOWEST] * (len(place) - len(key)) > place


def _values(given: Any) -> Sequence[Any]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)
