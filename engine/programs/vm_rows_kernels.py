"""Rows of a vector: which are due, branches, verdicts, and the writes and aggregates of programs.

A row is due at instruction k if it continues at k or before. Registers of finished rows may hold anything. Registers of
rows that continue at a later instruction must be kept, so results go to the scratch register first while there are such
rows.
Hot loops load before they choose: a load that depends on a condition would keep them from being vectorised.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_words_kernels import add_words, below, bits_of, float_key, float_of, wide_order

SINGLE_MAX = 3.4028235677973366e38  # from here on a float rounds to infinity as a Float32


@helper
def survey(work, begin, end):
    """Compute the range of instructions at which unfinished rows continue."""
    least = P.FINISHED
    top = -1
    first = np.uint64(P.W_RESUME + begin)
    for i in range(end - begin):
        resume = work[first + np.uint64(i)]
        least = min(least, resume)
        top = max(top, -1 if resume == P.FINISHED else resume)
    work[P.W_NEXT] = least
    work[P.W_TOP] = top


@helper
def finish_rows(work, verdict, code, k, begin, end):
    """Set the verdict of the due rows and finish them."""
    first = np.uint64(P.W_RESUME + begin)
    verdicts = np.uint64(P.W_VERDICT + begin)
    codes = np.uint64(P.W_CODE + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        resume = work[first + step]
        old_verdict = work[verdicts + step]
        old_code = work[codes + step]
        due = resume <= k
        work[verdicts + step] = verdict if due else old_verdict
        work[codes + step] = code if due else old_code
        work[first + step] = P.FINISHED if due else resume
    survey(work, begin, end)


@helper
def fail_row(work, row, code):
    work[P.W_VERDICT + row] = P.VERDICT_ERROR
    work[P.W_CODE + row] = code
    work[P.W_RESUME + row] = P.FINISHED


@helper
def fail_marked(work, k, begin, end):
    """End the due rows that have an error in the plane of comparisons."""
    failed = 0
    for i in range(begin, end):
        if work[P.W_COMPARED + i] != 0 and work[P.W_RESUME + i] <= k:
            fail_row(work, i, work[P.W_COMPARED + i])
            failed += 1
    if failed:
        survey(work, begin, end)


@helper
def refuse_nulls(work, register, k, begin, end):
    """End with an error the due rows that have NULL in a register."""
    if work[P.W_NULLS_SEEN + register] != 0:
        for i in range(begin, end):
            work[P.W_COMPARED + i] = P.PE_NULL if work[P.W_NULL + register * P.VECTOR_ROWS + i] != 0 else 0
        fail_marked(work, k, begin, end)


@helper
def put_target(work, register, k):
    """Return the register an instruction must write, so that rows at later instructions keep their values."""
    return P.SCRATCH if work[P.W_TOP] > k else register


@helper
def blend(work, register, is_wide, k, begin, end):
    """Copy the scratch register into a register of the due rows; its high words only if it is wide."""
    seen = work[P.W_NULLS_SEEN + register]
    seen_scratch = work[P.W_NULLS_SEEN + P.SCRATCH]
    if seen == 0 and seen_scratch != 0:
        for i in range(begin, end):
            work[P.W_NULL + register * P.VECTOR_ROWS + i] = 0
    resumes = np.uint64(P.W_RESUME + begin)
    low = np.uint64(P.W_LOW + register * P.VECTOR_ROWS + begin)
    high = np.uint64(P.W_HIGH + register * P.VECTOR_ROWS + begin)
    scratch_low = np.uint64(P.W_LOW + P.SCRATCH * P.VECTOR_ROWS + begin)
    scratch_high = np.uint64(P.W_HIGH + P.SCRATCH * P.VECTOR_ROWS + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        new = work[scratch_low + step]
        old = work[low + step]
        work[low + step] = new if work[resumes + step] <= k else old
    for i in range(end - begin if is_wide else 0):
        step = np.uint64(i)
        new = work[scratch_high + step]
        old = work[high + step]
        work[high + step] = new if work[resumes + step] <= k else old
    if seen | seen_scratch:
        for i in range(begin, end):
            if work[P.W_RESUME + i] <= k:
                mark = work[P.W_NULL + P.SCRATCH * P.VECTOR_ROWS + i] if seen_scratch else 0
                work[P.W_NULL + register * P.VECTOR_ROWS + i] = mark
    work[P.W_NULLS_SEEN + register] = seen | seen_scratch


@helper
def fill_register(work, register, low, high, is_wide, begin, end):
    """Set the same value for all rows; high words are written for wide values only."""
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS + begin)
    second = np.uint64(P.W_HIGH + register * P.VECTOR_ROWS + begin)
    for i in range(end - begin):
        work[first + np.uint64(i)] = low
    for i in range(end - begin if is_wide else 0):
        work[second + np.uint64(i)] = high
    work[P.W_NULLS_SEEN + register] = 0


@helper
def clear_nulls(work, register, begin, end):
    """Zero the null plane of a register that has no NULL; until then its content is undefined."""
    if work[P.W_NULLS_SEEN + register] == 0:
        first = np.uint64(P.W_NULL + register * P.VECTOR_ROWS + begin)
        for i in range(end - begin):
            work[first + np.uint64(i)] = 0


@helper
def compare_registers(work, one, other, kind, begin, end):
    """Write -1, 0, 1 to the plane of comparisons for every row."""
    first = np.uint64(P.W_LOW + one * P.VECTOR_ROWS + begin)
    second = np.uint64(P.W_LOW + other * P.VECTOR_ROWS + begin)
    place = np.uint64(P.W_COMPARED + begin)
    count = end - begin
    if kind == P.TYPE_INTEGER:
        for i in range(count):
            x = work[first + np.uint64(i)]
            y = work[second + np.uint64(i)]
            work[place + np.uint64(i)] = (1 if x > y else 0) - (1 if x < y else 0)
    elif kind == P.TYPE_FLOAT:
        for i in range(count):
            x = float_key(work[first + np.uint64(i)])
            y = float_key(work[second + np.uint64(i)])
            work[place + np.uint64(i)] = (1 if x > y else 0) - (1 if x < y else 0)
    else:
        high = np.uint64(P.W_HIGH + one * P.VECTOR_ROWS + begin)
        other_high = np.uint64(P.W_HIGH + other * P.VECTOR_ROWS + begin)
        for i in range(count):
            step = np.uint64(i)
            work[place + step] = wide_order(
                work[first + step], work[high + step], work[second + step], work[other_high + step]
            )


@helper
def order_nulls(work, is_sql, null_order, begin, end):
    """Set the comparison of rows with NULL in a scratch register; 2 means that the branch is not taken.

    null_order: without `is_sql`, the comparison if only the left value is NULL; 0 means that the branch is not taken if
    either value is NULL.
    """
    if (work[P.W_NULLS_SEEN + P.SCRATCH] | work[P.W_NULLS_SEEN + P.SCRATCH_OTHER]) == 0:
        return
    clear_nulls(work, P.SCRATCH, begin, end)
    clear_nulls(work, P.SCRATCH_OTHER, begin, end)
    for i in range(begin, end):
        left = work[P.W_NULL + P.SCRATCH * P.VECTOR_ROWS + i] != 0
        right = work[P.W_NULL + P.SCRATCH_OTHER * P.VECTOR_ROWS + i] != 0
        if left or right:
            if is_sql or null_order == 0:
                work[P.W_COMPARED + i] = 2
            elif left and right:
                work[P.W_COMPARED + i] = 0
            else:
                work[P.W_COMPARED + i] = null_order if left else 1


@helper
def branch_rows(work, taken, target, k, begin, end):
    """Let due rows with a comparison in `taken` continue at `target`; bits 0, 1, 2 of `taken` are for -1, 0, 1."""
    first = np.uint64(P.W_RESUME + begin)
    place = np.uint64(P.W_COMPARED + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        resume = work[first + step]
        goes = (taken >> (work[place + step] + 1)) & (1 if resume <= k else 0)
        work[first + step] = target if goes != 0 else resume
    survey(work, begin, end)


@helper
def compare_nulls(work, register, begin, end):
    """Write 0 for NULL and 1 for a value to the plane of comparisons."""
    clear_nulls(work, register, begin, end)
    nulls = np.uint64(P.W_NULL + register * P.VECTOR_ROWS + begin)
    place = np.uint64(P.W_COMPARED + begin)
    for i in range(end - begin):
        work[place + np.uint64(i)] = 0 if work[nulls + np.uint64(i)] != 0 else 1


@helper
def write_rows(work, register, output, kind, nullable, width, program, limits, k, begin, end):
    """Write a register to an output for the due rows, if its value fits the column."""
    base = P.W_OUTPUTS + output * P.OUTPUT_PLANES * P.VECTOR_ROWS
    clear_nulls(work, register, begin, end)
    wrong = 0
    for i in range(begin, end):
        work[P.W_COMPARED + i] = 0
        if work[P.W_RESUME + i] > k:
            continue
        low = work[P.W_LOW + register * P.VECTOR_ROWS + i]
        high = work[P.W_HIGH + register * P.VECTOR_ROWS + i] if kind == P.TYPE_WIDE else low >> 63
        is_null = work[P.W_NULL + register * P.VECTOR_ROWS + i] != 0
        fits = True
        if is_null:
            low = 0
            high = 0
        elif kind == P.TYPE_FLOAT:
            high = 0
            size = abs(float_of(low))
            fits = width == 8 or not (size >= SINGLE_MAX) or size - size != 0.0
        else:
            fits = (
                wide_order(low, high, program[limits], program[limits + 1]) >= 0
                and wide_order(low, high, program[limits + 2], program[limits + 3]) <= 0
            )
        if is_null and not nullable:
            work[P.W_COMPARED + i] = P.PE_NOT_NULL
            wrong += 1
        elif not fits:
            work[P.W_COMPARED + i] = P.PE_RANGE
            wrong += 1
        else:
            work[base + P.OUT_LOW * P.VECTOR_ROWS + i] = low
            work[base + P.OUT_HIGH * P.VECTOR_ROWS + i] = high
            work[base + P.OUT_NULL * P.VECTOR_ROWS + i] = 1 if is_null else 0
    if wrong:
        fail_marked(work, k, begin, end)


@helper
def add_wide(work, at, low, high):
    """Add 128 bits to an accumulator's 192."""
    total = add_words(work[at + P.ACC_LOW], low)
    carry = below(total, low)
    middle = add_words(work[at + P.ACC_HIGH], high)
    upper = add_words(middle, carry)
    work[at + P.ACC_LOW] = total
    work[at + P.ACC_HIGH] = upper
    work[at + P.ACC_TOP] += (high >> 63) + below(middle, high) + below(upper, carry)


