"""What columns hold, as a user reads it in the documents: the values a type takes, refuses and returns.

Nothing here calls the store; `build` alone makes its column types.
"""

from __future__ import annotations

import datetime as dt
import random
import string
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

UTC = dt.timezone.utc  # noqa: UP017 -- printed programs name it like this
ABSENT = "<absent>"
_INTEGERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_WORDS = ("", "a", "b", "ab", "abc", "ä", "ÿz", "日本", "A", "a b", "x" * 7, "0", "%_\\", 'q"q', "l\nm", "🙂")
_ALPHABET = string.ascii_lowercase[:6] + "äé日"


class Refused(Exception):
    """The store must refuse the call with an error of one of these classes."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = frozenset(names)


class Unsure(Exception):
    """The documents do not say what happens: the step is left out."""


def all_of(*checks: Callable[[], Any]) -> list[Any]:
    """Return the result of each. Raises: Refused with the errors of all: a call with two faults raises one of them."""
    found, wrong = [], set[str]()
    for check in checks:
        try:
            found.append(check())
        except Refused as error:
            wrong |= error.names
    if wrong:
        raise Refused(*wrong)
    return found


@dataclass(frozen=True)
class Kind:
    """A column type: its name, its one or two numbers, and the members of an Enum."""

    name: str
    a: int = 0
    b: int = 0
    members: tuple[str, ...] = ()

    @property
    def is_integer(self) -> bool:
        return self.name in _INTEGERS

    @property
    def is_float(self) -> bool:
        return self.name in ("Float32", "Float64")

    @property
    def is_text(self) -> bool:
        return self.name in ("Char", "VarChar", "Text")

    @property
    def is_bytes(self) -> bool:
        return self.name in ("Binary", "VarBinary", "Blob")

    @property
    def is_time(self) -> bool:
        return self.name in ("Date", "Time", "DateTime", "Timestamp")

    @property
    def is_keyable(self) -> bool:
        return self.name not in ("Text", "Blob")

    @property
    def python(self) -> type:
        """The type of values that are read."""
        if self.is_integer:
            return int
        named = {
            "Float32": float,
            "Float64": float,
            "Decimal": Decimal,
            "Bool": bool,
            "Date": dt.date,
            "Time": dt.time,
            "DateTime": dt.datetime,
            "Timestamp": dt.datetime,
        }
        return named.get(self.name, bytes if self.is_bytes else str)

    def bounds(self) -> tuple[int, int]:
        """Least and greatest integer."""
        bits = int(self.name.lstrip("UInt"))
        return (0, 2**bits - 1) if self.name[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def build(self) -> Any:
        """Return the store's column type."""
        import tidemark as tm

        made = getattr(tm, self.name)
        if self.name == "Decimal":
            return made(self.a, self.b)
        if self.name == "Enum":
            return made(*self.members)
        return made(self.a) if self.a else made

    # --- what a column takes ---------------------------------------------------------------------
    def take(self, value: Any, is_key: bool = False) -> Any:
        """Return the value as it will be read; an odd one is what it means. Raises: Refused."""
        if hasattr(value, "means"):
            value = value.means
        if self.is_integer:
            return self._integer(value)
        if self.is_float:
            return self._float(value, is_key)
        if self.name == "Decimal":
            return self._decimal(value)
        if self.name == "Bool":
            if not isinstance(value, bool):
                raise Refused("TypeMismatch")
            return value
        if self.name == "Enum":
            if not isinstance(value, str):
                raise Refused("TypeMismatch")
            if value not in self.members:
                raise Refused("ValueOutOfRange")
            return value
        if self.is_time:
            return self._time(value)
        return self._text(value) if self.is_text else self._bytes(value)

    def _integer(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused("TypeMismatch")
        least, greatest = self.bounds()
        if not least <= value <= greatest:
            raise Refused("ValueOutOfRange")
        return value

    def _float(self, value: Any, is_key: bool) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refused("TypeMismatch")
        if isinstance(value, int) and abs(value) > (2**24 if self.name == "Float32" else 2**53):
            raise Refused("ValueOutOfRange")
        number = float(value)
        if self.name == "Float32":
            try:
                number = struct.unpack("<f", struct.pack("<f", number))[0]
            except OverflowError:
                raise Refused("ValueOutOfRange") from None
        if is_key:
            if number != number:
                raise Refused("ValueOutOfRange")
            number += 0.0
        return number

    def _decimal(self, value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise Refused("TypeMismatch")
        exact = Decimal(value)
        if not exact.is_finite():
            raise Refused("ValueOutOfRange")
        sign, digits, exponent = exact.as_tuple()
        number = int("".join(map(str, digits)) or "0")
        shift = int(exponent) + self.b
        if number and (shift < -60 or shift > 60):
            raise Refused("ValueOutOfRange")
        if shift >= 0:
            number *= 10 ** min(shift, 60)
        else:
            number, rest = divmod(number, 10 ** min(-shift, 90))
            if rest:
                raise Refused("ValueOutOfRange")
        if number >= 10**self.a:
            raise Refused("ValueOutOfRange")
        return Decimal((sign if number else 0, tuple(map(int, str(number))), -self.b))

    def _text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Refused("TypeMismatch")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused("ValueOutOfRange") from None
        if self.a and len(value) > self.a:
            raise Refused("ValueOutOfRange")
        if self.name == "Char" and value.endswith("\0"):
            raise Refused("ValueOutOfRange")
        return value

    def _bytes(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise Refused("TypeMismatch")
        octets = bytes(value)
        if self.a and len(octets) > self.a:
            raise Refused("ValueOutOfRange")
        return octets.ljust(self.a, b"\0") if self.name == "Binary" else octets

    def _time(self, value: Any) -> Any:
        wanted = {"Date": dt.date, "Time": dt.time}.get(self.name, dt.datetime)
        if not isinstance(value, wanted) or (self.name == "Date" and isinstance(value, dt.datetime)):
            raise Refused("TypeMismatch")
        if self.name == "Timestamp":
            if value.utcoffset() is None:
                raise Refused("TypeMismatch")
            try:
                return value.astimezone(UTC)
            except OverflowError:
                raise Refused("ValueOutOfRange") from None
        if self.name != "Date" and value.tzinfo is not None:
            raise Refused("TypeMismatch")
        return value

    # --- values ----------------------------------------------------------------------------------
    def draw(self, rng: random.Random, is_key: bool = False) -> Any:
        """Return a value that the column takes: often a small one, so that keys meet again, else one at an edge."""
        small = rng.random() < (0.9 if is_key else 0.5)
        if self.is_integer:
            least, greatest = self.bounds()
            if small:
                return rng.randrange(0, 24)
            return rng.choice((least, greatest, greatest - 1, rng.randint(least, greatest), rng.randrange(0, 100)))
        if self.is_float:
            edges = (0.0, 1.5, -2.25, 0.1, 1e10, -1e-10, 3.0e38, 16777217.0)
            number = float(rng.randrange(-8, 24)) / 4 if small else rng.choice(edges)
            if not is_key and rng.random() < 0.06:
                number = rng.choice((float("nan"), float("inf"), float("-inf"), -0.0))
            return self.take(number, is_key)
        if self.name == "Decimal":
            top = 10**self.a - 1
            number = rng.randrange(0, min(top, 24) + 1) if small else rng.choice((top, -top, rng.randint(-top, top)))
            return self.take(Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -self.b)))
        if self.name == "Bool":
            return rng.random() < 0.5
        if self.name == "Enum":
            return rng.choice(self.members)
        if self.is_text:
            word = rng.choice(_WORDS) if small else "".join(rng.choices(_ALPHABET, k=rng.randrange(0, 30)))
            return word[: self.a] if self.a else word * rng.choice((1, 1, 1, 9))
        if self.is_bytes:
            word = (
                rng.choice((b"", b"a", b"\0", b"ab\0", b"\xff\xfe")) if small else rng.randbytes(rng.randrange(0, 40))
            )
            return self.take(word[: self.a] if self.a else word)
        return self._draw_time(rng, small)

    def _draw_time(self, rng: random.Random, small: bool) -> Any:
        day = dt.date(2024, 1, 1) + dt.timedelta(rng.randrange(0, 24))
        if not small:
            day = rng.choice((dt.date.min, dt.date.max, dt.date(1969, 12, 31), dt.date(2000, 2, 29)))
        moment = dt.time(rng.randrange(0, 3)) if small else rng.choice((dt.time.min, dt.time.max, dt.time(12, 0, 0, 7)))
        if self.name == "Date":
            return day
        if self.name == "Time":
            return moment
        return dt.datetime.combine(day, moment, UTC if self.name == "Timestamp" else None)

    def order(self, value: Any) -> Any:
        """Return the sort key of a value in an index."""
        return (1, self.members.index(value)) if self.members and value is not None else order(value)

    def draw_wrong(self, rng: random.Random) -> Any:
        """Return a value that the column refuses, if it is of one of the kinds where there is an easy one."""
        wrong: list[Any] = [object, 1.5 if not self.is_float else "1"]
        if self.is_integer:
            least, greatest = self.bounds()
            wrong = [least - 1, greatest + 1, 1.0, "1", True, 10**30, Decimal(1)]
        elif self.name == "Float32":
            wrong = [1e39, 2**24 + 1, "1", True]
        elif self.name == "Float64":
            wrong = [2**53 + 1, "1", True, Decimal("1.5")]
        elif self.name == "Decimal":
            wrong = [10**self.a, Decimal((0, (1,), -self.b - 1)), Decimal("NaN"), Decimal("1E+400"), 1.5, "1"]
        elif self.is_text or self.name == "Enum":
            wrong = [b"a", 1, "\ud800"] + (["x" * (self.a + 1)] if self.a else [])
            wrong = [*wrong, "ab\0"] if self.name == "Char" else wrong
        elif self.is_bytes:
            wrong = ["a", 1] + ([b"x" * (self.a + 1)] if self.a else [])
        elif self.name == "Bool":
            wrong = [1, 0, "true"]
        elif self.is_time:
            aware = dt.datetime(2024, 1, 1, tzinfo=UTC)
            wrong = ["2024-01-01", 5, aware if self.name != "Timestamp" else aware.replace(tzinfo=None)]
        return rng.choice([each for each in wrong if each is not object])


def canonical(value: Any) -> Any:
    """Return a form of a value in which NaN equals itself and 0.0 does not equal -0.0, 1 not 1.0 and not True."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value) if value == value else b"nan"
    if isinstance(value, Decimal):
        return "decimal", str(value)
    return type(value).__name__, value


def order(value: Any) -> Any:
    """Return the sort key of a value of an index: bytes of text, NaN above all, NULL first."""
    if value is None:
        return (0,)
    if isinstance(value, str):
        return 1, value.encode()
    if isinstance(value, float):
        return (1, 1, 0.0) if value != value else (1, 0, value + 0.0)
    return (1, 0, value) if type(value) is int else (1, value)


def draw_kind(rng: random.Random, is_key: bool = False) -> Kind:
    """Return a type; keys and indexes take most."""
    names = [*sorted(_INTEGERS), "Float32", "Float64", "Bool", "Date", "Time", "DateTime", "Timestamp"]
    names += ["Decimal", "Decimal", "Char", "VarChar", "VarChar", "Binary", "VarBinary", "Enum", "Int64", "Int32"]
    names += [] if is_key else ["Text", "Blob"]
    name = rng.choice(names)
    if name == "Decimal":
        precision = rng.choice((1, 5, 9, 18, 19, 38))
        return Kind(name, precision, rng.randrange(0, min(precision, 6) + 1))
    if name == "Enum":
        return Kind(name, members=("red", "green", "blue", "")[: rng.randrange(2, 5)])
    if name in ("Char", "VarChar"):
        return Kind(name, rng.choice((1, 5, 20)))
    if name in ("Binary", "VarBinary"):
        return Kind(name, rng.choice((1, 4, 8, 20)))
    return Kind(name)
