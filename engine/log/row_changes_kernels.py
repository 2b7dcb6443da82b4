"""From records of the log to row changes: a list of records, then, table by table, a list of rows with whole images.

The kernels run on private memory. One call lists the records of one group or of one block of a spool file; the caller
keeps the state between blocks. The log is sealed and verified, yet every length in it is checked.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log import row_changes_layout as G
from tidemark.engine.log.records_kernels import is_operation, place_of, record_at, record_flags, rows_of
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.lcp_kernels import checked_disk_words, checked_image_words
from tidemark.engine.rows.side_pages_kernels import NO_VALUES

PLACE_SHIFT = A.COUNT_SHIFT


# --- records --------------------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def list_records(words, stop, out, state):
    """List the records words[state[LS_AT]:stop], RECORD_LIST_WORDS for each that concerns rows or the schema.

    Return OK; ST_MORE if `out` is full: call again; ST_INVARIANT if the words there are not a record. Keep
    state[LS_TXID] and a pending before-image, state[LS_BEFORE], between calls.
    """
    count = 0
    at = state[G.LS_AT]
    while at < stop:
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if kind == L.KIND_TRANSACTION:
            state[G.LS_TXID] = words[at + 1]
            state[G.LS_BEFORE] = -1
        elif kind == L.KIND_BEFORE:
            state[G.LS_BEFORE] = at + L.OPERATION_WORDS
            state[G.LS_BEFORE_STOP] = at + size
            state[G.LS_BEFORE_FLAGS] = record_flags(words, at)
        elif is_listed(kind):
            if (count + 1) * G.RECORD_LIST_WORDS > out.size:
                state[G.LS_COUNT] = count
                return A.ST_MORE
            if kind != L.KIND_SCHEMA and rows_of(words, at, kind)[1] < 0:
                return A.ST_INVARIANT
            put_record(words, at, size, kind, out, count * G.RECORD_LIST_WORDS, state)
            count += 1
            state[G.LS_BEFORE] = -1
        at += size
        state[G.LS_AT] = at
    state[G.LS_COUNT] = count
    return A.OK


@helper
def is_listed(kind):
    """Whether records of a kind concern rows or the schema."""
    return is_operation(kind) or kind == L.KIND_NOOP or kind == L.KIND_REFRESH or kind == L.KIND_SCHEMA


@helper
def put_record(words, at, size, kind, out, to, state):
    """Add one record to the list."""
    out[to + G.RC_KIND] = kind
    out[to + G.RC_FLAGS] = record_flags(words, at)
    out[to + G.RC_TXID] = state[G.LS_TXID]
    out[to + G.RC_STOP] = at + size
    out[to + G.RC_BEFORE] = -1
    out[to + G.RC_BEFORE_STOP] = -1
    if kind == L.KIND_SCHEMA:
        out[to + G.RC_IDENTITY] = 0
        out[to + G.RC_ROWS] = 0
        out[to + G.RC_TAIL] = 0
        out[to + G.RC_AT] = at + 1
        return
    out[to + G.RC_IDENTITY] = words[at + 1]
    out[to + G.RC_ROWS] = words[at + 2]
    out[to + G.RC_TAIL] = words[at + 3]
    out[to + G.RC_AT] = at + L.OPERATION_WORDS
    if state[G.LS_BEFORE] >= 0:
        out[to + G.RC_FLAGS] |= state[G.LS_BEFORE_FLAGS] << G.RC_BEFORE_SHIFT
        out[to + G.RC_BEFORE] = state[G.LS_BEFORE]
        out[to + G.RC_BEFORE_STOP] = state[G.LS_BEFORE_STOP]


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64)", nogil=True)
def copy_records(words, records, chosen, out, used):
    """Copy the chosen records, each after its before-image, to out[used:]; return the words used, or ST_SPACE."""
    for number in range(chosen.size):
        source = chosen[number] * G.RECORD_LIST_WORDS
        before = records[source + G.RC_BEFORE]
        begin = (records[source + G.RC_AT] if before < 0 else before) - L.OPERATION_WORDS
        size = records[source + G.RC_STOP] - begin
        if used + size > out.size:
            return A.ST_SPACE
        move_words(words, begin, out, used, size)
        used += size
    return used


# --- rows -----------------------------------------------------------------------------------------
@helper
def take_image(words, at, stop, has_var, has_disk, shape, out, to):
    """Note where each part of the image words[at:] starts; return the words of the image, or ST_INVARIANT."""
    fixed = shape[G.SH_FIXED_WORDS]
    size = checked_image_words(fixed, has_var, words, at, stop)
    if size < 0:
        return A.ST_INVARIANT
    out[to] = at
    out[to + 1] = at + fixed if has_var else G.PART_NONE
    out[to + 2] = G.PART_NONE
    if has_disk:
        disk = checked_disk_words(words, at + size, stop)
        if disk < 0:
            return A.ST_INVARIANT
        out[to + 2] = at + size
        size += disk
    return size


@helper
def take_record(words, records, source, shape, out, first):
    """List the rows of one record; return their number, or ST_INVARIANT."""
    kind = records[source + G.RC_KIND]
    flags = records[source + G.RC_FLAGS]
    version = (records[source + G.RC_IDENTITY] >> L.SCHEMA_VERSION_SHIFT) & L.SCHEMA_VERSION_MASK
    place = place_of(records[source + G.RC_IDENTITY])[1] << PLACE_SHIFT
    rowid = records[source + G.RC_ROWS] & A.ROWID_MASK
    count = records[source + G.RC_ROWS] >> A.COUNT_SHIFT if kind == L.KIND_INSERT else 1
    is_old = shape[G.SH_HAS_VAR] != 0 and version < shape[G.SH_VAR_SINCE]
    has_var = shape[G.SH_HAS_VAR] != 0 and not is_old
    has_image = kind == L.KIND_INSERT or kind == L.KIND_UPDATE
    at = records[source + G.RC_AT]
    stop = records[source + G.RC_STOP]
    if (first + count) * G.ROW_LIST_WORDS > out.size:
        return A.ST_INVARIANT
    for number in range(count):
        to = (first + number) * G.ROW_LIST_WORDS
        out[to + G.RW_KIND] = kind
        out[to + G.RW_IS_AGAIN] = flags & L.FLAG_AGAIN
        out[to + G.RW_PLACE] = place | (rowid + number)
        out[to + G.RW_TAIL] = records[source + G.RC_TAIL]
        out[to + G.RW_TXID] = records[source + G.RC_TXID]
        for part in range(G.RW_AFTER, G.ROW_LIST_WORDS):
            out[to + part] = G.PART_NONE
        if has_image:
            own_disk = shape[G.SH_HAS_DISK] != 0 and not flags & L.FLAG_DISK_KEPT
            size = take_image(
                words, at, stop, has_var and not flags & L.FLAG_VAR_KEPT, own_disk, shape, out, to + G.RW_AFTER
            )
            if size < 0:
                return A.ST_INVARIANT
            at += size
            if is_old:
                out[to + G.RW_AFTER_VAR] = G.PART_EMPTY
        elif kind == L.KIND_REFRESH:
            if take_image(words, at, stop, has_var, False, shape, out, to + G.RW_BEFORE) < 0:
                return A.ST_INVARIANT
            if is_old:
                out[to + G.RW_BEFORE_VAR] = G.PART_EMPTY
        before = records[source + G.RC_BEFORE]
        if before >= 0:
            its_disk = shape[G.SH_HAS_DISK] != 0 and not (flags >> G.RC_BEFORE_SHIFT) & L.FLAG_DISK_KEPT
            end = records[source + G.RC_BEFORE_STOP]
            if take_image(words, before, end, has_var, its_disk, shape, out, to + G.RW_BEFORE) < 0:
                return A.ST_INVARIANT
            if is_old:
                out[to + G.RW_BEFORE_VAR] = G.PART_EMPTY
    return A.ST_INVARIANT if has_image and at != stop else count


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def list_rows(words, records, chosen, shape, out):
    """List the rows of one table's chosen records, for which `out` has room; return their number, or ST_INVARIANT."""
    count = 0
    for number in range(chosen.size):
        found = take_record(words, records, chosen[number] * G.RECORD_LIST_WORDS, shape, out, count)
        if found < 0:
            return A.ST_INVARIANT
        count += found
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def join_rows(rows, order, apart, kept):
    """Join all changes of a transaction to a row into one, at the position of the last; return how many are left.

    order: the changes sorted by transaction and place, those of one row in the order they happened. apart: not 0 for a
    change that is not joined, of a row whose first before-image is there. kept: set to 0 for a change that was joined
    into another. The first before-image and the last after-image remain, part by part; a row
    inserted and deleted again leaves no change. Changes applied from several servers are joined only within a run of
    one server: otherwise they would be sent with the id of the last server, and a row that one server inserted and
    another deleted would not be sent.
    """
    left = 0
    begin = 0
    while begin < order.size:
        first = order[begin] * G.ROW_LIST_WORDS
        end = begin + 1
        while end < order.size and is_same_row(rows, first, order[end] * G.ROW_LIST_WORDS):
            end += 1
        is_reported = rows[first + G.RW_BEFORE] != G.PART_NONE or rows[first + G.RW_KIND] == L.KIND_INSERT
        for position in range(begin, end - 1):
            source = order[position] * G.ROW_LIST_WORDS
            target = order[position + 1] * G.ROW_LIST_WORDS
            if is_reported and (stays_apart(rows, order[position], apart) or is_of_others(rows, source, target)):
                kept[order[position]] = settle_kind(rows, source)
                left += kept[order[position]]
                hand_over(rows, source, target)
            else:
                join_into(rows, source, target)
                kept[order[position]] = 0
        last = order[end - 1]
        kept[last] = 1
        if end - begin > 1 and not settle_kind(rows, last * G.ROW_LIST_WORDS):
            kept[last] = 0
        left += kept[last]
        begin = end
    return left