@helper
def is_due(work, register, k, step):
    """Return 1 if a row is due and its register is not NULL; the null plane must be valid for every row."""
    due = 1 if work[np.uint64(P.W_RESUME) + step] <= k else 0
    return due & (1 if work[np.uint64(P.W_NULL + register * P.VECTOR_ROWS) + step] == 0 else 0)


@helper
def _sum_integers(work, register, at, k, begin, end):
    """Add up integers as halves that cannot overflow; rows that are not due add 0."""
    lows = 0
    highs = 0
    count = 0
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        due = is_due(work, register, k, step)
        value = work[first + step] & -due
        lows += value & 0xFFFFFFFF
        highs += value >> 32
        count += due
    add_wide(work, at, lows, 0)
    add_wide(work, at, highs << 32, highs >> 32)
    work[at + P.ACC_COUNT] += count


@helper
def _sum_floats(work, register, at, k, begin, end):
    """Compute Neumaier's sum: the lost part of the smaller number goes to the compensation; rows that are not due add
    0.
    """
    total = float_of(work[at + P.ACC_LOW])
    rest = float_of(work[at + P.ACC_HIGH])
    count = 0
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        due = is_due(work, register, k, step)
        value = float_of(work[first + step] & -due)
        whole = total + value
        lost_of_value = (total - whole) + value
        lost_of_total = (value - whole) + total
        lost = lost_of_value if abs(total) >= abs(value) else lost_of_total
        rest += lost if lost == lost else 0.0  # infinities lose nothing
        total = whole
        count += due
    work[at + P.ACC_LOW] = bits_of(total)
    work[at + P.ACC_HIGH] = bits_of(rest)
    work[at + P.ACC_COUNT] += count


