"""Groups of rows by key: the keys of a vector's rows, a hash table that finds their groups, accumulators of each group.

The table grows between two runs of a vector: where it is full, the run ends before anything was added up, and is
repeated with more memory (`grow_groups`). What was done until then may be done twice: a group is added once, and the
least bytes stay the least.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import IS_DAMAGED, compare_bytes, octets_at, read_whole_bytes
from tidemark.engine.programs.vm_rows_kernels import add_wide, add_wide_value, clear_nulls, fail_row, is_due
from tidemark.engine.programs.vm_words_kernels import bits_of, float_key, float_of, multiply_high, multiply_words
from tidemark.engine.rows import columns_layout as K

MULTIPLIER = 0x2D358DCCAA6C78A5  # odd; the seed is xored with it
NAN_BITS = 0x7FF8000000000000


@helper
def _mixed(one, other):
    """Return the low word xor the high word of a product."""
    return multiply_words(one, other) ^ multiply_high(one, other)


# --- keys ---------------------------------------------------------------------------------------------
@helper
def put_key(work, words, register, kind, part, offset, begin, end):
    """Make a register the part of each row's key at `offset`. Floats that are equal get equal bits."""
    has_nulls = work[P.W_NULLS_SEEN + register] != 0
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        at = np.uint64(P.W_KEYS + i * words)
        low = work[first + step]
        high = work[np.uint64(P.W_HIGH + register * P.VECTOR_ROWS) + step] if kind == P.TYPE_WIDE else 0
        if kind == P.TYPE_FLOAT:
            value = float_of(low)
            low = bits_of(value + 0.0) if value == value else NAN_BITS
        mask = work[at] if part > 0 else 0
        if has_nulls and work[np.uint64(P.W_NULL + register * P.VECTOR_ROWS) + step] != 0:
            mask |= 1 << part
            low = 0
            high = 0
        work[at] = mask
        work[at + np.uint64(offset)] = low
        if kind == P.TYPE_WIDE:
            work[at + np.uint64(offset + 1)] = high


@helper
def _put_key_fixed(data, rows, program, work, column, part, offset, begin, end):
    """Do `put_key_bytes` for a column in the fixed image: no row is damaged."""
    words = program[P.H_KEY_WORDS]
    start = program[column + K.CW_AT]
    width = program[column + K.CW_BYTES]
    null_byte = program[column + K.CW_NULL_BYTE]
    null_word = max(null_byte, 0) >> 3
    null_bit = program[column + K.CW_NULL_MASK] << ((null_byte & 7) << 3) if null_byte >= 0 else 0
    fixed = np.uint64(P.R_FIXED * P.VECTOR_ROWS)
    for i in range(begin, end):
        at = np.uint64(P.W_KEYS + i * words)
        image = rows[fixed + np.uint64(i)]
        nulls = work[at] if part > 0 else 0
        is_null = data[np.uint64(image + null_word)] & null_bit != 0
        work[at] = nulls | (1 << part) if is_null else nulls
        work[at + np.uint64(offset)] = 0 if is_null else (image << 3) + start
        work[at + np.uint64(offset + 1)] = 0 if is_null else width


@helper
def put_key_bytes(data, rows, program, work, column, part, offset, k, begin, end):
    """Make a column of bytes the part of each row's key at `offset`; return the number of damaged rows."""
    if program[column + K.CW_PART] == K.PART_FIXED:
        _put_key_fixed(data, rows, program, work, column, part, offset, begin, end)
        return 0
    words = program[P.H_KEY_WORDS]
    failed = 0
    for i in range(begin, end):
        step = np.uint64(i)
        at = np.uint64(P.W_KEYS + i * words)
        nulls = work[at] if part > 0 else 0
        place = 0
        length = 0
        if work[np.uint64(P.W_RESUME) + step] <= k:
            in_program, place, length = read_whole_bytes(data, rows, program, column, i)
            if length == IS_DAMAGED:
                fail_row(work, i, P.PE_DAMAGED)
                failed += 1
            if length < 0:
                nulls |= 1 << part
                place = 0
                length = 0
            elif in_program:
                place = ~place
        work[at] = nulls
        work[at + np.uint64(offset)] = place
        work[at + np.uint64(offset + 1)] = length
    return failed


@helper
def _hash_octets(words, place, length, h, by):
    for done in range(0, length, 8):
        h = _mixed(octets_at(words, place + done, length - done) ^ h, by)
    return h


