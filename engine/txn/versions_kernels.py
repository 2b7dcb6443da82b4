"""The version store: old rows that open snapshots still show (docs/internals/access.md, section 11).

It owns the list of open snapshots, the buckets and the ring. A change of a committed row calls `keep_version` first,
in the same kernel call. `keep_version` cannot fail: to make room, it first cuts entries that no snapshot needs, then
abandons snapshots, the oldest first.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import frame_of
from tidemark.engine.disk.page_kernels import page_piece, page_piece_words
from tidemark.engine.disk.parts_kernels import LINKED_WORDS, chunk_words, part_on_page
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.primary_kernels import row_tag
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.txn import versions_layout as V

SLICED = 3  # X_STATE of a commit in slices
AWAITED_PAGES_MAX = 64
CAPTURE_WAITS_MAX = 256
_HASH_MULTIPLIER = -7046029254386353131  # odd, 2**64 / golden ratio


# --- open snapshots -------------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64)")
def setup_versions(mem, region, words):
    """Lay out the store in `words` zeroed words at `region`; OK, or ST_SPACE if they are too few."""
    buckets = V.V_UNIT_WORDS
    while 2 * buckets <= words >> V.BUCKET_SHARE_SHIFT:
        buckets *= 2
    ring = (words - V.SNAPSHOTS_LISTED - 2 * buckets) // V.V_UNIT_WORDS * V.V_UNIT_WORDS
    if ring < 2 * buckets:
        return A.ST_SPACE
    mem[A.S_SNAPSHOT_LIST] = region
    mem[A.S_VERSION_BUCKETS] = region + V.SNAPSHOTS_LISTED
    mem[A.S_VERSION_MASK] = buckets - 1
    mem[A.S_VERSION_RING] = region + V.SNAPSHOTS_LISTED + 2 * buckets
    mem[A.S_VERSION_RING_WORDS] = ring
    mem[A.S_VERSION_HEAD] = ring
    mem[A.S_VERSION_TAIL] = ring
    return A.OK


@helper
def find_open(mem, epoch):
    """Return the position of a snapshot in the list, -1 if it is not open."""
    first = 0
    last = mem[A.S_SNAPSHOT_COUNT]
    while first < last:
        middle = (first + last) // 2
        if mem[mem[A.S_SNAPSHOT_LIST] + middle] < epoch:
            first = middle + 1
        else:
            last = middle
    if first < mem[A.S_SNAPSHOT_COUNT] and mem[mem[A.S_SNAPSHOT_LIST] + first] == epoch:
        return first
    return -1


@helper
def forget_snapshot(mem, place):
    """Remove a snapshot from the list; after the last one the ring is empty."""
    count = mem[A.S_SNAPSHOT_COUNT] - 1
    for i in range(place, count):
        mem[mem[A.S_SNAPSHOT_LIST] + i] = mem[mem[A.S_SNAPSHOT_LIST] + i + 1]
    mem[A.S_SNAPSHOT_COUNT] = count
    if count > 0:
        mem[A.S_SNAPSHOT_NEWEST] = mem[mem[A.S_SNAPSHOT_LIST] + count - 1]
        return
    mem[A.S_SNAPSHOT_NEWEST] = 0
    size = mem[A.S_VERSION_RING_WORDS]
    # The ring starts again at its first word, so that a store whose snapshots need little memory touches little.
    mem[A.S_VERSION_HEAD] = (mem[A.S_VERSION_HEAD] + size - 1) // size * size
    mem[A.S_VERSION_TAIL] = mem[A.S_VERSION_HEAD]


@kernel("int64(int64[::1], int64)")
def open_snapshot(mem, epoch):
    """Add a snapshot of the end of `epoch`, later than all others; the caller holds the commit latch.

    OK; ST_SPACE if too many are open; ST_INVARIANT if it is not the latest.
    """
    count = mem[A.S_SNAPSHOT_COUNT]
    if epoch <= mem[A.S_SNAPSHOT_NEWEST]:
        return A.ST_INVARIANT
    if count >= V.SNAPSHOTS_LISTED:
        return A.ST_SPACE
    mem[mem[A.S_SNAPSHOT_LIST] + count] = epoch
    mem[A.S_SNAPSHOT_COUNT] = count + 1
    mem[A.S_SNAPSHOT_NEWEST] = epoch
    return A.OK


@kernel("int64(int64[::1], int64)")
def close_snapshot(mem, epoch):
    """Remove a snapshot from the list; OK, or ST_TOO_OLD if it is not open. `cut_versions` frees its entries."""
    place = find_open(mem, epoch)
    if place < 0:
        return A.ST_TOO_OLD
    forget_snapshot(mem, place)
    return A.OK


@kernel("int64(int64[::1], int64)")
def find_snapshot(mem, epoch):
    """Return OK if a snapshot is open, else ST_TOO_OLD."""
    return A.OK if find_open(mem, epoch) >= 0 else A.ST_TOO_OLD


# --- the ring -------------------------------------------------------------------------------------
@helper
def version_at(mem, position):
    return mem[A.S_VERSION_RING] + position % mem[A.S_VERSION_RING_WORDS]


@helper
def cut_one(mem):
    """Cut the oldest entry if no open snapshot needs it; return whether it did."""
    tail = mem[A.S_VERSION_TAIL]
    if tail >= mem[A.S_VERSION_HEAD]:
        return False
    at = version_at(mem, tail)
    if mem[A.S_SNAPSHOT_COUNT] > 0 and mem[at + V.V_ENDED] > mem[mem[A.S_SNAPSHOT_LIST]]:
        return False
    mem[A.S_VERSION_TAIL] = tail + mem[at + V.V_WORDS]
    return True


@kernel("int64(int64[::1], int64)")
def cut_versions(mem, budget):
    """Cut entries that no open snapshot needs, at most `budget`; OK when done, or ST_MORE."""
    for _ in range(budget):
        if not cut_one(mem):
            return A.OK
    return A.ST_MORE


@helper
def take_room(mem, words, ended):
    """Take `words` contiguous words, a multiple of V_UNIT_WORDS; return their position, -1 if all snapshots were
    abandoned.
    """
    size = mem[A.S_VERSION_RING_WORDS]
    while mem[A.S_SNAPSHOT_COUNT] > 0:
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
            mem[A.S_VERSION_HEAD] = head + filling + words
            return head + filling
        if not cut_one(mem):
            mem[A.S_SNAPSHOTS_DROPPED] += 1
            forget_snapshot(mem, 0)
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
def find_version(mem, fragment, rowid, epoch):
    """Return (address of the entry with a row's state at the end of `epoch`, 0 if there is none; address of the entry
    with its disk part, 0: the live row has it).
    """
    source = 0
    position = mem[row_bucket(mem, fragment, rowid)]
    while position >= mem[A.S_VERSION_TAIL]:
        at = version_at(mem, position)
        if mem[at + V.V_FRAGMENT] == fragment and mem[at + V.V_ROW] == rowid:
            if mem[at + V.V_DISK] & V.V_DISK_MASK != V.DISK_KEPT:
                source = at
            if mem[at + V.V_ROW + 1] <= epoch:
                return (at, source) if epoch < mem[at + V.V_ENDED] else (0, 0)
        position = mem[at + V.V_ROW_LINK]
    return 0, 0


# --- keeping --------------------------------------------------------------------------------------
@helper
def walk_chunks(mem, fragment, rowid, link, stamp, at, stop, is_copied):
    """Copy the chunks linked from `link` to mem[at:stop], or only check them: OK, ST_PAGE if one is not in memory, or
    ST_DAMAGED.
    """
    space = mem[fragment + A.F_TABLESPACE]
    size = chunk_words(mem, space)
    while at < stop:
        if link == 0 or at + size > stop:
            return A.ST_DAMAGED
        frame = frame_of(mem, mem[space + C.TS_CACHE], link >> C.SLOT_BITS)
        if frame == 0:
            return A.ST_PAGE
        piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], link & C.SLOT_MASK)
        if piece == 0:
            return A.ST_DAMAGED
        found = page_piece_words(mem, frame, mem[space + C.TS_PAGE_WORDS], link & C.SLOT_MASK)
        if found != LINKED_WORDS + size or mem[piece] & D.PIECE_CHUNK == 0:
            return A.ST_DAMAGED
        if mem[piece] & D.PIECE_ROWID_MASK != rowid or mem[piece + 2] != stamp:
            return A.ST_DAMAGED
        if is_copied:
            move_words(mem, piece + LINKED_WORDS, mem, at, size)
        at += size
        link = mem[piece + 1]
    return A.OK


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
            status = walk_chunks(mem, fragment, rowid, link, stamp, here, words, False)
    return status, address, here, words, link, stamp


@helper
def must_copy(mem, fragment, rowid, row, keeps_disk):
    """Whether a row about to change must be appended: an open snapshot shows it, or only its disk part."""
    if mem[row + 1] <= mem[A.S_SNAPSHOT_NEWEST]:
        return True
    if keeps_disk or not mem[fragment + A.F_HAS_DISK]:
        return False
    newest = newest_version(mem, fragment, rowid)
    return newest != 0 and mem[newest + V.V_DISK] & V.V_DISK_MASK == V.DISK_KEPT


@helper
def await_part(mem, txn, fragment, rowid, row):
    """Before a commit in slices changes or removes a disk part, check that the chunks that an open snapshot shows are
    in memory. ST_PAGE if they are not and the commit should request the operation's pages again; else OK.

    The commit reads these pages anyway, to free them. ST_PAGE only if a commit may hold that many. The number of
    attempts is limited, since other threads may evict the pages again.
    """
    if mem[A.S_SNAPSHOT_NEWEST] == 0 or mem[txn + A.X_STATE] != SLICED or mem[fragment + A.F_DISK_WORDS] >= 0:
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
def keep_version(mem, fragment, rowid, row, ended, keeps_disk):
    """Append a committed row about to change or be removed in epoch `ended`, if an open snapshot shows it.

    keeps_disk: its disk part stays in place. The caller has checked that a snapshot is open.
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
    mem[at + V.V_TAG] = tag
    write_entry(mem, mem, fragment, rowid, row, False, mem, at + V.V_ROW)
    if more > 0:
        target = at + V.V_ROW + words
        move_words(mem, address, mem, target, here)
        walk_chunks(mem, fragment, rowid, link, stamp, target + here, target + more, True)
    mem[by_row] = position
    mem[by_key] = position
    mem[A.S_VERSIONS_KEPT] += 1