@helper
def _extreme_word(work, opcode, register, at, is_float, k, begin, end):
    """Find the least or greatest of one-word values; of equal values, the first one stays."""
    first = np.uint64(P.W_LOW + register * P.VECTOR_ROWS)
    count = work[at + P.ACC_COUNT]
    best = work[at + P.ACC_LOW]
    turn = -1 if opcode == P.OP_MAX else 0  # ~x orders the other way round
    best_key = (float_key(best) if is_float else best) ^ turn
    for i in range(begin, end):
        step = np.uint64(i)
        low = work[first + step]
        key = (float_key(low) if is_float else low) ^ turn
        due = is_due(work, register, k, step) != 0
        is_better = due and (key < best_key or count == 0)
        best = low if is_better else best
        best_key = key if is_better else best_key
        count += 1 if due else 0
    if count != 0:
        work[at + P.ACC_LOW] = best
        work[at + P.ACC_HIGH] = 0 if is_float else best >> 63
    work[at + P.ACC_COUNT] = count


@helper
def add_wide_value(work, opcode, at, low, high):
    """Take one wide value into a sum, a minimum or a maximum."""
    count = work[at + P.ACC_COUNT]
    work[at + P.ACC_COUNT] = count + 1
    if opcode == P.OP_SUM:
        add_wide(work, at, low, high)
        return
    order = wide_order(low, high, work[at + P.ACC_LOW], work[at + P.ACC_HIGH])
    if count == 0 or order == (1 if opcode == P.OP_MAX else -1):
        work[at + P.ACC_LOW] = low
        work[at + P.ACC_HIGH] = high


