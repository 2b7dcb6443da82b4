"""Dates and times in kernels: made by the functions of `datetime`, and read where its objects keep their parts.

The macros of Python's C API read the same bytes. `IS_KNOWN` says whether this Python has them as they are known here.
"""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import datetime

import numpy as np
from llvmlite import ir
from numba import types

from tidemark.engine.jit.objects_kernels import _INT, _POINTER, _WORD, OBJECT, Held, _object_at, emitted

# Bytes of the object.
_HAS_ZONE = 24
_YEAR = 25  # of two bytes, the high one first; then a byte each for month, day, hour, minute and second, and three
_HOUR = 25  # of a time
_DATE_BYTES = 4
_ZONE = 40  # of a datetime


def _is_known():
    """Whether dates and times are in memory as is assumed here."""
    microsecond = 0x0A0B0C
    for zone in (None, datetime.UTC):
        moment = datetime.datetime(0x1234, 5, 6, 7, 8, 9, microsecond, zone)
        parts = bytes((0x12, 0x34, 5, 6, 7, 8, 9, 0x0A, 0x0B, 0x0C))
        for each, octets in (
            (moment, parts),
            (moment.date(), parts[:_DATE_BYTES]),
            (moment.timetz(), parts[_DATE_BYTES:]),
        ):
            has_zone = zone is not None and each != moment.date()
            found = ctypes.string_at(id(each) + _HAS_ZONE, 1 + len(octets))
            if found[1:] != octets or (type(each) is not datetime.date and found[0] != has_zone):
                return False
        if zone is not None and ctypes.c_void_p.from_address(id(moment) + _ZONE).value != id(zone):
            return False
    return True


IS_KNOWN = _is_known()


# --- read ------------------------------------------------------------------------------------------
def _octet(builder, held, place):
    return builder.zext(builder.load(builder.gep(held, [_WORD(place)])), _WORD)


def _number(builder, held, place, count):
    found = _octet(builder, held, place)
    for number in range(1, count):
        found = builder.or_(builder.shl(found, _WORD(8)), _octet(builder, held, place + number))
    return found


def _date_parts(context, builder, signature, values):
    (held,) = values
    parts = [_number(builder, held, _YEAR, 2), _octet(builder, held, _YEAR + 2), _octet(builder, held, _YEAR + 3)]
    return context.make_tuple(builder, signature.return_type, parts)


@emitted(_date_parts, types.UniTuple(types.int64, 3), OBJECT)
def date_parts(held):
    """Return (year, month, day) of a date or a datetime."""
    return held.value.year, held.value.month, held.value.day


def _clock_parts(first):
    def code(context, builder, signature, values):
        (held,) = values
        parts = [_octet(builder, held, first + number) for number in range(3)]
        return context.make_tuple(builder, signature.return_type, [*parts, _number(builder, held, first + 3, 3)])

    return emitted(code, types.UniTuple(types.int64, 4), OBJECT)


@_clock_parts(_HOUR)
def time_parts(held):
    """Return (hour, minute, second, microsecond) of a time."""
    return held.value.hour, held.value.minute, held.value.second, held.value.microsecond


@_clock_parts(_YEAR + _DATE_BYTES)
def datetime_parts(held):
    """Return (hour, minute, second, microsecond) of a datetime."""
    return held.value.hour, held.value.minute, held.value.second, held.value.microsecond


def _has_zone(context, builder, signature, values):
    return _octet(builder, values[0], _HAS_ZONE)


@emitted(_has_zone, types.int64, OBJECT)
def has_zone(held):
    """Whether a time or a datetime has a time zone."""
    return int(held.value.tzinfo is not None)


def _zone_of(context, builder, signature, values):
    at = builder.bitcast(builder.gep(values[0], [_WORD(_ZONE)]), _WORD.as_pointer())
    return builder.load(at, align=8)


@emitted(_zone_of, types.int64, OBJECT)
def zone_of(held):
    """Return the address of the time zone of a datetime that has one."""
    return id(held.value.tzinfo)


# --- made ------------------------------------------------------------------------------------------
# Their functions are found through a capsule of `datetime`, so kernels get their addresses.
def _call_at(builder, address, *values):
    kind = ir.FunctionType(_POINTER, [each.type for each in values])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), values)


def _ints(builder, values):
    return [builder.trunc(each, _INT) for each in values]


def _new_date(context, builder, signature, values):
    function, kind, *parts = values
    return _call_at(builder, function, *_ints(builder, parts), builder.inttoptr(kind, _POINTER))


@emitted(_new_date, OBJECT, *[types.int64] * 5)
def new_date(function, kind, year, month, day):
    """Return a date; no object if there is no such day. function: `Date_FromDate`; kind: the class `date`."""
    return _made(_object_at(kind), year, month, day)


def _new_time(context, builder, signature, values):
    function, kind, zone, *parts = values
    places = [builder.inttoptr(each, _POINTER) for each in (zone, kind)]
    return _call_at(builder, function, *_ints(builder, parts), *places)


@emitted(_new_time, OBJECT, *[types.int64] * 7)
def new_time(function, kind, zone, hour, minute, second, microsecond):
    """Return a time. function: `Time_FromTime`; kind: the class `time`; zone: address of None."""
    return _made(_object_at(kind), hour, minute, second, microsecond, _object_at(zone))


@emitted(_new_time, OBJECT, *[types.int64] * 10)
def new_datetime(function, kind, zone, year, month, day, hour, minute, second, microsecond):
    """Return a datetime. function: `DateTime_FromDateAndTime`; kind: the class `datetime`; zone: address of None or
    of a time zone.
    """
    return _made(_object_at(kind), year, month, day, hour, minute, second, microsecond, _object_at(zone))


def _made(kind, *parts):
    try:
        return Held(kind(*(int(each) if isinstance(each, np.integer) else each for each in parts)))
    except ValueError:
        return None
