"""Which rows of a vector go on where: due rows, branches, verdicts, and what programs write and add up.

A row is due at instruction k if it goes on at k or before. Registers of rows that are finished may hold anything; those
of rows that go on further ahead must be kept, so results go to the scratch register first while there are such rows.
Hot loops load before they choose: a load that hangs on a condition would keep them from becoming vectors.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from engine.jit.kernel import helper
from engine.programs.program_layout import (
    ACC_COUNT,
    ACC_HIGH,
    ACC_LOW,
    ACC_TOP,
    ACCUMULATOR_WORDS,
    FINISHED,
    OP_COUNT,
    OP_MAX,
    OP_SUM,
    OUT_HIGH,
    OUT_LOW,
    OUT_NULL,
    OUTPUT_PLANES,
    PE_NOT_NULL,
    PE_NULL,
    PE_RANGE,
    SCRATCH,
    SCRATCH_OTHER,
    TYPE_FLOAT,
    TYPE_INTEGER,
    TYPE_WIDE,
    VECTOR_ROWS,
    VERDICT_ERROR,
    W_ACCUMULATORS,
    W_CODE,
    W_COMPARED,
    W_HIGH,
    W_LOW,
    W_NEXT,
    W_NULL,
    W_NULLS_SEEN,
    W_OUTPUTS,
    W_RESUME,
    W_TOP,
    W_VERDICT,
)
from engine.programs.vm_words_kernels import add_words, below, bits_of, float_key, float_of, wide_order

SINGLE_MAX = 3.4028235677973366e38  # from here on a float rounds to infinity as a Float32


@helper
def survey(work, begin, end):
    """Work out where the living rows go on."""
    least = FINISHED
    top = -1
    first = np.uint64(W_RESUME + begin)
    for i in range(end - begin):
        resume = work[first + np.uint64(i)]
        least = min(least, resume)
        top = max(top, -1 if resume == FINISHED else resume)
    work[W_NEXT] = least
    work[W_TOP] = top


@helper
def finish_rows(work, verdict, code, k, begin, end):
    """Give the rows that are due their verdict."""
    first = np.uint64(W_RESUME + begin)
    verdicts = np.uint64(W_VERDICT + begin)
    codes = np.uint64(W_CODE + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        resume = work[first + step]
        old_verdict = work[verdicts + step]
        old_code = work[codes + step]
        due = resume <= k
        work[verdicts + step] = verdict if due else old_verdict
        work[codes + step] = code if due else old_code
        work[first + step] = FINISHED if due else resume
    survey(work, begin, end)


@helper
def fail_marked(work, k, begin, end):
    """End the rows that are due and have an error in the plane of comparisons."""
    failed = 0
    for i in range(begin, end):
        if work[W_COMPARED + i] != 0 and work[W_RESUME + i] <= k:
            work[W_VERDICT + i] = VERDICT_ERROR
            work[W_CODE + i] = work[W_COMPARED + i]
            work[W_RESUME + i] = FINISHED
            failed += 1
    if failed:
        survey(work, begin, end)


@helper
def refuse_nulls(work, register, k, begin, end):
    """End the rows that are due and have NULL in a register with an error."""
    if work[W_NULLS_SEEN + register] != 0:
        for i in range(begin, end):
            work[W_COMPARED + i] = PE_NULL if work[W_NULL + register * VECTOR_ROWS + i] != 0 else 0
        fail_marked(work, k, begin, end)


@helper
def put_target(work, register, k):
    """The register an instruction must write to so that rows further ahead keep theirs."""
    return SCRATCH if work[W_TOP] > k else register


@helper
def blend(work, register, is_wide, k, begin, end):
    """Take the scratch register over into a register of the rows that are due; its high words only if it is wide."""
    seen = work[W_NULLS_SEEN + register]
    seen_scratch = work[W_NULLS_SEEN + SCRATCH]
    if seen == 0 and seen_scratch != 0:
        for i in range(begin, end):
            work[W_NULL + register * VECTOR_ROWS + i] = 0
    resumes = np.uint64(W_RESUME + begin)
    low = np.uint64(W_LOW + register * VECTOR_ROWS + begin)
    high = np.uint64(W_HIGH + register * VECTOR_ROWS + begin)
    scratch_low = np.uint64(W_LOW + SCRATCH * VECTOR_ROWS + begin)
    scratch_high = np.uint64(W_HIGH + SCRATCH * VECTOR_ROWS + begin)
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
            if work[W_RESUME + i] <= k:
                mark = work[W_NULL + SCRATCH * VECTOR_ROWS + i] if seen_scratch else 0
                work[W_NULL + register * VECTOR_ROWS + i] = mark
    work[W_NULLS_SEEN + register] = seen | seen_scratch


@helper
def fill_register(work, register, low, high, is_wide, begin, end):
    """The same value for all rows; high words are kept of wide values only."""
    first = np.uint64(W_LOW + register * VECTOR_ROWS + begin)
    second = np.uint64(W_HIGH + register * VECTOR_ROWS + begin)
    for i in range(end - begin):
        work[first + np.uint64(i)] = low
    for i in range(end - begin if is_wide else 0):
        work[second + np.uint64(i)] = high
    work[W_NULLS_SEEN + register] = 0


@helper
def clear_nulls(work, register, begin, end):
    """Make the null plane of a register say what it is not looked into for."""
    if work[W_NULLS_SEEN + register] == 0:
        first = np.uint64(W_NULL + register * VECTOR_ROWS + begin)
        for i in range(end - begin):
            work[first + np.uint64(i)] = 0


@helper
def compare_registers(work, one, other, kind, begin, end):
    """Put -1, 0, 1 into the plane of comparisons for every row."""
    first = np.uint64(W_LOW + one * VECTOR_ROWS + begin)
    second = np.uint64(W_LOW + other * VECTOR_ROWS + begin)
    place = np.uint64(W_COMPARED + begin)
    count = end - begin
    if kind == TYPE_INTEGER:
        for i in range(count):
            x = work[first + np.uint64(i)]
            y = work[second + np.uint64(i)]
            work[place + np.uint64(i)] = (1 if x > y else 0) - (1 if x < y else 0)
    elif kind == TYPE_FLOAT:
        for i in range(count):
            x = float_key(work[first + np.uint64(i)])
            y = float_key(work[second + np.uint64(i)])
            work[place + np.uint64(i)] = (1 if x > y else 0) - (1 if x < y else 0)
    else:
        high = np.uint64(W_HIGH + one * VECTOR_ROWS + begin)
        other_high = np.uint64(W_HIGH + other * VECTOR_ROWS + begin)
        for i in range(count):
            step = np.uint64(i)
            work[place + step] = wide_order(
                work[first + step], work[high + step], work[second + step], work[other_high + step]
            )


@helper
def order_nulls(work, is_sql, null_order, k, begin, end):
    """Let NULL in the scratch registers decide comparisons: 2 keeps a branch from being taken.

    null_order: what one NULL on the left gives by the historic rule; 0 if by that too no branch is taken.
    """
    if (work[W_NULLS_SEEN + SCRATCH] | work[W_NULLS_SEEN + SCRATCH_OTHER]) == 0:
        return
    clear_nulls(work, SCRATCH, begin, end)
    clear_nulls(work, SCRATCH_OTHER, begin, end)
    for i in range(begin, end):
        left = work[W_NULL + SCRATCH * VECTOR_ROWS + i] != 0
        right = work[W_NULL + SCRATCH_OTHER * VECTOR_ROWS + i] != 0
        if left or right:
            if is_sql or null_order == 0:
                work[W_COMPARED + i] = 2
            elif left and right:
                work[W_COMPARED + i] = 0
            else:
                work[W_COMPARED + i] = null_order if left else 1


@helper
def branch_rows(work, taken, target, k, begin, end):
    """Move the due rows on to the target whose comparison is one of those in `taken`: bits 0, 1, 2 for -1, 0, 1."""
    first = np.uint64(W_RESUME + begin)
    place = np.uint64(W_COMPARED + begin)
    for i in range(end - begin):
        step = np.uint64(i)
        resume = work[first + step]
        goes = (taken >> (work[place + step] + 1)) & (1 if resume <= k else 0)
        work[first + step] = target if goes != 0 else resume
    survey(work, begin, end)


@helper
def compare_nulls(work, register, begin, end):
    """Put 0 for NULL and 1 for a value into the plane of comparisons."""
    clear_nulls(work, register, begin, end)
    nulls = np.uint64(W_NULL + register * VECTOR_ROWS + begin)
    place = np.uint64(W_COMPARED + begin)
    for i in range(end - begin):
        work[place + np.uint64(i)] = 0 if work[nulls + np.uint64(i)] != 0 else 1


@helper
def write_rows(work, register, output, kind, nullable, width, program, limits, k, begin, end):
    """Put a register into an output for the rows that are due, if its value fits the column."""
    base = W_OUTPUTS + output * OUTPUT_PLANES * VECTOR_ROWS
    clear_nulls(work, register, begin, end)
    wrong = 0
    for i in range(begin, end):
        work[W_COMPARED + i] = 0
        if work[W_RESUME + i] > k:
            continue
        low = work[W_LOW + register * VECTOR_ROWS + i]
        high = work[W_HIGH + register * VECTOR_ROWS + i] if kind == TYPE_WIDE else low >> 63
        is_null = work[W_NULL + register * VECTOR_ROWS + i] != 0
        fits = True
        if is_null:
            low = 0
            high = 0
        elif kind == TYPE_FLOAT:
            high = 0
            size = abs(float_of(low))
            fits = width == 8 or not (size >= SINGLE_MAX) or size - size != 0.0
        else:
            fits = (
                wide_order(low, high, program[limits], program[limits + 1]) >= 0
                and wide_order(low, high, program[limits + 2], program[limits + 3]) <= 0
            )
        if is_null and not nullable:
            work[W_COMPARED + i] = PE_NOT_NULL
            wrong += 1
        elif not fits:
            work[W_COMPARED + i] = PE_RANGE
            wrong += 1
        else:
            work[base + OUT_LOW * VECTOR_ROWS + i] = low
            work[base + OUT_HIGH * VECTOR_ROWS + i] = high
            work[base + OUT_NULL * VECTOR_ROWS + i] = 1 if is_null else 0
    if wrong:
        fail_marked(work, k, begin, end)


@helper
def add_wide(work, at, low, high):
    """Add 128 bits to an accumulator's 192."""
    total = add_words(work[at + ACC_LOW], low)
    carry = below(total, low)
    middle = add_words(work[at + ACC_HIGH], high)
    upper = add_words(middle, carry)
    work[at + ACC_LOW] = total
    work[at + ACC_HIGH] = upper
    work[at + ACC_TOP] += (high >> 63) + below(middle, high) + below(upper, carry)


