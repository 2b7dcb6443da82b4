"""True or False."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.column_buffers import build_fixed, primitive
from tidemark.engine.types.arrow import kinds
from tidemark.engine.types.base import ColumnType, Octets, mismatch, plain, register

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, repr=False)
class Boolean(ColumnType):
    """True or False; no integers."""

    width = 1
    code = "?"
    key_code = "?7x"
    direct = bool
    converts = False
    python = bool
    digest_class = "bool"
    value_class = "UNSIGNED"
    stored_range = 0, 1
    arrow = ("bool_",)
    numpy = "?"
    object_kind = "BOOL"

    def __repr__(self) -> str:
        return "Bool"

    def stored(self, value: Any) -> bool:
        value = plain(value)
        if not isinstance(value, bool):
            raise mismatch("a bool", value)
        return value

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        return cls() if kinds().is_boolean(arrow) else None

    def conform(self, array: pa.Array) -> pa.Array:
        if not kinds().is_boolean(array.type):
            raise self.wrong_arrow(array)
        return array

    def numbers(self, array: pa.Array) -> Octets:
        import pyarrow as pa

        return primitive(array.cast(pa.uint8()), np.uint8)

    def array_of(self, values: NDArray[Any], count: int, bitmap: Any, nulls: int) -> pa.Array:
        return build_fixed(self.arrow_type(), count, np.packbits(values != 0, bitorder="little"), bitmap, nulls)

    def operand(self, stored: bool) -> int:
        return int(stored)

    def of_operand(self, operand: int) -> bool:
        return bool(operand)


Bool = Boolean()
register(Bool)
