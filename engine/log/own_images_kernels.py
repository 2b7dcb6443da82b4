"""Images of a row as its lock holder sees them: the newest one and its predecessors (D3).

A row's lock word points to its newest operation, and each operation to the previous one on the same row.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.lcp_kernels import packed_place
from tidemark.engine.rows.side_pages_kernels import put_var, var_of, words_of_var


@helper
def lock_owner(mem, head):
    """Return the transaction that holds the exclusive lock of a row header; 0 if it is free or shared."""
    lock = head & A.LOCK_MASK
    if lock == 0 or lock & A.LOCK_SHARED:
        return 0
    return mem[((lock & A.LOCK_OP_MASK) << 3) + A.O_TXN]


@helper
def newest_operation(head):
    """Return the operation that a row header's exclusive lock points to."""
    return (head & A.LOCK_OP_MASK) << 3


@helper
def var_as_of(mem, fragment, row, operation):
    """Return the var part of a row as an operation of its lock holder left it."""
    while operation != 0:
        if mem[operation + A.O_VAR] != 0:
            return mem[operation + A.O_VAR]
        operation = mem[operation + A.O_PREVIOUS]
    return var_of(mem, fragment, row)


@helper
def own_var(mem, fragment, row):
    """Return the var part of a row as its lock holder sees it."""
    return var_as_of(mem, fragment, row, newest_operation(mem[row]))


@helper
def own_fixed(mem, buf, row):
    """Return where a row's lock holder finds its fixed image: (1, offset in buffer), or (0, address) in the row."""
    operation = newest_operation(mem[row])
    while operation != 0:
        kind = mem[operation + A.O_RECORD] & A.OP_KIND_MASK
        if kind == L.KIND_UPDATE:
            return 1, (mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS
        operation = mem[operation + A.O_PREVIOUS]
    return 0, row + A.ROW_HEADER_WORDS


@helper
def is_evicted(mem, buf, operation):
    """Whether an operation's record is evicted to the spool file; then set X_SPOOLED to its place in the buffer."""
    at = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    if buf[at] != 0:  # no record begins with 0
        return False
    mem[mem[operation + A.O_TXN] + A.X_SPOOLED] = at
    return True


@helper
def is_image_evicted(mem, buf, row):
    """Whether the fixed image that a row's lock holder sees is evicted; see `own_fixed`, `is_evicted`."""
    operation = newest_operation(mem[row])
    while operation != 0:
        if mem[operation + A.O_RECORD] & A.OP_KIND_MASK == L.KIND_UPDATE:
            return is_evicted(mem, buf, operation)
        operation = mem[operation + A.O_PREVIOUS]
    return False


@helper
def own_kind(mem, row):
    """Return the kind of a locked row's newest operation: KIND_DELETE if the row does not exist for its holder."""
    word = mem[newest_operation(mem[row]) + A.O_RECORD]
    return L.KIND_DELETE if word & A.OP_ABSENT else word & A.OP_KIND_MASK


@helper
def own_author(mem, row, author):
    """Return a row's author as its lock holder sees it: that of its newest change, else the committed one, `author`."""
    operation = newest_operation(mem[row])
    while operation != 0:
        word = mem[operation + A.O_RECORD]
        if word & A.OP_KIND_MASK != A.OP_LOCK:
            return mem[mem[operation + A.O_TXN] + A.X_AUTHOR] if word & A.OP_AUTHORED else 0
        operation = mem[operation + A.O_PREVIOUS]
    return author


@helper
def copy_image(mem, buf, fragment, row, mine, out, at):
    """Copy a row image to out[at:], as its lock holder sees it if `mine`; return its words. `out` has room."""
    fixed = mem[fragment + A.F_FIXED_WORDS]
    reference = 0
    if mine:
        in_buffer, source = own_fixed(mem, buf, row)
        if in_buffer:
            move_words(buf, source, out, at, fixed)
        else:
            move_words(mem, source, out, at, fixed)
        if mem[fragment + A.F_HAS_VAR]:
            reference = own_var(mem, fragment, row)
    else:
        move_words(mem, row + A.ROW_HEADER_WORDS, out, at, fixed)
        if mem[fragment + A.F_HAS_VAR]:
            reference = var_of(mem, fragment, row)
    if mem[fragment + A.F_HAS_VAR]:
        return fixed + put_var(mem, reference, out, at + fixed)
    return fixed


@helper
def entry_words(mem, fragment, row, mine):
    """Return the words of the entry of a row."""
    words = A.ENTRY_WORDS + mem[fragment + A.F_FIXED_WORDS]
    if mem[fragment + A.F_HAS_VAR]:
        words += words_of_var(mem, own_var(mem, fragment, row) if mine else var_of(mem, fragment, row))
    return words


@helper
def write_entry(mem, buf, fragment, rowid, row, mine, out, at):
    """Write the entry of a row to out[at:]; return its words. `out` has room."""
    out[at] = rowid
    out[at + 1] = mem[row + 1]
    author = (mem[row] >> A.AUTHOR_SHIFT) & A.AUTHOR_MASK
    if mine:
        author = own_author(mem, row, author)
    out[at + 2] = packed_place(author, mem[fragment + A.F_TABLE], mem[fragment + A.F_NUMBER])
    return A.ENTRY_WORDS + copy_image(mem, buf, fragment, row, mine, out, at + A.ENTRY_WORDS)
