"""Var parts of tables that were created without them, and changes of a table's row format (D1).

Rows of such a table have no word for a var reference. A *side page* of a fixed page has one for each slot; the fixed
page's PG_USED refers to it. The operation that stores the first var part of the page creates it (D3), and it is
released with the page. Images written by versions before F_VAR_SINCE have no var part.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import take_page
from tidemark.engine.rows.var_parts_kernels import copy_var, take_var, var_words
from tidemark.engine.schema import row_layout as R

NO_VALUES = 1 | R.VAR_VERSION << R.VAR_VERSION_SHIFT  # stands for a missing var part: a header without columns


@helper
def var_place(mem, fragment, row):
    """Return the address of the word with a row's var reference; 0 if there is none. The fragment has var parts."""
    if mem[fragment + A.F_VAR_SINCE] == 0:
        return row + mem[fragment + A.F_ROW_WORDS] - 1
    base = (row >> A.PAGE_SHIFT) << A.PAGE_SHIFT
    side = mem[base + A.PG_USED] >> A.SIDE_SHIFT
    if side == 0:
        return 0
    return (side << A.PAGE_SHIFT) + (row - base - A.PAGE_HEADER_WORDS) // mem[fragment + A.F_ROW_WORDS]


@helper
def var_of(mem, fragment, row):
    """Return the var reference of a row of a fragment that has var parts; 0 if the row has none."""
    place = var_place(mem, fragment, row)
    return mem[place] if place != 0 else 0


@helper
def set_var(mem, fragment, row, reference):
    """Replace a row's var reference, for which `make_side` has made room; returns the previous reference."""
    place = var_place(mem, fragment, row)
    if place == 0:
        return 0
    before = mem[place]
    mem[place] = reference
    return before


@helper
def make_side(mem, fragment, row):
    """Create the side page of a row's page if it needs one and has none; OK or ST_MEMORY."""
    if mem[fragment + A.F_VAR_SINCE] == 0:
        return A.OK
    base = (row >> A.PAGE_SHIFT) << A.PAGE_SHIFT
    if mem[base + A.PG_USED] >> A.SIDE_SHIFT != 0:
        return A.OK
    side = take_page(mem, mem[fragment + A.F_POOL])
    if side == 0:
        return A.ST_MEMORY
    for i in range(A.PAGE_WORDS):
        mem[(side << A.PAGE_SHIFT) + i] = 0
    mem[base + A.PG_USED] |= side << A.SIDE_SHIFT
    return A.OK


@helper
def is_empty_var(mem, fragment, words):
    """Whether an image's var part of `words` words stands for a missing one."""
    return words == 1 and mem[fragment + A.F_VAR_SINCE] != 0


@helper
def take_var_part(mem, fragment, row, words, at, size):
    """Copy the var part words[at : at + size]; return (OK or ST_MEMORY; reference of the copy, 0 for an empty part)."""
    if size <= 0 or is_empty_var(mem, fragment, size):
        return A.OK, 0
    if make_side(mem, fragment, row) != A.OK:
        return A.ST_MEMORY, 0
    reference = take_var(mem, fragment, words, at, size)
    return (A.OK if reference != 0 else A.ST_MEMORY), reference


@helper
def words_of_var(mem, reference):
    """Return the words of a var part in an image; a missing one takes a header word."""
    return var_words(mem, reference) if reference != 0 else 1


@helper
def put_var(mem, reference, out, at):
    """Copy a var part, or NO_VALUES for a missing one, to out[at:]; returns its words."""
    if reference != 0:
        return copy_var(mem, reference, out, at)
    out[at] = NO_VALUES
    return 1


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def change_format(mem, table, has_var, var_since, format_version, version):
    """Set a new version of a table's columns, which every later kernel call uses; OK or ST_DROPPED. A second call
    changes nothing.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    mem[table + A.T_HAS_VAR] = has_var
    mem[table + A.T_VAR_SINCE] = var_since
    mem[table + A.T_FORMAT] = format_version
    mem[table + A.T_SCHEMA_VERSION] = version
    for place in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + place]
        if fragment != 0:
            mem[fragment + A.F_HAS_VAR] = has_var
            mem[fragment + A.F_VAR_SINCE] = var_since
            mem[fragment + A.F_SCHEMA_VERSION] = version
    return A.OK
