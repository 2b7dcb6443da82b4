"""What the ingest needs of each column type: values from the text of the first copy and from row events, and which of a
column's values change when the server gives it another type.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine import types as t
from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.engine.types import ColumnType
from tidemark.engine.types.base import made
from tidemark.engine.types.decimals import decimals_of_text
from tidemark.replication.binlog.charsets import UTF8MB4, encoded
from tidemark.replication.sql.server_types import ServerType
from tidemark.replication.sql.server_values import YEARS, rounded
from tidemark.replication.sql.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

_MICROSECOND_DIGITS = 6
# A test of the values of an array that are not NULL: which of them change, or one answer for all of them.
Changes = Callable[[Any], Any]


# --- the first copy -------------------------------------------------------------------------------
def _same(kind: ColumnType, text: pa.Array) -> pa.Array:
    return text


def _integers(kind: t.Integer, text: pa.Array) -> pa.Array:
    import pyarrow as pa

    return text.cast(pa.int64() if kind.signed else pa.uint64())


def _by_way_of(*types: tuple[str, ...]) -> Callable[[Any, pa.Array], pa.Array]:
    """Return the function that casts text to these Arrow types, and then to the column's own."""

    def cast(kind: ColumnType, text: pa.Array) -> pa.Array:
        for each in types:
            text = text.cast(made(each))
        return text.cast(kind.arrow_type())

    return cast


_own = _by_way_of()
_instants = _by_way_of(("timestamp", "us"), ("int64",))


def _times(kind: t.TimeOfDay, text: pa.Array) -> pa.Array:
    """Arrow cannot parse a time of day alone. This also refuses a TIME outside one day, which no column holds. Raises:
    ArrowInvalid.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    day, nothing = pa.scalar("1970-01-01", pa.large_string()), pa.scalar(" ", pa.large_string())
    return _instants(kind, pc.binary_join_element_wise(day, text, nothing))


# --- row events -----------------------------------------------------------------------------------
def _checked_flags(column: pa.Array, shown: str, where: str) -> pa.Array:
    """Convert a TINYINT to booleans. Raises: ValueOutOfRange."""
    import pyarrow as pa
    import pyarrow.compute as pc

    span = pc.min_max(column)
    if span["min"].is_valid and not (0 <= span["min"].as_py() and span["max"].as_py() <= 1):
        raise ValueOutOfRange(
            f"{where}: {shown}, which is Bool here, has values from {span['min']} to {span['max']} at the source;"
            " make it Int8",
            column=shown,
        )
    return column.cast(pa.bool_())


# --- another type at the server -------------------------------------------------------------------
def _as_they_are(kind: ColumnType, values: pa.Array) -> Any:
    return values


def _numbers(kind: ColumnType, values: pa.Array) -> Any:
    return kind.numbers(values)


def _of_integers(kind: t.Integer, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    if served.word == "YEAR":
        return [lambda values: (values != 0) & ((values < YEARS.start) | (values >= YEARS.stop))]
    if served.word == "SET":  # bits mean the places of members
        before = None if was is None or was.word != "SET" else was.members
        return [] if before and served.members[: len(before)] == before else [lambda values: values != 0]
    limits = served.integers
    if limits is None:
        return [lambda values: True]
    least, most = limits
    tests: list[Changes] = []
    if kind.minimum < least:
        tests.append(lambda values: values < least)
    if kind.maximum > most:
        tests.append(lambda values: values > most)
    return tests


def _of_decimals(kind: t.Decimal, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    return [_is_negative] if served.is_unsigned else []


def _is_negative(values: pa.Array) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.less(values, pa.scalar(Decimal(0), values.type)).to_numpy(zero_copy_only=False)


def _of_floats(kind: t.Floating, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    tests: list[Changes] = [lambda values: values < 0] if served.is_unsigned else []
    if served.numbers:
        precision, scale = served.numbers
        narrow = np.float32 if served.word == "FLOAT" else np.float64

        def differs(values: Any) -> Any:
            kept = rounded(values, scale).astype(narrow)
            return (kept != values) | (np.abs(values) >= 10.0 ** (precision - scale))

        tests.append(differs)
    return tests


def _of_moments(kind: ColumnType, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    step = 10 ** (_MICROSECOND_DIGITS - served.digits)
    return [lambda values: values % step != 0] if step > 1 else []


def _of_text(kind: ColumnType, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    """A character set that lacks a character: an error of the server in strict mode, else the character is lost."""
    is_same = was is not None and was.charset != "" and was.charset == served.charset
    if served.charset == UTF8MB4 or is_same or session.is_strict:
        return _of_octets(kind, served, was, session)
    charset = served.charset or "ascii"  # it may be any

    def is_lost(values: pa.Array) -> Any:
        texts = values.to_pylist()
        return False if _fits("".join(texts), charset) else np.array([not _fits(each, charset) for each in texts])

    return [is_lost, *_of_octets(kind, served, was, session)]


def _fits(text: str, charset: str) -> bool:
    try:
        encoded(text, charset)
    except UnicodeEncodeError:
        return False
    return True


def _of_octets(kind: ColumnType, served: ServerType, was: ServerType | None, session: Session) -> list[Changes]:
    limit = served.bytes_max
    if limit is None or not (kind.is_lob or limit < kind.bytes_max):
        return []
    return [lambda values: _lengths(values) > limit]


def _lengths(values: pa.Array) -> Any:
    import pyarrow.compute as pc

    return pc.binary_length(values).to_numpy(zero_copy_only=False)


class SourceType(NamedTuple):
    """What the ingest needs of a class of column types.

    of_text: an Arrow column of text as values (raises ArrowInvalid, ValueOutOfRange); None if the bytes are the values.
    changes: what to ask of values when the server gives the column the type `served` instead of `was`; nothing if none
    changes. compared: an
    Arrow column for `changes`, numbers as NumPy arrays. of_events: a column of row events as values, with its name and
    position for errors; None if it has values already.
    """

    of_text: Callable[[Any, pa.Array], pa.Array] | None
    changes: Callable[[Any, ServerType, ServerType | None, Session], list[Changes]] = lambda *_: []
    compared: Callable[[Any, pa.Array], Any] = _as_they_are
    of_events: Callable[[pa.Array, str, str], pa.Array] | None = None


SOURCE_TYPES: dict[type[ColumnType], SourceType] = {
    t.Integer: SourceType(_integers, _of_integers, _numbers),
    t.Boolean: SourceType(_by_way_of(("int64",)), of_events=_checked_flags),
    t.Floating: SourceType(_by_way_of(("float64",)), _of_floats, _numbers),
    t.Decimal: SourceType(lambda kind, text: decimals_of_text(text, kind), _of_decimals),
    t.Enum: SourceType(_same),
    t.Char: SourceType(_same, _of_text),
    t.VarChar: SourceType(_same, _of_text),
    t.LongText: SourceType(_same, _of_text),
    t.Binary: SourceType(None, _of_octets),
    t.VarBinary: SourceType(None, _of_octets),
    t.LongBinary: SourceType(None, _of_octets),
    t.Uuid: SourceType(None),
    t.Document: SourceType(_same),
    t.CalendarDate: SourceType(_own, compared=_numbers),
    t.TimeOfDay: SourceType(_times, _of_moments, _numbers),
    t.LocalDateTime: SourceType(_own, _of_moments, _numbers),
    t.Instant: SourceType(_instants, _of_moments, _numbers),
}