@helper
def _hash_of_key(data, program, work, at, words, h):
    """Return the hash of the row's key at `at`; h: the seed."""
    by = h ^ MULTIPLIER
    h ^= work[np.uint64(at)]
    bytes_parts = work[P.W_GROUPS + P.GS_BYTES]
    word = 1
    for part in range(bytes_parts + 1):
        stop = work[P.W_GROUPS + P.GS_BYTES_AT + part] if part < bytes_parts else words
        while word < stop:
            h = _mixed(work[np.uint64(at + word)] ^ h, by)
            word += 1
        if part < bytes_parts:
            place = work[at + word]
            length = work[at + word + 1]
            h = _mixed(length ^ h, by)
            if place < 0:
                h = _hash_octets(program, ~place, length, h, by)
            else:
                h = _hash_octets(data, place, length, h, by)
            word += 2
    return h


@helper
def _are_octets(words, place, length, work, at):
    for done in range(0, length, 8):
        if octets_at(words, place + done, length - done) != work[np.uint64(at + (done >> 3))]:
            return False
    return True


@helper
def _is_key(data, program, work, at, words, other, heap_at):
    """Whether the row's key at `at` is that of a group, at `other`."""
    bytes_parts = work[P.W_GROUPS + P.GS_BYTES]
    word = 0
    for part in range(bytes_parts + 1):
        stop = work[P.W_GROUPS + P.GS_BYTES_AT + part] if part < bytes_parts else words
        while word < stop:
            if work[np.uint64(at + word)] != work[np.uint64(other + word)]:
                return False
            word += 1
        if part < bytes_parts:
            place = work[at + word]
            length = work[at + word + 1]
            if length != work[other + word + 1]:
                return False
            target = heap_at + work[other + word]
            if place < 0:
                if not _are_octets(program, ~place, length, work, target):
                    return False
            elif not _are_octets(data, place, length, work, target):
                return False
            word += 2
    return True


# --- groups -------------------------------------------------------------------------------------------
@helper
def _copy_octets(words, place, length, work, at):
    for done in range(0, length, 8):
        work[at + (done >> 3)] = octets_at(words, place + done, length - done)


@helper
def _is_full(work, words):
    """Whether the heap has no room for so many words; then say so."""
    top = work[P.W_GROUPS + P.GS_HEAP_AT] + work[P.W_GROUPS + P.GS_TOP]
    if words <= work.size - top:
        return False
    work[P.W_GROUPS + P.GS_FULL] = 1
    work[P.W_GROUPS + P.GS_NEEDED] = words
    return True


@helper
def _added_group(data, program, work, at, words, h):
    """Add a group with the row's key at `at`; return its place in the heap, -1 if there is no room."""
    accumulators = program[P.H_ACCUMULATORS] * P.ACCUMULATOR_WORDS
    bytes_parts = work[P.W_GROUPS + P.GS_BYTES]
    need = P.GROUP_HEADER_WORDS + accumulators + words
    for part in range(bytes_parts):
        need += (work[at + work[P.W_GROUPS + P.GS_BYTES_AT + part] + 1] + 7) >> 3
    if (work[P.W_GROUPS + P.GS_COUNT] + 1) * 2 > work[P.W_GROUPS + P.GS_SLOTS]:
        work[P.W_GROUPS + P.GS_FULL] = 1
        work[P.W_GROUPS + P.GS_NEEDED] = need
        return -1
    if _is_full(work, need):
        return -1
    heap_at = work[P.W_GROUPS + P.GS_HEAP_AT]
    place = work[P.W_GROUPS + P.GS_TOP]
    group = heap_at + place
    work[group] = h
    for i in range(accumulators):
        work[group + P.GROUP_HEADER_WORDS + i] = 0
    key = group + P.GROUP_HEADER_WORDS + accumulators
    move_words(work, at, work, key, words)
    free = place + P.GROUP_HEADER_WORDS + accumulators + words
    for part in range(bytes_parts):
        word = work[P.W_GROUPS + P.GS_BYTES_AT + part]
        source = work[at + word]
        length = work[at + word + 1]
        if source < 0:
            _copy_octets(program, ~source, length, work, heap_at + free)
        else:
            _copy_octets(data, source, length, work, heap_at + free)
        work[key + word] = free
        free += (length + 7) >> 3
    work[P.W_GROUPS + P.GS_TOP] = free
    work[P.W_GROUPS + P.GS_COUNT] += 1
    return place


