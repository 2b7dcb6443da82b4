"""Groups of the log with right checksums and impossible records (F112): refused, with nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.recovery.support import put, refused, resealed
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.log.listing import Dictionary, list_group
from tidemark.engine.log.reader import GroupRead
from tidemark.engine.log.redo_layout import (
    AUTHOR_MASK,
    AUTHOR_SHIFT,
    GROUP_WORDS,
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_MAX,
    KIND_NOOP,
    KIND_SCHEMA,
    KIND_UPDATE,
    ROWID_MASK,
    TRANSACTION_WORDS,
    pack_identity,
    pack_kind,
    pack_rows,
)
from tidemark.engine.log.row_changes import ChangeReader
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.sealed_layout import KIND_GROUP
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "redo/0000.redo"
RECORD = GROUP_WORDS + TRANSACTION_WORDS  # the first operation record of the first group: the making of the table


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, "id")
    put(db, 0, 20, 0.0)
    db.close()
    return files.snapshot()


TEXTS = {
    "no json": b"\xff\xfe",
    "half": b'{"create": {',
    "a number": b"5",
    "a list": b'["create"]',
    "nothing": b"{}",
    "no definition": b'{"create": 7}',
    "empty definition": b'{"create": {}}',
    "dropped by name": b'{"drop": "account"}',
    "nested": b"[" * 3_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_schema_record_that_is_none_is_redo_damaged(contents: dict[str, bytes], name: str) -> None:
    # Used to leave the opening as JSONDecodeError, AttributeError or SchemaInvalid.
    words = np.frombuffer(contents[NAME], dtype=np.int64).copy()
    text = TEXTS[name]
    held = int(words[RECORD + 1])
    room = (held + 7) // 8 * 8
    words.data.cast("B")[(RECORD + 2) * 8 : (RECORD + 2) * 8 + room] = text[:room].ljust(room, b"\0")
    words[RECORD + 1] = min(len(text), room)
    refused({**contents, NAME: resealed(words.tobytes())}, tm.RedoDamaged)


@pytest.mark.parametrize("length", [-1, 0, 3, 1 << 40, -(1 << 63)])
def test_schema_record_with_a_false_length_is_redo_damaged(contents: dict[str, bytes], length: int) -> None:
    words = np.frombuffer(contents[NAME], dtype=np.int64).copy()
    assert json.loads(words[RECORD + 2 :].tobytes()[: int(words[RECORD + 1])])["create"]["name"] == "test.account"
    words[RECORD + 1] = length
    refused({**contents, NAME: resealed(words.tobytes())}, tm.RedoDamaged)


def test_any_word_of_the_records_changed_is_refused_or_gives_whole_rows(contents: dict[str, bytes]) -> None:
    # Kernels that replay must stay inside their arrays whatever a sealed group contains; values may of course differ.
    rows = rows_of(open_memory(MemoryFiles.from_snapshot(contents)))
    log = contents[NAME]
    group = next(at for at in range(4_096, len(log), 4_096) if log[at + 8 : at + 10] == b"GT")
    refusals = 0
    for word in range(GROUP_WORDS, GROUP_WORDS + 24):
        for value in (0, -1, 1 << 62, 0x7FFF_FFFF_FFFF_FFFF, 1, 1 << 17 | 2):
            words = np.frombuffer(log, dtype=np.int64).copy()
            words[group // 8 + word] = value
            files = MemoryFiles.from_snapshot({**contents, NAME: resealed(words.tobytes(), group)})
            before = files.snapshot()
            try:
                db = open_memory(files)
            except (tm.Damaged, tm.MemoryExhausted):
                refusals += 1
                assert files.snapshot() == before
                continue
            try:
                assert len(rows_of(db)) <= len(rows)
            except tm.PageDamaged:
                refusals += 1
    assert refusals > 20


def test_outcome_out_of_a_group_that_is_not_made_of_transactions_is_redo_damaged() -> None:
    """A group of the kept log began with an impossible record, and `outcome` stepped over the rest of the group: a
    committed transaction was "aborted".
    """
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, "id")
    with db.transaction() as txn:
        txn.insert("test.account", (1, "owner", 0.0, None))
    assert db.outcome(txn.txid) == "committed"
    words = np.frombuffer(files.snapshot()[NAME], dtype=np.int64).copy()
    group = max(at for at in range(0, words.size, 512) if words[at + 1] & 0xFFFF == KIND_GROUP)
    assert words[group + GROUP_WORDS + 1] == txn.txid
    words[group + GROUP_WORDS] = 0
    file = files.open(NAME, True)
    files.pwrite(file, 0, resealed(words.tobytes(), group * 8))
    files.close(file)
    with pytest.raises(tm.RedoDamaged):
        db.outcome(txn.txid)


@pytest.fixture(scope="module", params=["memory", "disk"])
def changed(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """A store whose log has an INSERT, an UPDATE and a DELETE in groups of their own."""
    files = MemoryFiles()
    db = open_memory(files)
    column = tm.Column("value", tm.Int64)
    if request.param == "disk":
        db.create_tablespace("main", "256 KiB", page_size="4 KiB", extent="64 KiB")
        column = tm.Column("value", tm.Int64, storage="disk")
    db.create_table("test.account", [tm.Column("id", tm.Int64), column], "id")
    for key in range(4):
        db["test.account"].insert((key, 10 * key))
    db["test.account"].update(1, {"value": 11})
    db["test.account"].delete(2)
    db.close()
    return files.snapshot()


ROWS = {0: (0, 0), 1: (1, 11), 3: (3, 30)}


def bent(contents: dict[str, bytes], kind: int, bend: Callable[[Any], None]) -> dict[str, bytes]:
    """The files, with the last record of a kind changed, and its group sealed."""
    words = np.frombuffer(contents[NAME], dtype=np.int64).copy()
    groups = [at for at in range(0, words.size, 512) if words[at + 1] & 0xFFFF == KIND_GROUP]
    group = max(at for at in groups if words[at + RECORD] & KIND_MASK == kind)
    bend(words[group + RECORD :])
    return {**contents, NAME: resealed(words.tobytes(), group * 8)}


def set_table(record: Any) -> None:
    record[1] = record[1] >> 32 << 32 | 77


def insert_no_rows(record: Any) -> None:
    record[0] += KIND_INSERT - KIND_DELETE
    record[2] &= ROWID_MASK


def two_short_ones(record: Any) -> None:
    record[0] = record[2] = pack_kind(KIND_NOOP, 0, 2)


FORGED: dict[str, tuple[int, Callable[[Any], None]]] = {
    # Was skipped, as if the table had been dropped: a restart lost the change without an error.
    "table that never was": (KIND_UPDATE, set_table),
    # Was replayed as nothing, although group apply and a follower refuse it.
    "insert of no rows": (KIND_DELETE, insert_no_rows),
    # Was skipped by its size, as records of a kind are that a reader does not need.
    "kind 0": (KIND_DELETE, lambda record: record.__setitem__(0, record[0] - KIND_DELETE)),
    "kind above all": (KIND_DELETE, lambda record: record.__setitem__(0, record[0] - KIND_DELETE + KIND_MAX + 1)),
    "no-operations without a table": (KIND_DELETE, two_short_ones),
}


@pytest.mark.parametrize("what", FORGED)
def test_record_that_no_program_writes_is_redo_damaged(changed: dict[str, bytes], what: str) -> None:
    """A restart skipped such a record, or replayed it as nothing: it lost a change without an error."""
    assert rows_of(open_memory(MemoryFiles.from_snapshot(changed))) == ROWS
    refused(bent(changed, *FORGED[what]), tm.RedoDamaged)


@pytest.mark.parametrize("kind", [KIND_INSERT, KIND_UPDATE, KIND_DELETE])
def test_bits_above_the_author_change_nothing_of_the_row(changed: dict[str, bytes], kind: int) -> None:
    """Replay shifted word 3 without a mask: bits above the author went into the state of the row."""
    files = MemoryFiles.from_snapshot(
        bent(changed, kind, lambda record: record.__setitem__(3, record[3] | (AUTHOR_MASK + 1) << AUTHOR_SHIFT))
    )
    db = open_memory(files)
    assert rows_of(db) == ROWS
    assert db.check()["is_sound"]


SHAPE = TableDefinition(7, 1, "t", (tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)), ("id",))


def group_of(kind: int, rows: int, more_words: int = 0) -> GroupRead:
    """A group of one transaction with one record and its image, as if it had this many rows, and words after it."""
    image = [*[1] * (RowFormat(SHAPE).fixed_words), *[0] * more_words]
    return with_record([pack_kind(kind, 0, 4 + len(image)), pack_identity(7, 0, 1), pack_rows(0, rows), 0, *image])


def with_record(record: list[int]) -> GroupRead:
    """A group of one transaction with one record."""
    words = [*[0] * GROUP_WORDS, pack_kind(1, 0, 4 + len(record)), 9, 1, 0, *record]
    return GroupRead(1, 4_096, 9, 0, 0, 1, len(words) - GROUP_WORDS, np.array(words, dtype=np.int64))


def read_by_all(group: GroupRead) -> None:
    """Read the group as `tidemark log` and as a follower does; both must refuse it."""
    dictionary = Dictionary()
    dictionary.add(SHAPE)
    with pytest.raises(tm.RedoDamaged):
        list(list_group(group, dictionary))
    with pytest.raises(tm.RedoDamaged):
        list(ChangeReader([SHAPE]).piece(group.words, GROUP_WORDS, group.words.size))


@pytest.mark.parametrize("kind", [KIND_INSERT, KIND_UPDATE])
def test_words_after_the_last_image_are_refused_by_every_reader(kind: int) -> None:
    """A restart refused such a record, but the listing and a follower read its image and ignored the rest."""
    read_by_all(group_of(kind, 1, more_words=1))


@pytest.mark.parametrize("rows", [1 << 11 | 1, -1 << 15 | 1, 0])
def test_rows_that_no_record_can_have_are_refused_by_every_reader(rows: int) -> None:
    """The listing ignored bits above the number of rows; a follower took a negative number for the size of a list."""
    read_by_all(group_of(KIND_INSERT, rows))


@pytest.mark.parametrize("length", [-1, 1 << 40])
@pytest.mark.parametrize("text", [b"{}", b"5", b"{"])
def test_schema_record_that_is_none_is_refused_by_every_reader(length: int, text: bytes) -> None:
    """A follower let JSONDecodeError and TypeError out, and took a length past the record."""
    body = np.frombuffer(text.ljust(8, b" "), dtype=np.int64).tolist()
    for held in (length, 8) if text != b"{}" else (length,):
        read_by_all(with_record([pack_kind(KIND_SCHEMA, 0, 3), held, *body]))


@pytest.mark.parametrize("change", [{"create": {"format": 1}}, {"alter": []}, {"drop": [7]}, {"create": None}])
def test_schema_record_of_no_definition_is_damage_for_every_reader(change: dict[str, Any]) -> None:
    """Story: a follower let an invalid definition in a SCHEMA record out as SchemaInvalid, which a caller takes for an
    error of its own arguments.
    """
    body = json.dumps(change).encode()
    padded = -(-len(body) // 8)
    held = np.frombuffer(body.ljust(8 * padded, b"\0"), np.int64)
    group = with_record([pack_kind(KIND_SCHEMA, 0, 2 + padded), len(body), *held])
    with pytest.raises(tm.RedoDamaged):
        list(ChangeReader([SHAPE]).piece(group.words, GROUP_WORDS, group.words.size))
