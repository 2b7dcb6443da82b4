"""Extents and reservation: the search for a page of a tablespace with room for a piece.

See docs/internals/disk.md, section 4. Owns the counts that the search needs, exact after every call: the free and
reserved words of each page, the classes and sum of each extent, the extent's place in its fragment's matrix, and the
lists of open pages. Operations reserve room and commits use it up, so either the operation fails or the commit finds
its room.

A page is open while it has reservations or is dirty. Opening needs a cell; only a reservation may fail for lack of one.
A commit that dirties a page when no cell is free leaves it closed, which only loses the preference for dirty pages.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import free_cell, take_cell


# --- finding the extent of a page ---------------------------------------------------------------
@helper
def file_of(mem, file_id):
    """Return the address of a data file's descriptor, 0 if there is none."""
    directory = mem[A.S_FILE_DIRECTORY]
    if directory == 0 or file_id < 1 or file_id > C.FILE_ID_MAX:
        return 0
    leaf = mem[directory + file_id // A.BLOCK_WORDS]
    return mem[leaf + file_id % A.BLOCK_WORDS] if leaf != 0 else 0


@helper
def extent_of(mem, page):
    """Return the address of a page's extent, 0 if there is no such page."""
    file = file_of(mem, page >> C.FILE_SHIFT)
    within = (page & C.PAGE_IN_FILE_MASK) - C.FIRST_DATA_PAGE
    if file == 0 or within < 0:
        return 0
    number = within // mem[mem[file + C.FL_TABLESPACE] + C.TS_EXTENT_PAGES]
    if number >= mem[file + C.FL_EXTENTS]:
        return 0
    return mem[mem[file + C.FL_LEAVES + number // A.BLOCK_WORDS] + number % A.BLOCK_WORDS]


@helper
def space_word(mem, page):
    """Return the address of a page's word in its extent, 0 if there is no such page."""
    extent = extent_of(mem, page)
    return extent + C.EX_PAGES + (page - mem[extent + C.EX_FIRST]) if extent != 0 else 0


@helper
def unused_words(mem, word):
    """Return the unused words, reserved ones included, of the page whose word is `word`."""
    return word if word >= 0 else mem[C.OP_FREE - word]


@helper
def available_words(mem, word):
    """Return the words neither used nor reserved of the page whose word is `word`."""
    return word if word >= 0 else mem[C.OP_FREE - word] - mem[C.OP_RESERVED - word]


@helper
def space_free(mem, page):
    """Return the words of a page neither used nor reserved; 0 if there is no such page."""
    at = space_word(mem, page)
    return available_words(mem, mem[at]) if at != 0 else 0


@helper
def space_is_fresh(mem, page):
    """Return 1 if a page is wholly free, even with reservations: it is formatted instead of read."""
    file = file_of(mem, page >> C.FILE_SHIFT)
    at = space_word(mem, page)
    if at == 0:
        return 0
    return 1 if unused_words(mem, mem[at]) == mem[mem[file + C.FL_TABLESPACE] + C.TS_PAYLOAD] else 0


# --- classes and the matrix ---------------------------------------------------------------------
@helper
def space_class(mem, fragment, payload, free):
    """Return the class of a page with `free` words neither used nor reserved."""
    if free >= payload:
        return 0
    if free >= mem[fragment + A.F_DISK_ANY]:
        return 1
    return 2 if free >= mem[fragment + A.F_DISK_SMALL] else 3


@helper
def matrix_row(free, limit):
    """Return the row of an extent with `free` of `limit` words: the first i with free >= floor((4 - i) * limit / 5)."""
    for row in range(A.MATRIX_ROWS - 1):
        if free >= (A.MATRIX_ROWS - 1 - row) * limit // A.MATRIX_ROWS:
            return row
    return A.MATRIX_ROWS - 1


@helper
def matrix_position(mem, tablespace, extent):
    """Return an extent's position in the matrix: row by its free words, column by the best class of its pages."""
    limit = mem[tablespace + C.TS_PAYLOAD] * mem[tablespace + C.TS_EXTENT_PAGES]
    column = 0
    while column < A.DISK_CLASSES - 1 and mem[extent + C.EX_CLASSES + column] == 0:
        column += 1
    return matrix_row(mem[extent + C.EX_FREE], limit) * A.DISK_CLASSES + column


@helper
def link_first(mem, head, entry, previous, next):
    """Put an entry at the front of the list whose head is at `head`. `previous` and `next` are offsets of its links."""
    first = mem[head]
    mem[entry + previous] = 0
    mem[entry + next] = first
    if first != 0:
        mem[first + previous] = entry
    mem[head] = entry


@helper
def unlink(mem, head, entry, previous, next):
    """Remove an entry from the list whose head is at `head`."""
    before = mem[entry + previous]
    after = mem[entry + next]
    if before != 0:
        mem[before + next] = after
    else:
        mem[head] = after
    if after != 0:
        mem[after + previous] = before


@helper
def matrix_link(mem, fragment, extent, position):
    mem[extent + C.EX_POSITION] = position
    link_first(mem, fragment + A.F_DISK_MATRIX + position, extent, C.EX_PREVIOUS, C.EX_NEXT)


@helper
def matrix_unlink(mem, fragment, extent):
    head = fragment + A.F_DISK_MATRIX + mem[extent + C.EX_POSITION]
    unlink(mem, head, extent, C.EX_PREVIOUS, C.EX_NEXT)


@helper
def set_current(mem, fragment, extent):
    """Make this extent, in or out of the matrix, the current one; the previous one goes back into the matrix."""
    before = mem[fragment + A.F_DISK_CURRENT]
    if before != 0:
        matrix_link(mem, fragment, before, matrix_position(mem, mem[fragment + A.F_TABLESPACE], before))
    if mem[extent + C.EX_POSITION] >= 0:
        matrix_unlink(mem, fragment, extent)
    mem[extent + C.EX_POSITION] = C.POSITION_CURRENT
    mem[extent + C.EX_PREVIOUS] = 0
    mem[extent + C.EX_NEXT] = 0
    mem[fragment + A.F_DISK_CURRENT] = extent


# --- open pages ---------------------------------------------------------------------------------
@helper
def open_list(fragment, place):
    """Return the address of the head of a list of open pages."""
    if place >= C.OP_DIRTY_LIST:
        return fragment + A.F_DISK_DIRTY + place - C.OP_DIRTY_LIST
    return fragment + A.F_DISK_REQUESTS + place


@helper
def open_link(mem, fragment, cell, place):
    mem[cell + C.OP_LIST] = place
    link_first(mem, open_list(fragment, place), cell, C.OP_PREVIOUS, C.OP_NEXT)


@helper
def open_unlink(mem, fragment, cell):
    unlink(mem, open_list(fragment, mem[cell + C.OP_LIST]), cell, C.OP_PREVIOUS, C.OP_NEXT)


@helper
def open_page(mem, fragment, extent, page, at):
    """Open the closed page whose word is at `at`, and list it as reserved; returns its cell, 0 without memory."""
    cell = take_cell(mem)
    if cell == 0:
        return 0
    free = mem[at]
    mem[cell + C.OP_PAGE] = page
    mem[cell + C.OP_EXTENT] = extent
    mem[cell + C.OP_FREE] = free
    mem[cell + C.OP_RESERVED] = 0
    mem[cell + C.OP_CHAIN] = 0
    mem[at] = -cell
    payload = mem[mem[fragment + A.F_TABLESPACE] + C.TS_PAYLOAD]
    open_link(mem, fragment, cell, space_class(mem, fragment, payload, free))
    return cell


@helper
def close_page(mem, fragment, cell, at):
    """Close an open page; its word is at `at`."""
    open_unlink(mem, fragment, cell)
    mem[at] = mem[cell + C.OP_FREE]
    free_cell(mem, cell)


@helper
def count_page(mem, fragment, extent, before, after):
    """Update counts, sum and place of an extent when the available words of a page change from `before` to `after`."""
    tablespace = mem[fragment + A.F_TABLESPACE]
    payload = mem[tablespace + C.TS_PAYLOAD]
    mem[extent + C.EX_CLASSES + space_class(mem, fragment, payload, before)] -= 1
    mem[extent + C.EX_CLASSES + space_class(mem, fragment, payload, after)] += 1
    mem[extent + C.EX_FREE] += after - before
    if mem[extent + C.EX_POSITION] >= 0:
        position = matrix_position(mem, tablespace, extent)
        if position != mem[extent + C.EX_POSITION]:
            matrix_unlink(mem, fragment, extent)
            matrix_link(mem, fragment, extent, position)


@helper
def count_open(mem, fragment, cell, free, reserved, dirty):
    """Set the numbers of an open page and update all counts. `dirty`: 0 or OP_DIRTY_LIST."""
    before = mem[cell + C.OP_FREE] - mem[cell + C.OP_RESERVED]
    mem[cell + C.OP_FREE] = free
    mem[cell + C.OP_RESERVED] = reserved
    payload = mem[mem[fragment + A.F_TABLESPACE] + C.TS_PAYLOAD]
    place = space_class(mem, fragment, payload, free - reserved) + dirty
    if place != mem[cell + C.OP_LIST]:
        open_unlink(mem, fragment, cell)
        open_link(mem, fragment, cell, place)
    if free - reserved != before:
        count_page(mem, fragment, mem[cell + C.OP_EXTENT], before, free - reserved)


# --- reservation --------------------------------------------------------------------------------
@helper
def needed_class(mem, fragment, need):
    """Return the worst class whose pages all have `need` words."""
    if need > mem[fragment + A.F_DISK_ANY]:
        return 0
    return 2 if need <= mem[fragment + A.F_DISK_SMALL] else 1


@helper
def reserve_words(mem, fragment, extent, page, need):
    """Reserve `need` words of a page that has them; returns its number, or ST_MEMORY."""
    at = extent + C.EX_PAGES + (page - mem[extent + C.EX_FIRST])
    cell = -mem[at] if mem[at] < 0 else open_page(mem, fragment, extent, page, at)
    if cell == 0:
        return A.ST_MEMORY
    dirty = mem[cell + C.OP_LIST] & C.OP_DIRTY_LIST
    count_open(mem, fragment, cell, mem[cell + C.OP_FREE], mem[cell + C.OP_RESERVED] + need, dirty)
    return page


@helper
def search_open(mem, fragment, needed):
    """Return the cell of an open page of class 0 to `needed`, dirty ones first; 0 if there is none."""
    for place in range(C.OP_DIRTY_LIST, C.OP_DIRTY_LIST + needed + 1):
        cell = mem[open_list(fragment, place)]
        if cell != 0:
            return cell
    for place in range(needed + 1):
        cell = mem[open_list(fragment, place)]
        if cell != 0:
            return cell
    return 0


@helper
def search_extent(mem, extent, pages, need):
    """Return the first page from the extent's hint on, wrapping once, with `need` words; 0 if there is none."""
    if mem[extent + C.EX_FREE] < need:
        return 0
    index = mem[extent + C.EX_HINT]
    for _ in range(pages):
        if available_words(mem, mem[extent + C.EX_PAGES + index]) >= need:
            mem[extent + C.EX_HINT] = index
            return mem[extent + C.EX_FIRST] + index
        index += 1
        if index == pages:
            index = 0
    return 0


@helper
def search_matrix(mem, fragment, needed):
    """Return an extent with a page of class 0 to `needed`, from the row with most free words; 0 if there is none."""
    for row in range(A.MATRIX_ROWS):
        for column in range(needed + 1):
            extent = mem[fragment + A.F_DISK_MATRIX + row * A.DISK_CLASSES + column]
            if extent != 0:
                return extent
    return 0


@helper
def unlink_free(mem, tablespace, extent):
    """Remove an extent from the list of free ones."""
    if mem[extent + C.EX_NEXT] == 0:
        mem[tablespace + C.TS_FREE_LAST] = mem[extent + C.EX_PREVIOUS]
    unlink(mem, tablespace + C.TS_FREE, extent, C.EX_PREVIOUS, C.EX_NEXT)
    mem[tablespace + C.TS_FREE_COUNT] -= 1


@helper
def own_extent(mem, fragment, extent):
    """Give a free extent, whose pages are all wholly free, to a fragment, and put it in the matrix."""
    tablespace = mem[fragment + A.F_TABLESPACE]
    pages = mem[tablespace + C.TS_EXTENT_PAGES]
    unlink_free(mem, tablespace, extent)
    mem[extent + C.EX_FRAGMENT] = fragment
    mem[extent + C.EX_TABLE] = mem[fragment + A.F_TABLE]
    mem[extent + C.EX_NUMBER] = mem[fragment + A.F_NUMBER]
    mem[extent + C.EX_FREE] = pages * mem[tablespace + C.TS_PAYLOAD]
    mem[extent + C.EX_HINT] = 0
    mem[extent + C.EX_CLASSES] = pages
    for column in range(1, A.DISK_CLASSES):
        mem[extent + C.EX_CLASSES + column] = 0
    mem[extent + C.EX_OWNED] = mem[fragment + A.F_DISK_EXTENTS]
    mem[fragment + A.F_DISK_EXTENTS] = extent
    mem[fragment + A.F_DISK_EXTENT_COUNT] += 1
    matrix_link(mem, fragment, extent, 0)


@helper
def space_reserve(mem, fragment, words, near):
    """Reserve `words` and a slot on a page, `near` first if it is not 0: page number, ST_EXTENT or ST_MEMORY.

    ST_INVARIANT if no page of the tablespace can hold that many words. A failed call has no visible effect.
    """
    tablespace = mem[fragment + A.F_TABLESPACE]
    need = words + 1
    if tablespace == 0 or words < 1 or need > mem[tablespace + C.TS_PAYLOAD]:
        return A.ST_INVARIANT
    if near != 0:
        extent = extent_of(mem, near)
        if extent != 0 and mem[extent + C.EX_FRAGMENT] == fragment and space_free(mem, near) >= need:
            return reserve_words(mem, fragment, extent, near, need)
    needed = needed_class(mem, fragment, need)
    cell = search_open(mem, fragment, needed)
    if cell != 0:
        return reserve_words(mem, fragment, mem[cell + C.OP_EXTENT], mem[cell + C.OP_PAGE], need)
    pages = mem[tablespace + C.TS_EXTENT_PAGES]
    extent = mem[fragment + A.F_DISK_CURRENT]
    if extent != 0:
        page = search_extent(mem, extent, pages, need)
        if page != 0:
            return reserve_words(mem, fragment, extent, page, need)
    extent = search_matrix(mem, fragment, needed)
    if extent == 0:
        extent = mem[tablespace + C.TS_FREE]
        if extent == 0:
            return A.ST_EXTENT
        own_extent(mem, fragment, extent)
    set_current(mem, fragment, extent)
    page = search_extent(mem, extent, pages, need)
    return reserve_words(mem, fragment, extent, page, need) if page != 0 else A.ST_INVARIANT


@helper
def space_release(mem, page, words):
    """Release a reservation of `words` and a slot; OK, or ST_INVARIANT if there is none."""
    extent = extent_of(mem, page)
    if extent == 0 or mem[extent + C.EX_FRAGMENT] == 0:
        return A.ST_INVARIANT
    at = extent + C.EX_PAGES + (page - mem[extent + C.EX_FIRST])
    cell = -mem[at]
    if cell <= 0 or mem[cell + C.OP_RESERVED] < words + 1:
        return A.ST_INVARIANT
    fragment = mem[extent + C.EX_FRAGMENT]
    dirty = mem[cell + C.OP_LIST] & C.OP_DIRTY_LIST
    reserved = mem[cell + C.OP_RESERVED] - words - 1
    count_open(mem, fragment, cell, mem[cell + C.OP_FREE], reserved, dirty)
    if reserved == 0 and dirty == 0:
        close_page(mem, fragment, cell, at)
    return A.OK


@helper
def space_settle(mem, page, reserved_words, free_words):
    """Record that a commit changed a page and made it dirty: it used up a reservation of `reserved_words` and a slot
    (0: there was none), and left `free_words` free by the page's header. OK, or ST_INVARIANT if the page or the
    reservation does not exist.
    """
    extent = extent_of(mem, page)
    if extent == 0 or mem[extent + C.EX_FRAGMENT] == 0:
        return A.ST_INVARIANT
    fragment = mem[extent + C.EX_FRAGMENT]
    at = extent + C.EX_PAGES + (page - mem[extent + C.EX_FIRST])
    used = reserved_words + 1 if reserved_words > 0 else 0
    cell = -mem[at] if mem[at] < 0 else 0
    if used > 0 and (cell == 0 or mem[cell + C.OP_RESERVED] < used):
        return A.ST_INVARIANT
    if cell == 0:
        cell = open_page(mem, fragment, extent, page, at)
    if cell == 0:  # no memory: the page stays closed
        count_page(mem, fragment, extent, mem[at], free_words)
        mem[at] = free_words
        return A.OK
    count_open(mem, fragment, cell, free_words, mem[cell + C.OP_RESERVED] - used, C.OP_DIRTY_LIST)
    return A.OK


@helper
def space_cleaned(mem, page):
    """Record that a page on disk equals the page in the cache: close it, unless it has reservations."""
    extent = extent_of(mem, page)
    if extent == 0 or mem[extent + C.EX_FRAGMENT] == 0:
        return A.OK
    at = extent + C.EX_PAGES + (page - mem[extent + C.EX_FIRST])
    cell = -mem[at]
    if cell <= 0 or mem[cell + C.OP_LIST] & C.OP_DIRTY_LIST == 0:
        return A.OK
    fragment = mem[extent + C.EX_FRAGMENT]
    if mem[cell + C.OP_RESERVED] == 0:
        close_page(mem, fragment, cell, at)
    else:
        count_open(mem, fragment, cell, mem[cell + C.OP_FREE], mem[cell + C.OP_RESERVED], 0)
    return A.OK


@kernel("int64(int64[::1], int64)")
def tablespace_of(mem, fragment):
    """Return the number of the tablespace of a fragment's disk parts, or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    return A.ST_DROPPED if fragment == 0 else mem[mem[fragment + A.F_TABLESPACE] + C.TS_ID]
