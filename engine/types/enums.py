"""One of some strings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base import limits
from tidemark.engine.base.column_buffers import build_fixed, primitive
from tidemark.engine.base.errors import PageDamaged, SchemaInvalid, ValueOutOfRange
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.types.arrow import compute, strings
from tidemark.engine.types.base import ColumnType, mismatch, plain, register, shown

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_MAX = 10  # members in a message


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
    python = str
    digest_class = "text"
    value_class = "UNSIGNED"
    has_order = False
    object_kind = "ENUM"
    collected = parsed = ("string",)

    def __init__(self, *members: str) -> None:
        if not 1 <= len(members) <= limits.ENUM_MEMBERS_MAX:
            raise SchemaInvalid(f"Enum needs 1 to {limits.ENUM_MEMBERS_MAX} members, got {len(members)}")
        for member in members:
            if not isinstance(member, str) or not member.isprintable():
                hint = "; give each as an argument, as in Enum('new', 'done')" if isinstance(member, Iterable) else ""
                raise SchemaInvalid(f"Enum members must be printable str, got {shown(member)}{hint}")
        if len(set(members)) != len(members):
            raise SchemaInvalid(f"Enum members must differ from each other, got {shown(members)}")
        # A member of an `enum` of texts is its value: `str` would give its name.
        names = tuple(str.__str__(member) for member in members)
        places = {name: place for place, name in enumerate(names)}
        self._answer(members=names, places=places, stored_range=(0, len(names) - 1))

    def __repr__(self) -> str:
        return f"Enum({', '.join(map(repr, self.members))})"

    def stored(self, value: Any) -> int:
        value = plain(value)
        if not isinstance(value, str):
            raise mismatch("a str", value)
        place: int | None = self.places.get(value)
        if place is None:
            more = len(self.members) - _SHOWN_MAX
            said = ", ".join(map(repr, self.members[:_SHOWN_MAX])) + (f" and {more} more" if more > 0 else "")
            raise ValueOutOfRange(f"holds one of {said}, got {shown(value)}")
        return place

    def loaded(self, stored: int) -> str:
        return self.members[stored]

    @property
    def object_lookup(self) -> object:
        return self.places

    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.dictionary(pa.int32(), pa.string())

    def conform(self, array: pa.Array) -> pa.Array | None:
        """Return the places of members."""
        import pyarrow as pa

        text = strings(array, self).cast(pa.large_string())
        places = compute().index_in(text, pa.array(self.members, pa.large_string()))
        return places if places.null_count == array.null_count else None

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        return primitive(array, np.int32).astype(np.uint16)

    def array_of(self, values: NDArray[Any], count: int, bitmap: Any, nulls: int) -> pa.Array:
        import pyarrow as pa

        places = (values if values.dtype.itemsize == WORD_BYTES else values.view(np.uint16)).astype(np.int32)
        if count and not 0 <= int(places.min()) <= int(places.max()) < len(self.members):
            raise PageDamaged("holds a number beyond its Enum; run `tidemark check`")
        indices = build_fixed(pa.int32(), count, places, bitmap, nulls)
        return pa.DictionaryArray.from_arrays(indices, pa.array(self.members, pa.string()), safe=False)

    def values_of(self, array: pa.Array) -> list[Any]:
        # By place: `to_pylist` makes a scalar for each value.
        members = array.dictionary.to_pylist()
        return [None if place is None else members[place] for place in array.indices.to_pylist()]

    def text_of(self, array: pa.Array) -> pa.Array:
        return array.cast(self.input_type())

    def can_become(self, other: object) -> bool:
        return isinstance(other, Enum) and other.members[: len(self.members)] == self.members

    def to_json(self) -> dict[str, Any]:
        return {"type": "Enum", "members": list(self.members)}

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> ColumnType:
        members = given.get("members")
        return cls(*members) if isinstance(members, list) else super().of_json(given)


register(Enum)
