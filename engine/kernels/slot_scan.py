"""Which slots of a fragment have changed since an epoch: what ROWID synchronisation sends (docs/node-group.md, 4)."""

from __future__ import annotations

from engine.kernels import helper, kernel
from engine.kernels.rows import map_get
from engine.layout.arena import (
    F_PAGES,
    F_ROW_WORDS,
    F_SLOTS,
    FREE,
    LOCK_OP_MASK,
    PAGE_HEADER_WORDS,
    PAGE_SHIFT,
    PG_EMPTIED,
    PG_FRESH,
    STATE_MASK,
    STATE_SHIFT,
)
from engine.layout.group_apply import SLOT_EMPTY, SLOT_LOCKED, SLOT_ROW, SLOT_TAIL, SLOT_WORDS


@helper
def slot_kind(mem, at, since):
    """What the slot at address `at` is for who has the epoch `since`; 0 if it has not changed.

    A row under change counts whatever its epoch, and so does an empty slot that does not know when it was emptied: its
    page was made anew.
    """
    head = mem[at]
    epoch = mem[at + 1]
    if head & LOCK_OP_MASK:
        return SLOT_LOCKED
    if (head >> STATE_SHIFT) & STATE_MASK == FREE:
        return SLOT_EMPTY if epoch > since or epoch == 0 else 0
    return SLOT_ROW if epoch > since else 0


@helper
def put_slot(out, count, rowid, kind):
    """Note a slot; how many there are."""
    out[count * SLOT_WORDS] = rowid
    out[count * SLOT_WORDS + 1] = kind
    return count + 1


@helper
def scan_page(mem, fragment, base, slot, since, out, count, state):
    """The slots of a page from `slot` on: how many are noted in all; state[0] is where it ends, state[1] slots seen."""
    words = mem[fragment + F_ROW_WORDS]
    first = state[0] >> 16 << 16
    fresh = mem[base + PG_FRESH]
    room = out.size // SLOT_WORDS
    at = base + PAGE_HEADER_WORDS + slot * words
    begun = slot
    while slot < fresh:
        kind = slot_kind(mem, at, since)
        if kind != 0:
            if count == room:
                break
            count = put_slot(out, count, first | slot, kind)
        slot += 1
        at += words
    state[1] += slot - begun
    state[0] = first | slot
    if slot < fresh:
        return count
    if fresh < mem[fragment + F_SLOTS] and mem[base + PG_EMPTIED] > since:
        if count == room:
            return count
        count = put_slot(out, count, first | fresh, SLOT_TAIL)
    state[0] = first + (1 << 16)
    return count


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int64[::1])")
def changed_slots(mem, fragment, since, budget, out, state):
    """List slots with an epoch above `since`, in order of ROWIDs from state[0] on: SLOT_WORDS for each.

    Looks at about `budget` slots; state: [ROWID to go on from, slots looked at in all]. Returns how many are listed.
    The fragment is at its end when state[0] >> 16 is F_PAGES. SLOT_TAIL: from here to the end of its page all is empty;
    of a page that does not exist that is one entry for the whole.
    """
    count = 0
    stop = state[1] + budget
    room = out.size // SLOT_WORDS
    while state[0] >> 16 < mem[fragment + F_PAGES] and state[1] < stop and count < room:
        page = map_get(mem, fragment, state[0] >> 16)
        if page > 0:
            slot = min(state[0] & 0xFFFF, mem[fragment + F_SLOTS])
            count = scan_page(mem, fragment, page << PAGE_SHIFT, slot, since, out, count, state)
        else:
            count = put_slot(out, count, state[0] >> 16 << 16, SLOT_TAIL)
            state[0] = ((state[0] >> 16) + 1) << 16
            state[1] += 1
    return count
