"""Characters: Char, VarChar, Text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tidemark.engine.base import limits
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.types.arrow import compute, is_any, is_string, kinds, longest, strings
from tidemark.engine.types.base import UNKNOWN, ColumnType, register, shown
from tidemark.engine.types.sized import KEY_LENGTH, Padded, Varying, too_long, utf8

if TYPE_CHECKING:
    import pyarrow as pa


def _of_length(array: pa.Array, kind: Char | VarChar) -> Any:
    """Return an array of text, None if a value has too many characters. Raises: TypeMismatch, ArrowInvalid."""
    pc = compute()
    text = strings(array, kind)
    # Count characters only if the size in bytes does not decide it.
    is_long = longest(pc.binary_length(text)) > kind.length and longest(pc.utf8_length(text)) > kind.length
    return None if is_long else text


class _Characters(ColumnType):
    """What types of characters have in common."""

    python = str
    is_text = True
    digest_class = "text"
    has_patterns = True
    comparison_group = "text"

    def compared(self, value: Any) -> bytes:
        return _long_text(value)


def _long_text(value: Any) -> bytes:
    _, octets = utf8(value)
    if len(octets) > limits.LOB_BYTES_MAX:
        raise too_long(limits.LOB_BYTES_MAX, "bytes", octets)
    return octets


@dataclass(frozen=True, repr=False)
class Char(_Characters, Padded):
    """Up to `length` code points in 4 × length bytes of the fixed image; loaded exactly as stored.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("code", tm.Char(4)).type
        Char(4)
    """

    length: int
    length_max: ClassVar[int] = limits.CHAR_LENGTH_MAX
    unit_bytes = 4
    arrow = ("string",)
    is_varying = True
    object_kind = "PADDED_TEXT"

    def stored(self, value: Any) -> bytes:
        octets = self._characters(value)
        if octets.endswith(b"\0"):
            raise ValueOutOfRange(f"cannot keep a NUL at the end of {shown(value)}; use VarChar")
        return octets

    def loaded(self, stored: bytes) -> str:
        return stored.rstrip(b"\0").decode()

    def conform(self, array: pa.Array) -> pa.Array | None:
        text = _of_length(array, self)
        return None if text is None or is_any(compute().ends_with(text, "\0")) else text

    def widens_to(self, other: object) -> bool:
        return isinstance(other, LongText) or (isinstance(other, (Char, VarChar)) and other.length >= self.length)


@dataclass(frozen=True, repr=False)
class VarChar(_Characters, Varying):
    """Up to `length` code points, stored as UTF-8 and compared as bytes.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("name", tm.VarChar(40)).type
        VarChar(40)
    """

    length: int
    length_max: ClassVar[int] = limits.VARCHAR_LENGTH_MAX
    unit_bytes = 4
    arrow = ("string",)
    object_kind = "TEXT"

    def stored(self, value: Any) -> bytes:
        return self._characters(value)

    def loaded(self, stored: bytes) -> str:
        return str(stored, "utf-8")

    def can_become(self, other: object) -> bool:
        return isinstance(other, LongText) or (isinstance(other, VarChar) and other.length >= self.length)

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls(KEY_LENGTH) if is_key and is_string(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        return _of_length(array, self)

    def equal_value(self, value: Any) -> Any:
        found = super().equal_value(value)
        return None if found is UNKNOWN and isinstance(value, str) else found  # too long


@dataclass(frozen=True, repr=False)
class LongText(_Characters):
    """Text of up to 1 GiB of UTF-8."""

    keyable = False
    is_lob = True
    arrow = ("large_string",)
    object_kind = "TEXT"
    object_limits = limits.LOB_BYTES_MAX, 0

    def __repr__(self) -> str:
        return "Text"

    def stored(self, value: Any) -> bytes:
        return _long_text(value)

    def loaded(self, stored: bytes) -> str:
        return str(stored, "utf-8")

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls() if not is_key and (is_string(arrow) or kinds().is_null(arrow)) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        text = strings(array, self)
        return text if longest(compute().binary_length(text)) <= limits.LOB_BYTES_MAX else None


Text = LongText()
register(Char, VarChar, Text)
