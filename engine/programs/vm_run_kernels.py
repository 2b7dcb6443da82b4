"""The program machine: one instruction over some rows, a vector instruction by instruction, or row by row.

Both engines run the same instructions: the vector over up to VECTOR_ROWS rows at once, the other, for programs that
branch backwards or call, over one row at a time with a budget of steps. Programs have passed the verifier.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from engine.jit.kernel import helper, kernel
from engine.programs import program_layout as p
from engine.programs.vm_arithmetic_kernels import calculate, convert
from engine.programs.vm_columns_kernels import (
    IS_DAMAGED,
    IS_NULL,
    byte_at,
    column_at,
    compare_bytes,
    constants_at,
    is_bytes_column,
    is_like,
    read_bytes,
    read_fixed_numbers,
    read_key_numbers,
    read_var_numbers,
)
from engine.programs.vm_rows_kernels import (
    add_up,
    blend,
    branch_rows,
    compare_nulls,
    compare_registers,
    fail_marked,
    fill_register,
    finish_rows,
    order_nulls,
    put_target,
    refuse_nulls,
    survey,
    write_rows,
)
from engine.rows import columns_layout as c

# Comparisons -1, 0, 1 that conditions eq to ge are true for, as bits 0, 1, 2.
_TAKEN = 0b010 | 0b101 << 3 | 0b001 << 6 | 0b011 << 9 | 0b100 << 12 | 0b110 << 15


@helper
def _type_of(program, column):
    """TYPE_ of a number column."""
    kind = program[column + c.CW_CLASS]
    if kind == c.CLASS_FLOAT32 or kind == c.CLASS_FLOAT64:
        return p.TYPE_FLOAT
    return p.TYPE_INTEGER if kind == c.CLASS_SIGNED or kind == c.CLASS_UNSIGNED else p.TYPE_WIDE


@helper
def _copy_plane(rows, work, plane, target, shift, begin, end):
    """A plane of the rows into a register."""
    first = np.uint64(p.W_LOW + target * p.VECTOR_ROWS + begin)
    place = np.uint64(plane * p.VECTOR_ROWS + begin)
    for i in range(end - begin):
        work[first + np.uint64(i)] = rows[place + np.uint64(i)] >> shift
    work[p.W_NULLS_SEEN + target] = 0


@helper
def _read_number(data, rows, program, work, column, target, k, begin, end):
    """A number column into a register; rows whose image is damaged end here."""
    part = program[column + c.CW_PART]
    if part == c.PART_KEY or part == c.PART_VAR:
        if part == c.PART_KEY:
            damaged = read_key_numbers(data, rows, program, work, column, target, k, begin, end)
        else:
            damaged = read_var_numbers(data, rows, program, work, column, target, k, begin, end)
        if damaged:
            for i in range(begin, end):
                is_damaged = work[p.W_NULL + target * p.VECTOR_ROWS + i] == 2
                work[p.W_COMPARED + i] = p.PE_DAMAGED if is_damaged else 0
            fail_marked(work, k, begin, end)
    else:
        plane = p.R_DISK if part == c.PART_DISK else p.R_FIXED
        read_fixed_numbers(data, rows, program, work, column, plane, target, begin, end)


@helper
def _read_attr(data, rows, program, work, place, target, k, begin, end):
    """READ_ATTR: a number column or a pseudo-column."""
    if place < p.PSEUDO_AUTHOR:
        _read_number(data, rows, program, work, column_at(place), target, k, begin, end)
    elif place == p.PSEUDO_EPOCH:
        _copy_plane(rows, work, p.R_EPOCH, target, 0, begin, end)
    elif place == p.PSEUDO_GCI:
        _copy_plane(rows, work, p.R_EPOCH, target, 32, begin, end)
    elif place == p.PSEUDO_AUTHOR:
        _copy_plane(rows, work, p.R_AUTHOR, target, 0, begin, end)
    elif place == p.PSEUDO_ROWID:
        _copy_plane(rows, work, p.R_ROWID, target, 0, begin, end)
    else:
        _copy_plane(rows, work, p.R_FRAGMENT, target, 0, begin, end)


@helper
def _fail_row(work, row, code):
    work[p.W_VERDICT + row] = p.VERDICT_ERROR
    work[p.W_CODE + row] = code
    work[p.W_RESUME + row] = p.FINISHED


@helper
def _compare_columns(data, rows, program, work, at, k, begin, end):
    """Columns of bytes with a constant, a pattern or another column, into the plane of comparisons."""
    head = program[at]
    condition = (head >> p.CONDITION_SHIFT) & p.FIELD_MASK
    column = column_at(program[at + p.I_PLACE])
    is_pair = head & p.FIELD_MASK == p.OP_BRANCH_ATTR_OP_ATTR
    octets = (head >> p.FLAGS_SHIFT) & p.FL_OCTETS != 0
    value = program[at + p.I_VALUE]
    other = program
    other_at = 0
    other_length = 0
    if not is_pair:
        other_at = (constants_at(program) + value + 1) << 3
        other_length = program[constants_at(program) + value]
    work[p.W_NULLS_SEEN + p.SCRATCH] = 1
    work[p.W_NULLS_SEEN + p.SCRATCH_OTHER] = 1
    failed = 0
    for row in range(begin, end):
        if work[p.W_RESUME + row] > k:
            continue
        in_program, start, length = read_bytes(data, rows, program, column, row)
        if is_pair:
            other_in_program, other_at, other_length = read_bytes(data, rows, program, column_at(value), row)
            other = program if other_in_program else data
        if length == IS_DAMAGED or other_length == IS_DAMAGED:
            _fail_row(work, row, p.PE_DAMAGED)
            failed += 1
            continue
        work[p.W_NULL + p.SCRATCH * p.VECTOR_ROWS + row] = 1 if length == IS_NULL else 0
        work[p.W_NULL + p.SCRATCH_OTHER * p.VECTOR_ROWS + row] = 1 if other_length == IS_NULL else 0
        if length < 0 or other_length < 0:
            continue
        text = program if in_program else data
        if condition == p.COND_LIKE or condition == p.COND_NOT_LIKE:
            same = is_like(text, start, length, program, other_at, other_length, octets)
            work[p.W_COMPARED + row] = 0 if same else 1
        else:
            work[p.W_COMPARED + row] = compare_bytes(text, start, length, other, other_at, other_length)
    if failed:
        survey(work, begin, end)


@helper
def _compare_masks(work, condition, begin, end):
    """Whether a register has all bits of a mask, or none: 0 if so, else 1."""
    for i in range(begin, end):
        value = work[p.W_LOW + p.SCRATCH * p.VECTOR_ROWS + i]
        mask = work[p.W_LOW + p.SCRATCH_OTHER * p.VECTOR_ROWS + i]
        wanted = 0 if condition >= p.COND_AND_EQ_ZERO else mask
        work[p.W_COMPARED + i] = 0 if value & mask == wanted else 1


@helper
def _branch_column(data, rows, program, work, at, k, begin, end):
    """The branches that compare a column with a constant, a parameter or another column."""
    head = program[at]
    opcode = head & p.FIELD_MASK
    condition = (head >> p.CONDITION_SHIFT) & p.FIELD_MASK
    column = column_at(program[at + p.I_PLACE])
    value = program[at + p.I_VALUE]
    is_sql = (head >> p.FLAGS_SHIFT) & p.FL_SQL != 0
    null_order = -1
    if is_bytes_column(program, column):
        _compare_columns(data, rows, program, work, at, k, begin, end)
        if condition >= p.COND_LIKE:
            null_order = 0
    else:
        kind = _type_of(program, column)
        _read_number(data, rows, program, work, column, p.SCRATCH, k, begin, end)
        if opcode == p.OP_BRANCH_ATTR_OP_ATTR:
            _read_number(data, rows, program, work, column_at(value), p.SCRATCH_OTHER, k, begin, end)
        elif opcode == p.OP_BRANCH_ATTR_OP_PARAM:
            _copy_plane(rows, work, p.R_PARAMETERS + value, p.SCRATCH_OTHER, 0, begin, end)
        elif kind == p.TYPE_WIDE:
            first = constants_at(program) + value
            fill_register(work, p.SCRATCH_OTHER, program[first], program[first + 1], True, begin, end)
        else:
            fill_register(work, p.SCRATCH_OTHER, value, 0, False, begin, end)
        if condition >= p.COND_AND_EQ_MASK:
            _compare_masks(work, condition, begin, end)
            null_order = 1
        else:
            compare_registers(work, p.SCRATCH, p.SCRATCH_OTHER, kind, begin, end)
    order_nulls(work, is_sql, null_order, k, begin, end)
    if condition >= p.COND_LIKE:
        condition &= 1  # the even ones ask for 0
    branch_rows(work, (_TAKEN >> (3 * condition)) & 7, program[at + p.I_TARGET], k, begin, end)


@helper
def _branch_column_null(data, rows, program, work, at, k, begin, end):
    """The NULL tests of a column."""
    column = column_at(program[at + p.I_PLACE])
    part = program[column + c.CW_PART]
    failed = 0
    for row in range(begin, end):
        if work[p.W_RESUME + row] > k:
            continue
        mark = 1
        if part == c.PART_FIXED or part == c.PART_DISK:
            plane = p.R_DISK if part == c.PART_DISK else p.R_FIXED
            place = program[column + c.CW_NULL_BYTE]
            if place >= 0:
                byte = byte_at(data, (rows[plane * p.VECTOR_ROWS + row] << 3) + place)
                mark = 0 if byte & program[column + c.CW_NULL_MASK] else 1
        elif part != c.PART_KEY:
            _, _, length = read_bytes(data, rows, program, column, row)
            if length == IS_DAMAGED:
                _fail_row(work, row, p.PE_DAMAGED)
                failed += 1
            mark = 0 if length == IS_NULL else 1
        work[p.W_COMPARED + row] = mark
    if failed:
        survey(work, begin, end)
    is_asked = program[at] & p.FIELD_MASK == p.OP_BRANCH_ATTR_EQ_NULL
    branch_rows(work, 0b010 if is_asked else 0b100, program[at + p.I_TARGET], k, begin, end)


@helper
def _load(data, rows, program, work, at, opcode, target, k, begin, end):
    """The instructions that put something into a register without looking at others."""
    place = program[at + p.I_PLACE]
    value = program[at + p.I_VALUE]
    if opcode == p.OP_READ_ATTR:
        _read_attr(data, rows, program, work, place, target, k, begin, end)
    elif opcode == p.OP_LOAD_PARAM:
        _copy_plane(rows, work, p.R_PARAMETERS + place, target, 0, begin, end)
    elif opcode == p.OP_LOAD_WIDE:
        first = constants_at(program) + value
        fill_register(work, target, program[first], program[first + 1], True, begin, end)
    else:
        fill_register(work, target, value, 0, False, begin, end)
        if opcode == p.OP_LOAD_NULL:
            for i in range(begin, end):
                work[p.W_NULL + target * p.VECTOR_ROWS + i] = 1
            work[p.W_NULLS_SEEN + target] = 1


@helper
def _move(work, target, source, begin, end):
    for i in range(begin, end):
        at = np.uint64(i)
        work[p.W_LOW + target * p.VECTOR_ROWS + at] = work[p.W_LOW + source * p.VECTOR_ROWS + at]
        work[p.W_HIGH + target * p.VECTOR_ROWS + at] = work[p.W_HIGH + source * p.VECTOR_ROWS + at]
    seen = work[p.W_NULLS_SEEN + source]
    if seen != 0:
        for i in range(begin, end):
            work[p.W_NULL + target * p.VECTOR_ROWS + i] = work[p.W_NULL + source * p.VECTOR_ROWS + i]
    work[p.W_NULLS_SEEN + target] = seen


@helper
def _put(data, rows, program, work, at, opcode, k, begin, end):
    """The instructions that write register a."""
    head = program[at]
    a = (head >> p.A_SHIFT) & p.FIELD_MASK
    b = (head >> p.B_SHIFT) & p.FIELD_MASK
    flags = (head >> p.FLAGS_SHIFT) & p.FIELD_MASK
    if opcode == p.OP_READ_ATTR or p.OP_LOAD_NULL <= opcode <= p.OP_LOAD_CONST64 or opcode == p.OP_LOAD_FLOAT:
        target = put_target(work, a, k)
        _load(data, rows, program, work, at, opcode, target, k, begin, end)
    elif opcode == p.OP_LOAD_WIDE or opcode == p.OP_LOAD_PARAM:
        target = put_target(work, a, k)
        _load(data, rows, program, work, at, opcode, target, k, begin, end)
    elif opcode == p.OP_MOVE:
        target = put_target(work, a, k)
        _move(work, target, b, begin, end)
    else:
        refuse_nulls(work, b, k, begin, end)
        wrong = 0
        if opcode == p.OP_NOT or p.OP_INTEGER_TO_FLOAT <= opcode <= p.OP_FLOAT_TO_INTEGER:
            target = put_target(work, a, k)
            if opcode == p.OP_NOT:
                calculate(work, opcode, flags, target, b, b, begin, end)
            else:
                wrong = convert(work, opcode, target, b, begin, end)
        else:
            other = (head >> p.C_SHIFT) & p.FIELD_MASK
            refuse_nulls(work, other, k, begin, end)
            target = put_target(work, a, k)
            wrong = calculate(work, opcode, flags, target, b, other, begin, end)
        if wrong:
            fail_marked(work, k, begin, end)
    if target != a:
        is_wide = opcode == p.OP_LOAD_WIDE or opcode == p.OP_MOVE or opcode == p.OP_INTEGER_TO_WIDE
        is_wide = is_wide or opcode == p.OP_WIDE_ADD_EXACT or opcode == p.OP_WIDE_SUB_EXACT
        is_wide = is_wide or (opcode == p.OP_READ_ATTR and program[at + p.I_PLACE] < p.PSEUDO_AUTHOR)
        blend(work, a, is_wide, k, begin, end)


@helper
def _step(data, rows, program, work, at, k, begin, end):
    """Run instruction k, whose words are at `at`, for the rows of [begin, end) that are due."""
    head = program[at]
    opcode = head & p.FIELD_MASK
    a = (head >> p.A_SHIFT) & p.FIELD_MASK
    b = (head >> p.B_SHIFT) & p.FIELD_MASK
    kind = (head >> p.FLAGS_SHIFT) & p.TYPE_MASK
    place = program[at + p.I_PLACE]
    target = program[at + p.I_TARGET]
    if p.OP_BRANCH_EQ <= opcode <= p.OP_BRANCH_GE:
        refuse_nulls(work, a, k, begin, end)
        refuse_nulls(work, b, k, begin, end)
        compare_registers(work, a, b, kind, begin, end)
        branch_rows(work, (_TAKEN >> (3 * (opcode - p.OP_BRANCH_EQ))) & 7, target, k, begin, end)
    elif opcode == p.OP_EXIT_OK:
        finish_rows(work, p.VERDICT_OK, 0, k, begin, end)
    elif opcode == p.OP_EXIT_REFUSE:
        finish_rows(work, p.VERDICT_REFUSED, place, k, begin, end)
    elif opcode == p.OP_EXIT_OK_LAST:
        finish_rows(work, p.VERDICT_LAST, 0, k, begin, end)
    elif p.OP_BRANCH_ATTR_OP_PARAM <= opcode <= p.OP_BRANCH_ATTR_OP_ATTR or opcode == p.OP_BRANCH_ATTR_OP_ARG:
        _branch_column(data, rows, program, work, at, k, begin, end)
    elif opcode == p.OP_BRANCH_ATTR_EQ_NULL or opcode == p.OP_BRANCH_ATTR_NE_NULL:
        _branch_column_null(data, rows, program, work, at, k, begin, end)
    elif opcode == p.OP_BRANCH_REG_EQ_NULL or opcode == p.OP_BRANCH_REG_NE_NULL:
        compare_nulls(work, a, begin, end)
        branch_rows(work, 0b010 if opcode == p.OP_BRANCH_REG_EQ_NULL else 0b100, target, k, begin, end)
    elif opcode == p.OP_BRANCH:
        for i in range(begin, end):
            work[p.W_COMPARED + i] = 0
        branch_rows(work, 0b010, target, k, begin, end)
    elif p.OP_COUNT <= opcode <= p.OP_MAX:
        add_up(work, opcode, a, place, kind, k, begin, end)
    elif opcode == p.OP_WRITE_ATTR:
        column = column_at(place)
        nullable = program[column + c.CW_NULL_MASK] != 0
        output = program[at + p.I_VALUE]
        limits = constants_at(program) + target
        width = program[column + c.CW_BYTES]
        kind = _type_of(program, column)
        write_rows(work, a, output, kind, nullable, width, program, limits, k, begin, end)
    else:
        _put(data, rows, program, work, at, opcode, k, begin, end)


@helper
def _prepare(data, rows, program, work, count):
    """Make every row start at instruction 0; rows whose fixed words do not lie in the array are damaged."""
    for i in range(count):
        step = np.uint64(i)
        work[np.uint64(p.W_RESUME) + step] = 0
        work[np.uint64(p.W_VERDICT) + step] = p.VERDICT_NONE
        work[np.uint64(p.W_CODE) + step] = 0
    for output in range(program[p.H_OUTPUTS]):
        nulls = p.W_OUTPUTS + (output * p.OUTPUT_PLANES + p.OUT_NULL) * p.VECTOR_ROWS
        for i in range(count):
            work[nulls + i] = p.OUT_UNWRITTEN
    for number in range(p.REGISTER_PLANES):
        work[p.W_NULLS_SEEN + number] = 0
    needs = program[p.H_NEEDS]
    failed = 0
    for plane in (p.R_FIXED, p.R_DISK):
        if needs & (1 << plane):
            room = data.size - program[p.H_FIXED_WORDS if plane == p.R_FIXED else p.H_DISK_FIXED_WORDS]
            for i in range(count):
                at = rows[plane * p.VECTOR_ROWS + i]
                if at > room or at < 0 or (plane == p.R_DISK and at == 0):
                    _fail_row(work, i, p.PE_DAMAGED)
                    rows[plane * p.VECTOR_ROWS + i] = 0
                    failed += 1
    work[p.W_NEXT] = 0
    work[p.W_TOP] = 0
    if failed:
        survey(work, 0, count)


@helper
def _run_vector(data, rows, program, work, count):
    """All rows, instruction by instruction."""
    code = p.PROGRAM_HEADER_WORDS + program[p.H_COLUMNS] * c.COLUMN_WORDS
    k = 0
    while work[p.W_NEXT] != p.FINISHED:
        k = max(k, work[p.W_NEXT])
        _step(data, rows, program, work, code + k * p.INSTRUCTION_WORDS, k, 0, count)
        k += 1


@helper
def _run_row(data, rows, program, work, row):
    """One row, with a budget and a stack."""
    code = p.PROGRAM_HEADER_WORDS + program[p.H_COLUMNS] * c.COLUMN_WORDS
    k = 0
    depth = 0
    steps = 0
    while True:
        if steps >= p.PROGRAM_STEPS_MAX:
            _fail_row(work, row, p.PE_STEPS)
            return
        steps += 1
        at = code + k * p.INSTRUCTION_WORDS
        opcode = program[at] & p.FIELD_MASK
        if opcode == p.OP_CALL:
            if depth >= p.CALLS_MAX:
                _fail_row(work, row, p.PE_CALLS)
                return
            work[p.W_STACK + depth] = k + 1
            depth += 1
            k = program[at + p.I_TARGET]
        elif opcode == p.OP_RETURN:
            depth -= 1
            k = work[p.W_STACK + max(depth, 0)]
        else:
            work[p.W_RESUME + row] = -1
            work[p.W_TOP] = -1
            _step(data, rows, program, work, at, k, row, row + 1)
            resume = work[p.W_RESUME + row]
            if resume == p.FINISHED:
                return
            k = k + 1 if resume < 0 else resume


@helper
def run_rows(data, rows, count, program, work):
    """Run a program over the rows of one vector; see `run_program`."""
    words = program[p.H_WORDS] if program.size >= p.PROGRAM_HEADER_WORDS else -1
    if words != program.size or not 0 <= count <= p.VECTOR_ROWS or rows.size < p.ROWS_WORDS:
        return p.RUN_BROKEN
    if work.size < p.W_OUTPUTS + program[p.H_OUTPUTS] * p.OUTPUT_PLANES * p.VECTOR_ROWS:
        return p.RUN_BROKEN
    least = program[p.H_FIXED_WORDS]
    if program[p.H_NEEDS] & p.NEED_DISK:  # entries without their disk part may be shorter than that
        least = max(least, program[p.H_DISK_FIXED_WORDS])
    if data.size < least:
        return p.RUN_BROKEN
    _prepare(data, rows, program, work, count)
    if program[p.H_FLAGS] & p.PF_FORWARD:
        _run_vector(data, rows, program, work, count)
        greatest = 0
        for i in range(count):
            greatest = max(greatest, work[np.uint64(p.W_VERDICT) + np.uint64(i)])
        if greatest < p.VERDICT_LAST:
            return p.RUN_OK
    status = p.RUN_OK
    for row in range(count):
        if status != p.RUN_OK:
            work[p.W_VERDICT + row] = p.VERDICT_NONE
            work[p.W_CODE + row] = 0
            continue
        if program[p.H_FLAGS] & p.PF_FORWARD == 0 and work[p.W_RESUME + row] != p.FINISHED:
            _run_row(data, rows, program, work, row)
        verdict = work[p.W_VERDICT + row]
        if verdict == p.VERDICT_ERROR:
            status = p.RUN_ERROR
        elif verdict == p.VERDICT_LAST:
            status = p.RUN_LAST
    return status


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def run_program(data, rows, count, program, work):
    """Run a program over up to VECTOR_ROWS rows, whose planes are in `rows` (docs/access.md, section 2).

    Verdicts, codes and outputs are in the planes of `work`. Returns RUN_OK, RUN_LAST or RUN_ERROR (behind that row no
    other has run), or RUN_BROKEN. After an error accumulators mean nothing.
    """
    return run_rows(data, rows, count, program, work)
