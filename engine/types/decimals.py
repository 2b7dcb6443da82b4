"""Exact decimals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal as PythonDecimal
from decimal import Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base import limits
from tidemark.engine.base.column_buffers import build_fixed, primitive
from tidemark.engine.base.decimals import rescaled, scaled, unscaled
from tidemark.engine.base.errors import SchemaInvalid, ValueOutOfRange
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.types.arrow import compute, is_any, kinds
from tidemark.engine.types.base import ColumnType, is_int, mismatch, plain, register, shown
from tidemark.engine.types.integers import Exact

if TYPE_CHECKING:
    import pyarrow as pa

# Any number of this many digits fits a signed 64-bit integer.
DECIMAL_WORD_DIGITS = 18
# Powers of ten in Arrow's tables for 128 bits and for 256.
_ARROW_DIGITS = 38
_ARROW_DIGITS_WIDE = 76
# Text that Arrow must not parse as a decimal: exponents, and more digits in a row than it has powers of ten. Of
# hundreds before the point it would take the lowest 128 bits.
_UNUSUAL_NUMBER = rf"[^-+.0-9]|[0-9]{{{_ARROW_DIGITS + 1}}}"


@dataclass(frozen=True)
class Decimal(Exact):
    """Exact decimal of `precision` digits, `scale` of them after the point; 8 bytes up to 18 digits, else 16.

    Raises: SchemaInvalid for a precision or scale out of range.

    Examples:
        >>> tm.Column("price", tm.Decimal(10, 2)).type
        Decimal(10, 2)
    """

    precision: int
    scale: int = 0
    python = PythonDecimal
    parsed = ("string",)  # Arrow would write out all digits, whatever the exponent

    def __post_init__(self) -> None:
        if not is_int(self.precision) or not 1 <= self.precision <= limits.DECIMAL_PRECISION_MAX:
            raise SchemaInvalid(
                f"Decimal precision must be 1 to {limits.DECIMAL_PRECISION_MAX}, got {shown(self.precision)}"
            )
        if not is_int(self.scale) or not 0 <= self.scale <= self.precision:
            raise SchemaInvalid(f"Decimal scale must be 0 to the precision {self.precision}, got {shown(self.scale)}")
        is_word = self.precision <= DECIMAL_WORD_DIGITS
        most = int(10**self.precision) - 1
        self._answer(
            width=8 if is_word else 16,
            code="q" if is_word else "16s",
            key_code="q" if is_word else "16s",
            value_class="SIGNED" if is_word else "WIDE",
            stored_range=(-most, most),
            digest_class=f"decimal of scale {self.scale}",
            arrow=("decimal128", self.precision, self.scale),
            object_kind="DECIMAL" if is_word else "WIDE_DECIMAL",
            object_limits=(self.scale, self.precision),
        )

    def __repr__(self) -> str:
        return f"Decimal({self.precision}, {self.scale})"

    def stored(self, value: Any) -> int | bytes:
        value = plain(value)
        if isinstance(value, PythonDecimal):
            number = unscaled(self.exact(value), self.scale)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value * 10**self.scale
            if abs(number) >= 10**self.precision:
                raise self._too_large(value)
        else:
            raise mismatch("a Decimal", value)
        return number if self.width == 8 else number.to_bytes(16, "little", signed=True)

    def exact(self, value: PythonDecimal) -> PythonDecimal:
        """Return the same number with `scale` digits after the point. Raises: ValueOutOfRange."""
        if not value.is_finite():
            raise ValueOutOfRange(f"holds finite numbers, got {shown(value)}")
        try:
            return rescaled(value, self.precision, self.scale)
        except InvalidOperation:
            raise self._too_large(value) from None
        except Inexact:
            raise ValueOutOfRange(f"holds {self.scale} digits after the point, got {shown(value)}") from None

    def _too_large(self, value: Any) -> ValueOutOfRange:
        return ValueOutOfRange(f"holds {self.precision - self.scale} digits before the point, got {shown(value)}")

    def loaded(self, stored: Any) -> PythonDecimal:
        return scaled(stored if self.width == 8 else int.from_bytes(stored, "little", signed=True), self.scale)

    def sort_key(self, stored: Any) -> int:
        return int.from_bytes(stored, "little", signed=True) if isinstance(stored, bytes) else stored

    def can_become(self, other: object) -> bool:
        if not isinstance(other, Decimal) or other.precision < self.precision:
            return False
        return (other.width, other.scale) == (self.width, self.scale)

    def widens_to(self, other: object) -> bool:
        if not isinstance(other, Decimal) or other.scale < self.scale:
            return False
        return other.precision - other.scale >= self.precision - self.scale

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        if not kinds().is_decimal(arrow) or arrow.precision > limits.DECIMAL_PRECISION_MAX or arrow.scale < 0:
            return None
        return cls(arrow.precision, arrow.scale)

    def operand(self, stored: Any) -> int:
        return stored if self.width == 8 else int.from_bytes(stored, "little", signed=True)

    def of_operand(self, operand: int) -> PythonDecimal:
        return scaled(operand, self.scale)

    def array_from(self, values: Sequence[Any]) -> pa.Array | None:
        # Arrow writes out all digits, or reads past a table, before it checks the exponent.
        values = [None if value is None else self.exact(value) for value in values]
        return super().array_from(values)

    def conform(self, array: pa.Array) -> pa.Array:
        import pyarrow as pa

        if pa.types.is_integer(array.type):
            # Twenty digits hold every 64-bit integer.
            array = array.cast(pa.decimal128(20, 0))
        elif not pa.types.is_decimal(array.type) or self._is_beyond_arrow(array.type):
            raise self.wrong_arrow(array)
        result = array.cast(self.arrow_type())
        result.validate(full=True)  # no value has more digits; a reader of Arrow may not have checked it
        return result

    def _is_beyond_arrow(self, source: pa.DataType) -> bool:
        """Whether rescaling this type would make Arrow read past its table of powers of ten, which it does not
        check.
        """
        powers = _ARROW_DIGITS_WIDE if source.bit_width > 128 else _ARROW_DIGITS
        return bool(abs(source.scale - self.scale) > powers)

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        values = primitive(array, np.int64, 2)
        return np.ascontiguousarray(values[::2]) if self.width == WORD_BYTES else values

    def array_of(self, values: NDArray[Any], count: int, bitmap: Any, nulls: int) -> pa.Array:
        if self.width == WORD_BYTES:
            words = np.empty((count, 2), np.int64)
            words[:, 0] = values
            words[:, 1] = values >> 63
            values = words.reshape(-1)
        return build_fixed(self.arrow_type(), count, values, bitmap, nulls)

    def to_json(self) -> dict[str, Any]:
        return {"type": "Decimal", "precision": self.precision, "scale": self.scale}

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> ColumnType:
        return cls(given.get("precision", 0), given.get("scale", -1))

    def value_of_json(self, value: Any) -> PythonDecimal:
        if not isinstance(value, str):
            return self.loaded(value)
        data = bytes.fromhex(value)
        if len(data) != self.width:
            raise ValueError(f"{self!r} has {self.width} bytes, got {len(data)}")
        return self.loaded(data)


def decimals_of_text(array: pa.Array, kind: Decimal) -> pa.Array:
    """Convert numbers given as text to the Arrow type of a column. Raises: ValueOutOfRange with the `row`."""
    import pyarrow as pa

    if not is_any(compute().match_substring_regex(array, _UNUSUAL_NUMBER)):
        try:
            return array.cast(kind.arrow_type())
        except pa.ArrowInvalid:
            pass
    values: list[PythonDecimal | None] = []
    for row, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else kind.exact(PythonDecimal(text.strip())))
        except InvalidOperation:
            raise ValueOutOfRange(f"holds numbers, got {shown(text)}", row=row) from None
        except ValueOutOfRange as error:
            raise ValueOutOfRange(error.message, row=row) from None
    return pa.array(values, kind.arrow_type())


register(Decimal)
