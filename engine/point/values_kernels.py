"""Rows made of images: each value by the kind of its column.

A kernel of this room never raises: where a value cannot be made, it clears the error, and the general path raises.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.calendar_kernels import new_date, new_datetime, new_time
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    clear_error,
    drop,
    finished,
    is_null,
    is_text,
    left,
    load_8,
    load_16,
    load_32,
    load_64,
    member,
    new_bool,
    new_bytes,
    new_float,
    new_int,
    new_padded,
    new_row,
    new_rows,
    new_single,
    new_text,
    new_unsigned,
    no_object,
    none,
    object_kernel,
    object_of,
    set_row,
    set_value,
    shared,
    start_collector,
    stop_collector,
)
from tidemark.engine.jit.uuid_kernels import document_of_text, new_uuid
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.decimals_kernels import decimal_of, wide_decimal_of
from tidemark.engine.schema import row_layout as R
from tidemark.engine.schema.partitions_kernels import swapped

LOW8 = 0xFF
LOW16 = 0xFFFF
LOW32 = (1 << 32) - 1


@helper
def row_of_plan(plan):
    """Return a row without values, or no object. The collector may run here: call it before a key is looked up."""
    return new_row(plan[U.U_CLASS], plan[U.U_COLUMNS])


@helper
def leave(row):
    """Leave the call to the general path. row: the row in the making, dropped here; it may be no object."""
    drop(row)
    return left()


@helper
def no_row(row):
    drop(row)
    return none()


@helper
def calendar(days):
    """Return (year, month, day) of a number of days since 1970, by eras of 400 years that begin in March; year 0 for a
    day that Python does not have.
    """
    if days < U.DAY_LEAST or days > U.DAY_GREATEST:
        return 0, 1, 1
    days += U.DAYS_BEFORE_1970
    era = days // 146_097
    day = days - era * 146_097
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month += 3 if month < 10 else -9
    return year + era * 400 + (1 if month <= 2 else 0), month, day + 1


@helper
def date_of(plan, days):
    """Return a date, or no object for a day that Python does not have."""
    year, month, day = calendar(days)
    return new_date(plan[U.U_DATE_NEW], plan[U.U_DATE], year, month, day)


@helper
def clock(time):
    """Return (hour, minute, second, microsecond) of the microseconds of a day."""
    seconds = time // 1_000_000
    minutes = seconds // 60
    return minutes // 60, minutes % 60, seconds % 60, time % 1_000_000


@helper
def time_of(plan, time):
    """Return a time, or no object past the end of the day."""
    hour = -1
    minute = 0
    second = 0
    microsecond = 0
    if 0 <= time and time < U.DAY_MICROSECONDS:
        hour, minute, second, microsecond = clock(time)
    return new_time(plan[U.U_TIME_NEW], plan[U.U_TIME], plan[U.U_NONE], hour, minute, second, microsecond)


@helper
def datetime_of(plan, moment, zone):
    """Return a datetime of a number of microseconds since 1970, or no object. zone: address of its time zone."""
    days = moment // U.DAY_MICROSECONDS
    year, month, day = calendar(days)
    hour, minute, second, microsecond = clock(moment - days * U.DAY_MICROSECONDS)
    made = (plan[U.U_DATETIME_NEW], plan[U.U_DATETIME], zone)
    return new_datetime(made[0], made[1], made[2], year, month, day, hour, minute, second, microsecond)


@helper
def member_of(plan, column, number):
    """Return a member of an Enum, or no object if it has no such one."""
    return member(object_of(plan[column + U.UC_DETAIL]), number)


@helper
def text_of(words, byte, size):
    """Return a text without the zeros at its end."""
    while size > 0 and load_8(words, byte + size - 1) == 0:
        size -= 1
    return new_text(words, byte, size)


@helper
def big_end(words, byte, size):
    """Return the number of 8 bytes, the highest first; those past `size` are 0."""
    number = 0
    for i in range(8):
        number = number << 8 | (load_8(words, byte + i) & LOW8 if i < size else 0)
    return number


@helper
def uuid_of(plan, column, words, byte, size):
    """Return a UUID, or no object. In a var part it has no zeros at its end."""
    parts = object_of(plan[column + U.UC_DETAIL])
    if size == U.UUID_BYTES:
        return new_uuid(parts, swapped(load_64(words, byte)), swapped(load_64(words, byte + 8)))
    if size > U.UUID_BYTES:
        return no_object()
    return new_uuid(parts, big_end(words, byte, size), big_end(words, byte + 8, size - 8))


@helper
def calendar_value(plan, column, kind, words, byte):
    """Return a value of a kind of the calendar, or of an Enum."""
    if kind == U.DATE_32:
        return date_of(plan, load_32(words, byte))
    if kind == U.ENUM_16:
        return member_of(plan, column, load_16(words, byte) & LOW16)
    word = load_64(words, byte)
    if kind == U.DATETIME:
        return datetime_of(plan, word, plan[U.U_NONE])
    if kind == U.TIMESTAMP:
        return datetime_of(plan, word, plan[U.U_UTC])
    if kind == U.TIME:
        return time_of(plan, word)
    if kind == U.DATE_64:
        return date_of(plan, word)
    return member_of(plan, column, word)


@helper
def value_of(plan, column, kind, words, byte, size):
    """Return the value of `size` bytes from a byte of an array on, or no object."""
    if kind == U.INT_64:
        return new_int(load_64(words, byte))
    if kind == U.TEXT:
        return new_text(words, byte, size)
    if kind == U.FLOAT_64:
        return new_float(load_64(words, byte))
    if kind == U.INT_32:
        return new_int(load_32(words, byte))
    if kind == U.BYTES or kind == U.PADDED_BYTES:
        return new_bytes(words, byte, size)
    if kind == U.PADDED_TEXT:
        return text_of(words, byte, size)
    if kind == U.DECIMAL:
        return decimal_of(plan[U.U_DECIMAL], plan[column + U.UC_DETAIL], load_64(words, byte))
    if kind == U.BOOL:
        return new_bool(load_8(words, byte))
    if kind == U.UINT_32:
        return new_int(load_32(words, byte) & LOW32)
    if kind == U.UINT_64:
        return new_unsigned(load_64(words, byte))
    if kind == U.INT_16:
        return new_int(load_16(words, byte))
    if kind == U.UINT_16:
        return new_int(load_16(words, byte) & LOW16)
    if kind == U.INT_8:
        return new_int(load_8(words, byte))
    if kind == U.UINT_8:
        return new_int(load_8(words, byte) & LOW8)
    if kind == U.WIDE_DECIMAL:
        low, high = load_64(words, byte), load_64(words, byte + 8)
        return wide_decimal_of(plan[U.U_DECIMAL], plan[column + U.UC_DETAIL], low, high)
    if kind == U.FLOAT_32:
        return new_single(load_32(words, byte))
    if kind == U.UUID:
        return uuid_of(plan, column, words, byte, size)
    if kind == U.JSON:
        return document_of_text(object_of(plan[column + U.UC_DETAIL]), new_text(words, byte, size))
    return calendar_value(plan, column, kind, words, byte)


@helper
def is_varying(kind):
    return U.PADDED_TEXT <= kind <= U.BYTES or kind >= U.UUID


@helper
def missing_value(plan, column, kind):
    """Return the value of a row from before a column was added. Of JSON the plan has the text: each row has a document
    of its own.
    """
    value = shared(plan[column + U.UC_MISSING])
    if kind == U.JSON and is_text(value):
        return document_of_text(object_of(plan[column + U.UC_DETAIL]), value)
    return value


@helper
def var_value(plan, column, kind, words, var_at, ordinal, width):
    """Return a value of the var part words[var_at:]; None, or the column's default, if it has none; or no object."""
    header = words[var_at]
    count = (header >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    if ordinal >= count:
        return missing_value(plan, column, kind)
    ends = (var_at + 1 + ((header >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)) << 3
    end = load_32(words, ends + 4 * ordinal)
    if end & R.VAR_NULL_BIT:
        return none()
    begin = load_32(words, ends + 4 * ordinal - 4) & R.VAR_END_MASK if ordinal > 0 else 0
    size = (end & R.VAR_END_MASK) - begin
    byte = ends + ((count + 1) >> 1 << 3) + begin
    last = (var_at + (header & R.VAR_WORDS_MASK)) << 3
    if size < 0 or byte + size > last or (size != width and not is_varying(kind)):
        return no_object()
    if kind == U.PADDED_BYTES:
        return new_padded(words, byte, size, width) if size <= width else no_object()
    return value_of(plan, column, kind, words, byte, size)


@helper
def piece_value(plan, column, kind, words, var_at, ordinal, width):
    """Return a value of the key in the var part words[var_at:]."""
    at = var_at + 1
    pieces = plan[U.U_PIECES]
    for i in range(ordinal):
        size = plan[pieces + i]
        at += size if size >= 0 else 1 + ((words[at] + 7) >> 3)
    if plan[pieces + ordinal] >= 0:
        return value_of(plan, column, kind, words, at << 3, width)
    return value_of(plan, column, kind, words, (at + 1) << 3, words[at])


@helper
def fill_row(row, plan, fixed, at, words, var_at):
    """Return a new row with its values: of the fixed image fixed[at:] and the var part words[var_at:]. 1 if it is
    finished; 0 if a value cannot be made, with the error cleared.

    var_at: -1 for a row without a var part in a table that has some.
    """
    for i in range(plan[U.U_COLUMNS]):
        column = U.U_ROWS + i * U.COLUMN_WORDS
        place = plan[column + U.UC_PLACE]
        kind = place >> U.KIND_SHIFT
        part = (place >> U.PART_SHIFT) & U.PART_MASK
        size = (place >> U.SIZE_SHIFT) & U.SIZE_MASK
        where = place & U.AT_MASK
        null = plan[column + U.UC_NULL]
        if part == U.PART_FIXED:
            if null != 0 and load_8(fixed, (at << 3) + (null >> 8)) & null & LOW8:
                value = none()
            else:
                value = value_of(plan, column, kind, fixed, (at << 3) + where, size)
        elif var_at < 0:
            value = missing_value(plan, column, kind)
        elif part == U.PART_VAR:
            value = var_value(plan, column, kind, words, var_at, where, size)
        else:
            value = piece_value(plan, column, kind, words, var_at, where, size)
        if is_null(value):
            clear_error()
            return 0
        set_value(row, i, value)
    return 1


@object_kernel("object_(int64[::1], int64[::1], int64[::1], int64, int64)")
def rows_of_images(plan, images, offsets, start, stop):
    """Return a list of the rows whose images begin at images[offsets[start:stop]], or ... if one cannot be made."""
    rows = new_rows(stop - start)
    if is_null(rows):
        clear_error()
        return left()
    was_on = stop_collector()
    is_whole = 1
    for i in range(start, stop):
        at = offsets[i]
        row = row_of_plan(plan)
        if is_null(row):
            clear_error()
            is_whole = 0
            break
        var_at = at + plan[U.U_FIXED_WORDS] if plan[U.U_HAS_VAR] else -1
        if fill_row(row, plan, images, at, images, var_at) == 0:
            drop(row)
            is_whole = 0
            break
        set_row(rows, i - start, finished(row))
    if was_on:
        start_collector()
    if is_whole:
        return rows
    drop(rows)
    return left()