@helper
def _group_of_row(data, program, work, i):
    """Find the group of a row, or add it; whether there was room."""
    words = program[P.H_KEY_WORDS]
    at = P.W_KEYS + i * words
    h = _hash_of_key(data, program, work, at, words, work[P.W_GROUPS + P.GS_SEED])
    slots_at = work[P.W_GROUPS + P.GS_SLOTS_AT]
    heap_at = work[P.W_GROUPS + P.GS_HEAP_AT]
    last = work[P.W_GROUPS + P.GS_SLOTS] - 1
    accumulators = program[P.H_ACCUMULATORS] * P.ACCUMULATOR_WORDS
    probe = h & last
    while True:
        slot = work[np.uint64(slots_at + probe)]
        if slot == 0:
            place = _added_group(data, program, work, at, words, h)
            if place < 0:
                return False
            work[slots_at + probe] = (h & ~P.SLOT_PLACE_MASK) | (place + 1)
            break
        if (slot ^ h) & ~P.SLOT_PLACE_MASK == 0:
            place = (slot & P.SLOT_PLACE_MASK) - 1
            key = heap_at + place + P.GROUP_HEADER_WORDS + accumulators
            if _is_key(data, program, work, at, words, key, heap_at):
                break
        probe = (probe + 1) & last
    work[P.W_GROUP + i] = heap_at + place + P.GROUP_HEADER_WORDS
    return True


@helper
def _groups_by_word(data, program, work, k, begin, end):
    """Do `find_groups` for keys of one word: most are found in their first slot."""
    seed = work[P.W_GROUPS + P.GS_SEED]
    by = seed ^ MULTIPLIER
    slots_at = work[P.W_GROUPS + P.GS_SLOTS_AT]
    # A slot has the place + 1.
    first = work[P.W_GROUPS + P.GS_HEAP_AT] + P.GROUP_HEADER_WORDS - 1
    key_at = program[P.H_ACCUMULATORS] * P.ACCUMULATOR_WORDS
    last = work[P.W_GROUPS + P.GS_SLOTS] - 1
    for i in range(begin, end):
        step = np.uint64(i)
        if work[np.uint64(P.W_RESUME) + step] > k:
            continue
        at = np.uint64(P.W_KEYS) + step + step
        nulls = work[at]
        value = work[at + np.uint64(1)]
        h = _mixed(value ^ seed ^ nulls, by)
        slot = work[np.uint64(slots_at + (h & last))]
        group = first + (slot & P.SLOT_PLACE_MASK)
        key = np.uint64(group + key_at)
        if slot != 0 and work[key] == nulls and work[key + np.uint64(1)] == value:
            work[np.uint64(P.W_GROUP) + step] = group
        elif not _group_of_row(data, program, work, i):
            return


@helper
def _groups_by_words(data, program, work, k, begin, end):
    """Do `_groups_by_word` for keys of several words, numbers alone."""
    words = program[P.H_KEY_WORDS]
    seed = work[P.W_GROUPS + P.GS_SEED]
    by = seed ^ MULTIPLIER
    slots_at = work[P.W_GROUPS + P.GS_SLOTS_AT]
    first = work[P.W_GROUPS + P.GS_HEAP_AT] + P.GROUP_HEADER_WORDS - 1
    key_at = program[P.H_ACCUMULATORS] * P.ACCUMULATOR_WORDS
    last = work[P.W_GROUPS + P.GS_SLOTS] - 1
    for i in range(begin, end):
        step = np.uint64(i)
        if work[np.uint64(P.W_RESUME) + step] > k:
            continue
        at = np.uint64(P.W_KEYS + i * words)
        h = seed ^ work[at]
        for word in range(1, words):
            h = _mixed(work[at + np.uint64(word)] ^ h, by)
        slot = work[np.uint64(slots_at + (h & last))]
        group = first + (slot & P.SLOT_PLACE_MASK)
        key = np.uint64(group + key_at)
        gap = (slot ^ h) & ~P.SLOT_PLACE_MASK
        if slot != 0 and gap == 0:
            for word in range(words):
                gap |= work[at + np.uint64(word)] ^ work[key + np.uint64(word)]
        if slot != 0 and gap == 0:
            work[np.uint64(P.W_GROUP) + step] = group
        elif not _group_of_row(data, program, work, i):
            return


