"""Rows that an open transaction holds in a partition are gone with it.

Story: the log has their records after the drop, and the binlog once reported them. A replica put them into the range
above, or stopped at a key that fits no partition.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.log.test_follower import COLUMNS, Net, capture, captured, follower, nets, read_all, values
from tidemark.engine.applied import noted_rows
from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.log.follower import FollowPoint, LogFollower
from tidemark.engine.log.redo_layout import FRAGMENT_MASK, FRAGMENT_SHIFT, GROUP_WORDS, KIND_REFRESH, TRANSACTION_WORDS
from tidemark.engine.log.row_changes import ChangeReader, RowChanges, SchemaChange
from tidemark.recovery.local_checkpoint.control import read_controls

WIDTH = 500
RANGES = tm.RangePartition("id", [("low", WIDTH), ("middle", 2 * WIDTH), ("high", 3 * WIDTH)])
MIDDLE = range(WIDTH, 2 * WIDTH)
# With little memory for a transaction its records go to a file, and rows changed more than once come last.
MEMORY = pytest.mark.parametrize("memory", ["1 MiB", "64 KiB"], ids=["at once", "spooled"])


def row(key: int, number: int | None = None) -> dict[str, Any]:
    return {"id": key, "number": key if number is None else number, "name": "n" * (key % 30)}


def work(txn: Any) -> dict[int, tuple[Any, Any]]:
    """Change rows of all partitions, some of them more than once; row before and after by key."""
    even, odd = range(0, 3 * WIDTH, 2), range(1, 3 * WIDTH, 2)
    txn.insert_many("t", [row(key) for key in odd])
    txn.update_many("t", [{"id": key, "number": -key} for key in even])
    txn.update_many("t", [{"id": key, "number": key + 1} for key in even if key % 4 == 0])
    txn.delete_many("t", [key for key in even if key % 10 == 0])
    txn.delete_many("t", [key for key in odd if key % 5 == 0])
    reported: dict[int, tuple[Any, Any]] = {key: (None, row(key)) for key in odd if key % 5}
    for key in even:
        after = row(key, key + 1 if key % 4 == 0 else -key)
        reported[key] = (row(key), None if key % 10 == 0 else after)
    return reported


def made(memory: str) -> Any:
    db = captured({"t": COLUMNS}, partition=RANGES, transaction_memory=memory, undo_log="32 MiB")
    db["t"].insert_many([row(key) for key in range(0, 3 * WIDTH, 2)])
    return db


def changes_of(db: Any, by: LogFollower) -> list[RowChanges | SchemaChange]:
    found = [part for _, parts in read_all(db, by) for part in parts]
    by.close()
    return found


def rows_in(parts: list[RowChanges | SchemaChange]) -> list[Net]:
    return [net for part in parts if isinstance(part, RowChanges) for net in nets(part)]


def by_key(rows: list[Net]) -> dict[int, tuple[Any, Any]]:
    found = {(before or after)["id"]: (before, after) for _, before, after in rows}
    assert len(found) == len(rows)
    return found


@MEMORY
def test_rows_of_a_dropped_partition_that_are_committed_after_the_drop_are_not_reported(memory: str) -> None:
    db = made(memory)
    with db.transaction() as txn:
        reported = work(txn)
        db.drop_partition("t", "middle")
        txn.insert("t", row(MIDDLE[7]))  # the range above takes it now
        db["t"].insert(row(MIDDLE[8]))
        db.checkpoint()
    db["t"].update(MIDDLE[7], {"number": 5})
    wanted = {key: images for key, images in reported.items() if key not in MIDDLE}
    wanted[MIDDLE[7]] = (None, row(MIDDLE[7]))
    last = ("t", row(MIDDLE[7]), row(MIDDLE[7], 5))

    parts = changes_of(db, follower(db))
    drop = max(number for number, part in enumerate(parts) if isinstance(part, SchemaChange))
    first, *rows, update = rows_in(parts[drop:])
    assert (first, update) == (("t", None, row(MIDDLE[8])), last)
    assert by_key(rows) == wanted

    # Reading that begins between the drop and the commit knows the drop by the tables of the local checkpoint.
    control = read_controls(db.parts.files, db.parts.opened.sysfile.store)[0]
    point = FollowPoint(control.start_lsn, control.start_sequence, tuple(control.tables))
    *rows, update = rows_in(changes_of(db, follower(db, point)))
    assert update == last and by_key(rows) == wanted


@MEMORY
def test_transaction_with_rows_of_dropped_partitions_and_tables_alone_logs_nothing(memory: str) -> None:
    db = made(memory)
    db.create_table("other", COLUMNS, "id")
    capture(db, "other")
    with db.transaction() as txn:
        for name in ("t", "other"):
            txn.insert_many(name, [row(key) for key in MIDDLE if key % 2])
            txn.update_many(name, [{"id": key, "number": 0} for key in MIDDLE if key % 2])
        db.drop_partition("t", "middle")
        db.drop_table("other")
        db.create_table("other", COLUMNS, "id")
    parts = changes_of(db, follower(db))
    assert isinstance(parts[-1], SchemaChange)
    assert len(db["t"]) == WIDTH and len(db["other"]) == 0


def test_absent_row_of_a_dropped_partition_is_not_reported_absent_after_the_range_above_has_it() -> None:
    """Story: an absence was reported under the first partition, whichever that was. It outlived its own partition, and
    removed the new row.
    """
    db = made("1 MiB")
    absent = [1, MIDDLE[1], MIDDLE[-1] + 2, 4 * WIDTH]  # no range takes the last one
    for gone, kept in (("middle", [absent[0], *absent[2:]]), ("low", absent[1:3])):
        with db.transaction() as txn:
            noted_rows.refresh_rows(txn, db.parts.store.tables.named("t"), pa.RecordBatch.from_pydict({"id": absent}))
            db.drop_partition("t", gone)
            if gone == "middle":
                db["t"].insert(row(MIDDLE[1]))
        if gone == "middle":
            db["t"].delete(MIDDLE[1])
        parts = changes_of(db, follower(db))
        reported = [part for part in parts if isinstance(part, RowChanges) and part.kind == KIND_REFRESH]
        keys = [values(each, int(place), False)["id"] for each in reported[-1:] for place in each.before]
        assert keys == kept


def test_record_of_a_partition_there_never_was_is_redo_damaged() -> None:
    db = made("1 MiB")
    db.sync()
    reading = ChangeReader([db["t"].definition])
    by = follower(db)
    table = by.group(0, 1, db.parts.store.log.durable_lsn)
    group = by.group(table.end_lsn, 2, db.parts.store.log.durable_lsn)
    by.close()
    words = group.words[GROUP_WORDS : GROUP_WORDS + group.records_words].copy()
    assert sum(each.count for each in reading.piece(words, 0, words.size)) == 3 * WIDTH // 2
    identity = TRANSACTION_WORDS + 1
    words[identity] = words[identity] & ~(FRAGMENT_MASK << FRAGMENT_SHIFT) | 3 << FRAGMENT_SHIFT
    with pytest.raises(RedoDamaged, match="partition"):
        list(reading.piece(words, 0, words.size))
