"""Word offsets of every structure in the arena (main memory only, never written to a file).

The arena is one flat int64 array; addresses are word indexes into it. Kernels import these constants, which numba
freezes into machine code; the kernel cache is keyed on this file too.
"""

from __future__ import annotations

# --- units --------------------------------------------------------------------------------------
PAGE_WORDS = 4_096
PAGE_SHIFT = 12
PAGE_BYTES = PAGE_WORDS * 8
BLOCK_WORDS = 512
BLOCK_SHIFT = 9
BLOCKS_PER_PAGE = PAGE_WORDS // BLOCK_WORDS
CELL_WORDS = 8

# --- store header: page 0 -----------------------------------------------------------------------
S_COPY_RESERVED = 8  # words reserved by transactions for copies into a running local checkpoint
S_COPY_LIMIT = 9  # limit of these words; a transaction may exceed it while no other has reserved any
S_REDO_FREE = 10  # free words of REDO log, reserved ones included
S_REDO_RESERVED = 11  # words of REDO log reserved by open transactions
S_FILE_DIRECTORY = 13  # block of leaves: file number -> descriptor of a data file; 0 before the first tablespace
S_UNDO = 14  # address of the UNDO log's descriptor; 0 before the first tablespace
S_INDEX_GENERATION = 15  # indexes announced so far; a transaction does not know those announced after it began
S_VIEW_EPOCH = 16  # epoch of the newest open view; 0: none is open
S_VIEW_COUNT = 17
S_VIEW_LIST = 18  # address of the views, VW_WORDS each
S_VERSION_RING = 19  # address of the ring of old rows
S_VERSION_RING_WORDS = 20
S_VERSION_HEAD = 21  # position of the next entry; word of the ring: position modulo its words
S_VERSION_TAIL = 22  # position of the oldest entry
S_VERSION_BUCKETS = 23  # address of the heads of chains by fragment and ROWID, followed by those by key
S_VERSION_MASK = 24  # number of buckets of one kind - 1
S_VIEWS_ABANDONED = 25  # views abandoned for lack of room, ever
S_VERSIONS_KEPT = 26  # old rows kept, ever
S_CAPTURE_WAITS = 27  # times in a row that commits waited for chunks of an old disk part
S_DELETE_LOG = 28  # address of the delete log's descriptor; 0: none is kept
S_FREE_DESCRIPTORS = 29  # address of the first free descriptor of a table, fragment or index; 0: none
S_FREE_DESCRIPTOR_COUNT = 30
S_TXID = 31  # the newest transaction id assigned
S_UNLISTED = 32  # handle of an index that was created and is in no list yet; 0: none
S_FREE_CELLS = 33  # address of the first operation cell that was used before and is free; 0: none
S_CELL_HIGH = 34  # address of the next operation cell that was never used
S_CELL_LIMIT = 35  # end of the cells; descriptors of transactions come after it
S_BLOCK_COUNTS = 36  # address of a word for each page: how many blocks of it are free
S_VIEW_TICK = 37  # tick of the newest open view
S_VIEW_HIGH = 38  # no view after the first so many of the list is open
S_VIEW_SERIAL = 39  # views opened, ever
S_OLDEST_EPOCH = 40  # old rows that ended at this instant or before are not needed; 0: no view is open
S_OLDEST_TICK = 41
S_TICK_EPOCH = 42  # epoch of the newest commit or view
S_TICK = 43  # tick of the next commit in this epoch, if no view has seen it
S_TICK_SEEN = 44  # 1: a view shows what has this tick, so the next commit takes another one
S_UNFINISHED = 45  # tick of the large commit that is being applied in slices; 0: none is
S_VIEW_WHOLE = 47  # open views that may read any table
S_UNFINISHED_KINDS = 46  # as X_KINDS of its transaction
S_POOL = 64  # the shared pool descriptor
S_POOL_TOP = 96  # restart: a second pool that allocates pages from the arena's end downwards

# --- pool descriptor ----------------------------------------------------------------------------
P_FREE_PAGES = 0  # first free page, 0 none; linked through word 0 of each
P_FREE_PAGE_COUNT = 1
P_HIGH = 2  # next never-used page
P_LIMIT = 3  # first page past the pool
P_FREE_BLOCKS = 4  # address of the first free block, 0 none
P_FREE_BLOCK_COUNT = 5
P_SCRATCH = 6  # address of a scratch page for kernels
P_DOWNWARDS = 7  # 1: never-used pages are allocated from P_LIMIT down instead of from P_HIGH up
P_KEPT = 8  # pages, free or never used, reserved for calls that free memory
P_REQUESTS = 9  # requests for a page, a block or a cell, ever
P_REFUSED = 10  # number of the request that fails as if memory were full, for tests; 0: none
POOL_WORDS = 16

