"""Word offsets of the structures in main memory that serve disk columns: page cache, tablespaces, extents, UNDO buffer.

Everything is in the arena's one array (D1). Frames and cache entries are in a separate region after `data_memory`;
descriptors of tablespaces, files, extents and open pages are blocks and cells of the pool.
"""

from __future__ import annotations

from tidemark.engine.memory.arena_layout import BLOCK_WORDS, CELL_WORDS

# --- page numbers and references ------------------------------------------------------------------
# Page number = data file << 32 | page in the file; data file numbers are never reused and start at 1.
# Disk reference = page number << 16 | slot; 0 is none.
FILE_SHIFT = 32
FILE_ID_MAX = (1 << 15) - 1
PAGE_IN_FILE_MASK = (1 << 32) - 1
SLOT_BITS = 16
SLOT_MASK = (1 << SLOT_BITS) - 1
SLOT_NONE = SLOT_MASK  # a page is reserved, the commit chooses the slot
FRESH_PAGE = 1 << 62  # with a page number: if the page is wholly free, it is formatted instead of read

# --- page cache: descriptor -----------------------------------------------------------------------
C_PAGE_WORDS = 0
C_FRAMES = 1
C_ENTRIES = 2
C_HASH = 3  # address of the heads of the hash chains
C_HASH_MASK = 4
C_ENTRY = 5  # address of the first entry
C_FRAME = 6  # address of the first frame
C_FREE_ENTRY = 7  # free entries, linked through CE_HASH_NEXT
C_FREE_FRAME = 8  # free frames, linked through their word 0
C_FREE_FRAMES = 9
C_STACK_TOP = 10
C_STACK_BOTTOM = 11
C_QUEUE_FIRST = 12
C_QUEUE_LAST = 13
C_HOT = 14  # hot pages
C_HOT_MAX = 15
C_RESIDENT = 16
C_DIRTY = 17  # dirty pages
C_HITS = 18
C_MISSES = 19
C_EVICTIONS = 20
C_POLICY = 21  # POLICY_LIRS, or POLICY_LRU to compare
C_PINNED = 23  # entries with pins
C_GHOST_FIRST = 24  # entries without a frame, in the order they lost it, linked by CE_BEFORE and CE_AFTER
C_GHOST_LAST = 25
C_FRESH_ENTRY = 26  # next entry never used so far
C_FRESH_FRAME = 27  # next frame never used so far
CACHE_WORDS = 64
POLICY_LIRS = 0
POLICY_LRU = 1
FRAMES_MIN = 25  # the size to which NDB's own tests shrink the cache
ENTRIES_PER_FRAME = 3  # entries without a frame remember recently used pages
HOT_PERCENT = 90

# --- page cache: entry ----------------------------------------------------------------------------
CE_PAGE = 0  # page number
CE_FRAME = 1  # address of its frame, 0 none
CE_FLAGS = 2
CE_PINS = 3
CE_HASH_NEXT = 4
CE_UP = 5  # LIRS stack
CE_DOWN = 6
CE_BEFORE = 7  # LIRS queue of resident cold pages, evicted from its front
CE_AFTER = 8
CE_DIRTIED = 10  # UNDO LSN of the first change since it was last copied out
CACHE_ENTRY_WORDS = 16
CE_HOT = 1
CE_ON_STACK = 2
CE_ON_QUEUE = 4
CE_IS_DIRTY = 8
CE_LOADING = 16  # its frame is being filled
CE_WRITING = 32  # a copy of it was made and is not in `WriteBehind` yet

# Outcome of a claim of a page.
CLAIM_HIT = 1  # the page is loaded
CLAIM_LOAD = 2  # the page has a frame, which the caller must fill
CLAIM_LOADING = -1  # another thread is filling its frame
CLAIM_DIRTY = -2  # no frame until dirty pages are written
CLAIM_PINNED = -3  # no frame until pins or writes end
CLAIM_AGAIN = -4  # the bounded call ended early: repeat it
CLAIM_NOWHERE = -5  # the page must be formatted, but no extent has it
# Flags of a claim.
CLAIM_PIN = 1  # the pages stay until they are unpinned
CLAIM_ANY = 2  # dirty pages cannot be written now: any clean page may be evicted, even a hot one
CLAIM_QUIET = 4  # counts as no reference: another claim of the page counts
# Choice of the dirty pages to copy out.
COPY_COLD = 0  # from the front of the queue
COPY_HOT = 1  # from the bottom of the stack
COPY_ALL = 2  # all, in the order of entries

