"""The base of all column types, and how values are shown in messages."""

from __future__ import annotations

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
    """A value for a message: its type and a shortened repr."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        # Python refuses to write integers of over 4,300 digits.
        return f"{type(value).__name__} of {value.bit_length()} bits"
    # A megabyte of bytes must not be written out only to be cut.
    is_long = isinstance(value, (str, bytes, bytearray))
    try:
        text = repr(value[: 2 * SHOWN_CHARACTERS]) if is_long else repr(value)  # type: ignore[index]
    except ValueError:  # such an integer stands in it
        text = "that cannot be written"
    text = text.replace("\n", " ")  # messages are one line; arrays and frames show themselves in many
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 1] + "…"
    return f"{type(value).__name__} {text}"


def plain(value: object) -> object:
    """NumPy scalars as the Python scalar of their kind."""
    return value.item() if isinstance(value, np.generic) else value


class ColumnType(ABC):
    """Base of all column types."""

    # Width in the fixed image in bytes; 0 for types that live in the var part.
    width: int = 0
    # How `struct` writes the stored value in the fixed image, and in whole words of a canonical key.
    code: str = ""
    key_code: str = ""
    # The Python type whose values are stored as they are; None where `stored` must convert.
    direct: type | None = None
    # False where `loaded` is the identity.
    converts: bool = True
    keyable: bool = True
    is_lob: bool = False
    # The most bytes of a value in the var part that count towards VAR_BYTES_MAX.
    bytes_max: int = 0

    @property
    def is_var(self) -> bool:
        """True if values live in the var part."""
        return self.width == 0

    @property
    def alignment(self) -> int:
        """Natural alignment in bytes: the largest power of two up to 8 that divides the width."""
        return min(self.width & -self.width, WORD_BYTES) if self.width else 1

    @property
    def key_bytes_max(self) -> int:
        """The most bytes a value takes in a canonical key."""
        return words_for(self.width) * WORD_BYTES

    @abstractmethod
    def stored(self, value: Any) -> Any:
        """What is stored for a value; TypeMismatch or ValueOutOfRange if it does not fit."""

    def stored_key(self, value: Any) -> Any:
        """What is stored for a value of a key column."""
        return self.stored(value)

    def loaded(self, stored: Any) -> Any:
        """The Python value of a stored one."""
        return stored

    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type values come out as."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns into an equal type."""
        return {"type": repr(self)}


def mismatch(wanted: str, value: object) -> TypeMismatch:
    return TypeMismatch(f"needs {wanted}, got {shown(value)}")


def is_int(value: object) -> bool:
    """True for an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)
