"""Random tables, rows and keys, and a call made on both paths."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np

import tidemark as tm
from tidemark.engine import types as t
from tidemark.engine.types import Binary, Char, ColumnType, Moment, VarBinary, VarChar

FIXED: list[ColumnType] = [
    *(t.Int8, t.Int16, t.Int32, t.Int64, t.UInt8, t.UInt16, t.UInt32, t.UInt64, t.Float32, t.Float64, t.Bool),
    *(t.Date, t.Time, t.DateTime, t.Timestamp, t.Decimal(9, 2), t.Decimal(18, 0), t.Decimal(38, 10)),
    *(
        t.Char(1),
        t.Char(7),
        t.Binary(1),
        t.Binary(8),
        t.Binary(13),
        t.Binary(20),
        t.Enum("a", "b", "ü"),
        t.Enum(*map(str, range(1_500))),
        t.UUID,
    ),
]
VARIABLE: list[ColumnType] = [t.VarChar(12), t.VarBinary(20)]
LONG: list[ColumnType] = [t.Text, t.Blob, t.JSON]
EVERY = [*FIXED, *VARIABLE, *LONG]
_TEXTS = ["", "a", "pen", "ä", "a\0b", "日本", "x" * 7, "\U0001f600"]


def value(rng: random.Random, kind: ColumnType) -> Any:
    """A value of a type, its extremes among them."""
    if isinstance(kind, t.Integer):
        return rng.choice([kind.minimum, kind.maximum, 0, 1, rng.randint(kind.minimum, kind.maximum)])
    if isinstance(kind, t.Floating):
        return rng.choice([0.0, -0.0, 1.5, float("inf"), float("-inf"), -(2.0**-20)])
    if isinstance(kind, t.Decimal):
        number = rng.choice([0, 1, -1, 10**kind.precision - 1, rng.randrange(10**kind.precision)])
        return decimal.Decimal(number).scaleb(-kind.scale, decimal.Context(prec=80))
    if isinstance(kind, t.Enum):
        return rng.choice(kind.members)
    if isinstance(kind, t.Char):
        return rng.choice(_TEXTS)[: kind.length].rstrip("\0")
    if isinstance(kind, (t.Binary, t.VarBinary)):
        return rng.randbytes(rng.randrange(kind.length + 1))
    day = datetime.date.fromordinal(rng.choice([1, 719_163, 3_652_059, rng.randint(1, 3_652_059)]))
    time = datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.choice([0, 999_999, 7]))
    made: dict[str, Callable[[], Any]] = {
        "Bool": lambda: rng.random() < 0.5,
        "Date": lambda: day,
        "Time": lambda: time,
        "DateTime": lambda: datetime.datetime.combine(day, time),
        "Timestamp": lambda: datetime.datetime.combine(day, time, datetime.UTC),
        "Text": lambda: rng.choice([*_TEXTS, "long " * 10_000]),
        "Blob": lambda: rng.choice([b"", b"\0", bytes(40_000), rng.randbytes(9)]),
        "UUID": lambda: uuid.UUID(int=rng.choice([0, 1, 1 << 63, 1 << 64, (1 << 128) - 1, rng.getrandbits(128)])),
        "JSON": lambda: rng.choice([{"a": [1.5, None, {"b": "ä"}]}, [], {}, 7, -1.25, True, "text", ["x" * 9_000]]),
    }
    return made.get(repr(kind), lambda: rng.choice(_TEXTS))()


def wrong(rng: random.Random) -> Any:
    """A value that many columns refuse, or read in another way than others."""
    made: list[Any] = [None, 7, -1, 2**63, -(2**63) - 1, 2**64, 1.5, float("nan"), True, "a", "", "z" * 50, "\ud800"]
    made += [b"", b"a", b"z" * 50, "a\0", (), (1,), (1, 2), [1], [], {}, object, datetime.date(2000, 1, 1)]
    made += [decimal.Decimal("1.5"), bytearray(b"a"), Text("a"), Number(7), datetime.datetime(2000, 1, 1)]
    return rng.choice(made)


def edge(rng: random.Random, kind: ColumnType) -> Any:
    """A value that a column takes in another form, or only just refuses."""
    made: list[Any] = [wrong(rng)]
    if isinstance(kind, t.Integer):
        made = [kind.minimum - 1, kind.maximum + 1, Number(1), np.int8(1)]
    elif isinstance(kind, t.Floating):
        made = [float("nan"), 1e39, -3.4028235677973366e38, 3.4028235677973362e38, 1e-50, -1e-50, 7, np.float32(0.1)]
    elif isinstance(kind, t.Boolean):
        made = [0, 1, np.True_]
    elif isinstance(kind, t.Decimal):
        most = 10**kind.precision
        unit = PRECISE.create_decimal((0, (1,), -kind.scale))
        made = [0, 1, -1, most // 10**kind.scale, most, -most, 2**63, -(2**63), True, Amount("1"), np.int64(1)]
        made += [PRECISE.multiply(unit, number) for number in (most, -most, most - 1, 1 - most)]
        made += [PRECISE.divide(unit, 10), PRECISE.multiply(unit, decimal.Decimal("7.00000000000000000000"))]
        for text in ("-0", "0E+5", "0E-99", "0E+999999", "1E+3", "-12E1", "1E+999999", "NaN", "sNaN", "-Infinity"):
            made.append(decimal.Decimal(text))
        places = rng.randrange(-25, 45)
        made.append(decimal.Decimal((rng.randrange(2), tuple(rng.choices(range(10), k=rng.randrange(1, 60))), -places)))
        zeros = "0" * rng.randrange(45)
        made.append(decimal.Decimal(f"{rng.randrange(most // 10**kind.scale)}.{'0' * kind.scale}{zeros}"))
    elif isinstance(kind, t.Enum):
        made = [kind.members[-1] + "x", Text(kind.members[0]), "".join(kind.members[0]), 0, "\ud800"]
    elif isinstance(kind, Moment):
        moment: datetime.datetime = value(rng, t.DateTime)
        zone = datetime.timezone(datetime.timedelta(hours=rng.choice([-1, 1])))
        zones = [None, datetime.UTC, zone, zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("Europe/Berlin"), Zone()]
        zoned = moment.replace(tzinfo=rng.choice(zones), fold=rng.randrange(2))
        made = [moment.date(), moment.time(), zoned, zoned.timetz(), np.datetime64(moment), Day(2000, 1, 1)]
        made += [OwnDatetime(2000, 1, 1, tzinfo=rng.choice([None, datetime.UTC])), Clock(1), datetime.time.max]
        made += [datetime.date.min, datetime.date.max, datetime.datetime.min, datetime.datetime.max]
        made += [each.replace(tzinfo=datetime.UTC) for each in (datetime.datetime.min, datetime.datetime.max)]
        made.append(datetime.datetime.combine(rng.choice([LEAP, LEAP.replace(day=28)]), moment.time(), moment.tzinfo))
    elif isinstance(kind, t.Uuid):
        found = uuid.UUID(int=rng.getrandbits(128))
        made = [str(found), found.hex, found.bytes, Identity(int=7), b"z" * 15, "z" * 32, uuid.UUID(int=1 << 127)]
        made.append(uuid.UUID(int=found.int, is_safe=uuid.SafeUUID.safe))
    elif isinstance(kind, t.Document):
        made = [{"a": (1,)}, {1: 2}, [float("nan")], "", None, b"", b"a", 10**30, {"b": 1, "a": 2}]
    elif isinstance(kind, (Char, Binary, VarChar, VarBinary)):
        is_text = isinstance(kind, (Char, VarChar))
        longer: Any = "x" * (kind.length + 1) if is_text else b"x" * (kind.length + 1)
        made = [longer, longer[:-1], "a\0", b"a\0", b"\0" * kind.length]
    return rng.choice(made)


PRECISE = decimal.Context(prec=100)
LEAP = datetime.date(2000, 2, 29)


class Amount(decimal.Decimal):
    """A Decimal of a class of its own."""


class Identity(uuid.UUID):
    """A UUID of a class of its own."""


class Day(datetime.date):
    """A date of a class of its own."""


class Clock(datetime.time):
    """A time of a class of its own."""


class OwnDatetime(datetime.datetime):
    """A datetime of a class of its own."""


class Zone(datetime.tzinfo):
    """A time zone that gives no offset."""

    def utcoffset(self, _: Any) -> None:
        """None: its datetimes are as those without a zone."""
        return None


class Text(str):
    """A text of a class of its own."""


class Number(int):
    """An int of a class of its own."""


class World:
    """A store with one random table, and what it holds."""

    def __init__(self, db: Any, rng: random.Random, types: list[ColumnType] = EVERY, **options: Any) -> None:
        """types: of its columns. options: of the table."""
        self.db = db
        self.rng = rng
        self.types = types
        kinds = [rng.choice([each for each in types if each.keyable]) for _ in range(rng.choice([1, 1, 2, 3]))]
        if rng.random() < 0.4:
            kinds = [rng.choice([t.Int64, t.VarChar(12)])]
        self.key = [f"k{number}" for number in range(len(kinds))]
        columns = [tm.Column(name, kind) for name, kind in zip(self.key, kinds, strict=True)]
        for number in range(rng.randrange(14)):
            columns.append(tm.Column(f"c{number}", rng.choice(types), nullable=rng.random() < 0.5))
        rng.shuffle(columns)
        self.table = db.create_table("t", columns, self.key, **options)
        self.index: list[str] = []
        self.keys: list[tuple[Any, ...]] = []
        others = [each.name for each in columns if each.type.keyable]
        if others and rng.random() < 0.7:
            self.index = rng.sample(others, min(len(others), rng.choice([1, 1, 2])))
            db.create_index("t", "u", self.index, unique=True, ordered=rng.random() < 0.5)
        self.insert(db["t"], 15)

    def row(self) -> dict[str, Any]:
        """A random row."""
        columns = self.table.definition.columns
        return {
            each.name: None if each.nullable and self.rng.random() < 0.3 else value(self.rng, each.type)
            for each in columns
        }

    def insert(self, into: Any, count: int, *name: str) -> None:
        """Insert random rows, by a handle or a transaction, except those whose keys exist."""
        for _ in range(count):
            row = self.row()
            try:
                into.insert(*name, row)
            except tm.DuplicateKey:
                continue
            self.keys.append(tuple(row[each] for each in self.key))

    def change_columns(self) -> None:
        """Add, drop or rename a column."""
        names = [each.name for each in self.table.definition.columns if each.name not in (*self.key, *self.index)]
        what = self.rng.choice(["add", "add", "drop", "rename"])
        if what == "add" or not names:
            kind, name = (
                self.rng.choice(self.types),
                f"a{len(self.table.definition.columns)}_{self.rng.randrange(1000)}",
            )
            if self.rng.random() < 0.5:
                self.db.add_column("t", tm.Column(name, kind, nullable=True))
            else:
                self.db.add_column("t", tm.Column(name, kind, default=value(self.rng, kind)))
        elif what == "drop":
            self.db.drop_column("t", self.rng.choice(names))
        else:
            self.db.rename_column("t", self.rng.choice(names), f"r{self.rng.randrange(10**6)}")

    def some_key(self) -> Any:
        """A key: of a row, of none, or a value that is no key."""
        if self.rng.random() < 0.2 or not self.keys:
            return wrong(self.rng)
        pieces: tuple[Any, ...] = self.rng.choice(self.keys)
        if self.rng.random() < 0.2:
            kinds = {each.name: each.type for each in self.table.definition.columns}
            pieces = tuple(value(self.rng, kinds[name]) for name in self.key)
        if self.rng.random() < 0.2:
            pieces = self.odd(self.key, pieces)
        return pieces[0] if len(pieces) == 1 else pieces

    def odd(self, names: list[str], pieces: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values of a key of these columns, some of them replaced by what may be no value of its column."""
        kinds = {each.name: each.type for each in self.table.definition.columns}
        return tuple(
            self.rng.choice([wrong(self.rng), edge(self.rng, kinds[name]), edge(self.rng, kinds[name]), piece])
            for name, piece in zip(names, pieces, strict=True)
        )

    def some_index_key(self, rows: list[Any]) -> Any:
        """A key of the unique index."""
        if self.rng.random() < 0.2 or not rows:
            return wrong(self.rng)
        row = self.rng.choice(rows)
        pieces = tuple(row[name] for name in self.index)
        if self.rng.random() < 0.2:
            pieces = self.odd(self.index, pieces)
        return pieces[0] if len(pieces) == 1 else pieces


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call returns or raises, in a form that tells -0.0 from 0.0 and 1 from True."""
    try:
        row = call()
    except tm.Error as error:
        return type(error), str(error), repr(sorted(error.evidence.items()))
    if row is None:
        return (None,)
    return type(row), repr(tuple(row)), [type(each) for each in row]


def on_both_paths(table: Any, call: Callable[[], Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The outcome of a call that asks kernels first, and of the same call on the general path."""
    table.newest.plan = table.plan = None
    general = outcome(call)
    quick = outcome(call)
    return quick, general
