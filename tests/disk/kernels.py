"""Kernels around helpers that have no other caller in Python."""

from __future__ import annotations

from engine.kernels import kernel
from engine.kernels.disk_cache import cache_dirtied, cache_of, frame_of
from engine.kernels.disk_page import page_format, page_give, page_piece, page_piece_words, page_take, page_take_given


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
    return page_give(mem, frame, page_words, slot)


@kernel("int64(int64[::1], int64, int64, int64)")
def piece(mem, frame, page_words, slot):
    return page_piece(mem, frame, page_words, slot)


@kernel("int64(int64[::1], int64, int64, int64)")
def piece_words(mem, frame, page_words, slot):
    return page_piece_words(mem, frame, page_words, slot)


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
