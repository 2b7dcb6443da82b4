"""REDO groups as a readable listing: one dict for each group, transaction and operation.

Values are decoded as those of rows in memory. An operation on a table that is no longer known is listed without key and
values. Sizes are checked before they are used, although the group's checksum covers them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import PageDamaged, RedoDamaged, Rejected
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.log.records import Frame, InvalidRecord, frames, schema_of
from tidemark.engine.log.redo_layout import (
    ANY_VALUE_MASK,
    AUTHOR_MASK,
    AUTHOR_SHIFT,
    COUNT_MASK,
    COUNT_SHIFT,
    FLAG_DISK_KEPT,
    FLAG_VAR_KEPT,
    FLAGS_MASK,
    FLAGS_SHIFT,
    FRAGMENT_MASK,
    FRAGMENT_SHIFT,
    GROUP_WORDS,
    KIND_BEFORE,
    KIND_DELETE,
    KIND_FILES,
    KIND_INSERT,
    KIND_MASK,
    KIND_NOOP,
    KIND_REFRESH,
    KIND_SCHEMA,
    KIND_TRANSACTION,
    KIND_UPDATE,
    OPERATION_WORDS,
    ROWID_MASK,
    SCHEMA_VERSION_MASK,
    SCHEMA_VERSION_SHIFT,
    TABLE_MASK,
    WORDS_SHIFT,
)
from tidemark.engine.log.spool_reader import referred
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.rows.row_part import image_words
from tidemark.engine.schema.definition import TableDefinition

if TYPE_CHECKING:
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.log.spool_reader import SpoolReader
    from tidemark.engine.memory.arena import Words

Entry = dict[str, Any]

NAMES = {
    KIND_TRANSACTION: "transaction",
    KIND_INSERT: "insert",
    KIND_UPDATE: "update",
    KIND_DELETE: "delete",
    KIND_REFRESH: "refresh",
    KIND_SCHEMA: "schema",
    KIND_FILES: "files",
    KIND_NOOP: "noop",
    KIND_BEFORE: "before",
}
WITH_IMAGES = (KIND_INSERT, KIND_UPDATE, KIND_BEFORE, KIND_REFRESH)


class Dictionary:
    """Row formats by table number, for every definition seen so far; a number is never reused."""

    def __init__(self, definitions: Iterable[TableDefinition] = ()) -> None:
        self._formats: dict[int, RowFormat] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, definition: TableDefinition) -> None:
        """Add a table."""
        self._formats[definition.table_id] = RowFormat(definition)

    def get(self, table_id: int) -> RowFormat | None:
        """Return the row format of a table, None if it is not known."""
        return self._formats.get(table_id)

    def name(self, table_id: int) -> str:
        """Return the name of a table, or its number if the table is not known."""
        found = self._formats.get(table_id)
        return f"#{table_id}" if found is None else found.definition.name


def list_group(group: GroupRead, dictionary: Dictionary) -> Iterator[Entry]:
    """Yield the group, then its transactions, each before its operations. Raises: RedoDamaged for impossible sizes and
    schema records; PageDamaged for invalid images.
    """
    yield {
        "kind": "group",
        "lsn": group.lsn,
        "sequence": group.sequence,
        "epoch": group.epoch,
        "wall_us": group.wall_us,
        "transactions": group.transactions,
        "bytes": group.end_lsn - group.lsn,
    }
    for at, kind, end in _frames(group, GROUP_WORDS, GROUP_WORDS + group.records_words):
        if kind == KIND_TRANSACTION:
            yield {
                "kind": "transaction",
                "lsn": group.lsn + at * 8,
                "txid": int(group.words[at + 1]),
                "operations": int(group.words[at + 2]),
                "words": int(group.words[at]) >> WORDS_SHIFT,
            }
        elif kind == KIND_SCHEMA:
            yield _schema(group, at, end, dictionary)
        elif kind == KIND_FILES:
            yield _files(group, at)
        else:
            yield from _operation(group, at, end - at, dictionary)


def _frames(group: GroupRead, start: int, stop: int) -> Iterator[Frame]:
    try:
        yield from frames(group.words, start, stop)
    except InvalidRecord as error:
        raise _impossible(group, error.at) from error


def _files(group: GroupRead, at: int) -> Entry:
    what = referred(group)
    if what is None:
        raise _impossible(group, at)
    return {
        "kind": "files",
        "lsn": group.lsn + at * 8,
        "file": what.names[0],
        "files": len(what.files),
        "blocks": what.blocks,
        "words": what.records_words,
        "bytes": what.size_bytes,
    }


def list_spooled(group: GroupRead, reader: SpoolReader, dictionary: Dictionary) -> Iterator[Entry]:
    """Yield the operations in the files that a group refers to, with LSN of the group, file and offset.

    The caller has verified the files. Raises: SpoolDamaged, RedoDamaged for impossible sizes, PageDamaged
    for invalid images.
    """
    for words, start, stop, offset, name in reader.blocks():
        block = replace(group, words=words, records_words=stop - start)
        for at, _, end in _frames(block, start, stop):
            for entry in _operation(block, at, end - at, dictionary):
                yield {**entry, "lsn": group.lsn, "file": name, "offset": offset + at * 8}


def _impossible(group: GroupRead, at: int) -> RedoDamaged:
    return RedoDamaged(
        f"REDO group {group.sequence} has an impossible record at LSN {group.lsn + at * 8}; restore from a backup",
        lsn=group.lsn + at * 8,
    )


def _schema(group: GroupRead, at: int, end: int, dictionary: Dictionary) -> Entry:
    try:
        change = schema_of(group.words, at, end)
        for kind in ("create", "alter"):
            if kind in change:
                dictionary.add(TableDefinition.from_json(json.dumps(change[kind]).encode()))
    except (InvalidRecord, ValueError, TypeError, RecursionError, Rejected) as error:
        raise _impossible(group, at) from error
    return {"kind": "schema", "lsn": group.lsn + at * 8, "epoch": group.epoch, "change": change}


def _operation(group: GroupRead, at: int, size: int, dictionary: Dictionary) -> Iterator[Entry]:
    words = group.words
    kind = int(words[at]) & KIND_MASK
    entry: Entry = {"kind": NAMES.get(kind, f"kind {kind}"), "lsn": group.lsn + at * 8}
    if size < OPERATION_WORDS:
        yield entry
        return
    identity, place, tail = (int(words[at + 1]), int(words[at + 2]), int(words[at + 3]))
    table_id = identity & TABLE_MASK
    rows = place >> COUNT_SHIFT if kind == KIND_INSERT else 1
    if not 0 < rows <= COUNT_MASK:
        raise _impossible(group, at)
    entry |= {
        "table": dictionary.name(table_id),
        "fragment": identity >> FRAGMENT_SHIFT & FRAGMENT_MASK,
        "rowid": place & ROWID_MASK,
        "epoch": group.epoch,
        "author": tail >> AUTHOR_SHIFT & AUTHOR_MASK,
        "any_value": tail & ANY_VALUE_MASK,
    }
    row_format = dictionary.get(table_id)
    if kind not in WITH_IMAGES or row_format is None:
        yield {**entry, "rows": rows} if kind == KIND_INSERT else entry
        return
    image, stop = at + OPERATION_WORDS, at + size
    kept = int(words[at]) >> FLAGS_SHIFT & FLAGS_MASK if kind != KIND_INSERT else 0
    schema_version = identity >> SCHEMA_VERSION_SHIFT & SCHEMA_VERSION_MASK
    has_var, has_disk = not kept & FLAG_VAR_KEPT, not kept & FLAG_DISK_KEPT
    if schema_version < row_format.layout.var_since:
        has_var = False  # from before the table had var parts
    for number in range(rows):
        taken = image_size(row_format, words, image, stop, has_var, has_disk)
        if taken < 0 or (number + 1 == rows and image + taken != stop):
            raise _impossible(group, at)
        values = decode_image(row_format, words, image, has_var, has_disk)
        key = key_of(row_format, values)
        if kind == KIND_REFRESH:
            yield {**entry, "key": key}  # a REFRESH image has nothing else
            return
        yield {**entry, "rowid": entry["rowid"] + number, "key": key, "values": values}
        image += taken


def image_size(
    row_format: RowFormat, words: Words, at: int, stop: int, has_var: bool = True, has_disk: bool = True
) -> int:
    """Return the size in words of the row image at words[at:]; -1 if it is invalid or ends past `stop`.

    has_var, has_disk: whether the image contains these parts.
    """
    try:
        return image_words(row_format.layout, words[:stop].data.cast("B"), at * WORD_BYTES, has_var, has_disk)
    except PageDamaged:
        return -1


def decode_image(
    row_format: RowFormat, words: Words, at: int, has_var: bool = True, has_disk: bool = True
) -> dict[str, Any]:
    """Return the values of the row image at words[at:] by column name; flags as in `image_size`.

    Raises: PageDamaged.
    """
    return row_format.decode_present(words.data.cast("B"), at, has_var, has_disk)


def key_of(row_format: RowFormat, values: dict[str, Any]) -> Any:
    """Return the primary key among the values, a list if it has several columns, None if the values lack it."""
    key = [values.get(name) for name in row_format.definition.primary_key]
    return key[0] if len(key) == 1 else key if None not in key else None
