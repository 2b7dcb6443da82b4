"""Memory for programs with groups: new, and with more room. Which word is what is in `program_layout.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base import limits
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import LimitExceeded
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.vm_groups_kernels import grow_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.programs.instruction_set import Fields

    Words = NDArray[np.int64]

SLOTS_MIN = 1_024
HEAP_WORDS_MIN = 16_384


def new_groups(instructions: Sequence[Fields], key_words: int) -> Words:
    """Return memory for a program with groups. The hash has a new seed, so no caller can choose keys that collide."""
    bytes_parts = [each.value for each in instructions if each.opcode == p.OP_KEY_BYTES]
    slots_at = p.W_KEYS + key_words * p.VECTOR_ROWS
    work = np.zeros(slots_at + SLOTS_MIN + HEAP_WORDS_MIN, dtype=np.int64)
    state = work[p.W_GROUPS :]
    state[p.GS_SLOTS] = SLOTS_MIN
    state[p.GS_SLOTS_AT] = slots_at
    state[p.GS_HEAP_AT] = slots_at + SLOTS_MIN
    state[p.GS_SEED] = int.from_bytes(SystemClock().random_bytes(8), "little", signed=True)
    state[p.GS_BYTES] = len(bytes_parts)
    state[p.GS_BYTES_AT : p.GS_BYTES_AT + len(bytes_parts)] = bytes_parts
    return work


def grown(work: Words, table: str) -> Words:
    """Return memory with the same groups and room for more, after RUN_FULL. Raises: LimitExceeded."""
    state = work[p.W_GROUPS :]
    count, slots = int(state[p.GS_COUNT]), int(state[p.GS_SLOTS])
    slots_at, heap_at = int(state[p.GS_SLOTS_AT]), int(state[p.GS_HEAP_AT])
    heap, top = work.size - heap_at, int(state[p.GS_TOP])
    # The least that helps; then both parts grow, if either is half used, so that groups are moved less often.
    slots_needed = slots if (count + 1) * 2 <= slots else slots * 2
    heap_needed = max(heap, top + int(state[p.GS_NEEDED]))
    most = limits.GROUPS_BYTES_MAX // 8 - slots_at
    if slots_needed + heap_needed > most:
        raise LimitExceeded(
            f"{table}: {count} groups and their keys take all of {limits.GROUPS_BYTES_MAX >> 20} MiB, and there are"
            " more; aggregate fewer rows at a time with where=, or let DuckDB group the table's dataset()",
            table=table,
            groups=count,
        )
    if count * 4 >= slots and slots * 2 + heap_needed <= most:
        slots_needed = slots * 2
    if top * 2 >= heap or heap_needed > heap:
        heap_needed = max(heap_needed, min(heap_needed * 2, most - slots_needed))
    size = slots_at + slots_needed + heap_needed
    made = np.empty(size, dtype=np.int64)
    made[:slots_at] = work[:slots_at]
    made[slots_at : slots_at + slots_needed] = 0
    made[p.W_GROUPS + p.GS_SLOTS] = slots_needed
    made[p.W_GROUPS + p.GS_HEAP_AT] = slots_at + slots_needed
    grow_groups(work, made)
    return made


def places(work: Words) -> Words:
    """Return the addresses of all groups, in the order in which they were found."""
    state = work[p.W_GROUPS :]
    first = int(state[p.GS_SLOTS_AT])
    slots = work[first : first + int(state[p.GS_SLOTS])]
    return np.sort(slots[slots != 0] & p.SLOT_PLACE_MASK) + (int(state[p.GS_HEAP_AT]) - 1)
