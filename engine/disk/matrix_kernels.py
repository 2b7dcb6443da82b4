"""The search matrix for display, and a check that recounts all counts that reservations use."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import matrix_layout as Z
from tidemark.engine.disk.space_kernels import (
    available_words,
    extent_of,
    matrix_position,
    open_list,
    space_class,
    space_word,
)
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64)")
def matrix_of(mem, fragment, state, out, budget):
    """Count a fragment's extents by list of the matrix, its open pages by state, and all its pages by fill (MX_*).

    state: [next extent, 0 to begin]; out: MATRIX_WORDS words, zeroed by the caller. OK, ST_MORE or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    tablespace = mem[fragment + A.F_TABLESPACE]
    if tablespace == 0:
        return A.OK
    payload = mem[tablespace + C.TS_PAYLOAD]
    extent = state[0] if state[0] != 0 else mem[fragment + A.F_DISK_EXTENTS]
    for _ in range(budget):
        if extent == 0:
            return A.OK
        position = mem[extent + C.EX_POSITION]
        out[Z.MX_EXTENTS] += 1
        if position >= 0:
            out[position] += 1
            out[Z.MX_FREE + position] += mem[extent + C.EX_FREE]
        else:
            out[Z.MX_CURRENT] += 1
            out[Z.MX_CURRENT_FREE] += mem[extent + C.EX_FREE]
        for index in range(mem[tablespace + C.TS_EXTENT_PAGES]):
            word = mem[extent + C.EX_PAGES + index]
            free = word
            if word < 0:
                free = mem[C.OP_FREE - word]
                out[Z.MX_DIRTY if mem[C.OP_LIST - word] & C.OP_DIRTY_LIST else Z.MX_RESERVED] += 1
                out[Z.MX_RESERVED_WORDS] += mem[C.OP_RESERVED - word]
            out[Z.MX_FILL + min((payload - free) * Z.FILL_STEPS // payload, Z.FILL_STEPS - 1)] += 1
        extent = mem[extent + C.EX_OWNED]
    state[0] = extent
    return A.ST_MORE if extent != 0 else A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def fill_of_extents(mem, fragment, state, out):
    """List the pages of a fragment: for each extent its first page, then the used words of each of its pages.

    state: [next extent, 0 to begin; words used in `out`]. OK, ST_MORE when `out` is full, or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    tablespace = mem[fragment + A.F_TABLESPACE]
    state[1] = 0
    if tablespace == 0:
        return A.OK
    pages = mem[tablespace + C.TS_EXTENT_PAGES]
    extent = state[0] if state[0] != 0 else mem[fragment + A.F_DISK_EXTENTS]
    while extent != 0 and state[1] + 1 + pages <= out.size:
        out[state[1]] = mem[extent + C.EX_FIRST]
        for index in range(pages):
            word = mem[extent + C.EX_PAGES + index]
            free = word if word >= 0 else mem[C.OP_FREE - word]
            out[state[1] + 1 + index] = mem[tablespace + C.TS_PAYLOAD] - free
        state[1] += 1 + pages
        extent = mem[extent + C.EX_OWNED]
    state[0] = extent
    return A.ST_MORE if extent != 0 else A.OK


@helper
def check_open(mem, fragment, extent, cell, page, payload):
    """Check one open page; OK or the finding."""
    place = mem[cell + C.OP_LIST]
    free = mem[cell + C.OP_FREE]
    reserved = mem[cell + C.OP_RESERVED]
    if mem[cell + C.OP_PAGE] != page or mem[cell + C.OP_EXTENT] != extent:
        return Z.SPACE_OPEN
    if free < 0 or free > payload or reserved < 0 or reserved > free:
        return Z.SPACE_WORDS
    if reserved == 0 and place & C.OP_DIRTY_LIST == 0:
        return Z.SPACE_OPEN
    if place & (C.OP_DIRTY_LIST - 1) != space_class(mem, fragment, payload, free - reserved):
        return Z.SPACE_OPEN
    before = mem[cell + C.OP_PREVIOUS]
    after = mem[cell + C.OP_NEXT]
    if before == 0 and mem[open_list(fragment, place)] != cell:
        return Z.SPACE_OPEN_LINKS
    if before != 0 and (mem[before + C.OP_NEXT] != cell or not is_open(mem, fragment, before, place)):
        return Z.SPACE_OPEN_LINKS
    if after != 0 and (mem[after + C.OP_PREVIOUS] != cell or not is_open(mem, fragment, after, place)):
        return Z.SPACE_OPEN_LINKS
    return A.OK


@helper
def is_open(mem, fragment, cell, place):
    """Whether a cell belongs to an open page of the fragment in this list."""
    at = space_word(mem, mem[cell + C.OP_PAGE])
    if at == 0 or mem[at] != -cell or mem[cell + C.OP_LIST] != place:
        return False
    return mem[mem[cell + C.OP_EXTENT] + C.EX_FRAGMENT] == fragment


@helper
def check_place(mem, fragment, tablespace, extent):
    """Check the place of one extent in the matrix; OK or the finding."""
    position = mem[extent + C.EX_POSITION]
    if position == C.POSITION_CURRENT:
        return A.OK if mem[fragment + A.F_DISK_CURRENT] == extent else Z.SPACE_POSITION
    if position != matrix_position(mem, tablespace, extent):
        return Z.SPACE_POSITION
    before = mem[extent + C.EX_PREVIOUS]
    after = mem[extent + C.EX_NEXT]
    if before == 0 and mem[fragment + A.F_DISK_MATRIX + position] != extent:
        return Z.SPACE_LINKS
    if before != 0 and (mem[before + C.EX_NEXT] != extent or mem[before + C.EX_FRAGMENT] != fragment):
        return Z.SPACE_LINKS
    if after != 0 and (mem[after + C.EX_PREVIOUS] != extent or mem[after + C.EX_FRAGMENT] != fragment):
        return Z.SPACE_LINKS
    return A.OK


@helper
def check_extent(mem, fragment, tablespace, extent, state):
    """Check one extent; OK or the finding, with its page in state[1]. state[2] and [3] count extents and open pages."""
    payload = mem[tablespace + C.TS_PAYLOAD]
    first = mem[extent + C.EX_FIRST]
    state[1] = first
    if extent_of(mem, first) != extent or mem[extent + C.EX_FRAGMENT] != fragment:
        return Z.SPACE_EXTENT
    if ((first & C.PAGE_IN_FILE_MASK) - C.FIRST_DATA_PAGE) % mem[tablespace + C.TS_EXTENT_PAGES] != 0:
        return Z.SPACE_EXTENT
    counts = 0  # four 16-bit counts
    total = 0
    for index in range(mem[tablespace + C.TS_EXTENT_PAGES]):
        word = mem[extent + C.EX_PAGES + index]
        if word < 0:
            status = check_open(mem, fragment, extent, -word, mem[extent + C.EX_FIRST] + index, payload)
            if status != A.OK:
                state[1] = mem[extent + C.EX_FIRST] + index
                return status
            state[3] += 1
        elif word > payload:
            state[1] = mem[extent + C.EX_FIRST] + index
            return Z.SPACE_WORDS
        free = available_words(mem, word)
        counts += 1 << (16 * space_class(mem, fragment, payload, free))
        total += free
    for number in range(A.DISK_CLASSES):
        if mem[extent + C.EX_CLASSES + number] != (counts >> (16 * number)) & 0xFFFF:
            return Z.SPACE_CLASSES
    if mem[extent + C.EX_FREE] != total:
        return Z.SPACE_FREE
    state[2] += 1
    return check_place(mem, fragment, tablespace, extent)


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def check_space(mem, fragment, state, budget):
    """Recount what reservations rely on, up to `budget` extents a call; OK, ST_MORE, ST_DROPPED or a SPACE_* finding.

    state: [next extent, 0 to begin; page of the finding; extents seen; open pages seen].
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    tablespace = mem[fragment + A.F_TABLESPACE]
    if tablespace == 0:
        return A.OK
    extent = state[0] if state[0] != 0 else mem[fragment + A.F_DISK_EXTENTS]
    for _ in range(budget):
        if extent == 0:
            return A.OK
        status = check_extent(mem, fragment, tablespace, extent, state)
        if status != A.OK:
            return status
        extent = mem[extent + C.EX_OWNED]
    state[0] = extent
    return A.ST_MORE if extent != 0 else A.OK
