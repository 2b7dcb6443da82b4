"""Key words bit by bit, as strings of '0' and '1': the naive twin of every encoder of index keys."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from tidemark.engine import types as t
from tidemark.engine.types import Moment

Bits = str


def _unsigned(number: int, bits: int) -> Bits:
    assert 0 <= number < 1 << bits
    return format(number, f"0{bits}b")


def _signed(number: int, bits: int) -> Bits:
    return _unsigned(number + (1 << bits - 1), bits)


def _float(value: float, bits: int) -> Bits:
    if value != value:
        return "1" * bits
    value += 0.0  # -0.0 + 0.0 is 0.0
    (number,) = struct.unpack(">I" if bits == 32 else ">Q", struct.pack(">f" if bits == 32 else ">d", value))
    text = _unsigned(number, bits)
    if text == "1" + "0" * (bits - 1):
        text = "0" * bits  # values rounded to -0.0
    if text[0] == "0":
        return "1" + text[1:]
    return "".join("1" if each == "0" else "0" for each in text)


def _bytes(octets: bytes) -> Bits:
    text = ""
    for each in octets:
        text += _unsigned(each, 8)
        if each == 0:
            text += "1" * 8
    return text + "0" * 16


def value_bits(kind: Any, value: Any) -> Bits:
    """Bits of a value that is not NULL."""
    if isinstance(kind, t.Integer):
        return _signed(value, kind.bits) if kind.signed else _unsigned(value, kind.bits)
    if isinstance(kind, t.Floating):
        return _float(value, kind.bits)
    if isinstance(kind, t.Decimal):
        sign, digits, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        number = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale)
        return _signed(-number if sign else number, 8 * kind.width)
    if isinstance(kind, t.Boolean):
        return _unsigned(int(value), 8)
    if isinstance(kind, t.Enum):
        return _unsigned(kind.members.index(value), 16)
    if isinstance(kind, Moment):
        return _signed(kind.stored(value), 8 * kind.width)
    if isinstance(kind, t.Uuid):
        value = value.bytes
    octets = value.encode() if isinstance(value, str) else bytes(value)
    if kind.width:
        octets = octets.rstrip(b"\0")
    return _bytes(octets)


def key_bits(columns: Sequence[Any], values: Sequence[Any]) -> Bits:
    """Bits of a key or of a beginning of one."""
    text = ""
    for column, value in zip(columns, values, strict=False):
        if column.nullable:
            text += "0" if value is None else "1"
        if value is not None:
            text += value_bits(column.type, value)
    return text


def key_words(columns: Sequence[Any], values: Sequence[Any], least: int) -> list[int]:
    """Key words of a whole key, `least` of them at least."""
    text = key_bits(columns, values)
    text += "0" * (-len(text) % 64)
    text += "0" * (64 * least - len(text))
    return [int(text[at : at + 64], 2) - (1 << 63) for at in range(0, len(text), 64)]
