"""JSON documents, stored as canonical text: names in order, no space, UTF-8.

Python's own reader is used, since it keeps whole numbers of any size exactly, and can refuse a name that stands twice.
Numbers with a point or an exponent are doubles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import PageDamaged, Rejected, TypeMismatch, ValueOutOfRange
from tidemark.engine.types.arrow import strings
from tidemark.engine.types.base import ColumnType, is_int, mismatch, plain, register, shown
from tidemark.engine.types.sized import too_long, utf8

if TYPE_CHECKING:
    import pyarrow as pa

_canonical = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode
LEVELS_MAX = 100  # as in MySQL
DOUBLE_DIGITS = 17  # of a decimal number that any double can be told by


@dataclass(frozen=True, repr=False)
class Document(ColumnType):
    """JSON: a dict, list, str, int, float, bool or None, and these within each other."""

    keyable = False
    is_lob = True
    python = object
    is_text = True
    digest_class = "JSON"
    arrow = ("large_string",)
    has_order = False
    object_kind = "JSON"
    object_parts = (getattr(json.JSONDecoder(), "scan_once"), 0)  # noqa: B009 the types of Python lack it

    def __repr__(self) -> str:
        return "JSON"

    def stored(self, value: Any) -> bytes:
        value = plain(value)
        try:
            text = _canonical(value)
            octets = text.encode()
            # Tuples, and names that are not str, would come back as others.
            is_same = json.loads(text) == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same or octets.count(b"[") + octets.count(b"{") > LEVELS_MAX:
            _check(value)
        if not is_same:
            raise ValueOutOfRange(f"holds what JSON text gives back unchanged, got {shown(value)}")
        if len(octets) > limits.LOB_BYTES_MAX:
            raise too_long(limits.LOB_BYTES_MAX, "bytes", octets)
        return octets

    def loaded(self, stored: bytes) -> Any:
        try:
            return json.loads(str(stored, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise PageDamaged("a row holds bytes that are not a JSON document; run `tidemark check`") from error

    def stored_of_arrow(self, value: Any) -> bytes:
        return self.stored_of_text(value) if isinstance(value, str) else self.stored(value)

    def stored_of_text(self, text: str) -> bytes:
        """Return the stored form of a JSON text. Raises: ValueOutOfRange."""
        return self.stored(read(text))

    def input_value(self, stored: bytes) -> str:
        return str(stored, "utf-8")

    @classmethod
    def of_arrow(cls, arrow: pa.DataType, is_key: bool) -> ColumnType | None:
        import pyarrow as pa

        return cls() if isinstance(arrow, pa.JsonType) else None

    def conform(self, array: pa.Array) -> pa.Array | None:
        import pyarrow as pa

        texts = strings(array, self).to_pylist()
        try:
            stored = [None if text is None else self.input_value(self.stored_of_text(text)) for text in texts]
        except Rejected:
            return None
        return pa.array(stored, self.arrow_type())

    def values_of(self, array: pa.Array) -> list[Any]:
        return [None if text is None else self.loaded(text.encode()) for text in super().values_of(array)]


def read(text: str) -> Any:
    """Return the document of a JSON text. Raises: ValueOutOfRange."""
    try:
        return json.loads(text, object_pairs_hook=_members, parse_float=double, parse_constant=_no_number)
    except RecursionError:
        raise ValueOutOfRange(f"holds JSON of at most {LEVELS_MAX} levels, got {shown(text)}") from None
    except ValueError as error:
        reason = str(error).partition(": line")[0]
        raise ValueOutOfRange(f"holds JSON text, got {shown(text)}: {reason}") from None


def double(text: str) -> float:
    """Return the double of a number in JSON text. Raises: ValueOutOfRange if it has more digits than any double needs,
    and they are not those of one; or is too large or too small for one.
    """
    number = float(text)
    digits = Decimal(text).normalize().as_tuple().digits
    is_lost = not math.isfinite(number) or (number == 0 and any(digits))
    if is_lost or (len(digits) > DOUBLE_DIGITS and Decimal(number) != Decimal(text)):
        raise ValueOutOfRange(f"holds numbers that are doubles, got {shown(text)}; write it as a string")
    return number


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {shown(next(name for name in names if names.count(name) > 1))} stands twice")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _check(document: Any) -> None:
    """Check each part of a document. Raises: TypeMismatch, ValueOutOfRange."""
    parts = [(document, 1)]
    while parts:
        part, level = parts.pop()
        if isinstance(part, (dict, list)):
            if level > LEVELS_MAX:
                raise ValueOutOfRange(f"holds JSON of at most {LEVELS_MAX} levels, got {shown(document)}")
            for name in part if isinstance(part, dict) else ():
                if not isinstance(name, str):
                    raise TypeMismatch(f"needs names that are str in a dict, got {shown(name)} in {shown(part)}")
                utf8(name)
            inner = part.values() if isinstance(part, dict) else part
            parts += [(each, level + 1) for each in inner]
        elif isinstance(part, str):
            utf8(part)
        elif isinstance(part, float):
            if not math.isfinite(part):
                raise ValueOutOfRange(f"holds finite numbers, got {shown(part)} in {shown(document)}")
        elif not (part is None or isinstance(part, bool) or is_int(part)):
            raise mismatch("a dict, list, str, int, float, bool or None", part)


JSON = Document()
register(JSON)