@helper
def is_same_row(rows, first, other):
    """Whether two changes are of one transaction and row; a refresh, which changes no row, is never joined."""
    if rows[first + G.RW_KIND] == L.KIND_REFRESH or rows[other + G.RW_KIND] == L.KIND_REFRESH:
        return False
    return rows[first + G.RW_TXID] == rows[other + G.RW_TXID] and rows[first + G.RW_PLACE] == rows[other + G.RW_PLACE]


@helper
def join_into(rows, source, target):
    """Join `source` into the later change `target`: its before-image, and the parts that `target`'s after-image lacks.

    A row that was changed and then read counts as changed. A before-image of `target` with a disk part stays: it is
    that of `source` plus the disk part.
    """
    if rows[target + G.RW_TAIL] & L.ANY_VALUE_MASK == L.ANY_VALUE_READ:
        rows[target + G.RW_TAIL] = rows[source + G.RW_TAIL]
    if rows[target + G.ROW_LIST_WORDS - 1] == G.PART_NONE or rows[source + G.RW_BEFORE] == G.PART_NONE:
        for part in range(G.RW_BEFORE, G.ROW_LIST_WORDS):
            rows[target + part] = rows[source + part]
    if rows[target + G.RW_AFTER] == G.PART_NONE:
        return
    for part in range(G.RW_AFTER_VAR, G.RW_BEFORE):
        if rows[target + part] == G.PART_NONE:
            rows[target + part] = rows[source + part]


