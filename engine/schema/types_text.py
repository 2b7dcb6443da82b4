"""Column types of characters and bytes: Char, Binary, VarChar, VarBinary, Text, Blob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid, ValueOutOfRange
from tidemark.engine.schema.row_layout import WORD_BYTES, words_for
from tidemark.engine.schema.types_base import ColumnType, is_int, mismatch, plain, shown

if TYPE_CHECKING:
    import pyarrow as pa


class _Sized(ColumnType):
    """A type with a declared length."""

    length: int
    length_max: ClassVar[int]

    def _characters(self, value: Any) -> bytes:
        value, octets = _utf8(value)
        if len(value) > self.length:
            raise _too_long(self.length, "characters", value)
        return octets

    def __post_init__(self) -> None:
        if not is_int(self.length) or not 1 <= self.length <= self.length_max:
            raise SchemaInvalid(
                f"{type(self).__name__} length must be 1 to {self.length_max}, got {shown(self.length)}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.length})"

    def to_json(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "length": self.length}


def _utf8(value: Any) -> tuple[str, bytes]:
    value = plain(value)
    if not isinstance(value, str):
        raise mismatch("a str", value)
    try:
        return value, value.encode()
    except UnicodeEncodeError:
        raise ValueOutOfRange(f"holds valid Unicode, got a lone surrogate in {shown(value)}") from None


def _octets(value: Any, limit: int) -> bytes:
    octets = plain(value)
    if isinstance(octets, (bytearray, memoryview)):
        octets = bytes(octets)
    if not isinstance(octets, bytes):
        raise mismatch("bytes", octets)
    if len(octets) > limit:
        raise _too_long(limit, "bytes", octets)
    return octets


def _too_long(limit: int, unit: str, value: Any) -> ValueOutOfRange:
    return ValueOutOfRange(f"holds {limit} {unit}, got {len(value)}: {shown(value)}")


class _Padded(_Sized):
    """Values of `width` bytes in the fixed image."""

    @property
    def code(self) -> str:  # type: ignore[override]
        return f"{self.width}s"

    @property
    def key_code(self) -> str:  # type: ignore[override]
        return f"{self.width}s{-self.width % WORD_BYTES}x"


class _Varying(_Sized):
    """Values of up to `bytes_max` bytes in the var part."""

    @property
    def key_bytes_max(self) -> int:
        return WORD_BYTES + words_for(self.bytes_max) * WORD_BYTES


@dataclass(frozen=True, repr=False)
class Char(_Padded):
    """Up to `length` code points in 4 × length bytes of the fixed image; loaded exactly as stored.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("code", tm.Char(4)).type
        Char(4)
    """

    length: int
    length_max: ClassVar[int] = limits.CHAR_LENGTH_MAX
    arrow = "string"

    @property
    def width(self) -> int:  # type: ignore[override]
        return 4 * self.length

    def stored(self, value: Any) -> bytes:
        octets = self._characters(value)
        if octets.endswith(b"\0"):
            raise ValueOutOfRange(f"cannot keep a NUL at the end of {shown(value)}; use VarChar")
        return octets

    def loaded(self, stored: bytes) -> str:
        return stored.rstrip(b"\0").decode()


@dataclass(frozen=True, repr=False)
class Binary(_Padded):
    """`length` bytes in the fixed image; shorter values are padded with zero bytes and stay padded when loaded.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("digest", tm.Binary(4), default=b"ab").default.hex()
        '61620000'
    """

    length: int
    length_max: ClassVar[int] = limits.BINARY_LENGTH_MAX
    direct = bytes
    converts = False

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.length

    def stored(self, value: Any) -> bytes:
        return _octets(value, self.length).ljust(self.length, b"\0")

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.binary(self.length)


@dataclass(frozen=True, repr=False)
class VarChar(_Varying):
    """Up to `length` code points, stored as UTF-8 and compared as bytes.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("name", tm.VarChar(40)).type
        VarChar(40)
    """

    length: int
    length_max: ClassVar[int] = limits.VARCHAR_LENGTH_MAX
    arrow = "string"

    @property
    def bytes_max(self) -> int:  # type: ignore[override]
        return 4 * self.length

    def stored(self, value: Any) -> bytes:
        return self._characters(value)

    def loaded(self, stored: bytes) -> str:
        return str(stored, "utf-8")


@dataclass(frozen=True, repr=False)
class VarBinary(_Varying):
    """Up to `length` bytes.

    Raises: SchemaInvalid for a length out of range.

    Examples:
        >>> tm.Column("token", tm.VarBinary(32)).type
        VarBinary(32)
    """

    length: int
    length_max: ClassVar[int] = limits.VARBINARY_LENGTH_MAX
    converts = False
    arrow = "binary"

    @property
    def bytes_max(self) -> int:  # type: ignore[override]
        return self.length

    def stored(self, value: Any) -> bytes:
        return _octets(value, self.length)


@dataclass(frozen=True, repr=False)
class LongText(ColumnType):
    """Text of up to 1 GiB of UTF-8."""

    keyable = False
    is_lob = True
    arrow = "large_string"

    def __repr__(self) -> str:
        return "Text"

    def stored(self, value: Any) -> bytes:
        _, octets = _utf8(value)
        if len(octets) > limits.LOB_BYTES_MAX:
            raise _too_long(limits.LOB_BYTES_MAX, "bytes", octets)
        return octets

    def loaded(self, stored: bytes) -> str:
        return str(stored, "utf-8")


@dataclass(frozen=True, repr=False)
class LongBinary(ColumnType):
    """Up to 1 GiB of bytes."""

    keyable = False
    is_lob = True
    converts = False
    arrow = "large_binary"

    def __repr__(self) -> str:
        return "Blob"

    def stored(self, value: Any) -> bytes:
        return _octets(value, limits.LOB_BYTES_MAX)
