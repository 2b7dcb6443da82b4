"""The shape of a hash index, read from the arena by its layout: the most a probe may cost, and its growth so far."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark.engine.memory import arena_layout as a


class Shape(NamedTuple):
    """`probe_entries` are the most entries that a look-up compares; `depth` bits of a tag lead to a segment."""

    entries: int
    segments: int
    blocks: int
    depth: int
    probe_entries: int


def shape_of(mem: Any, descriptor: int) -> Shape:
    """Return the shape of the index whose words F_… lie at `descriptor`: a fragment, or the hash of a unique index."""
    longest, seen = 0, set()
    for at in range(1 << int(mem[descriptor + a.F_INDEX_DEPTH])):
        segment = int(mem[int(mem[descriptor + a.F_DIRECTORY + (at >> 9)]) + (at & 511)])
        seen.add(segment)
        longest = max(longest, int(mem[segment + a.SEG_OVERFLOW_COUNT]))
    return Shape(
        int(mem[descriptor + a.F_INDEX_COUNT]),
        len(seen),
        int(mem[descriptor + a.F_INDEX_BLOCKS]),
        int(mem[descriptor + a.F_INDEX_DEPTH]),
        2 * a.BUCKET_WORDS + longest,
    )
