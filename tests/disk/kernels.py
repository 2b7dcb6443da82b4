"""Kernels around helpers that have no other caller in Python."""

from __future__ import annotations

from tidemark.engine.disk.cache_kernels import cache_dirtied, cache_of, frame_of
from tidemark.engine.disk.cache_layout import C_PAGE_WORDS, EX_FIRST, EX_PAGES, U_LSN
from tidemark.engine.disk.disk_layout import DP_FREE
from tidemark.engine.disk.lirs_kernels import touch_page
from tidemark.engine.disk.page_kernels import (
    page_check,
    page_format,
    page_free,
    page_piece,
    page_piece_words,
    page_take,
    page_take_given,
)
from tidemark.engine.disk.space_kernels import extent_of
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory.arena_layout import S_UNDO, ST_INVARIANT


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def format_page(mem, frame, page_words, page, owner, lsn):
    page_format(mem, frame, page_words, page, owner, lsn)
    return 0


@kernel("int64(int64[::1], int64, int64, int64)")
def take(mem, frame, page_words, words):
    return page_take(mem, frame, page_words, words)


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def take_given(mem, frame, page_words, slot, words):
    return page_take_given(mem, frame, page_words, slot, words)


@kernel("int64(int64[::1], int64, int64, int64)")
def give(mem, frame, page_words, slot):
    return page_free(mem, frame, page_words, slot)


@kernel("int64(int64[::1], int64, int64, int64)")
def piece(mem, frame, page_words, slot):
    return page_piece(mem, frame, page_words, slot)


@kernel("int64(int64[::1], int64, int64, int64)")
def piece_words(mem, frame, page_words, slot):
    return page_piece_words(mem, frame, page_words, slot)


@kernel("int64(int64[::1], int64, int64)")
def check_page(mem, frame, page_words):
    """`mem` is any array whose word S_POOL + P_SCRATCH has the address of 4,096 free words."""
    if frame < 0 or page_words < 0 or frame + page_words > mem.size:
        return ST_INVARIANT
    return page_check(mem, frame, page_words)


@kernel("int64(int64[::1], int64, int64)")
def frame(mem, cache, page):
    return frame_of(mem, cache, page)


@kernel("int64(int64[::1], int64)")
def cache_at(mem, page):
    return cache_of(mem, page)


@kernel("int64(int64[::1], int64, int64, int64)")
def dirty(mem, cache, page, lsn):
    cache_dirtied(mem, cache, page, lsn)
    return 0


@kernel("int64(int64[::1], int64, int64, int64)")
def put_value(mem, cache, page, value):
    """What a commit does to a page: make or change its one piece; return the LSN of the record, 0 if the page is not in
    memory.
    """
    at = frame_of(mem, cache, page)
    if at == 0:
        return 0
    page_words = mem[cache + C_PAGE_WORDS]
    if page_piece(mem, at, page_words, 0) == 0:
        page_take(mem, at, page_words, page_words - 20)
    place = page_piece(mem, at, page_words, 0)
    for i in range(page_words - 20):
        mem[place + i] = value
    undo = mem[S_UNDO]
    lsn = mem[undo + U_LSN]
    mem[undo + U_LSN] = lsn + 64
    cache_dirtied(mem, cache, page, lsn)
    extent = extent_of(mem, page)
    mem[extent + EX_PAGES + page - mem[extent + EX_FIRST]] = mem[at + DP_FREE]
    return lsn


@kernel("int64(int64[::1], int64, int64)")
def value_of(mem, cache, page):
    """First word of the page's piece; -1 if the page is not in memory, -2 if it has none, -3 if the words differ."""
    at = frame_of(mem, cache, page)
    if at == 0:
        return -1
    place = page_piece(mem, at, mem[cache + C_PAGE_WORDS], 0)
    if place == 0:
        return -2
    for i in range(page_piece_words(mem, at, mem[cache + C_PAGE_WORDS], 0)):
        if mem[place + i] != mem[place]:
            return -3
    return mem[place]


@kernel("int64(int64[::1], int64, int64)")
def touch(mem, cache, page):
    return touch_page(mem, cache, page)
