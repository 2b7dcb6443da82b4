"""Convert one value between the store's form and MySQL's: numbers of any width, decimals, calendar values. Helpers
only.

A decimal of 128 bits is split into four limbs of 32 bits, lowest first, one word each, so that products with 10^9 and
remainders stay inside int64. MySQL divides the digits on each side of the point, outwards from it, into groups of nine.
A group takes four bytes, a shorter one fewer. The first bit is inverted; then, in a negative number, all bits are.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs.vm_columns_kernels import byte_at

GROUP_DIGITS = 9
_LIMB = 0xFFFFFFFF
_DAYS_TO_MARCH_OF_YEAR_0 = 719_468
_DAYS_OF_400_YEARS = 146_097
_SECOND_US = 1_000_000
DAY_US = 86_400 * _SECOND_US
NO_VALUE = -(1 << 63)  # a value that a calendar column cannot hold


@helper
def load_bytes(words, at, size):
    """Return up to 8 little-endian bytes at a byte address, zero-extended; 8 bytes fill all 64 bits."""
    if (at & 7) + size <= 8:
        word = words[np.uint64(at >> 3)] >> ((at & 7) << 3)
        return word if size == 8 else word & ((1 << (size << 3)) - 1)
    value = 0
    for i in range(size):
        value |= byte_at(words, at + i) << (i << 3)
    return value


@helper
def extend_sign(value, size):
    """Return the signed number in the lowest `size` bytes, 1 to 8."""
    left = 64 - (size << 3)
    return (value << left) >> left


@helper
def store_little(out, at, value, size):
    """Write the lowest `size` bytes, lowest first."""
    for i in range(size):
        out[np.uint64(at + i)] = (value >> (i << 3)) & 0xFF


@helper
def store_big(out, at, value, size):
    """Write the lowest `size` bytes, highest first."""
    for i in range(size):
        out[np.uint64(at + i)] = (value >> ((size - 1 - i) << 3)) & 0xFF


@helper
def take_little(body, at, size):
    """Read up to 8 bytes, lowest first, as 64 bits."""
    value = 0
    for i in range(size):
        value |= np.int64(body[np.uint64(at + i)]) << (i << 3)
    return value


@helper
def take_big(body, at, size):
    """Read up to 8 bytes, highest first, as 64 bits."""
    value = 0
    for i in range(size):
        value = (value << 8) | np.int64(body[np.uint64(at + i)])
    return value


# --- decimals -------------------------------------------------------------------------------------
@helper
def group_bytes(digits):
    """Return the size in bytes of a group of up to nine digits."""
    return (digits + 1) >> 1 if digits < 9 else 4


@helper
def decimal_bytes(precision, scale):
    """Return the size in bytes of a decimal."""
    before = precision - scale
    return (
        (before // GROUP_DIGITS) * 4
        + group_bytes(before % GROUP_DIGITS)
        + (scale // GROUP_DIGITS) * 4
        + group_bytes(scale % GROUP_DIGITS)
    )


@helper
def ten_to(digits):
    """Return 10^digits, for up to 18 digits."""
    value = 1
    for _ in range(digits):
        value *= 10
    return value


@helper
def divide_limbs(one, two, three, four, by):
    """Divide the number of four limbs by up to 10^9; return the four limbs of the quotient, and the remainder."""
    rest = four % by
    four //= by
    rest = (rest << 32) | three
    three = rest // by
    rest = (rest % by << 32) | two
    two = rest // by
    rest = (rest % by << 32) | one
    return rest // by, two, three, four, rest % by


@helper
def put_decimal(out, at, low, high, precision, scale):
    """Write the 128-bit number of words `low` and `high` as a decimal with `scale` digits after the point; return its
    size in bytes. Digits beyond the precision are lost.
    """
    mask = 0
    if high < 0:
        mask = 0xFF
        low = -low
        high = ~high + (1 if low == 0 else 0)
    one = low & _LIMB
    two = (low >> 32) & _LIMB
    three = high & _LIMB
    four = (high >> 32) & _LIMB
    size = decimal_bytes(precision, scale)
    end = at + size
    digits_left = scale
    digits = scale % GROUP_DIGITS
    for part in range(2):
        while digits_left > 0:
            if digits == 0:
                digits = GROUP_DIGITS
            digits = min(digits, digits_left)
            one, two, three, four, group = divide_limbs(one, two, three, four, ten_to(digits))
            width = group_bytes(digits)
            end -= width
            for i in range(width):
                out[np.uint64(end + i)] = ((group >> ((width - 1 - i) << 3)) & 0xFF) ^ mask
            digits_left -= digits
            digits = 0
        if part == 0:
            digits_left = precision - scale
            digits = 0
    out[np.uint64(at)] ^= 0x80
    return size


@helper
def _times_plus(one, two, three, four, by, plus):
    """Return the four limbs times `by`, at most 10^9, plus `plus`, less than 2^32. A carry out of the fourth is
    lost.
    """
    value = one * by + plus
    one = value & _LIMB
    value = two * by + (value >> 32)
    two = value & _LIMB
    value = three * by + (value >> 32)
    three = value & _LIMB
    value = four * by + (value >> 32)
    return one, two, three, value & _LIMB


@helper
def take_decimal(body, at, precision, scale):
    """Return (low word, high word, is sound) of a decimal of up to 38 digits; a group whose number has too many digits
    is not sound.
    """
    negative = np.int64(body[np.uint64(at)]) & 0x80 == 0
    mask = 0xFF if negative else 0
    flip = 0x80  # of the first byte only
    one = 0
    two = 0
    three = 0
    four = 0
    sound = True
    for part in range(2):
        left = scale if part else precision - scale
        digits = left % GROUP_DIGITS
        if part:
            digits = min(left, GROUP_DIGITS)
        elif digits == 0:
            digits = min(left, GROUP_DIGITS)
        while left > 0:
            width = group_bytes(digits)
            group = 0
            for i in range(width):
                group = (group << 8) | (np.int64(body[np.uint64(at + i)]) ^ mask ^ flip)
                flip = 0
            at += width
            base = ten_to(digits)
            if group >= base:
                sound = False
            one, two, three, four = _times_plus(one, two, three, four, base, group & _LIMB)
            left -= digits
            digits = min(left, GROUP_DIGITS)
    low = one | two << 32
    high = three | four << 32
    if negative:
        low = -low
        high = ~high + (1 if low == 0 else 0)
    return low, high, sound


# --- the calendar ---------------------------------------------------------------------------------
@helper
def civil_of(days):
    """Return (year, month, day) of days since 1970, from year 0 on."""
    shifted = days + _DAYS_TO_MARCH_OF_YEAR_0
    era = shifted // _DAYS_OF_400_YEARS
    day_of_era = shifted - era * _DAYS_OF_400_YEARS
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return year_of_era + era * 400 + (1 if month <= 2 else 0), month, day


@helper
def days_of(year, month, day):
    """Return days since 1970, or NO_VALUE if this is no date of the years 1 to 9999."""
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1 or day > 31:
        return NO_VALUE
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    days = era * _DAYS_OF_400_YEARS + day_of_era - _DAYS_TO_MARCH_OF_YEAR_0
    # A day past the end of its month counts as a day of the next month.
    if day > 28:
        _, there, _ = civil_of(days)
        if there != month:
            return NO_VALUE
    return days


@helper
def put_date(out, at, days):
    """Write three bytes: year, month and day packed."""
    year, month, day = civil_of(days)
    store_little(out, at, day | month << 5 | year << 9, 3)


@helper
def put_time(out, at, value_us):
    """Write six bytes: hours, minutes and seconds, then µs; the sign bit is inverted."""
    seconds = value_us // _SECOND_US
    clock = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    store_big(out, at, clock | 0x800000, 3)
    store_big(out, at + 3, value_us % _SECOND_US, 3)


@helper
def put_datetime(out, at, value_us):
    """Write eight bytes: years and months, days, the time; then µs; the sign bit is inverted."""
    days = value_us // DAY_US
    rest = value_us - days * DAY_US
    year, month, day = civil_of(days)
    seconds = rest // _SECOND_US
    clock = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    store_big(out, at, ((year * 13 + month) << 5 | day) << 17 | clock | 1 << 39, 5)
    store_big(out, at + 5, rest % _SECOND_US, 3)


@helper
def fraction_bytes(digits):
    """Return the size in bytes of a fraction of a second with up to six digits."""
    return (digits + 1) >> 1


@helper
def _take_fraction(body, at, digits):
    """Return the fraction of a second as µs; a million or more is invalid."""
    size = fraction_bytes(digits)
    value = take_big(body, at, size)
    for _ in range(3 - size):
        value *= 100
    return value


@helper
def _clock_us(clock):
    """Return µs of the day from packed hours, minutes and seconds, or NO_VALUE."""
    hours = clock >> 12
    minutes = (clock >> 6) & 0x3F
    seconds = clock & 0x3F
    if clock < 0 or hours > 23 or minutes > 59 or seconds > 59:
        return NO_VALUE
    return ((hours * 60 + minutes) * 60 + seconds) * _SECOND_US


@helper
def take_date(body, at):
    """Return days since 1970, or NO_VALUE."""
    packed = take_little(body, at, 3)
    return days_of(packed >> 9, (packed >> 5) & 0xF, packed & 0x1F)


@helper
def take_time(body, at, digits):
    """Return µs of the day, or NO_VALUE: MySQL's TIME is any span of up to 838 hours."""
    clock = take_big(body, at, 3) - 0x800000
    fraction = _take_fraction(body, at + 3, digits)
    value = _clock_us(clock)
    return NO_VALUE if value == NO_VALUE or fraction >= _SECOND_US else value + fraction


@helper
def take_datetime(body, at, digits):
    """Return µs since 1970, or NO_VALUE."""
    packed = take_big(body, at, 5) - (1 << 39)
    fraction = _take_fraction(body, at + 5, digits)
    if packed < 0 or fraction >= _SECOND_US:
        return NO_VALUE
    date = packed >> 17
    days = days_of((date >> 5) // 13, (date >> 5) % 13, date & 0x1F)
    clock = _clock_us(packed & 0x1FFFF)
    return NO_VALUE if days == NO_VALUE or clock == NO_VALUE else days * DAY_US + clock + fraction


@helper
def take_timestamp(body, at, digits):
    """Return µs since 1970, or NO_VALUE: second 0 is MySQL's zero."""
    seconds = take_big(body, at, 4)
    fraction = _take_fraction(body, at + 4, digits)
    return NO_VALUE if (seconds == 0 and fraction == 0) or fraction >= _SECOND_US else seconds * _SECOND_US + fraction
