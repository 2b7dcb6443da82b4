"""Programs of conditions and expressions, run over one row before it is changed.

The row is copied as the transaction sees it, and the machine runs over the copy. What a program refuses is not changed.
Where it fails, and for columns that are not changed in place, the general path runs and raises.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import load_8, store_8, store_zeros
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.get_kernels import FOUND, place_seen
from tidemark.engine.point.images_kernels import store_number
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import column_at
from tidemark.engine.programs.vm_run_kernels import run_rows
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.rows.rows_kernels import known_row_address

LOW_8 = 0xFF


@helper
def copy_seen(mem, plan, txn, buf, fragment, row, image):
    """Copy a row as a transaction sees it; return the words of its image, 0 for the general path."""
    status, in_buffer, at, var_at = place_seen(mem, plan, txn, buf, fragment, row)
    fixed = plan[U.U_FIXED_WORDS]
    more = mem[var_at] & A.VAR_WORDS_MASK if status == FOUND and var_at >= 0 else 0
    if status != FOUND or fixed + more > image.size:
        return 0
    if in_buffer:
        move_words(buf, at, image, 0, fixed)
    else:
        move_words(mem, at, image, 0, fixed)
    if more:
        move_words(mem, var_at, image, fixed, more)
    return fixed + more


@helper
def judge(mem, plan, txn, buf, fragment, rowid, image, program, rows, work):
    """Run a program over a row as a transaction sees it; return its verdict, VERDICT_ERROR for the general path."""
    fixed = plan[U.U_FIXED_WORDS]
    words = copy_seen(mem, plan, txn, buf, fragment, known_row_address(mem, fragment, rowid), image)
    if words == 0:
        return P.VERDICT_ERROR
    rows[P.R_FIXED * P.VECTOR_ROWS] = 0
    rows[P.R_VAR * P.VECTOR_ROWS] = fixed if words > fixed else 0
    if run_rows(image, rows, 1, program, work) != P.RUN_OK:
        return P.VERDICT_ERROR
    return work[P.W_VERDICT]


@helper
def output_of(program, number):
    """Return the column words of the column that an instruction writes, and the number of its output; (0, 0) for
    another instruction.
    """
    at = P.PROGRAM_HEADER_WORDS + program[P.H_COLUMNS] * K.COLUMN_WORDS + number * P.INSTRUCTION_WORDS
    if program[at] & P.FIELD_MASK != P.OP_WRITE_ATTR:
        return 0, 0
    return column_at(program[at + P.I_PLACE]), program[at + P.I_VALUE]


@helper
def put_output(program, column, low, high, null, words, at):
    byte = (at << 3) + program[column + K.CW_AT]
    width = program[column + K.CW_BYTES]
    mask = program[column + K.CW_NULL_MASK]
    if mask != 0:
        bits = (at << 3) + program[column + K.CW_NULL_BYTE]
        if null:
            store_8(words, bits, load_8(words, bits) | mask)
            store_zeros(words, byte, width)
            return
        store_8(words, bits, load_8(words, bits) & ~mask & LOW_8)
    store_number(words, byte, width, low, high)


@helper
def put_outputs(program, work, words, at):
    for number in range(program[P.H_INSTRUCTIONS]):
        column, output = output_of(program, number)
        if column != 0:
            plane = P.W_OUTPUTS + output * P.OUTPUT_PLANES * P.VECTOR_ROWS
            low = work[plane + P.OUT_LOW * P.VECTOR_ROWS]
            high = work[plane + P.OUT_HIGH * P.VECTOR_ROWS]
            put_output(program, column, low, high, work[plane + P.OUT_NULL * P.VECTOR_ROWS], words, at)
