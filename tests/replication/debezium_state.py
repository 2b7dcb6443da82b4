"""What the events of Debezium add up to, and whether each of them fits what came before it.

Values are decoded here, by the types of the store's columns. Both sides become values that compare as they are stored:
floats by their bits, moments in UTC without a zone.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

import tidemark as tm
from tests.replication.debezium_rig import Event
from tidemark.engine import types as t
from tidemark.engine.types import ColumnType

_EPOCH = datetime(1970, 1, 1)
_WIDE = Context(prec=100)
_NAN = float("nan")


# --- values ----------------------------------------------------------------------------------------
def _number(kind: Any, value: Any) -> int:
    """UInt64 comes as Kafka's Decimal, without digits after the point."""
    return int.from_bytes(base64.b64decode(value), "big", signed=True) if isinstance(value, str) else value


def _decimal(kind: Any, value: Any) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-kind.scale, _WIDE)


def _truth(kind: Any, value: Any) -> bool:
    assert value in (0, 1), value
    return bool(value)


def _bits(kind: Any, value: Any) -> bytes:
    number = float(value)
    return struct.pack("<f" if kind.bits == 32 else "<d", _NAN if number != number else number)


def _octets(kind: Any, value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True)


def _moment(kind: Any, value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def _clock(kind: Any, value: int) -> time:
    found = _EPOCH + timedelta(microseconds=value)
    assert found.date() == _EPOCH.date(), value
    return found.time()


def _text(kind: Any, value: str) -> str:
    assert isinstance(value, str)
    return value


class _Way(NamedTuple):
    """told: decodes what Debezium tells. kept: what a value of the store is compared as."""

    told: Callable[[Any, Any], Any]
    kept: Callable[[Any, Any], Any] = lambda kind, value: value


_WAYS: dict[type[ColumnType], _Way] = {
    t.Integer: _Way(_number),
    t.Boolean: _Way(_truth),
    t.Floating: _Way(_bits, _bits),
    t.Decimal: _Way(_decimal),
    t.Enum: _Way(_text),
    t.Char: _Way(_text),
    t.VarChar: _Way(_text),
    t.LongText: _Way(_text),
    t.Binary: _Way(lambda kind, value: _octets(kind, value).rstrip(b"\0"), lambda kind, value: value.rstrip(b"\0")),
    t.VarBinary: _Way(_octets),
    t.LongBinary: _Way(_octets),
    t.Uuid: _Way(_octets, lambda kind, value: value.bytes),
    t.Document: _Way(lambda kind, value: _canonical(json.loads(value)), lambda kind, value: _canonical(value)),
    t.CalendarDate: _Way(lambda kind, value: date(1970, 1, 1) + timedelta(days=value)),
    t.TimeOfDay: _Way(_clock),
    t.LocalDateTime: _Way(_moment),
    t.Instant: _Way(_moment, lambda kind, value: value.astimezone(UTC).replace(tzinfo=None)),
}


def told(kind: ColumnType, value: Any) -> Any:
    """Return a value of an event as a value to compare."""
    return None if value is None else _WAYS[type(kind)].told(kind, value)


def kept(kind: ColumnType, value: Any) -> Any:
    """Return a value of the store as a value to compare."""
    return None if value is None else _WAYS[type(kind)].kept(kind, value)


def rows_of(table: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return the rows of a table of the store by key, to compare."""
    kinds = [(column.name, column.type) for column in table.columns]
    keys = list(table.definition.primary_key)
    found = {}
    for row in table.scan():
        values = {name: kept(kind, getattr(row, name)) for name, kind in kinds}
        found[tuple(values[name] for name in keys)] = tuple(values.values())
    return found


# --- events ----------------------------------------------------------------------------------------
class Broken(AssertionError):
    """An event that does not fit what came before it, or a state that is not the store's."""


@dataclass
class State:
    """What the events of all lives add up to. Call `begin_life`, then `take` for each event of this life.

    A life begins where the offsets were last written, so it may tell again what an earlier one told, word for word,
    before anything new. The first row of a snapshot begins with nothing.
    """

    db: tm.Database
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    snapshots: int = 0
    repeated: int = 0
    streamed: int = 0
    _seen: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _place: tuple[str, int] | None = None  # of the snapshot
    _last: tuple[str, int, int] | None = None  # of the stream, in this life
    _has_news: bool = False
    _is_reading: bool = False

    def begin_life(self) -> None:
        self._last, self._has_news, self._is_reading = None, False, False

    def take_all(self, events: Iterable[Event]) -> int:
        """Take events; return how many."""
        count = 0
        for event in events:
            self.take(event)
            count += 1
        return count

    def take(self, event: Event) -> None:
        """Raises: Broken."""
        body = event.body
        op, source = body["op"], body["source"]
        name = f"{source['db']}.{source['table']}"
        place = source["file"], source["pos"]
        before, after = (self._row(name, body[each]) for each in ("before", "after"))
        if op == "r":
            self._take_read(name, place, after)
            return
        order = (*place, source["row"])
        if self._last is not None and order < self._last:
            raise Broken(f"{op} at {order} comes after {self._last}")
        self._last = order
        if self._place is not None and place < self._place:
            raise Broken(f"{op} at {order} is before the place of the snapshot, {self._place}")
        text = json.dumps([name, body["before"], body["after"]])
        if (*order, op) in self._seen:
            if self._has_news or self._seen[*order, op] != text:
                raise Broken(f"{op} at {order} comes twice: {text[:300]}")
            self.repeated += 1
            return
        self._seen[*order, op] = text
        self._has_news = True
        self.streamed += 1
        self._apply(name, op, before, after, order)

    def _take_read(self, name: str, place: tuple[str, int], row: dict[str, Any] | None) -> None:
        if self._last is not None:
            raise Broken(f"a row of the snapshot of {name} comes after events of the stream")
        if not self._is_reading or place != self._place:  # a failed snapshot begins again in the same life
            self._is_reading = True
            self.snapshots += 1
            self.tables.clear()
            self._seen.clear()
            self._place = place
        self._apply(name, "r", None, row, place)

    def _apply(self, name: str, op: str, before: Any, after: Any, at: Any) -> None:
        rows = self.tables.setdefault(name, {})
        if before is not None:
            key = self._key(name, before)
            if key not in rows:
                raise Broken(f"{op} at {at} of {name}: no row {key}")
            if others := _others(rows.pop(key), before):
                raise Broken(f"{op} at {at} of {name}: row {key} was another one before: {others}")
        if after is not None:
            key = self._key(name, after)
            if key in rows:
                raise Broken(f"{op} at {at} of {name}: row {key} is there already")
            rows[key] = after

    def _row(self, name: str, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if given is None:
            return None
        kinds = {column.name: column.type for column in self.db[name].columns}
        return {column: told(kinds[column], value) for column, value in given.items()}

    def _key(self, name: str, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[each] for each in self.db[name].definition.primary_key)

    def check(self) -> int:
        """Compare with the store; return the number of rows. Raises: Broken."""
        count = 0
        for name in self.db.tables():
            ours = rows_of(self.db[name])
            columns = [column.name for column in self.db[name].columns]
            theirs = {key: tuple(row.get(each) for each in columns) for key, row in self.tables.get(name, {}).items()}
            for key in ours.keys() | theirs.keys():
                if ours.get(key) != theirs.get(key):
                    raise Broken(f"{name}: row {key} is {str(ours.get(key))[:400]}, told {str(theirs.get(key))[:400]}")
            count += len(ours)
        return count


def _others(row: dict[str, Any], other: dict[str, Any]) -> str:
    """Return in what two rows differ, "" if they are equal; a row from before an ADD COLUMN lacks the column."""
    names = sorted(each for each in row.keys() | other.keys() if row.get(each) != other.get(each))
    return "; ".join(f"{each}: {str(row.get(each))[:200]}, then {str(other.get(each))[:200]}" for each in names)