# --- handles -------------------------------------------------------------------------------------
# Python's reference to a table, a fragment or an index: generation of the descriptor's block << 31 | block number. The
# kernel call that withdraws the structure changes the generation, so every older handle is stale.
HANDLE_BLOCK_BITS = 31
HANDLE_BLOCK_MASK = (1 << HANDLE_BLOCK_BITS) - 1
D_GENERATION = 23  # in every descriptor that has handles
GENERATION_MAX = (1 << 32) - 2  # a block that has reached it is not reused

# --- table descriptor (a block) -----------------------------------------------------------------
T_ID = 0
T_FRAGMENTS = 1  # fragment numbers ever assigned; a dropped one has 0 in the list
T_FIXED_WORDS = 2
T_ROW_WORDS = 3
T_HAS_VAR = 4
T_KEY_WORDS = 5  # words of the canonical key in the fixed image; 0 if the key is in the var part
T_SEED = 6  # seed of the index hash
T_SCHEMA_VERSION = 7
T_FRAGMENT_LIST = 8  # address of the array of fragment descriptor addresses
T_HAS_DISK = 9
T_PARTITION = 10  # address of its partition words; 0: by hash of the whole key
T_LIST_WORDS = 11  # size of the array of fragment descriptors: a block, or a page
T_INDEXES = 12  # its list of ordered indexes, a block; 0 before the first one
T_CHANGED_EPOCH = 13  # epoch and tick of the newest change of a row
T_CHANGED_TICK = 14
T_FORMAT = 20  # schema version that added the newest column, 0: none was added; images of a call must be of this one
T_VAR_SINCE = 21  # as F_VAR_SINCE
T_CAPTURE = 22  # as F_CAPTURE

# --- fragment descriptor (a block) --------------------------------------------------------------
F_TABLE = 0
F_NUMBER = 1
F_ROW_WORDS = 2
F_FIXED_WORDS = 3
F_HAS_VAR = 4
F_KEY_WORDS = 5
F_SLOTS = 6  # rows per page
F_POOL = 7  # pool this fragment allocates from
F_PAGES = 8  # logical pages ever created
F_RELEASED = 9  # logical pages freed and not created again
F_RELEASED_HINT = 10  # no released page has a smaller number
F_FREE_HEAD = 11  # list of pages with free slots
F_FREE_TAIL = 12
F_ROWS = 13  # LIVE rows
F_RESERVED_ROWS = 14
F_FIXED_PAGES = 15
F_VAR_PAGES = 16
F_REPLAY_EPOCH = 17  # restart: operations of epochs <= this are in the loaded local checkpoint
F_SCHEMA_VERSION = 18
F_LCP_ACTIVE = 24  # 0 none, 1 writing, 2 clearing bits after an abandoned checkpoint
F_LCP_POSITION = 25  # first ROWID the scan has not passed
F_LCP_PAGES = 26  # logical pages when the checkpoint began; the scan ignores later pages
F_LCP_EPOCH = 27
F_LCP_COPIED = 29  # old rows written by commits
F_OWNER = 30  # descriptor of the table
F_HAS_DISK = 31
F_TABLESPACE = 32  # descriptor of the tablespace of its disk parts
F_DISK_ANY = 33  # page class 1 begins here: free words that hold any piece of this table
F_DISK_SMALL = 34  # page class 2 begins here
F_DISK_WORDS = 35  # words of every piece, if all are equal; 0 if they differ, -1 if disk parts may be chained
F_DISK_CURRENT = 36  # extent that serves requests, outside the matrix; 0 none
F_DISK_EXTENTS = 37  # list of all its extents
F_DISK_EXTENT_COUNT = 38
F_INDEX_DEPTH = 40
F_INDEX_COUNT = 41
F_INDEX_SEED = 42
F_SEGMENT_BLOCK = 43  # block from which segment descriptors are carved; its word 0 links to the block before
F_SEGMENT_USED = 44  # descriptors carved from it
F_SEGMENTS = 45
F_INDEX_BLOCKS = 46
F_INDEXES = 47  # the table's list of ordered indexes; 0: there is none
F_DROPPED = 48  # 1: its partition was dropped; readers skip its rows when they find one by an index
F_VAR_SINCE = 53  # schema version that gave rows a var part, found through side pages; 0: no side pages
F_LCP_HAS_VAR = 54  # 1: entries of the local checkpoint that is being written or loaded have a var part
F_CAPTURE = 55  # which before-images are logged: one of CAPTURE_
F_VAR_LISTS = 64  # 16 lists of var pages by free space
VAR_CLASSES = 16
F_DISK_DIRTY = 80  # 4 lists of open pages that are dirty, by class
F_DISK_REQUESTS = 84  # 4 lists of open pages that are only reserved, by class
F_DISK_MATRIX = 88  # 5 x 4 lists of extents: free space x best page class
DISK_CLASSES = 4
MATRIX_ROWS = 5
F_DIRECTORY = 128  # up to 256 directory leaves of 512 entries: depth 17
DIRECTORY_LEAVES = 256
INDEX_DEPTH_MAX = 17
F_MAP = 496  # 16 roots of the page map: 16 * 512 * 512 pages
MAP_ROOTS = 16

