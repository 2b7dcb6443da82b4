"""Images made of Python values: of changed columns, and of whole rows.

A value that the plan does not know (another Python type, out of its column's range, too long) is left to the general
path, which takes it or refuses it. So all values are judged before a row is touched.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    address,
    bytes_size,
    clear_error,
    copy_bytes,
    copy_text,
    dict_next,
    is_bytes,
    is_dict,
    is_none,
    is_same_text,
    is_text,
    is_tuple,
    load_8,
    object_of,
    store_8,
    store_16,
    store_32,
    store_64,
    store_zeros,
    text_byte,
    text_length,
    text_size,
    tuple_item,
    tuple_size,
)
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.keys_kernels import is_number, number_of, put_piece
from tidemark.engine.schema import row_layout as R

NOT_KNOWN = -1
LOW_8 = 0xFF

_var_header = helper(R.var_header)


# --- values ---------------------------------------------------------------------------------------
@helper
def is_text_known(plan, column, value):
    if is_text(value) == 0 or text_length(value) > plan[column + U.V_READ + U.KC_LEAST]:
        return 0
    size = text_size(value)
    if size < 0:
        clear_error()
        return 0
    is_padded = plan[column + U.V_READ + U.KC_KIND] == U.KEY_PADDED_TEXT
    return 0 if is_padded and size > 0 and text_byte(value, size - 1) == 0 else 1


@helper
def is_known(plan, column, value):
    """Whether kernels can write a value into a column. column: offset of its words in the plan."""
    kind = plan[column + U.V_READ + U.KC_KIND]
    if is_none(value):
        return 1 if plan[column + U.V_NULL] != 0 else 0
    if is_number(kind):
        is_read, _, _ = number_of(plan, column + U.V_READ, value)
        return is_read
    if kind == U.KEY_PADDED_TEXT or kind == U.KEY_TEXT:
        return is_text_known(plan, column, value)
    if kind == U.KEY_UNREAD:
        return 0
    return 1 if is_bytes(value) and bytes_size(value) <= plan[column + U.V_READ + U.KC_LEAST] else 0


@helper
def column_named(plan, name):
    """Return the position of a column, NOT_KNOWN if there is none. Names in programs are mostly the very objects that
    the plan has, since both are interned.
    """
    wanted = address(name)
    names = plan[U.U_VALUES] + U.V_NAME
    for i in range(plan[U.U_COLUMNS]):
        if plan[names + i * U.VALUE_WORDS] == wanted:
            return i
    if is_text(name):
        for i in range(plan[U.U_COLUMNS]):
            if is_same_text(name, object_of(plan[names + i * U.VALUE_WORDS])):
                return i
    return NOT_KNOWN


@helper
def put_octets(plan, column, value, words, byte):
    """Copy a text or bytes to a byte of an array; return their size."""
    kind = plan[column + U.V_READ + U.KC_KIND]
    if kind == U.KEY_PADDED_TEXT or kind == U.KEY_TEXT:
        size = text_size(value)
        copy_text(value, size, words, byte)
        return size
    size = bytes_size(value)
    copy_bytes(value, size, words, byte)
    return size


@helper
def store_number(words, byte, width, low, high):
    """Write a stored number of 1 to 16 bytes, given by its low word and its high one."""
    if width >= 8:
        store_64(words, byte, low)
        if width > 8:
            store_64(words, byte + 8, high)
    elif width == 4:
        store_32(words, byte, low)
    elif width == 2:
        store_16(words, byte, low)
    else:
        store_8(words, byte, low)


@helper
def put_number(plan, column, value, words, byte):
    _, low, high = number_of(plan, column + U.V_READ, value)
    store_number(words, byte, plan[column + U.V_READ + U.KC_BYTES], low, high)


@helper
def put_fixed(plan, column, value, words, at):
    byte = (at << 3) + plan[column + U.V_PLACE]
    width = plan[column + U.V_READ + U.KC_BYTES]
    null = plan[column + U.V_NULL]
    if null != 0:
        bits = (at << 3) + (null >> 8)
        if is_none(value):
            store_8(words, bits, load_8(words, bits) | null & LOW_8)
            store_zeros(words, byte, width)
            return
        store_8(words, bits, load_8(words, bits) & ~(null & LOW_8))
    if is_number(plan[column + U.V_READ + U.KC_KIND]):
        put_number(plan, column, value, words, byte)
    else:
        size = put_octets(plan, column, value, words, byte)
        store_zeros(words, byte + size, width - size)


# --- changes of a row -----------------------------------------------------------------------------
@helper
def read_changes(plan, changes, pairs):
    """Judge a dict of changes; write (column, address of its value) for each. Return their number, NOT_KNOWN for the
    general path.
    """
    if is_dict(changes) == 0:
        return NOT_KNOWN
    count = 0
    place, name, value = dict_next(changes, 0)
    while place >= 0:
        number = column_named(plan, name)
        if number < 0 or 2 * count + 2 > U.STACK_WORDS:
            return NOT_KNOWN
        column = plan[U.U_VALUES] + number * U.VALUE_WORDS
        if plan[column + U.V_CHANGE] == U.CHANGE_NEVER or is_known(plan, column, value) == 0:
            return NOT_KNOWN
        pairs[2 * count] = column
        pairs[2 * count + 1] = address(value)
        count += 1
        place, name, value = dict_next(changes, place)
    return count


@helper
def put_changes(plan, pairs, count, words, at):
    for i in range(count):
        put_fixed(plan, pairs[2 * i], object_of(pairs[2 * i + 1]), words, at)


# --- rows -----------------------------------------------------------------------------------------
@helper
def read_row(plan, row, values):
    """Write the addresses of a row's values, in column order; 0 for the general path."""
    columns = plan[U.U_COLUMNS]
    if columns > U.STACK_WORDS:
        return 0
    if is_tuple(row):
        if tuple_size(row) != columns:
            return 0
        for i in range(columns):
            values[i] = address(tuple_item(row, i))
    else:
        if is_dict(row) == 0:
            return 0
        count = 0
        place, name, value = dict_next(row, 0)
        while place >= 0:
            number = column_named(plan, name)
            if number < 0:
                return 0
            values[number] = address(value)
            count += 1
            place, name, value = dict_next(row, place)
        if count != columns:
            return 0
    for i in range(columns):
        if is_known(plan, plan[U.U_VALUES] + i * U.VALUE_WORDS, object_of(values[i])) == 0:
            return 0
    return 1


