"""From records of the log to row changes: a list of records, then, table by table, a list of rows with whole images.

Runs on private memory. Records of one group, or of one block of a spool file, are listed at a time; whoever calls keeps
the state from block to block. The log is sealed and verified, yet no length in it is trusted.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.log.redo_layout import (
    ANY_VALUE_MASK,
    ANY_VALUE_READ,
    ANY_VALUE_SERVER_MAX,
    FLAG_AGAIN,
    FLAG_DISK_KEPT,
    FLAG_VAR_KEPT,
    FLAGS_MASK,
    FLAGS_SHIFT,
    FRAGMENT_MASK,
    FRAGMENT_SHIFT,
    KIND_BEFORE,
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_NOOP,
    KIND_REFRESH,
    KIND_SCHEMA,
    KIND_TRANSACTION,
    KIND_UPDATE,
    OPERATION_WORDS,
    SCHEMA_VERSION_MASK,
    SCHEMA_VERSION_SHIFT,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from engine.log.row_changes_layout import (
    LS_AT,
    LS_BEFORE,
    LS_BEFORE_FLAGS,
    LS_BEFORE_STOP,
    LS_COUNT,
    LS_TXID,
    PART_EMPTY,
    PART_NONE,
    RC_AT,
    RC_BEFORE,
    RC_BEFORE_SHIFT,
    RC_BEFORE_STOP,
    RC_FLAGS,
    RC_IDENTITY,
    RC_KIND,
    RC_ROWS,
    RC_STOP,
    RC_TAIL,
    RC_TXID,
    RECORD_LIST_WORDS,
    ROW_LIST_WORDS,
    RW_AFTER,
    RW_AFTER_VAR,
    RW_BEFORE,
    RW_BEFORE_VAR,
    RW_IS_AGAIN,
    RW_KIND,
    RW_PLACE,
    RW_TAIL,
    RW_TXID,
    SH_FIXED_WORDS,
    SH_HAS_DISK,
    SH_HAS_VAR,
    SH_VAR_SINCE,
)
from engine.memory.arena_layout import COUNT_SHIFT, OK, ROWID_MASK, ST_INVARIANT, ST_MORE, ST_SPACE, VAR_WORDS_MASK
from engine.rows.lcp_kernels import checked_image_words
from engine.rows.side_pages_kernels import NO_VALUES

PLACE_SHIFT = COUNT_SHIFT


# --- records --------------------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def list_records(words, stop, out, state):
    """List the records words[state[LS_AT]:stop]: RECORD_LIST_WORDS for each that says something of rows or the schema.

    OK; ST_MORE if `out` is full, call again; ST_INVARIANT if what stands there is no record. state[LS_TXID] and what
    waits in state[LS_BEFORE] stay from call to call.
    """
    count = 0
    at = state[LS_AT]
    while at < stop:
        kind = words[at] & KIND_MASK
        size = words[at] >> WORDS_SHIFT
        if kind == KIND_TRANSACTION:
            size = TRANSACTION_WORDS
        if size < 2 or at + size > stop:
            return ST_INVARIANT
        if kind == KIND_TRANSACTION:
            state[LS_TXID] = words[at + 1]
            state[LS_BEFORE] = -1
        elif kind == KIND_BEFORE:
            if size < OPERATION_WORDS:
                return ST_INVARIANT
            state[LS_BEFORE] = at + OPERATION_WORDS
            state[LS_BEFORE_STOP] = at + size
            state[LS_BEFORE_FLAGS] = (words[at] >> FLAGS_SHIFT) & FLAGS_MASK
        elif is_listed(kind):
            if (count + 1) * RECORD_LIST_WORDS > out.size:
                state[LS_COUNT] = count
                return ST_MORE
            if kind != KIND_SCHEMA and size < OPERATION_WORDS:
                return ST_INVARIANT
            put_record(words, at, size, kind, out, count * RECORD_LIST_WORDS, state)
            count += 1
            state[LS_BEFORE] = -1
        at += size
        state[LS_AT] = at
    state[LS_COUNT] = count
    return OK


@helper
def is_listed(kind):
    """Whether a kind of record says something of rows or the schema."""
    return (
        kind == KIND_INSERT
        or kind == KIND_UPDATE
        or kind == KIND_DELETE
        or kind == KIND_NOOP
        or kind == KIND_REFRESH
        or kind == KIND_SCHEMA
    )


@helper
def put_record(words, at, size, kind, out, to, state):
    """Put one record into the list."""
    out[to + RC_KIND] = kind
    out[to + RC_FLAGS] = (words[at] >> FLAGS_SHIFT) & FLAGS_MASK
    out[to + RC_TXID] = state[LS_TXID]
    out[to + RC_STOP] = at + size
    out[to + RC_BEFORE] = -1
    out[to + RC_BEFORE_STOP] = -1
    if kind == KIND_SCHEMA:
        out[to + RC_IDENTITY] = 0
        out[to + RC_ROWS] = 0
        out[to + RC_TAIL] = 0
        out[to + RC_AT] = at + 1
        return
    out[to + RC_IDENTITY] = words[at + 1]
    out[to + RC_ROWS] = words[at + 2]
    out[to + RC_TAIL] = words[at + 3]
    out[to + RC_AT] = at + OPERATION_WORDS
    if state[LS_BEFORE] >= 0:
        out[to + RC_FLAGS] |= state[LS_BEFORE_FLAGS] << RC_BEFORE_SHIFT
        out[to + RC_BEFORE] = state[LS_BEFORE]
        out[to + RC_BEFORE_STOP] = state[LS_BEFORE_STOP]


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64)", nogil=True)
def copy_records(words, records, chosen, out, used):
    """Copy the chosen records, each behind its image before, to out[used:]: the words used then, or ST_SPACE."""
    for number in range(chosen.size):
        source = chosen[number] * RECORD_LIST_WORDS
        before = records[source + RC_BEFORE]
        begin = (records[source + RC_AT] if before < 0 else before) - OPERATION_WORDS
        size = records[source + RC_STOP] - begin
        if used + size > out.size:
            return ST_SPACE
        move_words(words, begin, out, used, size)
        used += size
    return used


# --- rows -----------------------------------------------------------------------------------------
@helper
def take_image(words, at, stop, has_var, has_disk, shape, out, to):
    """Note where the parts of the image words[at:] begin, those it has; its words, or ST_INVARIANT."""
    fixed = shape[SH_FIXED_WORDS]
    size = checked_image_words(fixed, has_var, words, at, stop)
    if size < 0:
        return ST_INVARIANT
    out[to] = at
    out[to + 1] = at + fixed if has_var else PART_NONE
    out[to + 2] = PART_NONE
    if has_disk:
        disk = at + size
        if disk >= stop:
            return ST_INVARIANT
        words_of_disk = words[disk] & VAR_WORDS_MASK
        if words_of_disk < 1 or words_of_disk > stop - disk:
            return ST_INVARIANT
        out[to + 2] = disk
        size += words_of_disk
    return size


@helper
def take_record(words, records, source, shape, out, first):
    """List the rows of one record; how many, or ST_INVARIANT."""
    kind = records[source + RC_KIND]
    flags = records[source + RC_FLAGS]
    version = (records[source + RC_IDENTITY] >> SCHEMA_VERSION_SHIFT) & SCHEMA_VERSION_MASK
    place = ((records[source + RC_IDENTITY] >> FRAGMENT_SHIFT) & FRAGMENT_MASK) << PLACE_SHIFT
    rowid = records[source + RC_ROWS] & ROWID_MASK
    count = records[source + RC_ROWS] >> COUNT_SHIFT if kind == KIND_INSERT else 1
    is_old = shape[SH_HAS_VAR] != 0 and version < shape[SH_VAR_SINCE]
    has_var = shape[SH_HAS_VAR] != 0 and not is_old
    has_image = kind == KIND_INSERT or kind == KIND_UPDATE
    at = records[source + RC_AT]
    stop = records[source + RC_STOP]
    if count < 1 or (first + count) * ROW_LIST_WORDS > out.size:
        return ST_INVARIANT
    for number in range(count):
        to = (first + number) * ROW_LIST_WORDS
        out[to + RW_KIND] = kind
        out[to + RW_IS_AGAIN] = flags & FLAG_AGAIN
        out[to + RW_PLACE] = place | (rowid + number)
        out[to + RW_TAIL] = records[source + RC_TAIL]
        out[to + RW_TXID] = records[source + RC_TXID]
        for part in range(RW_AFTER, ROW_LIST_WORDS):
            out[to + part] = PART_NONE
        if has_image:
            own_disk = shape[SH_HAS_DISK] != 0 and not flags & FLAG_DISK_KEPT
            size = take_image(
                words, at, stop, has_var and not flags & FLAG_VAR_KEPT, own_disk, shape, out, to + RW_AFTER
            )
            if size < 0:
                return ST_INVARIANT
            at += size
            if is_old:
                out[to + RW_AFTER_VAR] = PART_EMPTY
        elif kind == KIND_REFRESH:
            if take_image(words, at, stop, has_var, False, shape, out, to + RW_BEFORE) < 0:
                return ST_INVARIANT
            if is_old:
                out[to + RW_BEFORE_VAR] = PART_EMPTY
        before = records[source + RC_BEFORE]
        if before >= 0:
            its_disk = shape[SH_HAS_DISK] != 0 and not (flags >> RC_BEFORE_SHIFT) & FLAG_DISK_KEPT
            end = records[source + RC_BEFORE_STOP]
            if take_image(words, before, end, has_var, its_disk, shape, out, to + RW_BEFORE) < 0:
                return ST_INVARIANT
            if is_old:
                out[to + RW_BEFORE_VAR] = PART_EMPTY
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def list_rows(words, records, chosen, shape, out):
    """List the rows of the chosen records of one table, which `out` has room for; how many, or ST_INVARIANT."""
    count = 0
    for number in range(chosen.size):
        found = take_record(words, records, chosen[number] * RECORD_LIST_WORDS, shape, out, count)
        if found < 0:
            return ST_INVARIANT
        count += found
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1])", nogil=True)
def join_rows(rows, order, kept):
    """Make one change of all that a transaction did to a row, at the place of the last; how many are left.

    order: the rows sorted by transaction and place, those of one row in the order they were made. kept: 0 for rows that
    are none any more. First image before, last image after, part by part; a row that came and went is nothing. Changes
    applied from several servers are one for each of them that follow each other: joined they would travel under the id
    of the last, and a row that one server made and another took away would not travel at all.
    """
    left = 0
    begin = 0
    while begin < order.size:
        first = order[begin] * ROW_LIST_WORDS
        end = begin + 1
        while end < order.size and is_same_row(rows, first, order[end] * ROW_LIST_WORDS):
            end += 1
        is_told = rows[first + RW_BEFORE] != PART_NONE or rows[first + RW_KIND] == KIND_INSERT
        for position in range(begin, end - 1):
            source = order[position] * ROW_LIST_WORDS
            target = order[position + 1] * ROW_LIST_WORDS
            if is_told and is_of_others(rows, source, target):
                kept[order[position]] = settle_kind(rows, source)
                left += kept[order[position]]
                hand_over(rows, source, target)
            else:
                join_into(rows, source, target)
                kept[order[position]] = 0
        last = order[end - 1]
        kept[last] = 1
        if end - begin > 1 and not settle_kind(rows, last * ROW_LIST_WORDS):
            kept[last] = 0
        left += kept[last]
        begin = end
    return left


@helper
def is_same_row(rows, first, other):
    """Whether two changes are of one transaction and row; what changes no row is never joined."""
    if rows[first + RW_KIND] == KIND_REFRESH or rows[other + RW_KIND] == KIND_REFRESH:
        return False
    return rows[first + RW_TXID] == rows[other + RW_TXID] and rows[first + RW_PLACE] == rows[other + RW_PLACE]


@helper
def join_into(rows, source, target):
    """The change `target` followed `source`: it takes the image before, and of the image after what it lacks.

    A row that was changed and read is a changed one. An image before of its own is that of `source` with the disk part.
    """
    if rows[target + RW_TAIL] & ANY_VALUE_MASK == ANY_VALUE_READ:
        rows[target + RW_TAIL] = rows[source + RW_TAIL]
    if rows[target + ROW_LIST_WORDS - 1] == PART_NONE or rows[source + RW_BEFORE] == PART_NONE:
        for part in range(RW_BEFORE, ROW_LIST_WORDS):
            rows[target + part] = rows[source + part]
    if rows[target + RW_AFTER] == PART_NONE:
        return
    for part in range(RW_AFTER_VAR, RW_BEFORE):
        if rows[target + part] == PART_NONE:
            rows[target + part] = rows[source + part]


@helper
def is_of_others(rows, source, target):
    """Whether two changes were applied from two servers."""
    ours = rows[source + RW_TAIL] & ANY_VALUE_MASK
    theirs = rows[target + RW_TAIL] & ANY_VALUE_MASK
    are_applied = 0 < ours <= ANY_VALUE_SERVER_MAX and 0 < theirs <= ANY_VALUE_SERVER_MAX
    return are_applied and ours != theirs


@helper
def hand_over(rows, source, target):
    """The image after of one change is the image before of the next."""
    for part in range(RW_BEFORE, ROW_LIST_WORDS):
        rows[target + part] = rows[source + part - (RW_BEFORE - RW_AFTER)]
        if rows[source + RW_AFTER] != PART_NONE and rows[target + part] == PART_NONE:
            rows[target + part] = rows[source + part]


@helper
def settle_kind(rows, at):
    """What joined changes come to; 0: nothing."""
    had = rows[at + RW_BEFORE] != PART_NONE
    has = rows[at + RW_AFTER] != PART_NONE
    if had:
        rows[at + RW_KIND] = KIND_UPDATE if has else KIND_DELETE
    else:
        rows[at + RW_KIND] = KIND_INSERT
    return 1 if had or has else 0


@helper
def place_image(words, rows, at, shape, extra, used, base):
    """(Word the image begins at whose parts rows[at:] name, or a status below PART_EMPTY; words of `extra` used)."""
    fixed = rows[at]
    var = rows[at + 1]
    disk = rows[at + 2]
    if fixed == PART_NONE:
        return PART_NONE, used
    end = fixed + shape[SH_FIXED_WORDS]
    is_whole = True
    var_words = 0
    if shape[SH_HAS_VAR]:
        if var == PART_NONE:
            return ST_INVARIANT, used
        var_words = 1 if var == PART_EMPTY else words[var] & VAR_WORDS_MASK
        is_whole = var == end
        end += var_words
    disk_words = 0
    if disk != PART_NONE:
        is_whole = is_whole and disk == end
        disk_words = words[disk] & VAR_WORDS_MASK
    if is_whole:
        return fixed, used
    needed = shape[SH_FIXED_WORDS] + var_words + disk_words
    if used + needed > extra.size:
        return ST_SPACE - needed, used
    start = base + used
    move_words(words, fixed, extra, used, shape[SH_FIXED_WORDS])
    used += shape[SH_FIXED_WORDS]
    if var == PART_EMPTY:
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
    """From row `first` on: the words at which images begin, before and after, -1 for none: places[2 * row] and next.

    Images whose parts do not lie together are put together in `extra`, whose first word counts as the one behind the
    last of `words`; places[-1] is the words used of it. Returns the row it stopped at because `extra` is full, or how
    many rows there are; ST_INVARIANT: an image lacks a part.
    """
    used = places[places.size - 1]
    count = rows.size // ROW_LIST_WORDS
    for row in range(first, count):
        at = row * ROW_LIST_WORDS
        if rows[at + RW_AFTER] != PART_NONE:
            for part in range(RW_AFTER_VAR, RW_BEFORE):
                if rows[at + part] == PART_NONE:
                    rows[at + part] = rows[at + part + RW_BEFORE - RW_AFTER]
        begun = used
        before, used = place_image(words, rows, at + RW_BEFORE, shape, extra, used, words.size)
        after = PART_NONE
        if before >= PART_NONE:
            after, used = place_image(words, rows, at + RW_AFTER, shape, extra, used, words.size)
        if before == ST_INVARIANT or after == ST_INVARIANT:
            return ST_INVARIANT
        if before <= ST_SPACE or after <= ST_SPACE:
            places[places.size - 1] = begun
            return row
        places[2 * row] = before
        places[2 * row + 1] = after
    places[places.size - 1] = used
    return count