# --- fixed page ---------------------------------------------------------------------------------
PAGE_HEADER_WORDS = 8
PG_FRAGMENT = 0
PG_LOGICAL = 1
PG_FREE = 2  # first free slot + 1, 0 none
PG_USED = 3  # used slots | side page << 16; a side page has the var reference of each slot; 0: there is none
PG_PREVIOUS = 4
PG_NEXT = 5
PG_EMPTIED = 6  # "emptied through" epoch
PG_FRESH = 7  # first never-used slot

SIDE_SHIFT = 16
USED_MASK = (1 << SIDE_SHIFT) - 1

# --- row ----------------------------------------------------------------------------------------
ROW_HEADER_WORDS = 2
LOCK_MASK = (1 << 32) - 1
LOCK_OP_MASK = (1 << 30) - 1
LOCK_SHARED = 1 << 30
LOCK_WAITED = 1 << 31
AUTHOR_SHIFT = 32
AUTHOR_MASK = 0xFFFF
STATE_SHIFT = 48
STATE_MASK = 0x3
BIT_SHIFT = 50
LCP_BIT = 1 << BIT_SHIFT
TICK_SHIFT = 51  # with the epoch in the next word: the instant of the row's newest commit
TICK_MASK = 0xFFF
KEPT_BITS = LCP_BIT | TICK_MASK << TICK_SHIFT  # what a slot keeps when its row changes hands
FREE = 0
RESERVED = 1
LIVE = 2
# Ticks from which on no view is opened and no large commit begins before the epoch is closed. A member applies at most
# as many large commits in an epoch as its primary began, each of which takes two ticks.
TICKS_USED = 1_024

# --- view: an instant, and what it shows of it ---------------------------------------------------
VW_ID = 0  # slot | serial << VIEW_SHIFT; 0: none is open here
VW_EPOCH = 1  # it shows what was committed at this instant or before
VW_TICK = 2
VW_SKIPPED = 3  # tick, in this epoch, of a large commit that was unfinished: it is not shown; 0: none was
VW_TABLE = 4  # descriptor of the only table that is read; 0: all may be
VW_FRAGMENT = 5  # number of the fragment being scanned: rows of fragments before it have been read
VW_ROWID = 6  # and so have its rows before this ROWID
VW_WORDS = 8
VIEW_SHIFT = 16

# --- var page -----------------------------------------------------------------------------------
VP_FRAGMENT = 0
VP_FREE_WORDS = 1  # free words, holes included, directory excluded
VP_TOP = 2  # first word after the data
VP_ENTRIES = 3
VP_PREVIOUS = 4
VP_NEXT = 5
VP_FREE_ENTRY = 6  # first free directory entry + 1, 0 none
VP_CLASS = 7
VAR_HEADER_WORDS = 8
VAR_CHUNK_WORDS = 4_000
VAR_CHAINED = 1 << 32
VAR_ENTRY_FREE = 1 << 33
VAR_WORDS_MASK = (1 << 32) - 1
VAR_KEY_WORDS_SHIFT = 44
VAR_KEY_WORDS_MASK = 0xFFF

