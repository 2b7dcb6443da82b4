"""The program machine, with two engines that share the code of each instruction.

Programs with PF_FORWARD run over a vector of up to VECTOR_ROWS rows, instruction by instruction. Other programs run
over one row at a time, with a budget of steps. Programs have passed the verifier.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.patterns_kernels import match_pattern
from tidemark.engine.programs.vm_arithmetic_kernels import calculate, convert
from tidemark.engine.programs.vm_columns_kernels import (
    IS_DAMAGED,
    IS_NULL,
    column_at,
    compare_bytes,
    constants_at,
    is_fixed_null,
    pad_bytes,
    padded_bytes,
    read_bytes,
    read_fixed_numbers,
    read_var_numbers,
)
from tidemark.engine.programs.vm_groups_kernels import (
    add_up_groups,
    extreme_bytes,
    find_groups,
    put_key,
    put_key_bytes,
)
from tidemark.engine.programs.vm_rows_kernels import (
    add_up,
    blend,
    branch_rows,
    compare_nulls,
    compare_registers,
    fail_marked,
    fail_row,
    fill_register,
    finish_rows,
    order_nulls,
    put_target,
    refuse_nulls,
    survey,
    write_rows,
)
from tidemark.engine.rows import columns_layout as K

# Comparisons -1, 0, 1 for which conditions eq to ge are true, as bits 0, 1, 2.
_TAKEN = 0b010 | 0b101 << 3 | 0b001 << 6 | 0b011 << 9 | 0b100 << 12 | 0b110 << 15


@helper
def _type_of(program, column):
    kind = program[column + K.CW_CLASS]
    if kind == K.CLASS_FLOAT32 or kind == K.CLASS_FLOAT64:
        return P.TYPE_FLOAT
    return P.TYPE_INTEGER if kind == K.CLASS_SIGNED or kind == K.CLASS_UNSIGNED else P.TYPE_WIDE


@helper
def _copy_plane(rows, work, plane, target, shift, begin, end):
    first = np.uint64(P.W_LOW + target * P.VECTOR_ROWS + begin)
    place = np.uint64(plane * P.VECTOR_ROWS + begin)
    for i in range(end - begin):
        work[first + np.uint64(i)] = rows[place + np.uint64(i)] >> shift
    work[P.W_NULLS_SEEN + target] = 0


@helper
def _read_number(data, rows, program, work, column, target, k, begin, end):
    """Read a number column into a register; rows with a damaged image end here."""
    part = program[column + K.CW_PART]
    if part == K.PART_KEY or part == K.PART_VAR:
        if read_var_numbers(data, rows, program, work, column, target, k, begin, end) > 0:
            for i in range(begin, end):
                is_damaged = work[P.W_NULL + target * P.VECTOR_ROWS + i] == 2
                work[P.W_COMPARED + i] = P.PE_DAMAGED if is_damaged else 0
            fail_marked(work, k, begin, end)
    else:
        plane = P.R_DISK if part == K.PART_DISK else P.R_FIXED
        read_fixed_numbers(data, rows, program, work, column, plane, target, begin, end)


@helper
def _read_attr(data, rows, program, work, place, target, k, begin, end):
    """Run READ_ATTR: read a number column or a pseudo-column."""
    if place < P.PSEUDO_AUTHOR:
        _read_number(data, rows, program, work, column_at(place), target, k, begin, end)
    elif place == P.PSEUDO_EPOCH:
        _copy_plane(rows, work, P.R_EPOCH, target, 0, begin, end)
    elif place == P.PSEUDO_GCI:
        _copy_plane(rows, work, P.R_EPOCH, target, 32, begin, end)
    elif place == P.PSEUDO_AUTHOR:
        _copy_plane(rows, work, P.R_AUTHOR, target, 0, begin, end)
    elif place == P.PSEUDO_ROWID:
        _copy_plane(rows, work, P.R_ROWID, target, 0, begin, end)
    else:
        _copy_plane(rows, work, P.R_FRAGMENT, target, 0, begin, end)


@helper
def _compare_columns(data, rows, program, work, at, k, begin, end):
    """Compare columns of bytes with a constant, a pattern or another column, into the plane of comparisons."""
    head = program[at]
    condition = (head >> P.CONDITION_SHIFT) & P.FIELD_MASK
    column = column_at(program[at + P.I_PLACE])
    is_pair = head & P.FIELD_MASK == P.OP_BRANCH_ATTR_OP_ATTR
    is_pattern = condition == P.COND_LIKE or condition == P.COND_NOT_LIKE
    octets = (head >> P.FLAGS_SHIFT) & P.FL_OCTETS != 0
    value = program[at + P.I_VALUE]
    # Constants have no zero bytes at the end, and the values that are compared with them are read without them.
    is_padded = (head >> P.FLAGS_SHIFT) & P.FL_PADDED != 0
    width = padded_bytes(program, column) if is_padded else -1
    other_width = padded_bytes(program, column_at(value)) if is_padded and is_pair else -1
    other = program
    other_at = 0
    other_length = 0
    if not is_pair:
        other_at = (constants_at(program) + value + 1) << 3
        other_length = program[constants_at(program) + value]
    work[P.W_NULLS_SEEN + P.SCRATCH] = 1
    work[P.W_NULLS_SEEN + P.SCRATCH_OTHER] = 1
    failed = 0
    for row in range(begin, end):
        if work[P.W_RESUME + row] > k:
            continue
        in_program, start, length = read_bytes(data, rows, program, column, row)
        if is_pair:
            other_in_program, other_at, other_length = read_bytes(data, rows, program, column_at(value), row)
            other = program if other_in_program else data
            if 0 <= other_length < other_width:
                other_at = pad_bytes(other, other_at, other_length, other_width, work, P.W_PADDED + P.PADDED_WORDS)
                other = work
                other_length = other_width
        if length == IS_DAMAGED or other_length == IS_DAMAGED:
            fail_row(work, row, P.PE_DAMAGED)
            failed += 1
            continue
        work[P.W_NULL + P.SCRATCH * P.VECTOR_ROWS + row] = 1 if length == IS_NULL else 0
        work[P.W_NULL + P.SCRATCH_OTHER * P.VECTOR_ROWS + row] = 1 if other_length == IS_NULL else 0
        if length < 0 or other_length < 0:
            continue
        text = program if in_program else data
        if length < width:
            start = pad_bytes(text, start, length, width, work, P.W_PADDED)
            text = work
            length = width
        if is_pattern:
            same, steps = match_pattern(text, start, length, program, other_at >> 3, other_length, octets)
            order = 1 - same
        else:
            order, steps = compare_bytes(text, start, length, other, other_at, other_length)
        work[P.W_COMPARED + row] = order
        work[P.W_MATCHED] += steps
        if order > 1 or work[P.W_MATCHED] > P.ROW_MATCH_STEPS_MAX:
            fail_row(work, row, P.PE_MATCH)
            failed += 1
    if failed:
        survey(work, begin, end)


@helper
def _compare_masks(work, condition, begin, end):
    """Compare with a mask: 0 if the register has all bits of the mask (or none, by condition), else 1."""
    for i in range(begin, end):
        value = work[P.W_LOW + P.SCRATCH * P.VECTOR_ROWS + i]
        mask = work[P.W_LOW + P.SCRATCH_OTHER * P.VECTOR_ROWS + i]
        wanted = 0 if condition >= P.COND_AND_EQ_ZERO else mask
        work[P.W_COMPARED + i] = 0 if value & mask == wanted else 1


@helper
def _branch_column(data, rows, program, work, at, k, begin, end):
    head = program[at]
    opcode = head & P.FIELD_MASK
    condition = (head >> P.CONDITION_SHIFT) & P.FIELD_MASK
    column = column_at(program[at + P.I_PLACE])
    value = program[at + P.I_VALUE]
    is_sql = (head >> P.FLAGS_SHIFT) & P.FL_SQL != 0
    null_order = -1
    if program[column + K.CW_CLASS] == K.CLASS_BYTES:
        _compare_columns(data, rows, program, work, at, k, begin, end)
        if condition >= P.COND_LIKE:
            null_order = 0
    else:
        kind = _type_of(program, column)
        _read_number(data, rows, program, work, column, P.SCRATCH, k, begin, end)
        if opcode == P.OP_BRANCH_ATTR_OP_ATTR:
            _read_number(data, rows, program, work, column_at(value), P.SCRATCH_OTHER, k, begin, end)
        elif opcode == P.OP_BRANCH_ATTR_OP_PARAM:
            _copy_plane(rows, work, P.R_PARAMETERS + value, P.SCRATCH_OTHER, 0, begin, end)
        elif kind == P.TYPE_WIDE:
            first = constants_at(program) + value
            fill_register(work, P.SCRATCH_OTHER, program[first], program[first + 1], True, begin, end)
        else:
            fill_register(work, P.SCRATCH_OTHER, value, 0, False, begin, end)
        if condition >= P.COND_AND_EQ_MASK:
            _compare_masks(work, condition, begin, end)
            null_order = 1
        else:
            compare_registers(work, P.SCRATCH, P.SCRATCH_OTHER, kind, begin, end)
    order_nulls(work, is_sql, null_order, begin, end)
    if condition >= P.COND_LIKE:
        condition &= 1  # even conditions branch on 0, odd ones on anything else
    branch_rows(work, (_TAKEN >> (3 * condition)) & 7, program[at + P.I_TARGET], k, begin, end)


@helper
def _branch_column_null(data, rows, program, work, at, k, begin, end):
    column = column_at(program[at + P.I_PLACE])
    part = program[column + K.CW_PART]
    failed = 0
    for row in range(begin, end):
        if work[P.W_RESUME + row] > k:
            continue
        mark = 1
        if part == K.PART_FIXED or part == K.PART_DISK:
            plane = P.R_DISK if part == K.PART_DISK else P.R_FIXED
            mark = 0 if is_fixed_null(data, rows[plane * P.VECTOR_ROWS + row], program, column) else 1
        elif part != K.PART_KEY:
            _, _, length = read_bytes(data, rows, program, column, row)
            if length == IS_DAMAGED:
                fail_row(work, row, P.PE_DAMAGED)
                failed += 1
            mark = 0 if length == IS_NULL else 1
        work[P.W_COMPARED + row] = mark
    if failed:
        survey(work, begin, end)
    is_asked = program[at] & P.FIELD_MASK == P.OP_BRANCH_ATTR_EQ_NULL
    branch_rows(work, 0b010 if is_asked else 0b100, program[at + P.I_TARGET], k, begin, end)


@helper
def _load(data, rows, program, work, at, opcode, target, k, begin, end):
    place = program[at + P.I_PLACE]
    value = program[at + P.I_VALUE]
    if opcode == P.OP_READ_ATTR:
        _read_attr(data, rows, program, work, place, target, k, begin, end)
    elif opcode == P.OP_LOAD_PARAM:
        _copy_plane(rows, work, P.R_PARAMETERS + place, target, 0, begin, end)
    elif opcode == P.OP_LOAD_WIDE:
        first = constants_at(program) + value
        fill_register(work, target, program[first], program[first + 1], True, begin, end)
    else:
        fill_register(work, target, value, 0, False, begin, end)
        if opcode == P.OP_LOAD_NULL:
            for i in range(begin, end):
                work[P.W_NULL + target * P.VECTOR_ROWS + i] = 1
            work[P.W_NULLS_SEEN + target] = 1


@helper
def _move(work, target, source, begin, end):
    for i in range(begin, end):
        at = np.uint64(i)
        work[P.W_LOW + target * P.VECTOR_ROWS + at] = work[P.W_LOW + source * P.VECTOR_ROWS + at]
        work[P.W_HIGH + target * P.VECTOR_ROWS + at] = work[P.W_HIGH + source * P.VECTOR_ROWS + at]
    seen = work[P.W_NULLS_SEEN + source]
    if seen != 0:
        for i in range(begin, end):
            work[P.W_NULL + target * P.VECTOR_ROWS + i] = work[P.W_NULL + source * P.VECTOR_ROWS + i]
    work[P.W_NULLS_SEEN + target] = seen


@helper
def _put(data, rows, program, work, at, opcode, k, begin, end):
    """Run an instruction that writes register a."""
    head = program[at]
    a = (head >> P.A_SHIFT) & P.FIELD_MASK
    b = (head >> P.B_SHIFT) & P.FIELD_MASK
    flags = (head >> P.FLAGS_SHIFT) & P.FIELD_MASK
    is_load = opcode == P.OP_READ_ATTR or P.OP_LOAD_NULL <= opcode <= P.OP_LOAD_CONST64 or opcode == P.OP_LOAD_FLOAT
    if is_load or opcode == P.OP_LOAD_WIDE or opcode == P.OP_LOAD_PARAM:
        target = put_target(work, a, k)
        _load(data, rows, program, work, at, opcode, target, k, begin, end)
    elif opcode == P.OP_MOVE:
        target = put_target(work, a, k)
        _move(work, target, b, begin, end)
    else:
        refuse_nulls(work, b, k, begin, end)
        wrong = 0
        if opcode == P.OP_NOT or P.OP_INTEGER_TO_FLOAT <= opcode <= P.OP_FLOAT_TO_INTEGER:
            target = put_target(work, a, k)
            if opcode == P.OP_NOT:
                calculate(work, opcode, flags, target, b, b, begin, end)
            else:
                wrong = convert(work, opcode, target, b, begin, end)
        else:
            other = (head >> P.C_SHIFT) & P.FIELD_MASK
            refuse_nulls(work, other, k, begin, end)
            target = put_target(work, a, k)
            wrong = calculate(work, opcode, flags, target, b, other, begin, end)
        if wrong:
            fail_marked(work, k, begin, end)
    if target != a:
        is_wide = opcode == P.OP_LOAD_WIDE or opcode == P.OP_MOVE or opcode == P.OP_INTEGER_TO_WIDE
        is_wide = is_wide or opcode == P.OP_WIDE_ADD_EXACT or opcode == P.OP_WIDE_SUB_EXACT
        is_wide = is_wide or (opcode == P.OP_READ_ATTR and program[at + P.I_PLACE] < P.PSEUDO_AUTHOR)
        blend(work, a, is_wide, k, begin, end)


@helper
def _group(data, rows, program, work, at, opcode, k, begin, end):
    head = program[at]
    place = program[at + P.I_PLACE]
    value = program[at + P.I_VALUE]
    target = program[at + P.I_TARGET]
    failed = 0
    if opcode == P.OP_KEY:
        a = (head >> P.A_SHIFT) & P.FIELD_MASK
        kind = (head >> P.FLAGS_SHIFT) & P.TYPE_MASK
        put_key(work, program[P.H_KEY_WORDS], a, kind, place, value, begin, end)
    elif opcode == P.OP_GROUP:
        find_groups(data, program, work, k, begin, end)
    elif opcode == P.OP_KEY_BYTES:
        failed = put_key_bytes(data, rows, program, work, column_at(place), target, value, k, begin, end)
    else:
        failed = extreme_bytes(data, rows, program, work, opcode, column_at(place), target, k, begin, end)
    if failed:
        survey(work, begin, end)
    if work[P.W_GROUPS + P.GS_FULL] != 0:
        work[P.W_NEXT] = P.FINISHED  # the run ends here


@helper
def _step(data, rows, program, work, at, k, begin, end):
    """Run instruction k, with its words at `at`, for the due rows of [begin, end)."""
    head = program[at]
    opcode = head & P.FIELD_MASK
    a = (head >> P.A_SHIFT) & P.FIELD_MASK
    b = (head >> P.B_SHIFT) & P.FIELD_MASK
    kind = (head >> P.FLAGS_SHIFT) & P.TYPE_MASK
    place = program[at + P.I_PLACE]
    target = program[at + P.I_TARGET]
    if P.OP_BRANCH_EQ <= opcode <= P.OP_BRANCH_GE:
        refuse_nulls(work, a, k, begin, end)
        refuse_nulls(work, b, k, begin, end)
        compare_registers(work, a, b, kind, begin, end)
        branch_rows(work, (_TAKEN >> (3 * (opcode - P.OP_BRANCH_EQ))) & 7, target, k, begin, end)
    elif opcode == P.OP_EXIT_OK:
        finish_rows(work, P.VERDICT_OK, 0, k, begin, end)
    elif opcode == P.OP_EXIT_REFUSE:
        finish_rows(work, P.VERDICT_REFUSED, place, k, begin, end)
    elif opcode == P.OP_EXIT_OK_LAST:
        finish_rows(work, P.VERDICT_LAST, 0, k, begin, end)
    elif P.OP_BRANCH_ATTR_OP_PARAM <= opcode <= P.OP_BRANCH_ATTR_OP_ATTR or opcode == P.OP_BRANCH_ATTR_OP_ARG:
        _branch_column(data, rows, program, work, at, k, begin, end)
    elif opcode == P.OP_BRANCH_ATTR_EQ_NULL or opcode == P.OP_BRANCH_ATTR_NE_NULL:
        _branch_column_null(data, rows, program, work, at, k, begin, end)
    elif opcode == P.OP_BRANCH_REG_EQ_NULL or opcode == P.OP_BRANCH_REG_NE_NULL:
        compare_nulls(work, a, begin, end)
        branch_rows(work, 0b010 if opcode == P.OP_BRANCH_REG_EQ_NULL else 0b100, target, k, begin, end)
    elif opcode == P.OP_BRANCH:
        for i in range(begin, end):
            work[P.W_COMPARED + i] = 0
        branch_rows(work, 0b010, target, k, begin, end)
    elif P.OP_COUNT <= opcode <= P.OP_MAX:
        if program[P.H_KEY_WORDS] != 0:
            add_up_groups(work, opcode, a, place, kind, k, begin, end)
        else:
            add_up(work, opcode, a, place, kind, k, begin, end)
    elif P.OP_KEY <= opcode <= P.OP_MAX_BYTES:
        _group(data, rows, program, work, at, opcode, k, begin, end)
    elif opcode == P.OP_WRITE_ATTR:
        column = column_at(place)
        nullable = program[column + K.CW_NULL_MASK] != 0
        output = program[at + P.I_VALUE]
        limits = constants_at(program) + target
        width = program[column + K.CW_BYTES]
        kind = _type_of(program, column)
        write_rows(work, a, output, kind, nullable, width, program, limits, k, begin, end)
    else:
        _put(data, rows, program, work, at, opcode, k, begin, end)


@helper
def _prepare(data, rows, program, work, count):
    """Start every row at instruction 0; rows with fixed words outside the array are damaged."""
    for i in range(count):
        step = np.uint64(i)
        work[np.uint64(P.W_RESUME) + step] = 0
        work[np.uint64(P.W_VERDICT) + step] = P.VERDICT_NONE
        work[np.uint64(P.W_CODE) + step] = 0
    for output in range(program[P.H_OUTPUTS]):
        nulls = P.W_OUTPUTS + (output * P.OUTPUT_PLANES + P.OUT_NULL) * P.VECTOR_ROWS
        for i in range(count):
            work[nulls + i] = P.OUT_UNWRITTEN
    for number in range(P.REGISTER_PLANES):
        work[P.W_NULLS_SEEN + number] = 0
    if program[P.H_KEY_WORDS] != 0:
        work[P.W_GROUPS + P.GS_FULL] = 0
    needs = program[P.H_NEEDS]
    failed = 0
    for plane in (P.R_FIXED, P.R_DISK):
        if needs & (1 << plane):
            room = data.size - program[P.H_FIXED_WORDS if plane == P.R_FIXED else P.H_DISK_FIXED_WORDS]
            for i in range(count):
                at = rows[plane * P.VECTOR_ROWS + i]
                if at > room or at < 0 or (plane == P.R_DISK and at == 0):
                    fail_row(work, i, P.PE_DAMAGED)
                    rows[plane * P.VECTOR_ROWS + i] = 0
                    failed += 1
    work[P.W_NEXT] = 0
    work[P.W_TOP] = 0
    work[P.W_MATCHED] = 0
    if failed:
        survey(work, 0, count)


@helper
def _run_vector(data, rows, program, work, count):
    code = P.PROGRAM_HEADER_WORDS + program[P.H_COLUMNS] * K.COLUMN_WORDS
    k = 0
    while work[P.W_NEXT] != P.FINISHED:
        k = max(k, work[P.W_NEXT])
        _step(data, rows, program, work, code + k * P.INSTRUCTION_WORDS, k, 0, count)
        k += 1


@helper
def _run_row(data, rows, program, work, row):
    """Run one row, with a budget of steps and a stack of calls."""
    code = P.PROGRAM_HEADER_WORDS + program[P.H_COLUMNS] * K.COLUMN_WORDS
    k = 0
    depth = 0
    steps = 0
    work[P.W_MATCHED] = 0
    while True:
        if steps >= P.PROGRAM_STEPS_MAX:
            fail_row(work, row, P.PE_STEPS)
            return
        steps += 1
        at = code + k * P.INSTRUCTION_WORDS
        opcode = program[at] & P.FIELD_MASK
        if opcode == P.OP_CALL:
            if depth >= P.CALLS_MAX:
                fail_row(work, row, P.PE_CALLS)
                return
            work[P.W_STACK + depth] = k + 1
            depth += 1
            k = program[at + P.I_TARGET]
        elif opcode == P.OP_RETURN:
            depth -= 1
            k = work[P.W_STACK + max(depth, 0)]
        else:
            work[P.W_RESUME + row] = -1
            work[P.W_TOP] = -1
            _step(data, rows, program, work, at, k, row, row + 1)
            resume = work[P.W_RESUME + row]
            if resume == P.FINISHED:
                return
            k = k + 1 if resume < 0 else resume


@helper
def run_rows(data, rows, count, program, work):
    """Run a program over up to VECTOR_ROWS rows, with their planes in `rows` (docs/internals/access.md, section 2).

    Verdicts, codes and outputs are in the planes of `work`. Returns RUN_OK; RUN_LAST or RUN_ERROR if a row ended the
    run (the rows after it have VERDICT_NONE); RUN_FULL, with no row added up; or RUN_BROKEN. After an error,
    accumulators are undefined.
    """
    words = program[P.H_WORDS] if program.size >= P.PROGRAM_HEADER_WORDS else -1
    if words != program.size or not 0 <= count <= P.VECTOR_ROWS or rows.size < P.ROWS_WORDS:
        return P.RUN_BROKEN
    if work.size < P.W_OUTPUTS + program[P.H_OUTPUTS] * P.OUTPUT_PLANES * P.VECTOR_ROWS:
        return P.RUN_BROKEN
    least = program[P.H_FIXED_WORDS]
    if program[P.H_NEEDS] & P.NEED_DISK:  # entries without their disk part may be shorter
        least = max(least, program[P.H_DISK_FIXED_WORDS])
    if data.size < least:
        return P.RUN_BROKEN
    key_words = program[P.H_KEY_WORDS]
    if key_words != 0 and (work.size < P.W_KEYS + key_words * P.VECTOR_ROWS or program[P.H_FLAGS] & P.PF_FORWARD == 0):
        return P.RUN_BROKEN
    _prepare(data, rows, program, work, count)
    if program[P.H_FLAGS] & P.PF_FORWARD:
        _run_vector(data, rows, program, work, count)
        if key_words != 0 and work[P.W_GROUPS + P.GS_FULL] != 0:
            return P.RUN_FULL
        greatest = 0
        for i in range(count):
            greatest = max(greatest, work[np.uint64(P.W_VERDICT) + np.uint64(i)])
        if greatest < P.VERDICT_LAST:
            return P.RUN_OK
    status = P.RUN_OK
    for row in range(count):
        if status != P.RUN_OK:
            work[P.W_VERDICT + row] = P.VERDICT_NONE
            work[P.W_CODE + row] = 0
            continue
        if program[P.H_FLAGS] & P.PF_FORWARD == 0 and work[P.W_RESUME + row] != P.FINISHED:
            _run_row(data, rows, program, work, row)
        verdict = work[P.W_VERDICT + row]
        if verdict == P.VERDICT_ERROR:
            status = P.RUN_ERROR
        elif verdict == P.VERDICT_LAST:
            status = P.RUN_LAST
    return status