@helper
def _add_up_wide(work, opcode, register, at, k, begin, end):
    for i in range(begin, end):
        if is_due(work, register, k, np.uint64(i)) != 0:
            low = work[P.W_LOW + register * P.VECTOR_ROWS + i]
            high = work[P.W_HIGH + register * P.VECTOR_ROWS + i]
            add_wide_value(work, opcode, at, low, high)


@helper
def add_up(work, opcode, register, accumulator, kind, k, begin, end):
    """Aggregate a register of the due rows into an accumulator, without NULLs."""
    at = P.W_ACCUMULATORS + accumulator * P.ACCUMULATOR_WORDS
    clear_nulls(work, register, begin, end)
    if opcode == P.OP_COUNT:
        count = 0
        for i in range(begin, end):
            count += is_due(work, register, k, np.uint64(i))
        work[at + P.ACC_COUNT] += count
    elif kind == P.TYPE_WIDE:
        _add_up_wide(work, opcode, register, at, k, begin, end)
    elif opcode != P.OP_SUM:
        _extreme_word(work, opcode, register, at, kind == P.TYPE_FLOAT, k, begin, end)
    elif kind == P.TYPE_FLOAT:
        _sum_floats(work, register, at, k, begin, end)
    else:
        _sum_integers(work, register, at, k, begin, end)
