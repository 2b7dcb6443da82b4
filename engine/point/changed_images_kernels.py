"""The image of a row with some columns changed, for changes that replace it: of the var part, or of a unique index.

The row is read as the transaction sees it. The general path makes the image of a row with a chained var part, or with
one from before a column was added.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import is_none, load_32, load_64, object_of, store_32, store_64, store_zeros
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.get_kernels import FOUND, place_seen
from tidemark.engine.point.images_kernels import put_fixed, put_var_value, var_size
from tidemark.engine.rows.side_pages_kernels import NO_VALUES
from tidemark.engine.schema import row_layout as R

UNCHANGED = 0

_var_header = helper(R.var_header)


@helper
def needs_image(plan, pairs, count):
    for i in range(count):
        if plan[pairs[2 * i] + U.V_CHANGE] == U.CHANGE_BY_IMAGE:
            return True
    return False


@helper
def new_value(plan, pairs, count, ordinal):
    """Return (column, address of the new value) of a column of the var part, (0, UNCHANGED) if it stays."""
    for i in range(count):
        column = pairs[2 * i]
        if plan[column + U.V_PART] == U.PART_VAR and plan[column + U.V_PLACE] == ordinal:
            return column, pairs[2 * i + 1]
    return 0, UNCHANGED


@helper
def copy_octets(words, byte, out, out_byte, size):
    """Copy bytes, and up to 7 more that the caller overwrites."""
    for i in range(0, size, 8):
        store_64(out, out_byte + i, load_64(words, byte + i))


@helper
def put_changed_var_part(mem, plan, var_at, pairs, changes, image):
    """Write the var part mem[var_at:] with judged changes after the fixed image; return its words, 0 for the general
    path.
    """
    header = mem[var_at]
    columns = (header >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    if columns != plan[U.U_VAR_COLUMNS]:
        return 0
    before_data = 1 + ((header >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    ends = before_data
    before_data += (columns + 1) >> 1
    at = plan[U.U_FIXED_WORDS]
    if at + before_data >= image.size:
        return 0
    move_words(mem, var_at + 1, image, at + 1, ends - 1)
    for i in range(ends, before_data):
        image[at + i] = 0
    old_ends, old_start, old_stop = (
        (var_at + ends) << 3,
        (var_at + before_data) << 3,
        (var_at + (header & R.VAR_WORDS_MASK)) << 3,
    )
    new_ends, start = (at + ends) << 3, (at + before_data) << 3
    old_end = 0
    end = 0
    for i in range(columns):
        begin = old_end
        word = load_32(mem, old_ends + 4 * i)
        old_end = word & R.VAR_END_MASK
        size = old_end - begin
        null = word & R.VAR_NULL_BIT
        column, value = new_value(plan, pairs, changes, i)
        if value != UNCHANGED:
            null = R.VAR_NULL_BIT if is_none(object_of(value)) else 0
            size = 0 if null else var_size(plan, column, object_of(value))
        elif size < 0 or old_start + old_end > old_stop:
            return 0
        if start + end + size + 8 > image.size << 3:
            return 0
        if value == UNCHANGED:
            copy_octets(mem, old_start + begin, image, start + end, size)
            end += size
        elif null == 0:
            end += put_var_value(plan, column, object_of(value), image, start + end)
        store_32(image, new_ends + 4 * i, end | null)
    store_zeros(image, start + end, -end & 7)
    words = before_data + ((end + 7) >> 3)
    image[at] = _var_header(words, columns, ends - 1)
    return words


@helper
def put_kept_var_part(mem, var_at, image, at):
    """Copy the var part mem[var_at:] to image[at:]; return its words, 0 if there is no room for it."""
    words = mem[var_at] & R.VAR_WORDS_MASK if var_at >= 0 else 1
    if at + words > image.size:
        return 0
    if var_at >= 0:
        move_words(mem, var_at, image, at, words)
    else:
        image[at] = NO_VALUES
    return words


@helper
def put_changed_image(mem, plan, txn, buf, fragment, row, pairs, changes, image):
    """Write the image of a row with judged changes; return its words, 0 for the general path."""
    status, in_buffer, at, var_at = place_seen(mem, plan, txn, buf, fragment, row)
    if status != FOUND:
        return 0
    fixed = plan[U.U_FIXED_WORDS]
    if in_buffer:
        move_words(buf, at, image, 0, fixed)
    else:
        move_words(mem, at, image, 0, fixed)
    is_var_changed = False
    for i in range(changes):
        column = pairs[2 * i]
        if plan[column + U.V_PART] == U.PART_FIXED:
            put_fixed(plan, column, object_of(pairs[2 * i + 1]), image, 0)
        else:
            is_var_changed = True
    if plan[U.U_HAS_VAR] == 0:
        return fixed
    if not is_var_changed:
        words = put_kept_var_part(mem, var_at, image, fixed)
    elif var_at >= 0:
        words = put_changed_var_part(mem, plan, var_at, pairs, changes, image)
    else:
        words = 0
    return fixed + words if words else 0