@helper
def put_key_of_row(plan, values, keys):
    """Write the canonical words of the key of a row; return their number, 0 if the general path must look at it."""
    key = plan[U.U_KEY]
    count = 0
    for i in range(plan[key + U.UK_COLUMNS]):
        value = object_of(values[plan[plan[U.U_KEY_COLUMNS] + i]])
        more = put_piece(plan, key + U.UK_FIRST + i * U.KEY_WORDS, value, keys, count)
        if more == 0:
            return 0
        count += more
    return count


@helper
def var_size(plan, column, value):
    """Return the bytes in the var part of a value that is not None. Columns that were added later are there too."""
    kind = plan[column + U.V_READ + U.KC_KIND]
    if is_number(kind):
        return plan[column + U.V_READ + U.KC_BYTES]
    if kind == U.KEY_PADDED_TEXT or kind == U.KEY_TEXT:
        return text_size(value)
    return bytes_size(value)


@helper
def put_var_value(plan, column, value, words, byte):
    """Write a value to a byte of the var part; return its size there."""
    kind = plan[column + U.V_READ + U.KC_KIND]
    if is_number(kind):
        put_number(plan, column, value, words, byte)
        size = plan[column + U.V_READ + U.KC_BYTES]
    else:
        size = put_octets(plan, column, value, words, byte)
    if kind == U.KEY_PADDED_BYTES or kind == U.KEY_UUID:
        while size > 0 and load_8(words, byte + size - 1) == 0:
            size -= 1
    return size


@helper
def put_var_part(plan, values, keys, key_words, image):
    """Write the var part of a row after its fixed image; return its words, 0 if there is no room for it."""
    at = plan[U.U_FIXED_WORDS]
    columns = plan[U.U_VAR_COLUMNS]
    ends_at = at + 1 + key_words
    start = ends_at + ((columns + 1) >> 1)
    if start >= image.size:
        return 0
    for i in range(key_words):
        image[at + 1 + i] = keys[i]
    for i in range(ends_at, start):
        image[i] = 0
    end = 0
    for i in range(columns):
        number = plan[plan[U.U_VAR_LIST] + i]
        value = object_of(values[number])
        if is_none(value):
            store_32(image, (ends_at << 3) + 4 * i, end | R.VAR_NULL_BIT)
            continue
        column = plan[U.U_VALUES] + number * U.VALUE_WORDS
        size = var_size(plan, column, value)
        if (start << 3) + end + size + 8 > image.size << 3:
            return 0
        end += put_var_value(plan, column, value, image, (start << 3) + end)
        store_32(image, (ends_at << 3) + 4 * i, end)
    words = start - at + ((end + 7) >> 3)
    store_zeros(image, (start << 3) + end, -end & 7)
    image[at] = _var_header(words, columns, key_words)
    return words


@helper
def put_row_image(plan, values, keys, image):
    """Write the image of a row whose values are known; return its words, 0 for the general path."""
    fixed = plan[U.U_FIXED_WORDS]
    key_words = put_key_of_row(plan, values, keys)
    if key_words == 0:
        return 0
    for i in range(fixed):
        image[i] = 0
    if plan[U.U_KEY_IN_VAR] == 0:
        for i in range(key_words):
            image[i] = keys[i]
    for i in range(plan[U.U_COLUMNS]):
        column = plan[U.U_VALUES] + i * U.VALUE_WORDS
        if plan[column + U.V_PART] == U.PART_FIXED:
            put_fixed(plan, column, object_of(values[i]), image, 0)
    if plan[U.U_HAS_VAR] == 0:
        return fixed
    words = put_var_part(plan, values, keys, key_words if plan[U.U_KEY_IN_VAR] else 0, image)
    return fixed + words if words else 0