@helper
def _groups_by_octets(data, program, work, k, begin, end):
    """Do `find_groups` for keys of one column of bytes: most are found in their first slot."""
    seed = work[P.W_GROUPS + P.GS_SEED]
    by = seed ^ MULTIPLIER
    slots_at = work[P.W_GROUPS + P.GS_SLOTS_AT]
    heap_at = work[P.W_GROUPS + P.GS_HEAP_AT]
    first = heap_at + P.GROUP_HEADER_WORDS - 1
    key_at = program[P.H_ACCUMULATORS] * P.ACCUMULATOR_WORDS
    last = work[P.W_GROUPS + P.GS_SLOTS] - 1
    for i in range(begin, end):
        step = np.uint64(i)
        if work[np.uint64(P.W_RESUME) + step] > k:
            continue
        at = np.uint64(P.W_KEYS) + step + step + step
        nulls = work[at]
        place = work[at + np.uint64(1)]
        length = work[at + np.uint64(2)]
        if place >= 0:
            h = _hash_octets(data, place, length, _mixed(length ^ seed ^ nulls, by), by)
            slot = work[np.uint64(slots_at + (h & last))]
            group = first + (slot & P.SLOT_PLACE_MASK)
            key = np.uint64(group + key_at)
            is_found = slot != 0 and (slot ^ h) & ~P.SLOT_PLACE_MASK == 0
            is_found = is_found and work[key] == nulls and work[key + np.uint64(2)] == length
            if is_found and _are_octets(data, place, length, work, heap_at + work[key + np.uint64(1)]):
                work[np.uint64(P.W_GROUP) + step] = group
                continue
        if not _group_of_row(data, program, work, i):
            return


@helper
def find_groups(data, program, work, k, begin, end):
    """Find the group of each due row, or add it. If there is no room, the run ends (GS_FULL)."""
    words = program[P.H_KEY_WORDS]
    bytes_parts = work[P.W_GROUPS + P.GS_BYTES]
    if words == 2:
        _groups_by_word(data, program, work, k, begin, end)
    elif words == 3 and bytes_parts == 1:
        _groups_by_octets(data, program, work, k, begin, end)
    elif bytes_parts == 0:
        _groups_by_words(data, program, work, k, begin, end)
    else:
        for i in range(begin, end):
            if work[np.uint64(P.W_RESUME + i)] <= k and not _group_of_row(data, program, work, i):
                return


@kernel("int64(int64[::1], int64[::1])", nogil=True)
def grow_groups(work, grown):
    """Move all groups to an array with more room for them, whose state says where; its slots are zero. Return the
    number of groups.
    """
    heap_at = grown[P.W_GROUPS + P.GS_HEAP_AT]
    move_words(work, work[P.W_GROUPS + P.GS_HEAP_AT], grown, heap_at, grown[P.W_GROUPS + P.GS_TOP])
    slots_at = grown[P.W_GROUPS + P.GS_SLOTS_AT]
    last = grown[P.W_GROUPS + P.GS_SLOTS] - 1
    moved = 0
    for i in range(work[P.W_GROUPS + P.GS_SLOTS]):
        slot = work[work[P.W_GROUPS + P.GS_SLOTS_AT] + i]
        if slot == 0:
            continue
        probe = grown[heap_at + (slot & P.SLOT_PLACE_MASK) - 1] & last
        while grown[slots_at + probe] != 0:
            probe = (probe + 1) & last
        grown[slots_at + probe] = slot
        moved += 1
    return moved


# --- aggregates ---------------------------------------------------------------------------------------
@helper
def _count_rows(work, register, offset, k, begin, end):
    for i in range(begin, end):
        step = np.uint64(i)
        if is_due(work, register, k, step) != 0:
            work[np.uint64(work[np.uint64(P.W_GROUP) + step] + offset)] += 1


@helper
def _sum_integers(work, register, offset, k, begin, end):
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        if is_due(work, register, k, step) != 0:
            at = np.uint64(work[np.uint64(P.W_GROUP) + step] + offset)
            value = work[first + step]
            work[at] += 1
            add_wide(work, at, value, value >> 63)


@helper
def _sum_floats(work, register, offset, k, begin, end):
    """Compute Neumaier's sum, as for all rows together."""
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        if is_due(work, register, k, step) != 0:
            at = np.uint64(work[np.uint64(P.W_GROUP) + step] + offset)
            value = float_of(work[first + step])
            total = float_of(work[at + np.uint64(P.ACC_LOW)])
            whole = total + value
            lost_of_value = (total - whole) + value
            lost_of_total = (value - whole) + total
            lost = lost_of_value if abs(total) >= abs(value) else lost_of_total
            rest = float_of(work[at + np.uint64(P.ACC_HIGH)]) + (lost if lost == lost else 0.0)
            work[at] += 1
            work[at + np.uint64(P.ACC_LOW)] = bits_of(whole)
            work[at + np.uint64(P.ACC_HIGH)] = bits_of(rest)


