"""The fuzzy local checkpoint that NDB shipped, emulated on the store's own rows, for memory tables only.

The scan writes each live row once, as it is when the scan reaches it. Updates copy nothing; an old row is kept only
when a row the scan has not reached is deleted. What is real: the scan through every row in slices of the same size, its
entries and blocks, the data files and their syncs, and commits that copy nothing. What is not: kept rows are counted by
the driver (a slice of the scan more or less) instead of written, rows inserted meanwhile are written too where NDB
skips them, and no control file is written, so nothing is ever restored from it.
"""

from __future__ import annotations

import time
from typing import Any

from tidemark.engine.jit.kernel import kernel
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import (
    F_LCP_ACTIVE,
    F_LCP_PAGES,
    F_LCP_POSITION,
    F_ROW_WORDS,
    LCP_ABANDONED,
    LCP_BIT,
    LCP_OFF,
    LIVE,
    OK,
    PAGE_HEADER_WORDS,
    PAGE_SHIFT,
    PG_FRESH,
    ST_DROPPED,
    ST_MORE,
    ST_SPACE,
    STATE_MASK,
    STATE_SHIFT,
)
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.lcp_kernels import start_lcp
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.store.fragment_scan import SCAN_SLOTS
from tidemark.recovery.local_checkpoint.data_file import FOLDER, DataFileWriter, data_name, new_span


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1])")
def scan_fuzzy(mem, fragment, out, limit, state):  # type: ignore[no-untyped-def]
    """`scan_lcp` without the checkpoint bit: every live row is written as it is now."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return ST_DROPPED
    looked = 0
    row_words = mem[fragment + F_ROW_WORDS]
    position = mem[fragment + F_LCP_POSITION]
    while position >> 16 < mem[fragment + F_LCP_PAGES]:
        page = map_get(mem, fragment, position >> 16)
        base = page << PAGE_SHIFT
        if page <= 0 or position & 0xFFFF >= mem[base + PG_FRESH]:
            position = ((position >> 16) + 1) << 16
            mem[fragment + F_LCP_POSITION] = position
            looked += 1
            if looked >= limit:
                return ST_MORE
            continue
        if looked >= limit:
            return ST_MORE
        looked += 1
        row = base + PAGE_HEADER_WORDS + (position & 0xFFFF) * row_words
        head = mem[row]
        if (head >> STATE_SHIFT) & STATE_MASK == LIVE:
            need = entry_words(mem, fragment, row, False)
            if state[0] + need > out.size:
                return ST_SPACE - need
            state[0] += write_entry(mem, out, fragment, position, row, False, out, state[0])
            state[1] += 1
        mem[row] = head & ~LCP_BIT
        position += 1
        mem[fragment + F_LCP_POSITION] = position
    mem[fragment + F_LCP_ACTIVE] = LCP_OFF
    return OK


def fuzzy_checkpoint(db: Any) -> dict[str, Any]:
    """Make a fuzzy checkpoint; return a report like `db.checkpoint()`. Its files are removed, so that no restart uses
    them.
    """
    store, files, lcp = db.parts.store, db.parts.files, db.parts.lcp
    began = time.monotonic()
    lcp_id = lcp.next_id
    lcp.next_id += 1
    with store.latch:
        epoch, _, _ = store.epochs.close()
        for table in store.tables.by_name.values():
            for fragment in table.fragments:
                start_lcp(store.mem, fragment, epoch)
                # In this state commits mark rows not yet passed and copy nothing.
                store.mem[address_of(fragment) + F_LCP_ACTIVE] = LCP_ABANDONED
    rows = size_bytes = 0
    names = []
    span = new_span()
    for table in store.tables.by_name.values():
        for number, fragment in enumerate(table.fragments):
            name = data_name(lcp_id, table.table_id, number)
            writer = DataFileWriter(files, name, db.parts.opened.identity, (lcp_id, table.table_id, number), span)
            status = ST_MORE
            while status != OK:
                status = scan_fuzzy(store.mem, fragment, writer.block, SCAN_SLOTS, writer.state)
                if status <= ST_SPACE:
                    writer.make_room(ST_SPACE - status)
            writer.close()
            names.append(name)
            rows += writer.entries
            size_bytes += writer.size_bytes
    files.sync_directory(FOLDER)
    store.log.flush()  # the checkpoint has changes up to its end, so the log must be durable up to there
    seconds = time.monotonic() - began
    for name in names:
        files.unlink(name)
    return {"rows": rows, "copies_bytes": 0, "size_bytes": size_bytes, "seconds": seconds, "copied_rows": 0}
