"""The version store: old rows that open views still show (docs/internals/access.md, section 11).

It owns the list of open views, the buckets and the ring. A change of a committed row calls `keep_version` first, in the
same kernel call. `keep_version` cannot fail: to make room, it first cuts entries that no view needs, then abandons
views, the oldest first.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk.cache_kernels import frame_of
from tidemark.engine.disk.parts_kernels import chunk_words, part_on_page, read_chain
from tidemark.engine.index.unique_keys_kernels import are_words
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import image_key, row_tag
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.rows.ticks_kernels import adds_only, enter_epoch, is_after, tick_of, view_of
from tidemark.engine.txn import versions_layout as V

SLICED = 3  # X_STATE of a commit in slices
AWAITED_PAGES_MAX = 64
CAPTURE_WAITS_MAX = 256
_HASH_MULTIPLIER = -7046029254386353131  # odd, 2**64 / golden ratio


# --- open views -----------------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64)")
def setup_versions(mem, region, words):
    """Lay out the store in `words` zeroed words at `region`; OK, or ST_SPACE if they are too few."""
    buckets = V.V_UNIT_WORDS
    while 2 * buckets <= words >> V.BUCKET_SHARE_SHIFT:
        buckets *= 2
    ring = (words - V.VIEW_LIST_WORDS - 2 * buckets) // V.V_UNIT_WORDS * V.V_UNIT_WORDS
    if ring < 2 * buckets:
        return A.ST_SPACE
    mem[A.S_VIEW_LIST] = region
    mem[A.S_VERSION_BUCKETS] = region + V.VIEW_LIST_WORDS
    mem[A.S_VERSION_MASK] = buckets - 1
    mem[A.S_VERSION_RING] = region + V.VIEW_LIST_WORDS + 2 * buckets
    mem[A.S_VERSION_RING_WORDS] = ring
    mem[A.S_VERSION_HEAD] = ring
    mem[A.S_VERSION_TAIL] = ring
    return A.OK


@helper
def is_later(epoch, tick, other_epoch, other_tick):
    return epoch > other_epoch or (epoch == other_epoch and tick > other_tick)


@helper
def floor_of(mem, view):
    """Return the tick, in its epoch, up to which a view shows every commit."""
    skipped = mem[view + A.VW_SKIPPED]
    return skipped - 1 if skipped != 0 else mem[view + A.VW_TICK]


@helper
def survey_views(mem):
    """Find the newest and the oldest of the open views; return the address of the oldest. One must be open."""
    oldest = 0
    mem[A.S_VIEW_EPOCH] = 0
    mem[A.S_VIEW_TICK] = 0
    for slot in range(mem[A.S_VIEW_HIGH]):
        view = mem[A.S_VIEW_LIST] + slot * A.VW_WORDS
        if mem[view + A.VW_ID] == 0:
            continue
        epoch = mem[view + A.VW_EPOCH]
        if is_later(epoch, mem[view + A.VW_TICK], mem[A.S_VIEW_EPOCH], mem[A.S_VIEW_TICK]):
            mem[A.S_VIEW_EPOCH] = epoch
            mem[A.S_VIEW_TICK] = mem[view + A.VW_TICK]
        if oldest == 0 or is_later(mem[A.S_OLDEST_EPOCH], mem[A.S_OLDEST_TICK], epoch, floor_of(mem, view)):
            oldest = view
            mem[A.S_OLDEST_EPOCH] = epoch
            mem[A.S_OLDEST_TICK] = floor_of(mem, view)
    return oldest


@helper
def forget_view(mem, view):
    """Remove a view, given by its address; after the last one the ring is empty."""
    mem[view + A.VW_ID] = 0
    mem[A.S_VIEW_COUNT] -= 1
    mem[A.S_VIEW_WHOLE] -= 1 if mem[view + A.VW_TABLE] == 0 else 0
    if mem[A.S_VIEW_COUNT] > 0:
        survey_views(mem)
        return
    mem[A.S_VIEW_EPOCH] = 0
    mem[A.S_VIEW_TICK] = 0
    mem[A.S_VIEW_HIGH] = 0
    mem[A.S_OLDEST_EPOCH] = 0
    mem[A.S_OLDEST_TICK] = 0
    size = mem[A.S_VERSION_RING_WORDS]
    # The ring starts again at its first word, so that a store whose views need little memory touches little.
    mem[A.S_VERSION_HEAD] = (mem[A.S_VERSION_HEAD] + size - 1) // size * size
    mem[A.S_VERSION_TAIL] = mem[A.S_VERSION_HEAD]


@helper
def add_view(mem, epoch, tick, skipped, table):
    """Add a view of a table, or of all (0), to the list; return its number, 0 if too many are open."""
    slot = 0
    while slot < mem[A.S_VIEW_HIGH] and mem[mem[A.S_VIEW_LIST] + slot * A.VW_WORDS + A.VW_ID] != 0:
        slot += 1
    if slot >= V.VIEWS_LISTED:
        return 0
    mem[A.S_VIEW_HIGH] = max(mem[A.S_VIEW_HIGH], slot + 1)
    mem[A.S_VIEW_SERIAL] += 1
    mem[A.S_VIEW_COUNT] += 1
    view = mem[A.S_VIEW_LIST] + slot * A.VW_WORDS
    mem[view + A.VW_ID] = mem[A.S_VIEW_SERIAL] << A.VIEW_SHIFT | slot
    mem[view + A.VW_EPOCH] = epoch
    mem[view + A.VW_TICK] = tick
    mem[view + A.VW_SKIPPED] = skipped
    mem[view + A.VW_TABLE] = table
    mem[view + A.VW_FRAGMENT] = 0
    mem[view + A.VW_ROWID] = 0
    mem[A.S_VIEW_WHOLE] += 1 if table == 0 else 0
    survey_views(mem)
    return mem[view + A.VW_ID]


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def open_view(mem, table, epoch, out):
    """Open a view of what is committed now in a table, or in all of them if `table` is 0. epoch: the open one. out:
    [number of the view, head of the ring].

    Return OK; ST_SPACE if too many are open; ST_MORE if the epoch must be closed first, since it has too few ticks
    left; ST_UNFINISHED if a large commit that changes rows is being applied; ST_DROPPED.
    """
    if table != 0:
        table = descriptor_of(mem, table)
        if table == 0:
            return A.ST_DROPPED
    enter_epoch(mem, epoch)
    if mem[A.S_TICK] >= A.TICKS_USED:
        return A.ST_MORE
    if mem[A.S_UNFINISHED] != 0 and not adds_only(mem):
        return A.ST_UNFINISHED
    view = add_view(mem, mem[A.S_TICK_EPOCH], mem[A.S_TICK], mem[A.S_UNFINISHED], table)
    if view == 0:
        return A.ST_SPACE
    mem[A.S_TICK_SEEN] = 1
    out[0] = view
    out[1] = mem[A.S_VERSION_HEAD]
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1])")
def open_snapshot(mem, epoch, out):
    """Open a view of the end of `epoch`, which is closed; the caller holds the commit latch. out: as for `open_view`.
    Return OK, or ST_SPACE if too many are open.
    """
    view = add_view(mem, epoch, A.TICK_MASK, 0, 0)
    if view == 0:
        return A.ST_SPACE
    out[0] = view
    out[1] = mem[A.S_VERSION_HEAD]
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64)")
def advance_view(mem, view, number, rowid):
    """Note that a scan in the order of fragments and ROWIDs has read all rows before this place, and reads none of them
    again: their old rows are not kept for it. Return OK or ST_TOO_OLD.
    """
    at = view_of(mem, view)
    if at == 0:
        return A.ST_TOO_OLD
    mem[at + A.VW_FRAGMENT] = number
    mem[at + A.VW_ROWID] = rowid
    return A.OK


@kernel("int64(int64[::1], int64)")
def close_view(mem, view):
    """Close a view; OK, or ST_TOO_OLD if it is not open. `cut_versions` frees its entries."""
    at = view_of(mem, view)
    if at == 0:
        return A.ST_TOO_OLD
    forget_view(mem, at)
    return A.OK


@kernel("int64(int64[::1], int64)")
def find_view(mem, view):
    """Return OK if a view is open, else ST_TOO_OLD."""
    return A.OK if view_of(mem, view) != 0 else A.ST_TOO_OLD


# --- the ring -------------------------------------------------------------------------------------
@helper
def version_at(mem, position):
    return mem[A.S_VERSION_RING] + position % mem[A.S_VERSION_RING_WORDS]


@helper
def row_tick(mem, at):
    """Return the tick of the commit that made the row of an entry."""
    return (mem[at + V.V_TAG] >> V.ROW_TICK_SHIFT) & A.TICK_MASK


@helper
def ended_tick(mem, at):
    """Return the tick of the commit that ended the row of an entry."""
    return (mem[at + V.V_TAG] >> V.ENDED_TICK_SHIFT) & A.TICK_MASK


@helper
def is_shown(mem, at, view):
    """Whether a view, given by its address, shows the row of an entry."""
    if is_after(mem, view, mem[at + V.V_ROW + 1], row_tick(mem, at)):
        return False
    return is_after(mem, view, mem[at + V.V_ENDED], ended_tick(mem, at))


@helper
def cut_one(mem):
    """Cut the oldest entry if no open view needs it; return whether it did."""
    tail = mem[A.S_VERSION_TAIL]
    if tail >= mem[A.S_VERSION_HEAD]:
        return False
    at = version_at(mem, tail)
    ended = mem[at + V.V_ENDED]
    if mem[A.S_VIEW_COUNT] > 0 and is_later(ended, ended_tick(mem, at), mem[A.S_OLDEST_EPOCH], mem[A.S_OLDEST_TICK]):
        return False
    mem[A.S_VERSION_TAIL] = tail + mem[at + V.V_WORDS]
    return True


@kernel("int64(int64[::1], int64)")
def cut_versions(mem, budget):
    """Cut entries that no open view needs, at most `budget`; OK when done, or ST_MORE."""
    for _ in range(budget):
        if not cut_one(mem):
            return A.OK
    return A.ST_MORE


@helper
def take_room(mem, words, ended):
    """Take `words` contiguous words, a multiple of V_UNIT_WORDS; return their position, -1 if no view is left."""
    size = mem[A.S_VERSION_RING_WORDS]
    while mem[A.S_VIEW_COUNT] > 0:
        head = mem[A.S_VERSION_HEAD]
        filling = size - head % size
        if filling >= words:
            filling = 0
        if head + filling + words - mem[A.S_VERSION_TAIL] <= size:
            if filling > 0:
                at = version_at(mem, head)
                mem[at + V.V_WORDS] = filling
                mem[at + V.V_ENDED] = ended
                mem[at + V.V_FRAGMENT] = 0
                mem[at + V.V_TAG] = 0
            mem[A.S_VERSION_HEAD] = head + filling + words
            return head + filling
        if not cut_one(mem):
            mem[A.S_VIEWS_ABANDONED] += 1
            forget_view(mem, survey_views(mem))
    return -1


@helper
def row_bucket(mem, fragment, rowid):
    mixed = ((fragment ^ rowid << 20) * _HASH_MULTIPLIER) >> 32
    return mem[A.S_VERSION_BUCKETS] + (mixed & mem[A.S_VERSION_MASK])


@helper
def key_bucket(mem, fragment, tag):
    mixed = ((fragment ^ tag << 20) * _HASH_MULTIPLIER) >> 32
    return mem[A.S_VERSION_BUCKETS] + mem[A.S_VERSION_MASK] + 1 + (mixed & mem[A.S_VERSION_MASK])


@helper
def newest_version(mem, fragment, rowid):
    """Return the address of the newest entry of a row, 0 if there is none."""
    position = mem[row_bucket(mem, fragment, rowid)]
    while position >= mem[A.S_VERSION_TAIL]:
        at = version_at(mem, position)
        if mem[at + V.V_FRAGMENT] == fragment and mem[at + V.V_ROW] == rowid:
            return at
        position = mem[at + V.V_ROW_LINK]
    return 0


@helper
def find_version(mem, fragment, rowid, view):
    """Return (address of the entry with a row as a view shows it, 0 if there is none; address of the entry with its
    disk part, 0: the live row has it). view: its address.
    """
    source = 0
    position = mem[row_bucket(mem, fragment, rowid)]
    while position >= mem[A.S_VERSION_TAIL]:
        at = version_at(mem, position)
        if mem[at + V.V_FRAGMENT] == fragment and mem[at + V.V_ROW] == rowid:
            if mem[at + V.V_DISK] & V.V_DISK_MASK != V.DISK_KEPT:
                source = at
            if not is_after(mem, view, mem[at + V.V_ROW + 1], row_tick(mem, at)):
                return (at, source) if is_shown(mem, at, view) else (0, 0)
        position = mem[at + V.V_ROW_LINK]
    return 0, 0


@helper
def has_key(mem, fragment, at, keys, first, words):
    """Whether the row of an entry has this canonical key."""
    image = at + V.V_ROW + A.ENTRY_WORDS
    held, held_words = image_key(mem, image, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS])
    return held_words == words and are_words(mem, held, keys, first, words)


@helper
def find_key(mem, fragment, tag, keys, first, words, view):
    """Return the address of the entry with a key that a view, given by its address, shows; 0 if there is none."""
    position = mem[key_bucket(mem, fragment, tag)]
    while position >= mem[A.S_VERSION_TAIL]:
        at = version_at(mem, position)
        if mem[at + V.V_FRAGMENT] == fragment and mem[at + V.V_TAG] & V.V_TAG_MASK == tag:
            if is_shown(mem, at, view) and has_key(mem, fragment, at, keys, first, words):
                return at
        position = mem[at + V.V_KEY_LINK]
    return 0


@helper
def is_gone_since(mem, txn, fragment, tag, keys, first, words):
    """Whether a transaction reads by a view that shows a row with a key that no row has any more."""
    view = mem[txn + A.X_VIEW]
    if view == 0:
        return False
    at = view_of(mem, view)
    return at == 0 or find_key(mem, fragment, tag, keys, first, words, at) != 0


# --- keeping --------------------------------------------------------------------------------------
@helper
def find_part_to_copy(mem, fragment, rowid, row):
    """Find a row's disk part to copy; return (OK, or ST_PAGE, ST_SPACE or ST_DAMAGED if it cannot be copied; address,
    words there, words in all, link, stamp).
    """
    reference = mem[row + A.ROW_HEADER_WORDS + mem[fragment + A.F_FIXED_WORDS] - 1]
    space = mem[fragment + A.F_TABLESPACE]
    if frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS) == 0:
        return A.ST_PAGE, 0, 0, 0, 0, 0
    address, here, words, link, stamp = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return A.ST_DAMAGED, 0, 0, 0, 0, 0
    status = A.OK
    if here < words:
        status = A.ST_SPACE
        if words <= V.CAPTURE_WORDS_MAX:
            status, _, _ = read_chain(mem, fragment, rowid, link, stamp, mem, here, words, False)
    return status, address, here, words, link, stamp


@helper
def is_wanted(mem, view, fragment, rowid, row):
    """Whether a view of one table, given by its address, shows a row and has not read it yet."""
    if mem[view + A.VW_ID] == 0 or mem[view + A.VW_TABLE] != mem[fragment + A.F_OWNER]:
        return False
    ahead = mem[fragment + A.F_NUMBER] - mem[view + A.VW_FRAGMENT]
    if ahead < 0 or (ahead == 0 and rowid < mem[view + A.VW_ROWID]):
        return False
    return not is_after(mem, view, mem[row + 1], tick_of(mem, row))


@helper
def is_row_wanted(mem, fragment, rowid, row):
    """Whether an open view shows a row and may still read it."""
    if is_later(mem[row + 1], tick_of(mem, row), mem[A.S_VIEW_EPOCH], mem[A.S_VIEW_TICK]):
        return False
    if mem[A.S_VIEW_WHOLE] > 0:
        return True
    for slot in range(mem[A.S_VIEW_HIGH]):
        if is_wanted(mem, mem[A.S_VIEW_LIST] + slot * A.VW_WORDS, fragment, rowid, row):
            return True
    return False


@helper
def must_copy(mem, fragment, rowid, row, keeps_disk):
    """Whether a row about to change must be appended: an open view shows it, or only its disk part."""
    if is_row_wanted(mem, fragment, rowid, row):
        return True
    if keeps_disk or not mem[fragment + A.F_HAS_DISK]:
        return False
    newest = newest_version(mem, fragment, rowid)
    return newest != 0 and mem[newest + V.V_DISK] & V.V_DISK_MASK == V.DISK_KEPT


@helper
def await_part(mem, txn, fragment, rowid, row):
    """Before a commit in slices changes or removes a disk part, check that the chunks that an open view shows are in
    memory. ST_PAGE if they are not and the commit should request the operation's pages again; else OK.

    The commit reads these pages anyway, to free them. ST_PAGE only if a commit may hold that many. The number of
    attempts is limited, since other threads may evict the pages again.
    """
    if mem[A.S_VIEW_EPOCH] == 0 or mem[txn + A.X_STATE] != SLICED or mem[fragment + A.F_DISK_WORDS] >= 0:
        return A.OK
    if not must_copy(mem, fragment, rowid, row, False):
        return A.OK
    status, _, here, words, _, _ = find_part_to_copy(mem, fragment, rowid, row)
    if status == A.ST_PAGE:
        space = mem[fragment + A.F_TABLESPACE]
        pages = 2 + (words - here) // chunk_words(mem, space)  # and the first pages of the old and the new part
        mem[A.S_CAPTURE_WAITS] += 1
        fits = pages <= min(AWAITED_PAGES_MAX, mem[mem[space + C.TS_CACHE] + C.C_FRAMES] // 4)
        if fits and mem[A.S_CAPTURE_WAITS] <= CAPTURE_WAITS_MAX:
            return A.ST_PAGE
    mem[A.S_CAPTURE_WAITS] = 0
    return A.OK


@helper
def keep_version(mem, fragment, rowid, row, ended, tick, keeps_disk):
    """Append a committed row about to change or be removed at the instant (ended, tick), if an open view shows it.

    keeps_disk: its disk part stays in place. The caller has checked that a view is open.
    """
    if not must_copy(mem, fragment, rowid, row, keeps_disk):
        return
    words = entry_words(mem, fragment, row, False)
    disk, address, here, more, link, stamp = V.DISK_WHOLE, 0, 0, 0, 0, 0
    if keeps_disk:
        disk = V.DISK_KEPT
    elif mem[fragment + A.F_HAS_DISK]:
        status, address, here, more, link, stamp = find_part_to_copy(mem, fragment, rowid, row)
        if status != A.OK:
            disk = V.DISK_LOST
            more = 0
    total = (V.V_ROW + words + more + V.V_UNIT_WORDS - 1) // V.V_UNIT_WORDS * V.V_UNIT_WORDS
    position = take_room(mem, total, ended)
    if position < 0:
        return
    at = version_at(mem, position)
    tag = row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED])
    by_row = row_bucket(mem, fragment, rowid)
    by_key = key_bucket(mem, fragment, tag)
    mem[at + V.V_WORDS] = total
    mem[at + V.V_ENDED] = ended
    mem[at + V.V_ROW_LINK] = mem[by_row]
    mem[at + V.V_KEY_LINK] = mem[by_key]
    mem[at + V.V_FRAGMENT] = fragment
    mem[at + V.V_PLACE] = map_get(mem, fragment, rowid >> 16) << A.COMPACT_SLOT_BITS | rowid & 0xFFFF
    # The number of words is stored, since the table may get var parts later.
    mem[at + V.V_DISK] = disk | words << V.V_ENTRY_SHIFT
    mem[at + V.V_TAG] = tag | tick_of(mem, row) << V.ROW_TICK_SHIFT | tick << V.ENDED_TICK_SHIFT
    write_entry(mem, mem, fragment, rowid, row, False, mem, at + V.V_ROW)
    if more > 0:
        target = at + V.V_ROW + words
        move_words(mem, address, mem, target, here)
        read_chain(mem, fragment, rowid, link, stamp, mem, target + here, target + more, True)
    mem[by_row] = position
    mem[by_key] = position
    mem[A.S_VERSIONS_KEPT] += 1
