"""The base of all column types, and how values are shown in messages."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import TypeMismatch
from tidemark.engine.schema.row_layout import WORD_BYTES, words_for

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_CHARACTERS = 40
_SHOWN_BITS_MAX = 512


def shown(value: object) -> str:
    """Format a value for a message: its type and a shortened repr, or the repr alone if it begins with the type."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        # Python refuses to format integers of over 4,300 digits.
        return f"{type(value).__name__} of {value.bit_length()} bits"
    # Do not format a megabyte of bytes only to truncate the text.
    is_long = isinstance(value, (str, bytes, bytearray))
    try:
        text = repr(value[: 2 * SHOWN_CHARACTERS]) if is_long else repr(value)  # type: ignore[index]
    except ValueError:  # the value contains an integer of over 4,300 digits
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
    # The function of pyarrow that makes the Arrow type, for types without parameters.
    arrow: str = ""

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
        import pyarrow as pa

        return getattr(pa, self.arrow)()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns into an equal type."""
        return {"type": repr(self)}


def mismatch(wanted: str, value: object) -> TypeMismatch:
    return TypeMismatch(f"needs {wanted}, got {shown(value)}")


def is_int(value: object) -> bool:
    """True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