# --- hash index segment descriptor --------------------------------------------------------------
SEG_WORDS = 16
SEG_DEPTH = 0
SEG_BLOCKS = 1
SEG_COUNT = 2
SEG_OVERFLOW = 3  # block of entries without room in a bucket, 0 none
SEG_OVERFLOW_COUNT = 4
SEG_IS_UNORDERED = 5  # 1 while its entries are in order of arrival, not in buckets: only while a restart loads
SEG_BLOCK = 8  # 8 block addresses
SEG_BLOCKS_MAX = 8
SEGS_PER_BLOCK = BLOCK_WORDS // SEG_WORDS
BUCKET_WORDS = 8
BUCKETS_PER_BLOCK = BLOCK_WORDS // BUCKET_WORDS
TAG_BITS = 29
TAG_MASK = (1 << TAG_BITS) - 1
ENTRY_TAG_SHIFT = 33
ENTRY_USED = 1 << TAG_BITS
COMPACT_MASK = (1 << ENTRY_TAG_SHIFT) - 1
COMPACT_SLOT_BITS = 11
COMPACT_SLOT_MASK = (1 << COMPACT_SLOT_BITS) - 1

# --- operation (a cell) -------------------------------------------------------------------------
O_NEXT = 0
O_BACK = 1
O_TXN = 2
O_FRAGMENT = 3
O_ROWID = 4  # first ROWID | count << 48
O_RECORD = 5  # offset of its record in the transaction's buffer (OP_LOCK: X_SAVEPOINTS) << 16 | flags << 8 | kind
O_VAR = 6  # new var part stored by an update
O_PREVIOUS = 7  # this transaction's previous operation on the same row
ROWID_MASK = (1 << 48) - 1
COUNT_SHIFT = 48
OP_LOCK = 0  # only a lock; the other kinds are the kinds of REDO records
OP_CANCELLED = 1 << 8  # a delete that an insert of the same key has undone
OP_REINSERT = 1 << 9  # the update that undid a delete
OP_WAS_SHARED = 1 << 10  # it replaced the transaction's own shared lock, which is restored if it is undone
OP_DISK_KEPT = 1 << 11  # an update whose record has no disk part
OP_AUTHORED = 1 << 12  # done for another site: the row's author is set to X_AUTHOR
OP_ABSENT = 1 << 13  # a lock of a key without a row: the slot that holds the key is freed with the lock
OP_KIND_MASK = 0xFF
OP_RECORD_SHIFT = 16
RUN_MAX = (1 << 11) - 1  # rows of one insert record: 11 bits
MODE_INSERT = 0
MODE_WRITE = 1
MODE_UPDATE = 2
MODE_DELETE = 3
MODE_LOCK = 4
MODE_UPDATE_KEPT = 6  # the images have no disk part; the one on disk stays
MODE_BITS = 8  # above these bits: T_FORMAT of the images that a call passes
MODE_MASK = (1 << MODE_BITS) - 1
MODE_FIND = 5  # report the row's place and lock word as evidence
CAPTURE_NONE = 0
CAPTURE_CHANGED = 1  # with the disk part of an update only if it changes
CAPTURE_WHOLE = 2  # with the disk part in any case
ENTRY_WORDS = 3  # words before the image in scan, read and local-checkpoint entries

# --- transaction descriptor ---------------------------------------------------------------------
TXN_WORDS = 32
X_FIRST = 0
X_LAST = 1
X_USED = 2  # words used in the buffer
X_OPS = 3
X_COPY_WORDS = 4  # words reserved for copies into a local checkpoint
X_CURSOR = 5  # commit: next operation to apply
X_CHANGES = 6  # operations that change rows
X_AUTHOR = 7  # author of its operations for another site
X_ROW = 8  # evidence of the last call: index of the row in the batch
X_FRAGMENT = 9
X_ROWID = 10
X_LOCK = 11  # lock word found
X_KINDS = 12  # bit k: it has had operations of kind k, a kind of REDO record
X_UPDATES = 1 << 3
X_DELETES = 1 << 4
X_WOKEN = 13  # locks with waiters that commit or abort released
X_SAVEPOINTS = 14  # savepoints begun so far
X_SLOT = 15  # number of the transaction in the lock table
X_STATE = 16
X_RUN = 17  # insert run that the next row may extend, 0 none
X_TAIL_WORD = 18  # word 3 of its records: any-value | author << 32
X_REDO_WORDS = 19  # words of REDO log reserved for it
X_UNDO_WORDS = 20  # words of UNDO log reserved for it
X_PAGE = 21  # evidence of the last call: number of the disk page it needs
X_DISK = 22  # operations that change disk parts
X_PIECE = 23  # commit: finished rows of the current insert run
X_CHUNK = 24  # commit: written chunks of the current disk part
X_LINK = 25  # commit: page of the next chunk to write, or reference of the next one to free
X_UNDO_PAGE = 27  # page of the last record reserved: the next one on it needs no padding
X_FREEING = 26  # commit: 1 while chunks of an old disk part are being freed
X_GENERATION = 28  # S_INDEX_GENERATION when it began: it reserves for and changes indexes up to this one
X_UNIQUE = X_PAGE  # evidence of the last call: unique index that already has the key
X_INDEXED = 29  # most entries of ordered indexes its commit adds and removes
X_SPOOLED = 30  # not 0: its records go to a file; after ST_SPOOLED, the offset of the record that is in the file only
X_VIEW = 31  # number of the view by which it reads, 0 for none: it locks no row that has changed since

