"""Words of the arena's pool that only tests read or write: its requests, the one it refuses, and its free blocks."""

from __future__ import annotations

from tidemark.engine.memory.arena import Arena
from tidemark.engine.memory.arena_layout import (
    P_FREE_BLOCK_COUNT,
    P_REFUSED,
    P_REQUESTS,
    S_FREE_DESCRIPTOR_COUNT,
    S_POOL,
)


def requests(arena: Arena) -> int:
    """The number of requests for a page, a block or a cell, ever."""
    return int(arena.mem[S_POOL + P_REQUESTS])


def refuse(arena: Arena, take: int) -> None:
    """Make the request with this number fail as if memory were full; 0: none."""
    arena.mem[S_POOL + P_REFUSED] = take


def free_blocks(arena: Arena) -> int:
    """The number of blocks of 4 KiB on the free lists, including the list of descriptors."""
    return int(arena.mem[S_POOL + P_FREE_BLOCK_COUNT] + arena.mem[S_FREE_DESCRIPTOR_COUNT])
