"""Verification of the values of row images, in private memory: each is one that its type has, padding is zero, and the
key belongs to the fragment.

No index is used before it was compared with the end of the array, so any words may be given.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import values_layout as W
from tidemark.engine.schema import row_layout as R
from tidemark.engine.schema.partitions_kernels import private_number

HIGHS = 0x8080808080808080 - (1 << 64)
SIGN = -(1 << 63)
INFINITY64 = 0x7FF << 52
INFINITY32 = 0xFF << 23


@helper
def octet(words, byte):
    return (words[byte >> 3] >> ((byte & 7) << 3)) & 0xFF


@helper
def number(words, byte, width):
    """Return up to 8 bytes from any byte on, as an unsigned number."""
    if byte & 7 == 0 and width == 8:
        return words[byte >> 3]
    if (byte & 7) + width <= 8:
        return (words[byte >> 3] >> ((byte & 7) << 3)) & ((1 << (width << 3)) - 1)
    value = 0
    for i in range(width):
        value |= octet(words, byte + i) << (i << 3)
    return value


@helper
def are_zeros(words, byte, end):
    while byte < end:
        if byte & 7 == 0 and byte + 8 <= end:
            if words[byte >> 3] != 0:
                return False
            byte += 8
        else:
            if octet(words, byte) != 0:
                return False
            byte += 1
    return True


@helper
def follows(words, byte, end, least, most):
    """Whether the byte at `byte` is before `end` and within bounds."""
    return byte < end and least <= octet(words, byte) <= most


@helper
def characters(words, byte, end):
    """Return the number of code points of a text, -1 if it is not UTF-8."""
    count = 0
    while byte < end:
        if byte & 7 == 0 and byte + 8 <= end and words[byte >> 3] & HIGHS == 0:
            byte += 8
            count += 8
            continue
        first = octet(words, byte)
        more = 0
        least = 0x80
        most = 0xBF
        if first >= 0x80:
            if first < 0xC2 or first > 0xF4:
                return -1
            more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
            if first == 0xE0:
                least = 0xA0
            elif first == 0xED:
                most = 0x9F
            elif first == 0xF0:
                least = 0x90
            elif first == 0xF4:
                most = 0x8F
        if more > 0 and not follows(words, byte + 1, end, least, most):
            return -1
        for i in range(2, more + 1):
            if not follows(words, byte + i, end, 0x80, 0xBF):
                return -1
        byte += 1 + more
        count += 1
    return count


@helper
def is_within(words, byte, width, low, high):
    """Whether a number is within bounds; it is signed if `low` is negative."""
    value = number(words, byte, width)
    if width < 8 and low < 0:
        sign = 1 << ((width << 3) - 1)
        value = (value ^ sign) - sign
    return low <= value <= high


@helper
def is_wide_within(words, byte, most_high, most_low):
    """Whether the magnitude of a signed number of 128 bits is at most a given one."""
    low = number(words, byte, 8)
    high = number(words, byte + 8, 8)
    if high < 0:
        high = ~high
        low = ~low
        if low == -1:
            high += 1
        low += 1
        if high < 0:
            return False
    return high < most_high or (high == most_high and (low ^ SIGN) <= (most_low ^ SIGN))


@helper
def is_key_float(words, byte, width):
    value = number(words, byte, width)
    sign = 1 << 31 if width == 4 else SIGN
    infinity = INFINITY32 if width == 4 else INFINITY64
    return value != sign and value & ~sign <= infinity


@helper
def value_fault(words, byte, size, plan, column):
    """Return the fault of a value of `size` bytes, OK if it has none."""
    rule = plan[column + W.VC_RULE]
    if rule == W.RULE_RANGE:
        return (
            A.OK if is_within(words, byte, size, plan[column + W.VC_LOW], plan[column + W.VC_HIGH]) else W.VALUE_RANGE
        )
    if rule == W.RULE_WIDE:
        ok = is_wide_within(words, byte, plan[column + W.VC_LOW], plan[column + W.VC_HIGH])
        return A.OK if ok else W.VALUE_RANGE
    if rule == W.RULE_KEY_FLOAT:
        return A.OK if is_key_float(words, byte, size) else W.VALUE_RANGE
    if rule == W.RULE_TEXT:
        count = characters(words, byte, byte + size)
        if count < 0:
            return W.VALUE_TEXT
        return W.VALUE_RANGE if 0 <= plan[column + W.VC_CHARACTERS] < count else A.OK
    return A.OK


@helper
def without_zeros(words, byte, size):
    """Return the number of bytes without the zeros at their end."""
    while size > 0 and octet(words, byte + size - 1) == 0:
        size -= 1
    return size


@helper
def fixed_fault(words, base, plan, column):
    """Return the fault of a column at a fixed place; base: byte at which its part begins."""
    byte = base + plan[column + W.VC_AT]
    width = plan[column + W.VC_BYTES]
    mask = plan[column + W.VC_NULL_MASK]
    if mask != 0 and octet(words, base + plan[column + W.VC_NULL_BYTE]) & mask != 0:
        return A.OK if are_zeros(words, byte, byte + width) else W.VALUE_UNDER_NULL
    if plan[column + W.VC_RULE] == W.RULE_ANY and plan[column + W.VC_ROOM] == width:
        return A.OK
    if not are_zeros(words, byte + width, byte + plan[column + W.VC_ROOM]):
        return W.VALUE_PADDING
    size = width
    if plan[column + W.VC_RULE] == W.RULE_TEXT:
        size = without_zeros(words, byte, width)
    return value_fault(words, byte, size, plan, column)


@helper
def tail_fault(words, base, plan, tail):
    """Return VALUE_PADDING if bits or bytes after the columns of a part are not zero."""
    nulls = plan[tail + W.TAIL_NULLS]
    if nulls >= 0 and octet(words, base + nulls) & plan[tail + W.TAIL_UNUSED] != 0:
        return W.VALUE_PADDING
    return A.OK if are_zeros(words, base + plan[tail], base + plan[tail + W.TAIL_END]) else W.VALUE_PADDING


@helper
def fixed_faults(words, base, plan, first, count, tail, state):
    """Verify `count` columns from number `first` on at fixed places, and what follows them."""
    for i in range(first, first + count):
        fault = fixed_fault(words, base, plan, W.VP_WORDS + i * W.VC_WORDS)
        if fault != A.OK:
            state[W.VS_COLUMN] = i
            return fault
    return tail_fault(words, base, plan, tail)


@helper
def key_faults(words, at, end, plan, first, state):
    """Verify the pieces of a canonical key in words[at:end]."""
    for i in range(first, first + plan[W.VP_KEYS]):
        column = W.VP_WORDS + i * W.VC_WORDS
        state[W.VS_COLUMN] = i
        if plan[column + W.VC_ROOM] > 0:
            if at + (plan[column + W.VC_ROOM] >> 3) > end:
                return W.VALUE_LENGTHS
            fault = fixed_fault(words, at << 3, plan, column)
            at += plan[column + W.VC_ROOM] >> 3
        else:
            size = words[at] if at < end else -1
            if size < 0 or size > (end - at - 1) << 3:
                return W.VALUE_LENGTHS
            fault = W.VALUE_RANGE if size > plan[column + W.VC_BYTES] else A.OK
            if fault == A.OK:
                fault = value_fault(words, (at + 1) << 3, size, plan, column)
            if fault == A.OK and not are_zeros(words, ((at + 1) << 3) + size, (at + 1 + ((size + 7) >> 3)) << 3):
                fault = W.VALUE_PADDING
            at += 1 + ((size + 7) >> 3)
        if fault != A.OK:
            return fault
    state[W.VS_COLUMN] = -1
    return A.OK if at == end else W.VALUE_LENGTHS


@helper
def var_column_fault(words, byte, size, is_null, plan, column):
    """Return the fault of a column present in a var part."""
    if is_null:
        if plan[column + W.VC_NULL_MASK] == 0:
            return W.VALUE_NULL
        return A.OK if size == 0 else W.VALUE_UNDER_NULL
    most = plan[column + W.VC_BYTES]
    if plan[column + W.VC_ROOM] > 0:  # an added column of fixed size
        if size != most:
            return W.VALUE_LENGTHS
    elif 0 <= most < size:
        return W.VALUE_RANGE
    if plan[column + W.VC_RULE] == W.RULE_PADDED and size > 0 and octet(words, byte + size - 1) == 0:
        return W.VALUE_PADDING
    return value_fault(words, byte, size, plan, column)


@helper
def var_words_at(words, at, end):
    """Return the words of the var part at words[at:end], 0 if its header is impossible."""
    if at >= end or words[at] < 0 or words[at] >> R.VAR_VERSION_SHIFT != R.VAR_VERSION:
        return 0
    count = (words[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    total = words[at] & R.VAR_WORDS_MASK
    head = 1 + ((words[at] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK) + ((count + 1) >> 1)
    return total if head <= total <= end - at else 0


@helper
def var_faults(words, at, plan, first, expected, keys, state):
    """Verify the var part at words[at:], whose header is possible: keys, then `expected` columns from `first` on."""
    total = words[at] & R.VAR_WORDS_MASK
    count = (words[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    key_words = (words[at] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK
    if count > expected:
        return W.VALUE_LENGTHS
    if keys > 0:
        fault = key_faults(words, at + 1, at + 1 + key_words, plan, first - keys, state)
        if fault != A.OK:
            return fault
    elif key_words != 0:
        return W.VALUE_LENGTHS
    ends = at + 1 + key_words
    bytes_at = (ends + ((count + 1) >> 1)) << 3
    room = ((at + total) << 3) - bytes_at
    begin = 0
    for i in range(expected):
        column = W.VP_WORDS + (first + i) * W.VC_WORDS
        state[W.VS_COLUMN] = first + i
        if i >= count:
            if plan[column + W.VC_MAY_LACK] == 0:
                return W.VALUE_NULL
            continue
        word = words[ends + (i >> 1)] >> ((i & 1) << 5)
        end = word & R.VAR_END_MASK
        if end < begin or end > room:
            return W.VALUE_LENGTHS
        is_null = word & R.VAR_NULL_BIT != 0
        fault = var_column_fault(words, bytes_at + begin, end - begin, is_null, plan, column)
        if fault != A.OK:
            return fault
        begin = end
    state[W.VS_COLUMN] = -1
    if room - begin >= 8:
        return W.VALUE_LENGTHS
    return A.OK if are_zeros(words, bytes_at + begin, bytes_at + room) else W.VALUE_PADDING


@helper
def image_fault(words, at, plan, state):
    """Return the fault of the image at words[at:], OK if it has none; state[VS_COLUMN] is its column."""
    state[W.VS_COLUMN] = -1
    end = words.size
    fixed = plan[W.VP_FIXED_WORDS]
    if at + fixed > end:
        return W.VALUE_LENGTHS
    fault = fixed_faults(words, at << 3, plan, 0, plan[W.VP_FIXED], W.VP_TAIL, state)
    if fault != A.OK:
        return fault
    first = plan[W.VP_FIXED] + plan[W.VP_KEYS]
    at += fixed
    if plan[W.VP_HAS_VAR]:
        total = var_words_at(words, at, end)
        if total == 0:
            return W.VALUE_LENGTHS
        fault = var_faults(words, at, plan, first, plan[W.VP_VAR], plan[W.VP_KEYS], state)
        if fault != A.OK:
            return fault
        at += total
    if plan[W.VP_DISK_WORDS] == 0:
        return A.OK
    first += plan[W.VP_VAR]
    fixed = plan[W.VP_DISK_WORDS]
    total = words[at] & R.DISK_WORDS_MASK if at < end else 0
    if total < fixed or total > end - at or words[at] != total | R.DISK_VERSION << R.DISK_VERSION_SHIFT:
        return W.VALUE_LENGTHS
    fault = fixed_faults(words, at << 3, plan, first, plan[W.VP_DISK_FIXED], W.VP_DISK_TAIL, state)
    if fault != A.OK:
        return fault
    rest = 0
    if plan[W.VP_DISK_HAS_VAR]:
        rest = var_words_at(words, at + fixed, at + total)
        if rest == 0:
            return W.VALUE_LENGTHS
        fault = var_faults(words, at + fixed, plan, first + plan[W.VP_DISK_FIXED], plan[W.VP_DISK_VAR], 0, state)
        if fault != A.OK:
            return fault
    return A.OK if fixed + rest == total else W.VALUE_LENGTHS


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def check_values(images, offsets, plan, header, fragment, scratch, state):
    """Verify the images at word offsets from number state[VS_ROW] on, and that their keys belong to fragment number
    `fragment`.

    header: the table's private hash header. scratch: room for a key. Return OK at the end, or the fault of row
    state[VS_ROW] - 1, with its column in state[VS_COLUMN]; call again to continue.
    """
    while state[W.VS_ROW] < offsets.size:
        at = offsets[state[W.VS_ROW]]
        state[W.VS_ROW] += 1
        fault = image_fault(images, at, plan, state)
        if fault != A.OK:
            return fault
        words = plan[W.VP_KEY_WORDS]
        if words == 0:
            at += plan[W.VP_FIXED_WORDS]
            words = (images[at] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK
            at += 1
        if private_number(header, images, at, words, scratch, 0) != fragment:
            return W.VALUE_PARTITION
    return A.OK