# --- status codes of kernels --------------------------------------------------------------------
OK = 0
ST_DUPLICATE = -1
ST_MISSING = -2
ST_BUSY = -3  # another transaction holds the row's lock
ST_MEMORY = -4  # data_memory exhausted
ST_SPACE = -100  # a buffer is too small; reads return ST_SPACE - words needed
ST_COPIES = -6  # checkpoint_memory is fully reserved
ST_INVARIANT = -7
ST_MORE = -8  # bounded call ended early; call again
ST_PAGES = -9  # the fragment has reached its limit of pages
ST_REDO = -10  # the REDO log is fully reserved
ST_PAGE = -11  # a disk page must be read into memory first
ST_UNDO = -12  # the UNDO log is fully reserved
ST_EXTENT = -13  # the tablespace has no free extent
ST_DAMAGED = -14  # a disk page contradicts its rows
ST_PARTITION = -15  # no partition takes the row
ST_UNIQUE = -18  # another row has the key in a unique index
ST_ALTERED = -21  # the images are of an older version of the table
ST_SHAPE = -16  # the commit changes indexes or disk parts that this kernel does not handle: call another
ST_SPOOLED = -17  # a record of the transaction is in its spool file only: X_SPOOLED says which
ST_DROPPED = -22  # the handle is stale: the table, partition or index was dropped
ST_TOO_OLD = -20  # a view was closed or abandoned, or has lost a disk part
ST_CHANGED = -23  # the table has changed since the view was opened: read it through the version store
ST_UNFINISHED = -24  # the row, or its absence, is part of a large commit that is being applied: wait for its end
ST_CONFLICT = -25  # another transaction has changed the row since this one's view was opened

# --- local checkpoint of a fragment: values of F_LCP_ACTIVE, words of the shape of its entries -------
ENTRY_SHAPE_WORDS = 4
LCP_OFF = 0
LCP_WRITING = 1
LCP_ABANDONED = 2

assert BLOCKS_PER_PAGE * BLOCK_WORDS == PAGE_WORDS
assert 1 << BLOCK_SHIFT == BLOCK_WORDS
assert F_SCHEMA_VERSION < D_GENERATION < F_LCP_ACTIVE and T_CAPTURE < D_GENERATION, "a word no descriptor has"
assert GENERATION_MAX + 1 < 1 << 63 - HANDLE_BLOCK_BITS, "a handle is positive"
assert F_VAR_LISTS + VAR_CLASSES <= F_DISK_DIRTY
assert F_DISK_MATRIX + MATRIX_ROWS * DISK_CLASSES <= F_DIRECTORY
assert F_DIRECTORY + DIRECTORY_LEAVES <= F_MAP
assert F_MAP + MAP_ROOTS == BLOCK_WORDS
assert PAGE_WORDS <= 1 << SIDE_SHIFT and F_VAR_LISTS > F_CAPTURE
assert TAG_BITS + 1 + ENTRY_TAG_SHIFT == 63, "an index entry stays non-negative"
assert SEG_BLOCK + SEG_BLOCKS_MAX == SEG_WORDS
assert (1 << INDEX_DEPTH_MAX) == DIRECTORY_LEAVES * BLOCK_WORDS
assert TICK_SHIFT + 12 == 63 and TICKS_USED * 4 <= TICK_MASK + 1
assert X_UNDO_PAGE < TXN_WORDS and X_INDEXED < TXN_WORDS and X_VIEW < TXN_WORDS
