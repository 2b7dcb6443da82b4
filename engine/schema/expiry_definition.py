"""Expiry of a table's rows: the column with a moment of each row, and how long after it the row expires.

A definition has its text in one form, as `seen + 30 min`, so that equal definitions have equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.names import no_such_column
from tidemark.engine.types.base import shown
from tidemark.engine.types.moments import CalendarDate, Instant, LocalDateTime

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column

UNITS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}  # in seconds, the greatest first
DAYS_MAX = 36_600  # a century
_US = 1_000_000
_TEXT = re.compile(r"\s*(?P<column>\S.*?)\s*\+\s*(?P<count>[0-9]{1,10})\s*(?P<unit>d|h|min|s)\s*", re.ASCII)


@dataclass(frozen=True)
class Expiry:
    """When rows of a table expire; `str` gives the text of definitions."""

    column: str
    seconds: int

    def __str__(self) -> str:
        if not self.seconds and "+" not in self.column:
            return self.column
        unit, seconds = next((unit, each) for unit, each in UNITS.items() if self.seconds % each == 0)
        return f"{self.column} + {self.seconds // seconds} {unit}"

    def check_column(self, table: str, columns: dict[str, Column]) -> None:
        """Check the column against a table's. Raises: NoSuchColumn, SchemaInvalid."""
        column = columns.get(self.column)
        if column is None:
            raise no_such_column(table, self.column, columns)
        if column.is_disk or not isinstance(column.type, (Instant, LocalDateTime, CalendarDate)):
            raise SchemaInvalid(
                f"rows of {table} expire by a Timestamp, DateTime or Date column in memory, and {self.column} is"
                f" {column.type!r}{' on disk' * column.is_disk}; name another column",
                table=table,
                column=self.column,
            )

    def latest(self, column: Column, now_us: int) -> Any:
        """Return the greatest value that the column has in rows that have expired. now_us: µs since 1970 in UTC."""
        kind = column.type
        assert isinstance(kind, (Instant, LocalDateTime, CalendarDate))
        least, most = kind.stored_range
        return kind.loaded(max(least, min(most, (now_us - self.seconds * _US) // kind.step_us)))


def expiry_of(text: object) -> Expiry:
    """Return the expiry that a text says. Raises: SchemaInvalid."""
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is not None:
        made = Expiry(found["column"], int(found["count"]) * UNITS[found["unit"]])
        if made.seconds > DAYS_MAX * UNITS["d"]:
            raise SchemaInvalid(f"rows expire at most {DAYS_MAX:,} d after a moment, got {shown(text)}")
        return made
    if isinstance(text, str) and text.strip() and "+" not in text:
        return Expiry(text.strip(), 0)
    raise SchemaInvalid(
        f'rows expire by a column and a span in s, min, h or d, as "seen + 30 min", or "seen" alone; got {shown(text)}'
    )
