"""Whether the values of a column stay what they are when the server gives it another type.

MODIFY changes rows at the server, and no event says so. The rows are here, as they were before the statement; so the
column is read, and the change is made only if the new type holds each value as it is. Where the new type holds all
values of the column's type here, no row is read.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.batch_operations import decode_entries, scan
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.types import Decimal, Enum, Floating, Integer
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Char, LongBinary, LongText, VarChar
from tidemark.replication.binlog.charsets import UTF8MB4, encoded
from tidemark.replication.sql.server_types import ServerType, is_geometry
from tidemark.replication.sql.server_values import YEARS, rounded
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.statements import ChangeColumn

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table

_MICROSECOND_DIGITS = 6
# A test of the values of an array that are not NULL: which of them change, or one answer for all of them.
_Changes = Callable[[Any], Any]


def check_kept(table: Table, there: Column, step: ChangeColumn, session: Session) -> None:
    """Check that the values of a column, `there`, survive its new type at the server. Raises: Unsupported, naming the
    first value that changes.
    """
    wanted, served, is_numbered = step.column, step.served, step.is_numbered
    if served is None:
        return
    changes = [] if served == step.was else _tests(there, served, step.was, session)
    if is_numbered and not session.keeps_zero_numbers:
        changes.append(lambda values: values == 0)
    refuses_null = there.nullable and (not wanted.nullable or is_numbered or not wanted.has_default)
    if not changes and not refuses_null:
        return
    for batch in scan(table, None, columns=[there.name]):
        decoded = decode_entries(table.format, batch.entries, batch.offsets, batch.count, [there.name])
        column = decoded.column(0)
        if refuses_null and column.null_count:
            raise _changed(table, there, served, "NULL")
        values = column.drop_null()
        for each in changes:
            first = _first(each(_comparable(there, values)), values)
            if first is not None:
                raise _changed(table, there, served, repr(first))


def _changed(table: Table, column: Column, served: ServerType, value: str) -> Unsupported:
    return Unsupported(
        f"{table.name}.{column.name} has the value {value[:80]}, and what the server makes of it in a column of type"
        f" {served.text} is in no event; copy the table anew, or make the same change of rows here",
        table=table.name,
        column=column.name,
    )


def _first(changes: Any, values: pa.Array) -> Any:
    found = np.flatnonzero(np.broadcast_to(changes, len(values)))
    return values[int(found[0])].as_py() if len(found) else None


def _comparable(column: Column, values: pa.Array) -> Any:
    """Return values as NumPy numbers, microseconds for times; text and bytes as they are."""
    import pyarrow as pa

    if isinstance(column.type, Calendar):
        width = pa.int32() if column.type.width == 4 else pa.int64()
        return values.cast(width).to_numpy(zero_copy_only=False)
    if isinstance(column.type, (Integer, Floating)):
        return values.to_numpy(zero_copy_only=False)
    return values


def _tests(there: Column, served: ServerType, was: ServerType | None, session: Session) -> list[_Changes]:
    """Return what to ask of the column's values; [] if its type here has no value that the new type changes."""
    kind = there.type
    if isinstance(kind, Integer):
        return _integer_tests(kind, served, was)
    if isinstance(kind, Decimal):
        return [_is_negative] if served.is_unsigned else []
    if isinstance(kind, Floating):
        return _floating_tests(served)
    if isinstance(kind, Calendar):
        step = 10 ** (_MICROSECOND_DIGITS - served.digits)
        return [lambda values: values % step != 0] if kind.width > 4 and step > 1 else []
    tests: list[_Changes] = [_is_any] if is_geometry(served) else []
    if isinstance(kind, (Char, VarChar, LongText)) and not isinstance(kind, Enum):
        tests += _text_tests(served, was, session)
    limit = served.bytes_max
    if isinstance(kind, LongBinary | LongText) or limit is not None and limit < getattr(kind, "bytes_max", 0):
        tests += [] if limit is None else [lambda values: _lengths(values) > limit]
    return tests


def _is_any(values: Any) -> bool:
    return True


def _is_negative(values: pa.Array) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.less(values, pa.scalar(PythonDecimal(0), values.type)).to_numpy(zero_copy_only=False)


def _integer_tests(kind: Integer, served: ServerType, was: ServerType | None) -> list[_Changes]:
    if served.word == "YEAR":
        return [lambda values: (values != 0) & ((values < YEARS.start) | (values >= YEARS.stop))]
    if served.word == "SET":  # bits mean the places of members
        before = None if was is None or was.word != "SET" else was.members
        return [] if before and served.members[: len(before)] == before else [lambda values: values != 0]
    limits = served.integers
    if limits is None:
        return [_is_any]
    least, most = limits
    tests: list[_Changes] = []
    if kind.minimum < least:
        tests.append(lambda values: values < least)
    if kind.maximum > most:
        tests.append(lambda values: values > most)
    return tests


def _floating_tests(served: ServerType) -> list[_Changes]:
    tests: list[_Changes] = [lambda values: values < 0] if served.is_unsigned else []
    if served.numbers:
        precision, scale = served.numbers
        narrow = np.float32 if served.word == "FLOAT" else np.float64

        def differs(values: Any) -> Any:
            kept = rounded(values, scale).astype(narrow)
            return (kept != values) | (np.abs(values) >= 10.0 ** (precision - scale))

        tests.append(differs)
    return tests


def _text_tests(served: ServerType, was: ServerType | None, session: Session) -> list[_Changes]:
    """A character set that lacks a character: an error of the server in strict mode, else the character is lost."""
    is_same = was is not None and was.charset != "" and was.charset == served.charset
    if served.charset == UTF8MB4 or is_same or session.is_strict:
        return []
    charset = served.charset or "ascii"  # it may be any

    def is_lost(values: pa.Array) -> Any:
        lost = np.zeros(len(values), np.bool_)
        try:
            encoded("".join(values.to_pylist()), charset)
        except UnicodeEncodeError:
            lost[:] = [not _fits(each, charset) for each in values.to_pylist()]
        return lost

    return [is_lost]


def _fits(text: str, charset: str) -> bool:
    try:
        encoded(text, charset)
    except UnicodeEncodeError:
        return False
    return True


def _lengths(values: pa.Array) -> Any:
    import pyarrow.compute as pc

    return pc.binary_length(values).to_numpy(zero_copy_only=False)
