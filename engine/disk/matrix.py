"""The extents of a fragment: pages by use, search matrix, and a recount of everything reservations rely on.

A kernel call handles a few extents, since it holds the GIL; between two calls the extents may change. A fragment that
was dropped, or has no disk columns, has no extents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.disk import matrix_kernels as kernels
from tidemark.engine.disk.cache_layout import TS_EXTENT_PAGES
from tidemark.engine.disk.matrix_layout import MATRIX_WORDS
from tidemark.engine.memory.arena_layout import F_TABLESPACE, OK, ST_DROPPED, ST_MORE
from tidemark.engine.memory.handles_kernels import descriptor_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemark.engine.disk.space import Space
    from tidemark.engine.memory.arena import Words

CHECKED_PER_CALL = 4
ADDED_PER_CALL = 256


class SpaceFinding(NamedTuple):
    """A fault in the extents of a fragment: a SPACE_ finding and its page."""

    fault: int
    page: int


def extents_of(space: Space, fragment: int) -> Iterator[Words]:
    """Yield, for each extent of a fragment, its first page and the used words of each of its pages."""
    tablespace = int(descriptor_word(space.mem, fragment, F_TABLESPACE))
    if tablespace <= 0:
        return
    words = 1 + int(space.mem[tablespace + TS_EXTENT_PAGES])
    state = np.zeros(2, dtype=np.int64)
    status = ST_MORE
    while status == ST_MORE:
        out = np.empty(CHECKED_PER_CALL * words, dtype=np.int64)
        status = int(kernels.fill_of_extents(space.mem, fragment, state, out))
        if status != ST_DROPPED:
            yield from out[: int(state[1])].reshape(-1, words)


def matrix_of(space: Space, fragment: int) -> Words:
    """Return the MX_ words of a fragment: lists of its search matrix, current extent, open pages, pages by fill."""
    state = np.zeros(1, dtype=np.int64)
    out: Words = np.zeros(MATRIX_WORDS, dtype=np.int64)
    while kernels.matrix_of(space.mem, fragment, state, out, ADDED_PER_CALL) == ST_MORE:
        pass
    return out


def check_space(space: Space, fragment: int, pause: Callable[[], None]) -> SpaceFinding | int:
    """Recount what reservations rely on; return the first finding, or the number of extents. `pause` is called between
    two kernel calls.
    """
    state = np.zeros(4, dtype=np.int64)
    while (status := int(kernels.check_space(space.mem, fragment, state, CHECKED_PER_CALL))) == ST_MORE:
        pause()
    return SpaceFinding(status, int(state[1])) if status > OK else int(state[2])