@helper
def stays_apart(rows, number, apart):
    """Whether a change is not joined into the next one, although both are of one server; one that only reads is."""
    return apart[number] != 0 and rows[number * G.ROW_LIST_WORDS + G.RW_TAIL] & L.ANY_VALUE_MASK != L.ANY_VALUE_READ


@helper
def is_of_others(rows, source, target):
    """Whether two changes were applied from different servers."""
    ours = rows[source + G.RW_TAIL] & L.ANY_VALUE_MASK
    theirs = rows[target + G.RW_TAIL] & L.ANY_VALUE_MASK
    are_applied = 0 < ours <= L.ANY_VALUE_SERVER_MAX and 0 < theirs <= L.ANY_VALUE_SERVER_MAX
    return are_applied and ours != theirs


@helper
def hand_over(rows, source, target):
    """Make the after-image of one change the before-image of the next."""
    for part in range(G.RW_BEFORE, G.ROW_LIST_WORDS):
        rows[target + part] = rows[source + part - (G.RW_BEFORE - G.RW_AFTER)]
        if rows[source + G.RW_AFTER] != G.PART_NONE and rows[target + part] == G.PART_NONE:
            rows[target + part] = rows[source + part]


@helper
def settle_kind(rows, at):
    """Set the kind of a joined change from its images; return 0 if it has no image, else 1."""
    had = rows[at + G.RW_BEFORE] != G.PART_NONE
    has = rows[at + G.RW_AFTER] != G.PART_NONE
    if had:
        rows[at + G.RW_KIND] = L.KIND_UPDATE if has else L.KIND_DELETE
    else:
        rows[at + G.RW_KIND] = L.KIND_INSERT
    return 1 if had or has else 0