@helper
def _is_due(work, register, k, step):
    """1 if a row is due and its register is not NULL; null planes say so for every row."""
    due = 1 if work[np.uint64(W_RESUME) + step] <= k else 0
    return due & (1 if work[np.uint64(W_NULL + register * VECTOR_ROWS) + step] == 0 else 0)


@helper
def _sum_integers(work, register, at, k, begin, end):
    """The sum as halves that cannot overflow; rows that are not due add 0."""
    lows = 0
    highs = 0
    count = 0
    first = np.uint64(W_LOW + register * VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        due = _is_due(work, register, k, step)
        value = work[first + step] & -due
        lows += value & 0xFFFFFFFF
        highs += value >> 32
        count += due
    add_wide(work, at, lows, 0)
    add_wide(work, at, highs << 32, highs >> 32)
    work[at + ACC_COUNT] += count


@helper
def _sum_floats(work, register, at, k, begin, end):
    """Neumaier's sum: what is lost of the smaller number goes to the compensation; rows that are not due add 0."""
    total = float_of(work[at + ACC_LOW])
    rest = float_of(work[at + ACC_HIGH])
    count = 0
    first = np.uint64(W_LOW + register * VECTOR_ROWS)
    for i in range(begin, end):
        step = np.uint64(i)
        due = _is_due(work, register, k, step)
        value = float_of(work[first + step] & -due)
        whole = total + value
        lost_of_value = (total - whole) + value
        lost_of_total = (value - whole) + total
        lost = lost_of_value if abs(total) >= abs(value) else lost_of_total
        rest += lost if lost == lost else 0.0  # infinities lose nothing
        total = whole
        count += due
    work[at + ACC_LOW] = bits_of(total)
    work[at + ACC_HIGH] = bits_of(rest)
    work[at + ACC_COUNT] += count


@helper
def _extreme_word(work, opcode, register, at, is_float, k, begin, end):
    """Least or greatest of one-word values; the first of equal ones stays."""
    first = np.uint64(W_LOW + register * VECTOR_ROWS)
    count = work[at + ACC_COUNT]
    best = work[at + ACC_LOW]
    turn = -1 if opcode == OP_MAX else 0  # ~x orders the other way round
    best_key = (float_key(best) if is_float else best) ^ turn
    for i in range(begin, end):
        step = np.uint64(i)
        low = work[first + step]
        key = (float_key(low) if is_float else low) ^ turn
        due = _is_due(work, register, k, step) != 0
        is_better = due and (key < best_key or count == 0)
        best = low if is_better else best
        best_key = key if is_better else best_key
        count += 1 if due else 0
    if count != 0:
        work[at + ACC_LOW] = best
        work[at + ACC_HIGH] = 0 if is_float else best >> 63
    work[at + ACC_COUNT] = count


@helper
def _add_up_wide(work, opcode, register, at, k, begin, end):
    """Sum, least or greatest of wide values."""
    for i in range(begin, end):
        if _is_due(work, register, k, np.uint64(i)) == 0:
            continue
        low = work[W_LOW + register * VECTOR_ROWS + i]
        high = work[W_HIGH + register * VECTOR_ROWS + i]
        count = work[at + ACC_COUNT]
        work[at + ACC_COUNT] = count + 1
        if opcode == OP_SUM:
            add_wide(work, at, low, high)
            continue
        order = wide_order(low, high, work[at + ACC_LOW], work[at + ACC_HIGH])
        if count == 0 or order == (1 if opcode == OP_MAX else -1):
            work[at + ACC_LOW] = low
            work[at + ACC_HIGH] = high


@helper
def add_up(work, opcode, register, accumulator, kind, k, begin, end):
    """Add a register of the rows that are due to an accumulator, NULLs left out."""
    at = W_ACCUMULATORS + accumulator * ACCUMULATOR_WORDS
    clear_nulls(work, register, begin, end)
    if opcode == OP_COUNT:
        count = 0
        for i in range(begin, end):
            count += _is_due(work, register, k, np.uint64(i))
        work[at + ACC_COUNT] += count
    elif kind == TYPE_WIDE:
        _add_up_wide(work, opcode, register, at, k, begin, end)
    elif opcode != OP_SUM:
        _extreme_word(work, opcode, register, at, kind == TYPE_FLOAT, k, begin, end)
    elif kind == TYPE_FLOAT:
        _sum_floats(work, register, at, k, begin, end)
    else:
        _sum_integers(work, register, at, k, begin, end)
