"""Restore of fragments without a store: archived operations are separated by fragment, folded by row, and merged with
the levels of a backup into entries of a local checkpoint (docs/backup.md, 4).

A *change* of the archive is the epoch of its group, then the operation record of the log. Folding the changes of a
row gives the state that the backup must have for it, and its final state. All memory is private, and all content is
checked.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import author_of, is_operation, place_of, record_at, record_flags, rows_of
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.lcp_kernels import checked_image_words, packed_place, slot_number
from tidemark.engine.rows.primary_kernels import image_key
from tidemark.engine.rows.side_pages_kernels import NO_VALUES
from tidemark.engine.schema import row_layout as R
from tidemark.recovery.backup import restore_layout as J


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def collect_changes(words, start, stop, epoch, pool, places, state):
    """Copy the operations of the records words[max(start, state[R_NEXT]):stop] of one group to pool[state[R_USED]:],
    each after its epoch. places: two words for each: table | fragment << 32, and its offset in the pool.

    OK; at state[R_NEXT]: ST_SPACE - words needed if the pool or `places` is full, ST_INVARIANT.
    """
    at = max(start, state[J.R_NEXT])
    while at < stop:
        state[J.R_NEXT] = at
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if is_operation(kind):
            to = state[J.R_USED]
            count = state[J.R_COUNT]
            if to + J.CHANGE_WORDS + size > pool.size or 2 * count + 2 > places.size:
                return A.ST_SPACE - J.CHANGE_WORDS - size
            places[2 * count] = words[at + 1] & (L.TABLE_MASK | L.FRAGMENT_MASK << L.FRAGMENT_SHIFT)
            places[2 * count + 1] = to
            pool[to] = epoch
            move_words(words, at, pool, to + J.CHANGE_WORDS, size)
            state[J.R_USED] = to + J.CHANGE_WORDS + size
            state[J.R_COUNT] = count + 1
        at += size
    state[J.R_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def gather_changes(pool, offsets, stop, out, used, state):
    """Copy the changes at offsets[state[R_NEXT]:stop] of the pool to out[used[0]:], counting them in used[1].

    OK, or ST_SPACE - words needed if out is full.
    """
    while state[J.R_NEXT] < stop:
        at = offsets[state[J.R_NEXT]]
        size = J.CHANGE_WORDS + (pool[at + J.CHANGE_WORDS] >> L.WORDS_SHIFT)
        if used[0] + size > out.size:
            return A.ST_SPACE - size
        move_words(pool, at, out, used[0], size)
        used[0] += size
        used[1] += 1
        state[J.R_NEXT] += 1
    return A.OK


@helper
def change_has_var(shape, identity):
    """Whether the images of a record have a var part, given its word 1."""
    if shape[J.P_HAS_VAR] == 0:
        return 0
    version = (identity >> L.SCHEMA_VERSION_SHIFT) & L.SCHEMA_VERSION_MASK
    return 1 if version >= shape[J.P_VAR_SINCE] else 0


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def list_changes(changes, stop, shape, rowids, heads, images, state):
    """List the rows of the changes in changes[:stop], in order: ROWID, offset of the change, offset of the image. With
    empty lists the rows are only counted. state[R_COUNT]: rows. OK, or ST_INVARIANT at state[R_NEXT].
    """
    at = 0
    count = 0
    while at < stop:
        state[J.R_NEXT] = at
        record = at + J.CHANGE_WORDS
        if record >= stop or changes[at] < 0:
            return A.ST_INVARIANT
        kind, size = record_at(changes, record, stop)
        if size < 0 or not is_operation(kind):
            return A.ST_INVARIANT
        end = record + size
        if place_of(changes[record + 1]) != (shape[J.P_TABLE], shape[J.P_FRAGMENT]):
            return A.ST_INVARIANT
        first, rows = rows_of(changes, record, kind)
        if rows < 0:
            return A.ST_INVARIANT
        image = record + L.OPERATION_WORDS
        has_var = change_has_var(shape, changes[record + 1])
        for number in range(rows):
            if slot_number(first + number, shape[J.P_SLOTS]) < 0:
                return A.ST_INVARIANT
            if rowids.size:
                rowids[count] = first + number
                heads[count] = at
                images[count] = image
            count += 1
            if kind == L.KIND_INSERT:
                words = checked_image_words(shape[J.P_FIXED], has_var, changes, image, end)
                if words < 0:
                    return A.ST_INVARIANT
                image += words
        if kind == L.KIND_INSERT and image != end:
            return A.ST_INVARIANT
        if kind == L.KIND_UPDATE:
            if record_flags(changes, record) & L.FLAG_VAR_KEPT:
                image += shape[J.P_FIXED]
            else:
                words = checked_image_words(shape[J.P_FIXED], has_var, changes, image, end)
                image += max(words, 0)
            if image != end:
                return A.ST_INVARIANT
        at = end
    state[J.R_NEXT] = stop
    state[J.R_COUNT] = count
    return A.OK


@helper
def same_words(one, at, other, start, count):
    """Whether one[at:] and other[start:] begin with the same `count` words."""
    for i in range(count):
        if one[at + i] != other[start + i]:
            return False
    return True


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def fold_changes(changes, rowids, heads, images, shape, folded, state):
    """Fold the changes listed by `list_changes`, sorted by ROWID and then by log order, to one row for each ROWID.

    state[R_USED]: rows folded. OK; at state[R_NEXT]: ST_DUPLICATE for an insert of an existing row, ST_MISSING for a
    change of a missing row, ST_INVARIANT for an update that changes the key.
    """
    to = -J.FOLDED_WORDS
    is_there = 0
    is_base = 0  # whether the row is still that of the backup
    key = -1
    key_words = 0
    for i in range(rowids.size):
        state[J.R_NEXT] = i
        record = heads[i] + J.CHANGE_WORDS
        kind = changes[record] & L.KIND_MASK
        kept = kind == L.KIND_UPDATE and record_flags(changes, record) & L.FLAG_VAR_KEPT
        image = images[i]
        if i == 0 or rowids[i] != rowids[i - 1]:
            to += J.FOLDED_WORDS
            is_there = is_base = 0 if kind == L.KIND_INSERT else 1
            key = -1
            folded[to + J.D_ROWID] = rowids[i]
            folded[to + J.D_BASE] = J.BASE_WANTED if is_base else J.BASE_ABSENT
            folded[to + J.D_IMAGE] = -1
            folded[to + J.D_VAR] = J.VAR_KEPT if is_base else J.VAR_NONE
            folded[to + J.D_KEY] = -1
            folded[to + J.D_KEY_WORDS] = 0
        if kind == L.KIND_INSERT and is_there:
            return A.ST_DUPLICATE
        if kind != L.KIND_INSERT and not is_there:
            return A.ST_MISSING
        has_var = change_has_var(shape, changes[record + 1])
        if kind == L.KIND_DELETE:
            folded[to + J.D_IMAGE] = -1
            is_there = is_base = 0
        else:
            folded[to + J.D_IMAGE] = image
            if has_var and not kept:
                folded[to + J.D_VAR] = image + shape[J.P_FIXED]
            elif kind == L.KIND_INSERT:
                folded[to + J.D_VAR] = J.VAR_NONE
            if not kept or shape[J.P_KEY_WORDS] > 0:
                first, words = image_key(changes, image, shape[J.P_FIXED], shape[J.P_KEY_WORDS])
                if first + words > record + (changes[record] >> L.WORDS_SHIFT):
                    return A.ST_INVARIANT
                if kind == L.KIND_UPDATE and key >= 0:
                    if words != key_words or not same_words(changes, first, changes, key, words):
                        return A.ST_INVARIANT
                if is_base and folded[to + J.D_KEY] < 0:
                    folded[to + J.D_KEY] = first
                    folded[to + J.D_KEY_WORDS] = words
                key = first
                key_words = words
            is_there = 1
        folded[to + J.D_EPOCH] = changes[heads[i]]
        folded[to + J.D_AUTHOR] = author_of(changes, record)
    state[J.R_NEXT] = rowids.size
    state[J.R_USED] = (to + J.FOLDED_WORDS) // J.FOLDED_WORDS
    return A.OK


@helper
def put_values(words, var, size, values, out, to):
    """Write the var part of `size` words at words[var:] to out[to:], with its first `values` columns only (-1: all).
    Return its words. Columns added after a row was written are not in its var part.
    """
    count = (words[var] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    if values < 0 or values >= count:
        move_words(words, var, out, to, size)
        return size
    key_words = (words[var] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK
    ends = var + R.VAR_HEADER_WORDS + key_words
    end = 0
    if values > 0:
        end = (words[ends + (values - 1) // 2] >> 32 * ((values - 1) & 1)) & R.VAR_END_MASK
    ends_words = (values + 1) // 2
    data_words = (end + 7) // 8
    start = ends + (count + 1) // 2
    if start + data_words > var + size:
        return 0
    total = R.VAR_HEADER_WORDS + key_words + ends_words + data_words
    out[to] = (
        total | values << R.VAR_COUNT_SHIFT | key_words << R.VAR_KEY_WORDS_SHIFT | R.VAR_VERSION << R.VAR_VERSION_SHIFT
    )
    move_words(words, var + R.VAR_HEADER_WORDS, out, to + R.VAR_HEADER_WORDS, key_words + ends_words)
    at = to + R.VAR_HEADER_WORDS + key_words + ends_words
    if values & 1:
        out[at - 1] &= 0xFFFFFFFF
    move_words(words, start, out, at, data_words)
    if end & 7:
        out[at + data_words - 1] &= (1 << 8 * (end & 7)) - 1
    return total


@helper
def put_folded(folded, row, changes, words, var, var_words, values, shape, out, at):
    """Write the entry of a folded row whose final state exists to out[at:]; return its words. words[var:]: the
    backup's var part, of var_words words, 0 if it has none, and `values` as for `put_values`.
    """
    out[at] = folded[row + J.D_ROWID]
    out[at + 1] = folded[row + J.D_EPOCH]
    out[at + 2] = packed_place(folded[row + J.D_AUTHOR], shape[J.P_TABLE], shape[J.P_FRAGMENT])
    fixed = shape[J.P_FIXED]
    move_words(changes, folded[row + J.D_IMAGE], out, at + A.ENTRY_WORDS, fixed)
    if shape[J.P_HAS_VAR] == 0:
        return A.ENTRY_WORDS + fixed
    to = at + A.ENTRY_WORDS + fixed
    place = folded[row + J.D_VAR]
    if place >= 0:
        size = changes[place] & A.VAR_WORDS_MASK
        move_words(changes, place, out, to, size)
        return A.ENTRY_WORDS + fixed + size
    if place == J.VAR_KEPT and var_words > 0:
        return A.ENTRY_WORDS + fixed + put_values(words, var, var_words, values, out, to)
    out[to] = NO_VALUES
    return A.ENTRY_WORDS + fixed + 1


@helper
def folded_words_max(folded, row, changes, var_words, shape):
    """Return the maximum words of a folded row's entry."""
    if folded[row + J.D_IMAGE] < 0:
        return 0
    words = A.ENTRY_WORDS + shape[J.P_FIXED] + 1 + var_words
    if shape[J.P_HAS_VAR] and folded[row + J.D_VAR] >= 0:
        words += changes[folded[row + J.D_VAR]] & A.VAR_WORDS_MASK
    return words


