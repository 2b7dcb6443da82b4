"""Word offsets of the version store in the arena (docs/internals/access.md, section 11); main memory only.

Its region: the list of open views, buckets by ROWID, buckets by key, the ring. Kernels freeze these constants; the
kernel cache is keyed on this file.
"""

from __future__ import annotations

from tidemark.engine.base.limits import VIEWS_OPEN_MAX
from tidemark.engine.memory.arena_layout import TAG_BITS, TICK_MASK, VW_WORDS

# --- entry of the ring: a header, then the row's entry (ENTRY_WORDS and image), then its disk part ----
V_WORDS = 0  # words of the whole entry, a multiple of V_UNIT_WORDS
V_ENDED = 1  # epoch of the change that ended this version
V_ROW_LINK = 2  # position of the previous entry in the same bucket by ROWID; below the tail: none
V_KEY_LINK = 3  # the same by key
V_FRAGMENT = 4  # fragment descriptor; 0: padding to the end of the ring
V_PLACE = 5  # arena page << 11 | slot: the order of equal keys in an ordered index
V_DISK = 6  # state of the disk part | words of the row's entry without it << V_ENTRY_SHIFT
V_TAG = 7  # tag of the row's key | tick of its commit << ROW_TICK_SHIFT | tick of the change << ENDED_TICK_SHIFT
V_ROW = 8  # the row's entry starts here
V_UNIT_WORDS = 8

V_DISK_MASK = 0xFF
V_ENTRY_SHIFT = 8
V_TAG_MASK = (1 << TAG_BITS) - 1
ROW_TICK_SHIFT = 32
ENDED_TICK_SHIFT = 44

# --- states in V_DISK ---------------------------------------------------------------------------
DISK_WHOLE = 0  # the disk part follows the image, or the table has none
DISK_KEPT = 1  # it is that of the row's next newer state
DISK_LOST = 2  # it was too large, or not in memory

# --- sizes --------------------------------------------------------------------------------------
VIEWS_LISTED = VIEWS_OPEN_MAX
VIEW_LIST_WORDS = VIEWS_LISTED * VW_WORDS
BUCKET_SHARE_SHIFT = 5  # buckets of each kind take at most this share of the region: words >> shift
CAPTURE_WORDS_MAX = 32_768  # of a chained disk part: 256 KiB

assert V_ROW == V_UNIT_WORDS
assert TAG_BITS <= ROW_TICK_SHIFT and ENDED_TICK_SHIFT - ROW_TICK_SHIFT >= TICK_MASK.bit_length()