# --- tablespace descriptor (a block) --------------------------------------------------------------
TS_ID = 0
TS_PAGE_WORDS = 1
TS_EXTENT_PAGES = 2
TS_CACHE = 3  # page cache of its page size
TS_FREE = 4  # list of free extents, linked through EX_NEXT
TS_FREE_COUNT = 5
TS_EXTENTS = 6  # all extents of its files
TS_PAYLOAD = 7  # words of an empty page available to pieces and their slots
TS_EXTENT_BLOCK = 8  # block from which extent descriptors are carved; its word 0 links to the previous one
TS_EXTENT_USED = 9  # words used of that block
TS_FREE_LAST = 10  # last of the free extents, which are used in their order in the files
TS_DROPPED = 11  # list of extents of dropped tables, linked through EX_NEXT

# --- data file descriptor (a block) ---------------------------------------------------------------
FL_ID = 0
FL_TABLESPACE = 1
FL_EXTENTS = 2
FL_LEAVES = 16  # addresses of blocks that map extent numbers to descriptors
FILE_LEAVES = BLOCK_WORDS - FL_LEAVES
FIRST_DATA_PAGE = 1  # page 0 identifies the file

# --- extent descriptor ----------------------------------------------------------------------------
EX_FRAGMENT = 0  # fragment descriptor; 0: free, or of a dropped table
EX_TABLE = 1  # table number; 0: free
EX_NUMBER = 2  # fragment number
EX_FIRST = 3  # number of its first page
EX_FREE = 4  # words neither used nor reserved, over all pages
EX_POSITION = 5  # in the matrix, or one of the POSITION_ values below
EX_PREVIOUS = 6
EX_NEXT = 7
EX_HINT = 8  # page where the search begins
EX_CLASSES = 9  # 4 counts of pages by class of their words neither used nor reserved
EX_OWNED = 13  # next extent of the same fragment
EX_PAGES = 16  # one word per page
POSITION_CURRENT = -1
POSITION_FREE = -2
POSITION_DROPPED = -3  # of a dropped table that a kept local checkpoint may bring back
EXTENT_PAGES_MIN = 4
EXTENT_PAGES_MAX = BLOCK_WORDS - 1 - EX_PAGES
# Page word: 0 or more, the free words of a page that is not open; negative, minus the address of the open page's cell.

# --- open page (a cell): dirty, or with words reserved by transactions -----------------------------
OP_PAGE = 0  # page number
OP_EXTENT = 1
OP_FREE = 2  # unused words, reserved ones included
OP_RESERVED = 3
OP_LIST = 4  # list it is in: class, + OP_DIRTY_LIST if dirty
OP_PREVIOUS = 5
OP_NEXT = 6
OP_CHAIN = 7  # next page of the plan of a chained disk part
OP_DIRTY_LIST = 4

# --- plan of a chained disk part (a cell) -----------------------------------------------------------
PL_PAGE = 0  # page for its first piece
PL_CHUNK = 1  # page of its first chunk; OP_CHAIN of that open page is the page of the next chunk
PL_CHUNKS = 2
PL_STAMP = 3

# --- UNDO log descriptor (in the cache region) -----------------------------------------------------
U_ACTIVE = 0  # address of the buffer that takes records
U_OTHER = 1
U_USED = 2  # words used in the active buffer
U_SIZE = 3  # words of each buffer
U_LSN = 4  # LSN of the next record
U_FREE = 5  # free words of the ring, halved, reserved ones included
U_RESERVED = 6  # words reserved by open transactions
U_RECORDS = 7  # records written to the buffers since opening
U_WORDS = 8  # their words
U_EPOCH_MAX = 9  # newest epoch in the active buffer
UNDO_WORDS = 32

assert OP_CHAIN < CELL_WORDS
assert CE_DIRTIED < CACHE_ENTRY_WORDS
assert C_STACK_BOTTOM - C_STACK_TOP == C_QUEUE_LAST - C_QUEUE_FIRST == C_GHOST_LAST - C_GHOST_FIRST == 1
