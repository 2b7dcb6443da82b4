"""The base of all column types, and how values are shown in messages."""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import build_fixed, build_variable, variable
from tidemark.engine.base.errors import InvariantBroken, PageDamaged, Rejected, SchemaInvalid, TypeMismatch
from tidemark.engine.base.words_layout import WORD_BYTES, words_for

if TYPE_CHECKING:
    import pyarrow as pa

Octets = NDArray[np.uint8]
Words = NDArray[np.int64]
SHOWN_CHARACTERS = 40
_SHOWN_BITS_MAX = 512
UNKNOWN = object()  # a result of `ColumnType.equal_value`


def shown(value: object) -> str:
    """Format a value for a message: its type and a shortened repr, or the repr alone if it begins with the type."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        # Python refuses to format integers of over 4,300 digits.
        return f"{type(value).__name__} of {value.bit_length()} bits"
    # Do not format a megabyte of bytes only to truncate the text.
    is_long = isinstance(value, (str, bytes, bytearray))
    try:
        text = repr(value[: 2 * SHOWN_CHARACTERS]) if is_long else repr(value)  # type: ignore[index]
    except (ValueError, RecursionError):  # the value contains an integer of over 4,300 digits, or nests deep
        text = "that cannot be printed"
    text = text.replace("\n", " ")  # messages are one line; the repr of arrays and frames has many
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 1] + "…"
    name = type(value).__name__
    return text if re.match(rf"(\w+\.)*{name}\(", text) else f"{name} {text}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun, in the plural unless it is 1: `plural`, or the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def plain(value: object) -> object:
    """Convert a NumPy scalar to the Python scalar of its kind; return other values as they are. So are moments and
    spans that no Python value equals: NaT, parts of a microsecond, years past 9999, spans in months or without a unit.
    """
    if not isinstance(value, np.generic):
        return value
    if not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    if np.isnat(value):
        return value
    unit = np.datetime_data(value.dtype)[0]
    whole = value.astype(f"{value.dtype.kind}8[us]") if unit in ("ns", "ps", "fs", "as") else value
    # NumPy's own conversion makes an integer of what Python cannot express.
    found = whole.item() if whole == value else None
    return value if found is None or isinstance(found, int) else found


class ColumnType(ABC):
    """Base of all column types."""

    # Width in the fixed image in bytes; 0 for types of the var part.
    width: int = 0
    # `struct` codes of the stored value in the fixed image, and in whole words of a canonical key.
    code: str = ""
    key_code: str = ""
    # The Python type whose values are stored unchanged; None where `stored` must convert.
    direct: type | None = None
    # False where `loaded` is the identity.
    converts: bool = True
    keyable: bool = True
    is_lob: bool = False
    # Maximum bytes of a value in the var part that count towards VAR_BYTES_MAX.
    bytes_max: int = 0
    # The function of pyarrow that makes the Arrow type, and its arguments. So for the type in which Python values are
    # collected, and for the one as which fields of a text file are read, if they are others.
    arrow: tuple[Any, ...] = ()
    collected: tuple[Any, ...] = ()
    parsed: tuple[Any, ...] = ()
    # The class by which kernels read values: a constant of `columns_layout.py` without CLASS_.
    value_class: str = "BYTES"
    # The exact Python class of loaded values.
    python: type
    # The least and greatest stored number; None for floats and types that are not numbers.
    stored_range: tuple[int, int] | None = None
    # Digits after the point of a stored number.
    scale: int = 0
    # The class of values for digests of rows: equal values of one class have equal digests.
    digest_class: str
    # Whether stored bytes are the UTF-8 of a str.
    is_text: bool = False
    # Whether zero bytes at the end of a value do not count.
    is_padded: bool = False
    # Whether equal values are stored equally: of floats, 0.0 equals -0.0.
    is_canonical: bool = True
    # The most code points of a text; -1 if only its bytes are limited.
    characters_max: int = -1
    # The type of NumPy in structured arrays; O if values stay Python objects.
    numpy: str = "O"
    # --- in programs ------------------------------------------------------------------------------------
    # Whether expressions compute with values.
    has_arithmetic: bool = False
    # Microseconds of one step of the stored number, for types whose values a timedelta moves; else 0.
    step_us: int = 0
    # Whether one value is less than another.
    has_order: bool = True
    # Whether LIKE matches values.
    has_patterns: bool = False
    # Whether no value is rounded, and loaded values compare with each other as stored ones do.
    is_exact: bool = True
    # The strings one of which each value is; () if the type lists none.
    members: tuple[str, ...] = ()
    # How kernels make and read Python objects: a name of `engine/point/kinds.py`; "": they do not know the type.
    object_kind: str = ""
    # Objects that kernels make values with, or read them with, in the order of the module of that kind.
    object_parts: tuple[Any, ...] = ()
    # What these check of an object: the least and greatest int; of decimals, digits after the point and all of them; of
    # a text or bytes, the maximum length and 0.
    object_limits: tuple[int, int] = (0, 0)

    def _answer(self, **answers: Any) -> None:
        """Give the answers that depend on parameters, once for each type."""
        self.__dict__.update(answers)

    @property
    def is_var(self) -> bool:
        """True if values are in the var part."""
        return self.width == 0

    @property
    def alignment(self) -> int:
        """Natural alignment in bytes: the largest power of two up to 8 that divides the width."""
        return min(self.width & -self.width, WORD_BYTES) if self.width else 1

    @property
    def key_bytes_max(self) -> int:
        """The maximum bytes of a value in a canonical key."""
        return words_for(self.width) * WORD_BYTES

    @abstractmethod
    def stored(self, value: Any) -> Any:
        """Return the stored form of a value. Raises: TypeMismatch, ValueOutOfRange."""

    def stored_key(self, value: Any) -> Any:
        """Return the stored form of a value of a key column. Raises: TypeMismatch, ValueOutOfRange."""
        return self.stored(value)

    def loaded(self, stored: Any) -> Any:
        """Return the Python value of a stored one."""
        return stored

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of output columns."""
        return made(self.arrow)

    @property
    def direct_range(self) -> tuple[Any, Any] | None:
        """The least and greatest of the values of class `direct` that are stored unchanged without another check; None
        if there are none.
        """
        return None if self.direct is None else self.stored_range

    def sort_key(self, stored: Any) -> Any:
        """Return a sort key for a stored value of a key column, in the order of the column's canonical words."""
        return stored

    def can_become(self, other: object) -> bool:
        """Whether every value is a value of the type `other` with the same stored bytes."""
        return False

    def widens_to(self, other: object) -> bool:
        """Whether every value is a value of the type `other`, in its own or in other bytes."""
        return self == other or self.can_become(other)

    def key_becomes(self, other: ColumnType) -> bool:
        """Whether every value is a value of the type `other` with the same bytes in a canonical key."""
        return other.keyable and self.can_become(other)

    # --- in var parts, where values of added columns are whatever their type (D1) ---------------------
    @property
    def is_varying(self) -> bool:
        """True if stored values are bytes of varying size, which go into a var part unchanged."""
        return self.is_var

    def to_var(self, stored: Any) -> bytes:
        """Return the bytes in a var part of a stored value that is not None."""
        return stored if self.is_varying else _packer(self.code).pack(stored)

    def from_var(self, data: bytes) -> Any:
        """Return the stored value of bytes in a var part. Raises: PageDamaged if no value has that length."""
        if self.is_varying:
            return data
        if len(data) != self.width:
            raise PageDamaged("an added column holds bytes that are not a value; run `tidemark check`")
        return _packer(self.code).unpack(data)[0]

    def column_to_var(self, array: pa.Array) -> tuple[Octets, Words]:
        """Return the bytes in var parts of the values of an array from `conform`, and their ends (count + 1)."""
        if self.is_varying:
            return variable(array)
        numbers = self.numbers(array)
        if numbers is None:
            raise InvariantBroken(f"{self!r} has no bytes of fixed size; report this")
        return np.ascontiguousarray(numbers).view(np.uint8), np.arange(len(array) + 1, dtype=np.int64) * self.width

    def column_from_var(self, data: Octets, ends: Words, bitmap: Any, nulls: int) -> pa.Array | None:
        """Return the Arrow array of values in var parts, None if a value has a wrong length. Raises: as `array_of`."""
        count = ends.size - 1
        if self.is_varying:
            return build_variable(self.arrow_type(), count, ends, data, bitmap, nulls)
        valid = np.unpackbits(bitmap, count=count, bitorder="little") != 0
        if not np.array_equal(np.diff(ends), valid * self.width):
            return None
        unit = min(self.width, WORD_BYTES)
        values = np.zeros((count, self.width // unit), f"i{unit}")
        values[valid] = data.view(f"i{unit}").reshape(-1, self.width // unit)
        return self.array_of(values.reshape(-1), count, bitmap, nulls)

    # --- in and out of Arrow --------------------------------------------------------------------------
    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        """Return the type of a column that is made for an Arrow type; None if no type of this class is."""
        return None

    def input_type(self) -> pa.DataType:
        """Return the Arrow type in which Python values are collected; `conform` does the last conversion."""
        return made(self.collected) if self.collected else self.arrow_type()

    def array_from(self, values: Sequence[Any]) -> pa.Array | None:
        """Return an array of `input_type` of values of exactly the class `python`, and None for NULL. Return None, or
        raise what Arrow raises or ValueOutOfRange, if Arrow does not convert them as `stored` would.
        """
        import pyarrow as pa

        return pa.array(values, self.input_type())

    @abstractmethod
    def conform(self, array: pa.Array) -> pa.Array | None:
        """Return an array with the same values in a type that `numbers` or `column_to_var` takes.

        Return None or raise ArrowInvalid if a value does not fit. Raises: TypeMismatch for an unsuitable type.
        """

    def conform_key(self, array: pa.Array) -> pa.Array | None:
        """Do the same as `conform`, for a key column."""
        return self.conform(array)

    def wrong_arrow(self, array: pa.Array) -> TypeMismatch:
        is_list = getattr(array.type, "value_type", None) is not None
        advice = "give the bytes of each list" if is_list and self.python is bytes else "cast it first"
        return TypeMismatch(f"is {self!r} and takes no Arrow {array.type} ({advice})")

    def numbers(self, array: pa.Array) -> NDArray[Any] | None:
        """Return the stored values of an array from `conform`, flat; None for values of varying size."""
        return None

    def key_numbers(self, array: pa.Array) -> NDArray[Any] | None:
        """Return the same for a key column, in words of a canonical key."""
        values = self.numbers(array)
        if values is None:
            return None
        return values.view(np.int64) if values.dtype.itemsize == WORD_BYTES else values.astype(np.int64)

    def stored_of_arrow(self, value: Any) -> Any:
        """Return the stored form of what pyarrow makes of a value of an array. Raises: as `stored`."""
        return self.stored(value)

    def input_value(self, stored: Any) -> Any:
        """Return what pyarrow takes as a value of `input_type`."""
        return self.loaded(stored)

    def values_of(self, array: pa.Array) -> list[Any]:
        """Return the Python values of an array of `arrow_type`. Raises: PageDamaged if bytes are not a value."""
        try:
            return array.to_pylist()  # type: ignore[no-any-return]
        except UnicodeDecodeError as error:
            raise PageDamaged("a row holds bytes that are not a value of its column; run `tidemark check`") from error

    def text_of(self, array: pa.Array) -> pa.Array:
        """Return an array of `arrow_type` as text if it has bytes or a dictionary, which CSV has not, else as it is.
        Raises: ArrowInvalid for bytes that are not UTF-8.
        """
        return array

    def array_of(self, values: NDArray[Any], count: int, bitmap: Any, nulls: int) -> pa.Array:
        """Return values gathered from fixed images, or from words of keys, as an array of `arrow_type`.

        Raises: PageDamaged for a number that no value has.
        """
        if self.width < WORD_BYTES and values.dtype.itemsize == WORD_BYTES:
            values = values.astype(f"i{self.width}")  # in a key's word, the low bytes are the value
        return build_fixed(self.arrow_type(), count, values, bitmap, nulls)

    # --- in programs ------------------------------------------------------------------------------------
    @property
    def comparison_group(self) -> object:
        """What columns that are no numbers must have equal to be compared with each other."""
        return self

    def operand(self, stored: Any) -> int | float | bytes:
        """Return a stored value as programs hold it: a number, or bytes without padding."""
        return stored.rstrip(b"\0") if self.is_padded else stored  # type: ignore[no-any-return]

    def of_operand(self, operand: Any) -> Any:
        """Return the Python value of what a program holds."""
        return self.loaded(operand.ljust(self.width, b"\0") if self.is_padded else operand)

    def compared(self, value: Any) -> int | float | bytes:
        """Return a constant that a column is compared with as programs hold it; it may be past all values of the type.
        Raises: TypeMismatch, ValueOutOfRange.
        """
        return self.operand(self.stored(value))

    def equal_value(self, value: Any) -> Any:
        """Return the value that equals a constant of a condition; None if there is none, UNKNOWN if there may be
        several, or it is not known which.
        """
        value = plain(value)
        try:
            self.stored(value)
        except Rejected:
            return UNKNOWN
        return value

    def parsed_type(self) -> pa.DataType:
        """Return the Arrow type as which fields of a text file are read, before the row format converts them."""
        return made(self.parsed) if self.parsed else self.arrow_type()

    # --- kernels that make and read Python objects --------------------------------------------------------
    @property
    def object_lookup(self) -> object:
        """What kernels look an object up in: its class, its parts, or a dict of stored numbers. The type keeps it
        alive.
        """
        return self.object_parts or self.python

    # --- in JSON --------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns into an equal type."""
        return {"type": repr(self)}

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> ColumnType:
        """Return the type that `to_json` described, of a class with parameters. Raises: SchemaInvalid."""
        raise SchemaInvalid(f"not a column type: {shown(given)}")

    def value_of_json(self, value: Any) -> Any:
        """Return the Python value of `value_to_json`'s result. Raises: ValueError, TypeError."""
        return self.loaded(bytes.fromhex(value) if isinstance(value, str) else value)


def made(arrow: tuple[Any, ...]) -> pa.DataType:
    """Return an Arrow type of the function of pyarrow that makes it, and its arguments."""
    import pyarrow as pa

    name, *arguments = arrow
    return getattr(pa, name)(*arguments)


@lru_cache(maxsize=64)
def _packer(code: str) -> struct.Struct:
    return struct.Struct("<" + code)


_PLAIN: dict[str, ColumnType] = {}
_CLASSES: dict[str, type[ColumnType]] = {}


def register(*types: ColumnType | type[ColumnType]) -> None:
    """Make types known: those without parameters as the types themselves, others as their classes."""
    for each in types:
        if isinstance(each, ColumnType):
            _PLAIN[repr(each)] = each
        else:
            _CLASSES[each.__name__] = each


def families() -> list[type[ColumnType]]:
    """Return the classes of all types."""
    return list(dict.fromkeys([*map(type, _PLAIN.values()), *_CLASSES.values()]))


def name_of(text: str) -> str:
    """Return the name of the type that a text gives in whatever case, "" if it gives none."""
    return next((name for name in (*_PLAIN, *_CLASSES) if name.lower() == text.lower()), "")


def type_of(value: object) -> ColumnType | None:
    """Return a type without parameters whose values have the Python class of this one, None if there is none."""
    return next(
        (kind for kind in _PLAIN.values() if isinstance(value, kind.python) and kind.python is not object), None
    )


def from_json(value: Any) -> ColumnType:
    """Return the type that `ColumnType.to_json` described. Raises: SchemaInvalid if there is no such type."""
    if isinstance(value, dict):
        kind = value.get("type")
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind in _CLASSES:
            return _CLASSES[kind].of_json(value)
    raise SchemaInvalid(f"not a column type: {shown(value)}")


def value_to_json(stored: Any) -> Any:
    """Return the JSON of a stored value that is not None, for `value_from_json`. Bytes and floats are in hexadecimal:
    JSON has neither bytes nor NaN, and hexadecimal floats are exact.
    """
    return stored.hex() if isinstance(stored, (bytes, float)) else stored


def value_from_json(kind: ColumnType, value: Any) -> Any:
    """Return the Python value that `value_to_json` wrote for a column type, None for null. Raises: ValueError,
    TypeError.
    """
    return None if value is None else kind.value_of_json(value)


def mismatch(wanted: str, value: object) -> TypeMismatch:
    return TypeMismatch(f"needs {wanted}, got {shown(value)}")


def is_int(value: object) -> bool:
    """True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
