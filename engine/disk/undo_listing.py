"""UNDO groups decoded for people: one plain dict per group and record. Of a piece only ROWID and size are listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK, SLOT_BITS, SLOT_MASK
from tidemark.engine.disk.disk_layout import (
    OWNER_FRAGMENT_SHIFT,
    OWNER_TABLE_MASK,
    PIECE_ROWID_MASK,
    UNDO_ALLOC,
    UNDO_CREATE,
    UNDO_DROP,
    UNDO_FREE,
    UNDO_KIND_MASK,
    UNDO_LCP,
    UNDO_RECORD_WORDS,
    UNDO_RESTART,
    UNDO_UPDATE,
    UNDO_WORDS_SHIFT,
)

if TYPE_CHECKING:
    from tidemark.engine.disk.undo_reader import UndoGroup
    from tidemark.engine.log.listing import Dictionary, Entry
    from tidemark.engine.memory.arena import Words

NAMES = {
    UNDO_ALLOC: "undo alloc",
    UNDO_UPDATE: "undo update",
    UNDO_FREE: "undo free",
    UNDO_CREATE: "undo create",
    UNDO_DROP: "undo drop",
    UNDO_LCP: "undo lcp",
    UNDO_RESTART: "undo restart",
}


def list_undo_group(group: UndoGroup, offsets: Words, dictionary: Dictionary) -> Iterator[Entry]:
    """Yield the group, then its records, oldest first. offsets: as `UndoReader.offsets_of` returns them."""
    yield {
        "kind": "undo group",
        "position": group.position,
        "sequence": group.sequence,
        "lsn": group.first_lsn,
        "next_lsn": group.next_lsn,
        "records": group.records,
        "filtered": group.filtered,
        "bytes": group.size_bytes,
    }
    for at in offsets.tolist():
        yield _record([int(word) for word in group.words[at : at + 6]], dictionary)


def _record(words: list[int], dictionary: Dictionary) -> Entry:
    kind, size = words[0] & UNDO_KIND_MASK, words[0] >> UNDO_WORDS_SHIFT
    entry: dict[str, Any] = {"kind": NAMES[kind], "lsn": words[1]}
    if kind in (UNDO_CREATE, UNDO_DROP):
        return entry | {"table": dictionary.name(words[2])}
    if kind == UNDO_LCP:
        return entry | {"lcp_id": words[2], "epoch": words[3]}
    if kind == UNDO_RESTART:
        place = {"lcp_lsn": words[3], "sequence": words[4], "position": words[5]}
        return entry | {"lcp_id": words[2], **place}
    page = words[2] >> SLOT_BITS
    entry |= {
        "table": dictionary.name(words[3] & OWNER_TABLE_MASK),
        "fragment": words[3] >> OWNER_FRAGMENT_SHIFT,
        "epoch": words[4],
        "data_file": page >> FILE_SHIFT,
        "page": page & PAGE_IN_FILE_MASK,
        "slot": words[2] & SLOT_MASK,
    }
    if kind != UNDO_ALLOC:
        entry |= {"rowid": words[5] & PIECE_ROWID_MASK, "words": size - UNDO_RECORD_WORDS}
    return entry
