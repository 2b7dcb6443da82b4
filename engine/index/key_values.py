"""Keys of an ordered index in Python: key words of search values and bounds, and values decoded from key words.

The bits are those of `engine/index/key_words_kernels.py`. A *target* is the search argument of kernels: a place, the
number of key words, and the key words. A bound is a target with a place below or above all places; its key may stop
early, even inside a string.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid, TypeMismatch, ValueOutOfRange
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory.arena_layout import BLOCK_WORDS
from tidemark.engine.rows import columns_layout as c
from tidemark.engine.rows.column_words import column_class, column_place, column_words
from tidemark.engine.types.base import counted, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.row_shape import RowLayout
    from tidemark.engine.types import ColumnType

    Words = NDArray[np.int64]

_WORD_BITS = 64
_SIGN = 1 << 63
_EXACT_BITS = ix.ENTRY_KEY_WORDS_MAX * _WORD_BITS
assert ix.KEY_COLUMNS_MAX == limits.INDEX_COLUMNS_MAX


def _bits_max(column: Column) -> int:
    kind = column.type
    if column_class(kind) == c.CLASS_BYTES:
        bits = 16 * ((kind.width or kind.bytes_max) + 1)
    else:
        bits = 8 * kind.width
    return bits + column.nullable


def _float_bits(value: float, bits: int) -> int:
    if value != value:
        return (1 << bits) - 1
    form = ("<f", "<I") if bits == 32 else ("<d", "<Q")
    number: int = struct.unpack(form[1], struct.pack(form[0], value))[0]
    sign = 1 << (bits - 1)
    if not number & sign:
        return number | sign
    return ~number & ((1 << bits) - 1) if number & ~sign else sign


def _escaped(octets: bytes) -> bytes:
    return octets.replace(b"\0", b"\0\xff")


def _value_bits(kind: ColumnType, class_: int, stored: Any) -> tuple[int, int]:
    """Encode a stored value that is not NULL, of a type and its class; returns (bits, number of bits)."""
    if class_ == c.CLASS_BYTES:
        octets = _escaped(stored.rstrip(b"\0") if kind.width else stored) + b"\0\0"
        return int.from_bytes(octets, "big"), 8 * len(octets)
    bits = 8 * kind.width
    if class_ in (c.CLASS_FLOAT32, c.CLASS_FLOAT64):
        return _float_bits(stored, bits), bits
    number = int.from_bytes(stored, "little", signed=True) if class_ == c.CLASS_WIDE else int(stored)
    if class_ in (c.CLASS_SIGNED, c.CLASS_WIDE):
        number += 1 << (bits - 1)
    return number, bits


class KeyShape:
    """The key columns of an index, and the encoding of their values to key words.

    `words` (W) is the number of key words in an entry; `is_exact`: these are the whole key; `key_words` is the maximum
    number of key words of a whole key.
    """

    def __init__(self, definition: TableDefinition, layout: RowLayout, names: Sequence[str]) -> None:
        """Derive the shape from the names of the key columns, which an index of the definition may have
        (`IndexDefinition.check_columns`). Raises: SchemaInvalid if the key may be too long.
        """
        positions = [definition.position(name) for name in names]
        self.columns = tuple(definition.columns[position] for position in positions)
        self._classes = [column_class(column.type) for column in self.columns]
        bits = sum(map(_bits_max, self.columns))
        column_array, constants = column_words(layout, positions)
        self.places = [column_place(layout, position) for position in positions]
        self.constants: Words = np.frombuffer(bytearray(constants), dtype=np.int64)
        self.is_exact = bits <= _EXACT_BITS
        self.words = -(-bits // _WORD_BITS) if self.is_exact else ix.LONG_KEY_WORDS
        self.key_words = max(self.words, -(-bits // _WORD_BITS), len(self.constants))
        if self.key_words > ix.KEY_WORDS_MAX:
            raise SchemaInvalid(
                f"an index over {', '.join(names)} of {definition.name} would have keys of up to"
                f" {self.key_words * WORD_BYTES} bytes, more than {ix.KEY_WORDS_MAX * WORD_BYTES};"
                " index fewer or shorter columns",
                table=definition.name,
            )
        self._column_words = column_array
        pieces = layout.key_places if layout.key_in_var else ()
        self._pieces = [words_for(place.column.type.width) or -1 for place in pieces]
        self._nullable = sum(column.nullable << number for number, column in enumerate(self.columns))
        # For kernels that work on private memory: the descriptor words about keys, then constants.
        self.descriptor: Words = np.zeros(BLOCK_WORDS + self.constants.size, dtype=np.int64)
        self.descriptor[ix.I_WORDS] = self.words
        self.descriptor[ix.I_KEY_WORDS] = self.key_words
        self.descriptor[ix.I_COLUMN_COUNT] = len(self.columns)
        self.descriptor[ix.I_NULLABLE] = self._nullable
        self.descriptor[ix.I_PIECE_WORDS : ix.I_PIECE_WORDS + len(self._pieces)] = self._pieces
        self.descriptor[ix.I_SIDE] = BLOCK_WORDS
        self.descriptor[ix.I_COLUMNS : ix.I_COLUMNS + column_array.size] = column_array
        self.descriptor[BLOCK_WORDS:] = self.constants

    def answers(self, names: Sequence[str]) -> bool:
        """Whether the values of these columns can be read from entries alone. False for floats: entries lose the sign
        of zero and the bits of a NaN.
        """
        return self.is_exact and self._answered.issuperset(names)

    @cached_property
    def _answered(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns if column.type.is_canonical)

    @cached_property
    def lies_in_fixed(self) -> bool:
        """Whether every column is in the fixed image, so that entries can be written as row images of one size."""
        return bool((self._column_words.reshape(-1, c.COLUMN_WORDS)[:, c.CW_PART] == c.PART_FIXED).all())

    @cached_property
    def whole(self) -> tuple[Words, Words]:
        """The bounds of all keys. They are shared; a scan moves a copy."""
        return self.below(), self.above()

    def descriptor_shape(self, state: int, leaf_entries: int, children: int) -> Words:
        """Return the `shape` argument of the kernel `make_tree`."""
        head = [state, self.words, self.is_exact, leaf_entries, children, self.key_words, self._nullable]
        head += [len(self._pieces), len(self.columns), *self._pieces]
        return np.concatenate([np.array(head, dtype=np.int64), self._column_words])

    # --- targets --------------------------------------------------------------------------------
    def below(self, values: Sequence[Any] = ()) -> Words:
        """Return a bound before every key that begins with these values. Raises: TypeMismatch, ValueOutOfRange."""
        return self._target(*self._bits(values), ix.PLACE_BELOW)

    def above(self, values: Sequence[Any] = ()) -> Words:
        """Return a bound past every key that begins with these values. Raises: TypeMismatch, ValueOutOfRange."""
        return self._target(*self._bits(values), ix.PLACE_ABOVE)

    def around(self, values: Sequence[Any]) -> tuple[Words, Words]:
        """Return the bounds of keys that begin with these values: `below` and `above`."""
        bits = self._bits(values)
        return self._target(*bits, ix.PLACE_BELOW), self._target(*bits, ix.PLACE_ABOVE)

    def starting(self, values: Sequence[Any], start: str | bytes) -> tuple[Words, Words]:
        """Return the bounds of keys that begin with these values, followed by text or bytes that begin with `start`.

        Raises: TypeMismatch, ValueOutOfRange.
        """
        if len(values) >= len(self.columns):
            raise TypeMismatch(f"the index has no column after the first {len(values)}; give fewer values")
        column = self.columns[len(values)]
        if column_class(column.type) != c.CLASS_BYTES:
            raise TypeMismatch(f"{column.name} is of type {column.type!r} and has no prefix to search for")
        number, bits = self._bits(values)
        if column.nullable:
            number, bits = number << 1 | 1, bits + 1
        try:
            octets = start.encode() if isinstance(start, str) else bytes(start)
        except UnicodeEncodeError:
            raise ValueOutOfRange(f"{column.name} holds valid Unicode, got {shown(start)}, a lone surrogate") from None
        low = high = _escaped(octets)
        if column.type.is_padded and len(octets) <= column.type.width and octets.endswith(b"\0"):
            # Padding is not in a key: values that end within the zero bytes of `start` begin with it too.
            low = _escaped(octets.rstrip(b"\0")) + b"\0\0"
        return self._behind(number, bits, low, ix.PLACE_BELOW), self._behind(number, bits, high, ix.PLACE_ABOVE)

    def _behind(self, number: int, bits: int, octets: bytes, place: int) -> Words:
        """Return a target of some bits, followed by bytes."""
        return self._target(number << 8 * len(octets) | int.from_bytes(octets, "big"), bits + 8 * len(octets), place)

    def encode(self, values: Sequence[Any]) -> list[int]:
        """Return the key words of a whole key."""
        target = self.below(values)
        return [int(word) for word in target[ix.TG_KEY : ix.TG_KEY + int(target[ix.TG_WORDS])]]

    def _bits(self, values: Sequence[Any]) -> tuple[int, int]:
        if len(values) > len(self.columns):
            raise TypeMismatch(f"the index takes {counted(len(self.columns), 'value')} at most, got {len(values)}")
        number, bits = 0, 0
        for column, class_, value in zip(self.columns, self._classes, values, strict=False):
            if value is None:
                if column.nullable:
                    number, bits = number << 1, bits + 1
                    continue
                raise TypeMismatch(f"{column.name} is not nullable, got None")
            more, count = _value_bits(column.type, class_, column.type.stored(value))
            if column.nullable:
                number, bits = number << 1 | 1, bits + 1
            number, bits = number << count | more, bits + count
        return number, bits

    def _target(self, number: int, bits: int, place: int) -> Words:
        # A value longer than the longest key equals no key: its first words decide the order.
        over = bits - self.key_words * _WORD_BITS
        if over > 0:
            number, bits = number >> over, bits - over
        count = max(self.words, -(-bits // _WORD_BITS))
        rest = count * _WORD_BITS - bits
        number <<= rest
        if place == ix.PLACE_ABOVE:
            number |= (1 << rest) - 1
        target = np.zeros(ix.TG_KEY + self.key_words + 2, dtype=np.int64)
        target[ix.TG_PLACE] = place
        target[ix.TG_WORDS] = count
        words = target[ix.TG_KEY : ix.TG_KEY + count]
        words[:] = np.frombuffer(number.to_bytes(count * WORD_BYTES, "big"), dtype=">i8")
        words ^= np.int64(-_SIGN)
        return target