@helper
def place_image(words, rows, at, shape, extra, used, base):
    """Find the image whose parts rows[at:] name; if they are not consecutive, assemble it in `extra`.

    Return (start of the image, PART_NONE, or a status below PART_EMPTY; words of `extra` used).
    """
    fixed = rows[at]
    var = rows[at + 1]
    disk = rows[at + 2]
    if fixed == G.PART_NONE:
        return G.PART_NONE, used
    end = fixed + shape[G.SH_FIXED_WORDS]
    is_whole = True
    var_words = 0
    if shape[G.SH_HAS_VAR]:
        if var == G.PART_NONE:
            return A.ST_INVARIANT, used
        var_words = 1 if var == G.PART_EMPTY else words[var] & A.VAR_WORDS_MASK
        is_whole = var == end
        end += var_words
    disk_words = 0
    if disk != G.PART_NONE:
        is_whole = is_whole and disk == end
        disk_words = words[disk] & A.VAR_WORDS_MASK
    if is_whole:
        return fixed, used
    needed = shape[G.SH_FIXED_WORDS] + var_words + disk_words
    if used + needed > extra.size:
        return A.ST_SPACE - needed, used
    start = base + used
    move_words(words, fixed, extra, used, shape[G.SH_FIXED_WORDS])
    used += shape[G.SH_FIXED_WORDS]
    if var == G.PART_EMPTY:
        extra[used] = NO_VALUES
    elif var_words > 0:
        move_words(words, var, extra, used, var_words)
    used += var_words
    if disk_words > 0:
        move_words(words, disk, extra, used, disk_words)
        used += disk_words
    return start, used


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def place_rows(words, rows, shape, first, extra, places):
    """From row `first` on, set places[2 * row] and places[2 * row + 1] to the starts of before- and after-image, -1 for
    none.

    Images whose parts are not consecutive are assembled in `extra`, which counts as appended to `words`; places[-1] is
    how many of its words are used. Return the row at which `extra` was full, or the number of rows; ST_INVARIANT if an
    image lacks a part.
    """
    used = places[places.size - 1]
    count = rows.size // G.ROW_LIST_WORDS
    for row in range(first, count):
        at = row * G.ROW_LIST_WORDS
        if rows[at + G.RW_AFTER] != G.PART_NONE:
            for part in range(G.RW_AFTER_VAR, G.RW_BEFORE):
                if rows[at + part] == G.PART_NONE:
                    rows[at + part] = rows[at + part + G.RW_BEFORE - G.RW_AFTER]
        begun = used
        before, used = place_image(words, rows, at + G.RW_BEFORE, shape, extra, used, words.size)
        after = G.PART_NONE
        if before >= G.PART_NONE:
            after, used = place_image(words, rows, at + G.RW_AFTER, shape, extra, used, words.size)
        if before == A.ST_INVARIANT or after == A.ST_INVARIANT:
            return A.ST_INVARIANT
        if before <= A.ST_SPACE or after <= A.ST_SPACE:
            places[places.size - 1] = begun
            return row
        places[2 * row] = before
        places[2 * row + 1] = after
    places[places.size - 1] = used
    return count
