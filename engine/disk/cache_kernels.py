"""The page cache in the arena: the map from pages to frames, and the lookups that row kernels use.

Owns the region after a cache descriptor: heads of hash chains, entries, frames. Replacement is in `lirs_kernels.py`,
the calls for Python are in `frames_kernels.py`. All calls run under the GIL, so each finds and leaves the cache
consistent.

Invariants: (C1) an entry has a frame, or is a ghost: known, on the LIRS stack, without a frame; (C2) a page that is
dirty, pinned, being loaded or being written keeps its frame; (C3) a frame is handed to a caller only while its entry
has CE_LOADING, and no other thread looks at its words before that flag is cleared.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.space_kernels import extent_of, file_of
from tidemark.engine.jit.kernel import helper
from tidemark.engine.memory import arena_layout as A

_HASH_MULTIPLIER = -7046029254386353131  # odd, 2**64 / golden ratio
_RECORD_UNIT_BYTES = 8


@helper
def hash_head(mem, cache, page):
    return mem[cache + C.C_HASH] + (((page * _HASH_MULTIPLIER) >> 32) & mem[cache + C.C_HASH_MASK])


@helper
def find_entry(mem, cache, page):
    """Return the entry of a page, with or without a frame; 0: none."""
    entry = mem[hash_head(mem, cache, page)]
    while entry != 0 and mem[entry + C.CE_PAGE] != page:
        entry = mem[entry + C.CE_HASH_NEXT]
    return entry


@helper
def frame_of(mem, cache, page):
    """Return the address of the page's frame, 0 unless it is loaded."""
    if cache == 0:
        return 0
    entry = find_entry(mem, cache, page)
    if entry == 0 or (mem[entry + C.CE_FLAGS] & C.CE_LOADING) != 0:
        return 0
    return mem[entry + C.CE_FRAME]


@helper
def cache_dirtied(mem, cache, page, lsn):
    """Mark a loaded page dirty, changed by the record with this LSN."""
    entry = find_entry(mem, cache, page)
    if entry == 0 or mem[entry + C.CE_FRAME] == 0:
        return
    mem[mem[entry + C.CE_FRAME] + D.DP_LSN] = lsn
    if (mem[entry + C.CE_FLAGS] & C.CE_IS_DIRTY) == 0:
        mem[entry + C.CE_FLAGS] |= C.CE_IS_DIRTY
        mem[entry + C.CE_DIRTIED] = lsn
        mem[cache + C.C_DIRTY] += 1


@helper
def cache_of(mem, page):
    """Return the cache of a page number's tablespace, 0: none."""
    file = file_of(mem, page >> C.FILE_SHIFT)
    if file == 0 or mem[file + C.FL_TABLESPACE] == 0:
        return 0
    return mem[mem[file + C.FL_TABLESPACE] + C.TS_CACHE]


@helper
def owner_of(mem, page):
    """Return the owner word of a page: table and fragment of its extent; 0 if no table has it."""
    extent = extent_of(mem, page)
    return 0 if extent == 0 else mem[extent + C.EX_TABLE] | mem[extent + C.EX_NUMBER] << D.OWNER_FRAGMENT_SHIFT


@helper
def fresh_lsn(mem):
    """Return the LSN of a page formatted now: the next LSN of the UNDO log, less one unit.

    A restart undoes a record only if the page's LSN has reached it. Every existing record has this LSN or an older one,
    so none of the page's earlier records is skipped; with LSN 0 all would be (the trap of NDB's bug #54986).
    """
    if mem[A.S_UNDO] == 0:
        return 0
    return max(0, mem[mem[A.S_UNDO] + C.U_LSN] - _RECORD_UNIT_BYTES)