@helper
def belongs(rows, at, floor, shape):
    """Whether the row at `at` has a ROWID above `floor`, in an existing slot, and an epoch of this level."""
    rowid = rows[at + J.ROW_ID]
    if rowid <= floor or slot_number(rowid, shape[J.P_SLOTS]) < 0:
        return False
    lowest = shape[J.P_SINCE] + (shape[J.P_SINCE] != 0)  # a full backup has epoch 0 too
    return lowest <= rows[at + J.ROW_EPOCH] <= shape[J.P_EPOCH]


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1])",
    nogil=True,
)
def merge_rows(images, starts, rows, shape, folded, changes, out, offsets, used, state):
    """Merge the folded changes with the rows of a level from number state[R_NEXT] on. Write the resulting entries to
    out[used[0]:], counting them in used[1], and unless `offsets` is empty, offsets of their images to
    offsets[used[1]:]. A level begins with R_ROWID -1 and R_CHANGE 0.

    Row i has its image, with a disk part if the table has one, in images[starts[i]:starts[i + 1]], and ROW_WORDS words
    of `rows`. OK; at state[R_NEXT]: ST_SPACE - words needed if out is full, ST_INVARIANT for an invalid row,
    ST_DUPLICATE if a change inserts a row that the backup has.
    """
    fixed = shape[J.P_FIXED]
    has_var = shape[J.P_LEVEL_HAS_VAR]
    widened = shape[J.P_HAS_VAR] and not has_var
    changed_rows = folded.size // J.FOLDED_WORDS
    while state[J.R_NEXT] < starts.size - 1:
        number = state[J.R_NEXT]
        about = number * J.ROW_WORDS
        image = starts[number]
        stop = starts[number + 1]
        part = checked_image_words(fixed, has_var, images, image, stop)
        if part < 0 or not belongs(rows, about, state[J.R_ROWID], shape):
            return A.ST_INVARIANT
        rowid = rows[about + J.ROW_ID]
        values = rows[about + J.ROW_VALUES]
        change = state[J.R_CHANGE]
        while change < changed_rows and folded[change * J.FOLDED_WORDS + J.D_ROWID] < rowid:
            change += 1
        state[J.R_CHANGE] = change
        row = change * J.FOLDED_WORDS
        is_changed = change < changed_rows and folded[row + J.D_ROWID] == rowid
        need = A.ENTRY_WORDS + stop - image + 1
        if is_changed:
            need = folded_words_max(folded, row, changes, part - fixed, shape)
        at = used[0]
        if at + need > out.size:
            return A.ST_SPACE - need
        if is_changed:
            if folded[row + J.D_BASE] != J.BASE_WANTED:
                return A.ST_DUPLICATE
            first, key_words = image_key(images, image, fixed, shape[J.P_KEY_WORDS])
            key = folded[row + J.D_KEY]
            if first + key_words > stop:
                return A.ST_INVARIANT
            if key >= 0:
                if folded[row + J.D_KEY_WORDS] != key_words or not same_words(images, first, changes, key, key_words):
                    return A.ST_INVARIANT
            folded[row + J.D_BASE] = J.BASE_FOUND
        state[J.R_COUNT] += 1
        state[J.R_ROWID] = rowid
        state[J.R_NEXT] += 1
        if is_changed and folded[row + J.D_IMAGE] < 0:
            continue
        if offsets.size:
            offsets[used[1]] = at + A.ENTRY_WORDS
        used[1] += 1
        if is_changed:
            used[0] += put_folded(folded, row, changes, images, image + fixed, part - fixed, values, shape, out, at)
            continue
        out[at] = rowid
        out[at + 1] = rows[about + J.ROW_EPOCH]
        out[at + 2] = packed_place(rows[about + J.ROW_AUTHOR], shape[J.P_TABLE], shape[J.P_FRAGMENT])
        at += A.ENTRY_WORDS
        move_words(images, image, out, at, fixed)
        at += fixed
        if has_var:
            at += put_values(images, image + fixed, part - fixed, values, out, at)
        elif widened:
            out[at] = NO_VALUES
            at += 1
        move_words(images, image + part, out, at, stop - image - part)
        used[0] = at + stop - image - part
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def put_new_rows(folded, changes, shape, out, used, state):
    """Write, after the last level, the entries of the folded rows from state[R_NEXT] on that the backup did not have.

    OK; at state[R_NEXT]: ST_SPACE - words needed if out is full, ST_MISSING if the backup lacks a changed row.
    """
    while state[J.R_NEXT] < folded.size // J.FOLDED_WORDS:
        row = state[J.R_NEXT] * J.FOLDED_WORDS
        if folded[row + J.D_BASE] == J.BASE_WANTED:
            return A.ST_MISSING
        if folded[row + J.D_BASE] == J.BASE_ABSENT and folded[row + J.D_IMAGE] >= 0:
            need = folded_words_max(folded, row, changes, 0, shape)
            if used[0] + need > out.size:
                return A.ST_SPACE - need
            used[0] += put_folded(folded, row, changes, changes, 0, 0, -1, shape, out, used[0])
            used[1] += 1
        state[J.R_NEXT] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])", nogil=True)
def take_epoch(changes, start, stop, out, state):
    """Copy to `out` the records of the next changes of one epoch, from changes[max(start, state[R_NEXT]):stop], without
    the words of the epoch. state[R_USED]: words copied. Return the epoch, -1 if no change is left, or ST_INVARIANT at
    state[R_NEXT].
    """
    at = max(start, state[J.R_NEXT])
    state[J.R_USED] = 0
    if at >= stop:
        return -1
    epoch = changes[at]
    while at < stop and changes[at] == epoch:
        state[J.R_NEXT] = at
        record = at + J.CHANGE_WORDS
        if record >= stop or epoch < 0:
            return A.ST_INVARIANT
        kind, size = record_at(changes, record, stop)
        if size < 0 or not is_operation(kind) or state[J.R_USED] + size > out.size:
            return A.ST_INVARIANT
        move_words(changes, record, out, state[J.R_USED], size)
        state[J.R_USED] += size
        at = record + size
    state[J.R_NEXT] = at
    return epoch