@helper
def _extreme_words(work, opcode, register, offset, is_float, k, begin, end):
    """Find the least or greatest of one-word values; of equal values, the first one stays."""
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    turn = -1 if opcode == P.OP_MAX else 0  # ~x orders the other way round
    for i in range(begin, end):
        step = np.uint64(i)
        if is_due(work, register, k, step) == 0:
            continue
        at = np.uint64(work[np.uint64(P.W_GROUP) + step] + offset)
        low = work[first + step]
        best = work[at + np.uint64(P.ACC_LOW)]
        key = (float_key(low) if is_float else low) ^ turn
        best_key = (float_key(best) if is_float else best) ^ turn
        if key < best_key or work[at] == 0:
            work[at + np.uint64(P.ACC_LOW)] = low
            work[at + np.uint64(P.ACC_HIGH)] = 0 if is_float else low >> 63
        work[at] += 1


@helper
def _add_up_wide(work, opcode, register, offset, k, begin, end):
    for i in range(begin, end):
        if is_due(work, register, k, np.uint64(i)) != 0:
            low = work[P.W_LOW + register * P.VECTOR_ROWS + i]
            high = work[P.W_HIGH + register * P.VECTOR_ROWS + i]
            add_wide_value(work, opcode, work[P.W_GROUP + i] + offset, low, high)


@helper
def add_up_groups(work, opcode, register, accumulator, kind, k, begin, end):
    """Aggregate a register of the due rows into an accumulator of their groups, without NULLs."""
    offset = accumulator * P.ACCUMULATOR_WORDS
    clear_nulls(work, register, begin, end)
    if opcode == P.OP_COUNT:
        _count_rows(work, register, offset, k, begin, end)
    elif kind == P.TYPE_WIDE:
        _add_up_wide(work, opcode, register, offset, k, begin, end)
    elif opcode != P.OP_SUM:
        _extreme_words(work, opcode, register, offset, kind == P.TYPE_FLOAT, k, begin, end)
    elif kind == P.TYPE_FLOAT:
        _sum_floats(work, register, offset, k, begin, end)
    else:
        _sum_integers(work, register, offset, k, begin, end)


@helper
def _keep_octets(words, place, length, work, at):
    """Make bytes the value of the accumulator at `at`; whether there was room."""
    need = (length + 7) >> 3
    if need > work[at + P.ACC_ROOM]:
        room = 1
        while room < need:
            room <<= 1
        if _is_full(work, room):
            return False
        work[at + P.ACC_PLACE] = work[P.W_GROUPS + P.GS_TOP]
        work[at + P.ACC_ROOM] = room
        work[P.W_GROUPS + P.GS_TOP] += room
    _copy_octets(words, place, length, work, work[P.W_GROUPS + P.GS_HEAP_AT] + work[at + P.ACC_PLACE])
    work[at + P.ACC_LENGTH] = length
    work[at] = 1
    return True


@helper
def extreme_bytes(data, rows, program, work, opcode, column, accumulator, k, begin, end):
    """Find the least or greatest bytes of a column in each group; return the number of damaged rows. If there is no
    room, the run ends (GS_FULL).
    """
    failed = 0
    wanted = 1 if opcode == P.OP_MAX_BYTES else -1
    for i in range(begin, end):
        if work[P.W_RESUME + i] > k:
            continue
        in_program, place, length = read_whole_bytes(data, rows, program, column, i)
        if length == IS_DAMAGED:
            fail_row(work, i, P.PE_DAMAGED)
            failed += 1
        if length < 0:
            continue
        at = work[P.W_GROUP + i] + accumulator * P.ACCUMULATOR_WORDS
        if work[at] != 0:
            best = (work[P.W_GROUPS + P.GS_HEAP_AT] + work[at + P.ACC_PLACE]) << 3
            if in_program:
                order, _ = compare_bytes(program, place, length, work, best, work[at + P.ACC_LENGTH])
            else:
                order, _ = compare_bytes(data, place, length, work, best, work[at + P.ACC_LENGTH])
            if order != wanted:
                continue
        if in_program:
            is_kept = _keep_octets(program, place, length, work, at)
        else:
            is_kept = _keep_octets(data, place, length, work, at)
        if not is_kept:
            return failed
    return failed
