"""UUIDs: 16 bytes, in the order of their bytes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import build_fixed, primitive, variable
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.types.arrow import compute, is_any, is_string, kinds, strings
from tidemark.engine.types.base import ColumnType, mismatch, plain, register, shown
from tidemark.engine.types.binary import FixedOctets
from tidemark.engine.types.sized import too_long

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES = 16
_DIGITS = 2 * _BYTES
_HYPHENS = (8, 13, 18, 23)  # their places in a text
_TEXT = r"^(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32})$"
_IS_TEXT = re.compile(_TEXT.rstrip("$")).fullmatch


@dataclass(frozen=True, repr=False)
class Uuid(FixedOctets):
    """UUID: a `uuid.UUID`; also taken as text of 32 hexadecimal digits, with or without hyphens, and as 16 bytes."""

    width = _BYTES
    code = key_code = f"{_BYTES}s"
    python = uuid.UUID
    digest_class = f"{_BYTES} bytes"
    arrow = ("binary", _BYTES)
    parsed = ("string",)
    object_kind = "UUID"
    object_parts = (uuid.UUID, "int", "is_safe", uuid.SafeUUID.unknown, 64)

    def __repr__(self) -> str:
        return "UUID"

    def stored(self, value: Any) -> bytes:
        value = plain(value)
        if isinstance(value, uuid.UUID):
            return value.bytes
        if isinstance(value, str):
            if not _IS_TEXT(value):
                raise ValueOutOfRange(f"holds 32 hexadecimal digits with or without hyphens, got {shown(value)}")
            return bytes.fromhex(value.replace("-", ""))
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise mismatch("a UUID", value)
        octets = bytes(value)
        if len(octets) != _BYTES:
            raise too_long(_BYTES, "bytes", octets)
        return octets

    def loaded(self, stored: bytes) -> uuid.UUID:
        return uuid.UUID(bytes=stored)

    def input_value(self, stored: bytes) -> bytes:
        return stored

    def array_from(self, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        return pa.array([None if value is None else value.bytes for value in values], self.input_type())

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        import pyarrow as pa

        return cls() if arrow == pa.uuid() else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        import pyarrow as pa

        target = self.arrow_type()
        if array.type == target:
            return array
        if is_string(array.type):
            return self._of_text(strings(array, self))
        octets = kinds().is_binary(array.type) or kinds().is_large_binary(array.type)
        if not octets and not kinds().is_fixed_size_binary(array.type):
            raise self.wrong_arrow(array)
        array = array.cast(pa.binary())
        is_wrong = is_any(compute().not_equal(compute().binary_length(array), _BYTES))
        return None if is_wrong else array.cast(target)

    def _of_text(self, text: pa.Array) -> pa.Array | None:
        pc = compute()
        if is_any(pc.invert(pc.match_substring_regex(text, _TEXT))):
            return None
        digits, ends = variable(pc.replace_substring(text.fill_null("0" * _DIGITS), "-", ""))
        octets = bytes.fromhex(digits[int(ends[0]) : int(ends[-1])].tobytes().decode())
        bitmap = np.packbits(np.asarray(text.is_valid()), bitorder="little")
        return build_fixed(self.arrow_type(), len(text), np.frombuffer(octets, np.uint8), bitmap, text.null_count)

    def values_of(self, array: pa.Array) -> list[Any]:
        return [None if each is None else uuid.UUID(bytes=each) for each in super().values_of(array)]

    def text_of(self, array: pa.Array) -> pa.Array:
        import pyarrow as pa

        digits = np.frombuffer(primitive(array, np.uint8, _BYTES).tobytes().hex().encode(), np.uint8)
        characters: NDArray[Any] = np.full((len(array), _DIGITS + len(_HYPHENS)), ord("-"), np.uint8)
        characters[:, np.delete(np.arange(characters.shape[1]), _HYPHENS)] = digits.reshape(-1, _DIGITS)
        ends = np.arange(len(array) + 1, dtype=np.int32) * characters.shape[1]
        bitmap = np.packbits(np.asarray(array.is_valid()), bitorder="little")
        buffers = [pa.py_buffer(bitmap), pa.py_buffer(ends), pa.py_buffer(characters)]
        return pa.Array.from_buffers(pa.string(), len(array), buffers)


UUID = Uuid()
register(UUID)
