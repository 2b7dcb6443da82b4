"""UNDO groups decoded for people: one plain dict per group and record. Of a piece only ROWID and size are listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.engine.disk import disk_layout as d
from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK, SLOT_BITS, SLOT_MASK

if TYPE_CHECKING:
    from tidemark.engine.disk.undo_reader import UndoGroup
    from tidemark.engine.log.listing import Dictionary, Entry
    from tidemark.engine.memory.arena import Words

NAMES = {
    d.UNDO_ALLOC: "undo alloc",
    d.UNDO_UPDATE: "undo update",
    d.UNDO_FREE: "undo free",
    d.UNDO_CREATE: "undo create",
    d.UNDO_DROP: "undo drop",
    d.UNDO_LCP: "undo lcp",
    d.UNDO_RESTART: "undo restart",
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
    kind, size = words[0] & d.UNDO_KIND_MASK, words[0] >> d.UNDO_WORDS_SHIFT
    entry: dict[str, Any] = {"kind": NAMES[kind], "lsn": words[1]}
    if kind in (d.UNDO_CREATE, d.UNDO_DROP):
        return entry | {"table": dictionary.name(words[2])}
    if kind == d.UNDO_LCP:
        return entry | {"lcp_id": words[2], "epoch": words[3]}
    if kind == d.UNDO_RESTART:
        place = {"lcp_lsn": words[3], "sequence": words[4], "position": words[5]}
        return entry | {"lcp_id": words[2], **place}
    page = words[2] >> SLOT_BITS
    entry |= {
        "table": dictionary.name(words[3] & d.OWNER_TABLE_MASK),
        "fragment": words[3] >> d.OWNER_FRAGMENT_SHIFT,
        "epoch": words[4],
        "data_file": page >> FILE_SHIFT,
        "page": page & PAGE_IN_FILE_MASK,
        "slot": words[2] & SLOT_MASK,
    }
    if kind != d.UNDO_ALLOC:
        entry |= {"rowid": words[5] & d.PIECE_ROWID_MASK, "words": size - d.UNDO_RECORD_WORDS}
    return entry
