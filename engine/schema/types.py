"""Column types: the Python values they take, and how these are stored and loaded.

A type is an immutable value: types with equal parameters compare equal, have one hash and survive
`to_json`/`from_json`. `stored` converts a Python value to its stored form (an int, a float or bytes) or refuses it;
`loaded` is the exact inverse. Nothing is truncated, rounded or guessed; the one exception is Float32, which rounds to
nearest as every database does.

A refusal says only what is wrong with the value; the row format adds table, column and row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from decimal import Decimal as PythonDecimal
from decimal import Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.base.decimals import rescaled, scaled, unscaled
from tidemark.engine.base.errors import SchemaInvalid, ValueOutOfRange
from tidemark.engine.schema.types_base import ColumnType, is_int, mismatch, plain, shown
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

# Any number of this many digits fits a signed 64-bit integer.
DECIMAL_WORD_DIGITS = 18


@dataclass(frozen=True, repr=False)
class Integer(ColumnType):
    """Int8 … Int64, UInt8 … UInt64."""

    bits: int
    signed: bool
    direct = int
    converts = False
    minimum: int = field(init=False, compare=False)
    maximum: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "minimum", -(1 << (self.bits - 1)) if self.signed else 0)
        object.__setattr__(self, "maximum", (1 << (self.bits - self.signed)) - 1)

    def __repr__(self) -> str:
        return f"{'Int' if self.signed else 'UInt'}{self.bits}"

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.bits // 8

    @property
    def code(self) -> str:  # type: ignore[override]
        letter = {8: "b", 16: "h", 32: "i", 64: "q"}[self.bits]
        return letter if self.signed else letter.upper()

    @property
    def key_code(self) -> str:  # type: ignore[override]
        return "Q" if not self.signed and self.bits == 64 else "q"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise mismatch("an int", value)
        if not self.minimum <= value <= self.maximum:
            raise ValueOutOfRange(f"holds {self.minimum} to {self.maximum}, got {shown(value)}")
        return int(value)

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.from_numpy_dtype(np.dtype(f"{'i' if self.signed else 'u'}{self.width}"))


@dataclass(frozen=True, repr=False)
class Floating(ColumnType):
    """Float32, Float64. NaN and infinities are values, except NaN in a key."""

    bits: int
    direct = float
    converts = False

    def __repr__(self) -> str:
        return f"Float{self.bits}"

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.bits // 8

    @property
    def code(self) -> str:  # type: ignore[override]
        return "f" if self.bits == 32 else "d"

    @property
    def key_code(self) -> str:  # type: ignore[override]
        return "f4x" if self.bits == 32 else "d"

    @property
    def integer_max(self) -> int:
        """Integers up to this magnitude are accepted: all of them are exact."""
        return 1 << (24 if self.bits == 32 else 53)

    def stored(self, value: Any) -> float:
        value = plain(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > self.integer_max:
                raise ValueOutOfRange(f"holds integers to {self.integer_max} exactly, got {shown(value)}")
            return float(value)
        if not isinstance(value, float):
            raise mismatch("a float", value)
        if self.bits == 32:
            try:
                struct.pack("<f", value)
            except OverflowError:
                raise ValueOutOfRange(f"holds magnitudes to 3.4e38, got {shown(value)}") from None
        return float(value)

    def stored_key(self, value: Any) -> float:
        number = self.stored(value)
        if number != number:
            raise ValueOutOfRange("is part of the primary key and must not be NaN")
        # Equal values must have equal words: -0.0 + 0.0 is 0.0. Underflow of Float32 can make a -0.0 too.
        return (struct.unpack("<f", struct.pack("<f", number))[0] if self.bits == 32 else number) + 0.0

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.float32() if self.bits == 32 else pa.float64()


@dataclass(frozen=True)
class Decimal(ColumnType):
    """Exact decimal of `precision` digits, `scale` of them after the point; 8 bytes up to 18 digits, else 16.

    Raises: SchemaInvalid for a precision or scale out of range.

    Examples:
        >>> tm.Column("price", tm.Decimal(10, 2)).type
        Decimal(10, 2)
    """

    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        if not is_int(self.precision) or not 1 <= self.precision <= limits.DECIMAL_PRECISION_MAX:
            raise SchemaInvalid(
                f"Decimal precision must be 1 to {limits.DECIMAL_PRECISION_MAX}, got {shown(self.precision)}"
            )
        if not is_int(self.scale) or not 0 <= self.scale <= self.precision:
            raise SchemaInvalid(f"Decimal scale must be 0 to the precision {self.precision}, got {shown(self.scale)}")

    def __repr__(self) -> str:
        return f"Decimal({self.precision}, {self.scale})"

    @property
    def width(self) -> int:  # type: ignore[override]
        return 8 if self.precision <= DECIMAL_WORD_DIGITS else 16

    @property
    def code(self) -> str:  # type: ignore[override]
        return "q" if self.width == 8 else "16s"

    key_code = code

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

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.decimal128(self.precision, self.scale)

    def to_json(self) -> dict[str, Any]:
        return {"type": "Decimal", "precision": self.precision, "scale": self.scale}


@dataclass(frozen=True, repr=False)
class Boolean(ColumnType):
    """True or False; no integers."""

    width = 1
    code = "?"
    key_code = "?7x"
    direct = bool
    converts = False
    arrow = "bool_"

    def __repr__(self) -> str:
        return "Bool"

    def stored(self, value: Any) -> bool:
        value = plain(value)
        if not isinstance(value, bool):
            raise mismatch("a bool", value)
        return value


@dataclass(frozen=True, init=False)
class Enum(ColumnType):
    """One of the listed strings, stored as its position in the list (2 bytes).

    Raises: SchemaInvalid for no member, too many, equal ones, or one that is not a printable str.

    Examples:
        >>> tm.Column("state", tm.Enum("open", "paid"), default="open").default
        'open'
    """

    members: tuple[str, ...]
    places: dict[str, int] = field(init=False, repr=False, compare=False)  # of each member
    width = 2
    code = "H"
    key_code = "q"

    def __init__(self, *members: str) -> None:
        if not 1 <= len(members) <= limits.ENUM_MEMBERS_MAX:
            raise SchemaInvalid(f"Enum needs 1 to {limits.ENUM_MEMBERS_MAX} members, got {len(members)}")
        for member in members:
            if not isinstance(member, str) or not member.isprintable():
                raise SchemaInvalid(f"Enum members must be printable str, got {shown(member)}")
        if len(set(members)) != len(members):
            raise SchemaInvalid(f"Enum members must differ from each other, got {shown(members)}")
        # A member of an `enum` of texts is its value: `str` would give its name.
        object.__setattr__(self, "members", tuple(str.__str__(member) for member in members))
        object.__setattr__(self, "places", {member: place for place, member in enumerate(self.members)})

    def __repr__(self) -> str:
        return f"Enum({', '.join(map(repr, self.members))})"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, str):
            raise mismatch("a str", value)
        place: int | None = self.places.get(value)
        if place is None:
            raise ValueOutOfRange(f"holds one of {len(self.members)} members, got {shown(value)}")
        return place

    def loaded(self, stored: int) -> str:
        return self.members[stored]

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.dictionary(pa.int32(), pa.string())

    def to_json(self) -> dict[str, Any]:
        return {"type": "Enum", "members": list(self.members)}


Int8 = Integer(8, True)
Int16 = Integer(16, True)
Int32 = Integer(32, True)
Int64 = Integer(64, True)
UInt8 = Integer(8, False)
UInt16 = Integer(16, False)
UInt32 = Integer(32, False)
UInt64 = Integer(64, False)
Float32 = Floating(32)
Float64 = Floating(64)
Bool = Boolean()
Text = LongText()
Blob = LongBinary()
Date = Calendar("Date")
Time = Calendar("Time")
DateTime = Calendar("DateTime")
Timestamp = Calendar("Timestamp")

_PLAIN_TYPES: dict[str, ColumnType] = {
    repr(each): each
    for each in (
        *(Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64, Bool),
        *(Text, Blob, Date, Time, DateTime, Timestamp),
    )
}
_SIZED_TYPES = {each.__name__: each for each in (Char, VarChar, Binary, VarBinary)}


def from_json(value: Any) -> ColumnType:
    """Return the type that `ColumnType.to_json` described. Raises: SchemaInvalid if there is no such type."""
    if isinstance(value, dict):
        kind = value.get("type")
        if kind in _PLAIN_TYPES:
            return _PLAIN_TYPES[kind]
        if kind in _SIZED_TYPES:
            return _SIZED_TYPES[kind](value.get("length", 0))
        if kind == "Decimal":
            return Decimal(value.get("precision", 0), value.get("scale", -1))
        if kind == "Enum" and isinstance(value.get("members"), list):
            return Enum(*value["members"])
    raise SchemaInvalid(f"not a column type: {shown(value)}")


def stored_limits(kind: ColumnType) -> tuple[int, int] | None:
    """Return the least and greatest stored number of a type; None for floats and types that are not numbers."""
    if isinstance(kind, (Integer, Calendar)):
        return kind.minimum, kind.maximum
    if isinstance(kind, Decimal):
        most = int(10**kind.precision) - 1
        return -most, most
    if isinstance(kind, Boolean):
        return 0, 1
    return (0, len(kind.members) - 1) if isinstance(kind, Enum) else None


def value_to_json(stored: Any) -> Any:
    """Return the JSON of a stored value that is not None, for `value_from_json`. Bytes and floats are in hexadecimal:
    JSON has neither bytes nor NaN, and hexadecimal floats are exact.
    """
    return stored.hex() if isinstance(stored, (bytes, float)) else stored


def value_from_json(kind: ColumnType, value: Any) -> Any:
    """Return the Python value that `value_to_json` wrote for a column type, None for null. Raises: ValueError,
    TypeError.
    """
    if value is None:
        return None
    if isinstance(kind, Floating):
        return float.fromhex(value)
    if not isinstance(value, str):
        return kind.loaded(value)
    data = bytes.fromhex(value)
    if isinstance(kind, Decimal) and len(data) != kind.width:
        raise ValueError(f"{kind!r} has {kind.width} bytes, got {len(data)}")
    return kind.loaded(data)
