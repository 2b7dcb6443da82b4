"""The follower reads back from the log what transactions did: random histories against a model of dicts."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.applied import noted_rows
from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.log.follower import FollowPoint, LogFollower
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_INSERT, KIND_REFRESH, KIND_UPDATE
from tidemark.engine.log.row_changes import RowChanges, SchemaChange
from tidemark.engine.memory.arena_layout import CAPTURE_CHANGED, CAPTURE_WHOLE
from tidemark.engine.txn.tables import set_capture
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

Row = dict[str, Any]
Net = tuple[str, Any, Any]  # table, row before, row after

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("number", tm.Int32),
    tm.Column("name", tm.VarChar(40), nullable=True),
]
ON_DISK = [
    tm.Column("id", tm.VarChar(12)),
    tm.Column("number", tm.Int32),
    tm.Column("comment", tm.VarChar(60), nullable=True, storage="disk"),
]
FIXED = [tm.Column("id", tm.Int64), tm.Column("number", tm.Int32)]
LARGE = [tm.Column("id", tm.Int64), tm.Column("number", tm.Int32), tm.Column("text", tm.Text, storage="disk")]


def followed(files: MemoryFiles, **options: Any) -> Any:
    db: Any = open_memory(files, redo_log="32 MiB", **options)
    db.parts.store.resources.follows_log = True
    return db


def capture(db: Any, name: str, mode: int = CAPTURE_WHOLE) -> None:
    set_capture(db.parts.store.tables.named(name), mode)


def captured(
    tables: dict[str, list[tm.Column]], mode: int = CAPTURE_WHOLE, partition: Any = None, **options: Any
) -> Any:
    """A store whose log is followed, with tables whose changes it has."""
    db = followed(MemoryFiles(), **options)
    for name, columns in tables.items():
        db.create_table(name, columns, "id", partition)
        capture(db, name, mode)
    return db


def follower(db: Any, point: FollowPoint | None = None) -> LogFollower:
    geometry, store = db.parts.store.log.geometry, db.parts.opened.sysfile.store
    return LogFollower(db.parts.files, geometry, store, point or FollowPoint())


def read_all(db: Any, by: LogFollower, after: int = 0) -> list[tuple[int, list[Any]]]:
    db.sync()
    db.parts.clockwork.advance_epoch()
    epochs = by.epochs(db.parts.store.epochs.current - 1, db.parts.store.log.durable_lsn, after)
    return [(each.epoch, list(each.parts())) for each in epochs]


def changes_of(db: Any, by: LogFollower | None = None) -> list[RowChanges]:
    """All changes of rows that the follower, or a new one, has not read yet."""
    read = read_all(db, by or follower(db))
    return [part for _, parts in read for part in parts if isinstance(part, RowChanges)]


def values(changes: RowChanges, place: int, has_disk: bool) -> Row:
    row_format = changes.row_format
    return row_format.decode_present(
        changes.words.data.cast("B"), place, row_format.has_var, row_format.has_disk and has_disk
    )


def nets(changes: RowChanges) -> list[Net]:
    name = changes.row_format.definition.name.removeprefix("main.")
    rows = []
    for row in range(changes.count):
        before = after = None
        if changes.before is not None:
            before = values(changes, int(changes.before[row]), changes.before_has_disk)
        if changes.after is not None:
            after = values(changes, int(changes.after[row]), changes.after_has_disk)
        expected = {(False, True): KIND_INSERT, (True, True): KIND_UPDATE, (True, False): KIND_DELETE}
        assert changes.kind == expected[before is not None, after is not None]
        rows.append((name, before, after))
    return rows


class Model:
    """Tables as dicts, and what each epoch did to each key, in order."""

    def __init__(self, names: list[str]) -> None:
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in names}
        self.epochs: dict[int, dict[tuple[str, Any], list[Net]]] = defaultdict(lambda: defaultdict(list))

    def commit(self, epoch: int, touched: set[tuple[str, Any]], new: dict[str, dict[Any, Row]]) -> None:
        for name, key in touched:
            before, after = self.tables[name].get(key), new[name].get(key)
            if before is not None or after is not None:
                self.epochs[epoch][name, key].append((name, before, after))
        self.tables = new


def random_row(rng: random.Random, name: str, key: Any) -> Row:
    text = rng.choice([None, "", "x" * rng.randrange(40)])
    row: Row = {"id": key, "number": rng.randrange(1_000)}
    if name == "memory":
        row["name"] = text
    elif name == "disk":
        row["comment"] = text
    elif name == "large":
        row["text"] = "y" * rng.choice([3, 900, 40_000])
    return row


def random_change(rng: random.Random, name: str, key: Any) -> Row:
    row = random_row(rng, name, key)
    names = [each for each in row if each != "id"]
    return {each: row[each] for each in rng.sample(names, rng.randint(1, len(names)))}


def random_operation(rng: random.Random, txn: Any, now: dict[str, dict[Any, Row]], touched: set[Any]) -> None:
    name = rng.choice(list(now))
    number = rng.randrange(12 if name != "large" else 4)
    key: Any = f"k{number}" if name == "disk" else number
    rows = now[name]
    if key not in rows:
        row = random_row(rng, name, key)
        if rng.random() < 0.5:
            txn.insert(name, row)
        else:
            txn.insert_many(name, [row])
        rows[key] = row
    elif rng.random() < 0.3:
        txn.delete(name, key)
        del rows[key]
    elif rng.random() < 0.2:
        txn.get(name, key, lock="exclusive")
        return
    else:
        change = random_change(rng, name, key)
        if rng.random() < 0.3:
            rows[key] = {**random_row(rng, name, key), **change}
            txn.write(name, rows[key])
        else:
            txn.update(name, key, change)
            rows[key] = {**rows[key], **change}
    touched.add((name, key))


def copied(tables: dict[str, dict[Any, Row]]) -> dict[str, dict[Any, Row]]:
    return {name: dict(rows) for name, rows in tables.items()}


class Undone(Exception):
    """Ends a savepoint."""


def random_transaction(rng: random.Random, db: Any, model: Model, operations: int) -> None:
    now, touched = copied(model.tables), set()
    txn = db.transaction()
    for _ in range(operations):
        if rng.random() < 0.15:
            held, before = copied(now), set(touched)
            try:
                with txn.savepoint():
                    for _ in range(rng.randint(1, 4)):
                        random_operation(rng, txn, now, touched)
                    if rng.random() < 0.5:
                        raise Undone
            except Undone:
                now, touched = held, before
        else:
            random_operation(rng, txn, now, touched)
    if rng.random() < 0.1:
        txn.rollback()
        return
    epoch = db.parts.store.epochs.current
    txn.commit(True)
    model.commit(epoch, touched, now)


def check(read: list[tuple[int, list[Any]]], model: Model, after: int = 0) -> None:
    found: dict[int, dict[Any, list[Net]]] = {}
    for epoch, parts in read:
        by_key = found.setdefault(epoch, defaultdict(list))
        for part in parts:
            if isinstance(part, RowChanges):
                for net in nets(part):
                    by_key[net[0], (net[1] or net[2])["id"]].append(net)
    for epoch in sorted({*model.epochs, *found}):
        if epoch > after:
            assert dict(found.get(epoch, {})) == dict(model.epochs.get(epoch, {})), f"epoch {epoch}"


@pytest.mark.parametrize("seed", range(6))
def test_random_transactions_are_read_back_as_what_they_did(seed: int) -> None:
    rng = random.Random(seed)
    tables = {"memory": COLUMNS, "disk": ON_DISK, "fixed": FIXED, "large": LARGE}
    # Little memory for transactions: the longer ones spool.
    db = captured(tables, transaction_memory="64 KiB", undo_log="32 MiB")
    model = Model(list(tables))
    by = follower(db)
    read: list[Any] = []

    def publish(epoch: int) -> None:
        # Groups read no later than this are still in the log, and so are their spool files.
        read.extend((each.epoch, list(each.parts())) for each in by.epochs(epoch, db.parts.store.log.durable_lsn))

    db.parts.store.room.followers["binlog"] = publish
    for _ in range(40):
        random_transaction(rng, db, model, rng.choice([1, 3, 8, 60]))
        if rng.random() < 0.4:
            db.parts.clockwork.advance_epoch()
        if rng.random() < 0.1:
            db.checkpoint()
    check(read + read_all(db, by), model)


def test_rows_of_large_batches_come_in_batches_and_keep_the_order_of_each_row() -> None:
    db = captured({"memory": COLUMNS})
    rows = [{"id": number, "number": number, "name": f"n{number}"} for number in range(3_000)]
    db["memory"].insert_many(rows)
    db["memory"].update_many([{"id": number, "number": -number} for number in range(3_000)])
    db["memory"].delete_many(list(range(3_000)))
    parts = changes_of(db)
    assert [(part.kind, part.count) for part in parts] == [
        (KIND_INSERT, 3_000),
        (KIND_UPDATE, 3_000),
        (KIND_DELETE, 3_000),
    ]
    found = [values(parts[1], int(place), True)["id"] for place in parts[1].before]
    assert sorted(found) == list(range(3_000)) and len(set(parts[0].txids.tolist())) == 1


def test_update_that_leaves_the_disk_part_has_it_only_where_whole_images_are_logged() -> None:
    for mode, has_disk in ((CAPTURE_CHANGED, False), (CAPTURE_WHOLE, True)):
        db = captured({"disk": ON_DISK}, mode)
        db["disk"].insert(("k", 1, "long"))
        db["disk"].update("k", {"number": 2})
        db.sync()  # changes of one kind in one epoch are one batch
        db["disk"].update("k", {"comment": "longer"})
        db["disk"].delete("k")
        parts = changes_of(db)
        assert [part.before_has_disk for part in parts] == [False, has_disk, True, True]
        assert [part.after_has_disk for part in parts] == [True, has_disk, True, False]
        db.close()


def test_any_value_and_author_belong_to_operations_and_rows() -> None:
    db = captured({"memory": COLUMNS})
    db["memory"].insert_many([{"id": number, "number": 0, "name": "n"} for number in range(4)])
    db.sync()
    store, table = db.parts.store, db.parts.store.tables.named("memory")
    with db.transaction() as txn:
        noted_rows.tag(txn, 17, 17)
        txn.insert("memory", (10, 1, "a"))
        txn.insert("memory", (11, 1, "a"))
        noted_rows.tag(txn, 0x8000007E, 0)
        txn.insert("memory", (12, 1, "a"))
        keys = pa.RecordBatch.from_pydict({"id": pa.array([2, 99], pa.int64())})
        noted_rows.refresh_rows(txn, table, keys)
        noted_rows.tag(txn, 17, 17)
        txn.delete("memory", 3)
        txn.update("memory", 0, {"number": 5})
        with pytest.raises(InvariantBroken):
            noted_rows.tag(txn, 18, 18)
    parts = changes_of(db)
    rows = [(part.kind, part.any_values.tolist(), part.authors.tolist()) for part in parts]
    refresh = 0x8000007E
    assert rows[1:] == [
        (KIND_INSERT, [17, 17, refresh], [17, 17, 0]),
        (KIND_UPDATE, [refresh], [0]),
        (KIND_REFRESH, [refresh], [0]),
        (KIND_DELETE, [17], [17]),
        (KIND_UPDATE, [17], [17]),
    ]
    refreshed = next(part for part in parts if part.kind == KIND_REFRESH)
    assert refreshed.before is not None and values(refreshed, int(refreshed.before[0]), False)["id"] == 99
    authors = {row.id: author for row, author in authors_of(db, store)}
    assert authors == {0: 17, 1: 0, 2: 0, 10: 17, 11: 17, 12: 0}
    db.close()
    db = open_memory(db.parts.files.crash(random.Random(1)), redo_log="32 MiB")
    assert {row.id: author for row, author in authors_of(db, db.parts.store)} == authors


def authors_of(db: Any, store: Any) -> list[tuple[Any, int]]:
    from tidemark.engine.access.row_operations import read_entry
    from tidemark.engine.rows.lcp_layout import ENTRY_AUTHOR_MASK

    found = []
    for row in list(db["memory"].scan()):
        entry = read_entry(None, store.tables.named("memory"), row.id)
        assert entry is not None
        found.append((row, int(entry[2]) & ENTRY_AUTHOR_MASK))
    return found


def test_schema_changes_are_alone_in_their_epochs_and_give_the_right_format() -> None:
    db = captured({"fixed": FIXED})
    db["fixed"].insert((1, 10))
    old = db.transaction()
    old.update("fixed", 1, {"number": 11})
    db.add_column("fixed", tm.Column("name", tm.VarChar(20), nullable=True, default="d"))
    old.update("fixed", 1, {"name": "new"})
    old.commit(True)
    db["fixed"].update(1, {"name": "newer"})
    db.create_index("fixed", "by_number", "number")
    db["fixed"].update(1, {"number": 12})
    db.drop_index("fixed", "by_number")
    db.drop_table("fixed")
    db.create_table("fixed", COLUMNS, "id")
    read = read_all(db, follower(db))
    kinds = [["schema" if isinstance(part, SchemaChange) else "rows" for part in parts] for _, parts in read]
    assert all(each == ["schema"] or "schema" not in each for each in kinds), kinds
    rows = [net for _, parts in read for part in parts if isinstance(part, RowChanges) for net in nets(part)]
    assert rows[1:] == [
        ("fixed", {"id": 1, "number": 10, "name": "d"}, {"id": 1, "number": 11, "name": "new"}),
        ("fixed", {"id": 1, "number": 11, "name": "new"}, {"id": 1, "number": 11, "name": "newer"}),
        ("fixed", {"id": 1, "number": 11, "name": "newer"}, {"id": 1, "number": 12, "name": "newer"}),
    ]
    changes = [part for _, parts in read for part in parts if isinstance(part, SchemaChange)]
    assert changes[0].before is None and changes[0].after is not None and changes[0].after.name == "main.fixed"
    assert changes[-2].after is None and changes[-2].before is not None


def test_following_continues_after_an_epoch_and_gives_one_again_that_was_not_taken_whole() -> None:
    db = captured({"fixed": FIXED})
    by = follower(db)
    read_all(db, by)
    for number in range(5):
        db["fixed"].insert((number, number))
        db.parts.clockwork.advance_epoch()
    closed, durable = db.parts.store.epochs.newest_closed, db.parts.store.log.durable_lsn
    first = next(by.epochs(closed, durable))
    next(first.parts())
    again = list(by.epochs(closed, durable))
    assert again[0].epoch == first.epoch and len(again) == 1, "its parts were not taken"
    epochs = [(each.epoch, len(list(each.parts()))) for each in by.epochs(closed, durable)]
    assert len(epochs) == 5 and epochs[0][0] == first.epoch
    assert list(by.epochs(closed, durable)) == []
    other = follower(db)
    assert [each.epoch for each in [e for e in other.epochs(closed, durable, epochs[2][0]) if list(e.parts())]] == [
        epoch for epoch, _ in epochs[3:]
    ]


@pytest.mark.parametrize("seed", range(4))
def test_after_a_crash_the_log_from_the_newest_local_checkpoint_on_says_the_same(seed: int) -> None:
    rng = random.Random(100 + seed)
    db = captured({"memory": COLUMNS, "disk": ON_DISK}, transaction_memory="64 KiB", undo_log="32 MiB")
    model = Model(["memory", "disk"])
    for number in range(40):
        random_transaction(rng, db, model, rng.choice([1, 8, 60]))
        db.parts.clockwork.advance_epoch()
        if number in (10, 25):
            db.checkpoint()
    crashed = db.parts.files.crash(rng)
    after: Any = open_memory(crashed, redo_log="32 MiB", transaction_memory="64 KiB", undo_log="32 MiB")
    control = after.parts.opened.controls[0]
    point = FollowPoint(control.start_lsn, control.start_sequence, tuple(control.tables))
    check(read_all(after, follower(after, point)), model, control.epoch)
    assert {row.id: row._asdict() for row in after["memory"].scan()} == model.tables["memory"]
    after.close()


def test_changes_of_a_table_that_logs_no_images_before_are_left_out_but_for_inserts():
    """Story: an update that left the var part alone, in a table that was not logged, ended the following with
    RedoDamaged.
    """
    db = followed(MemoryFiles())
    table = db.create_table("memory", COLUMNS, "id")
    by = follower(db)
    for key in range(3):
        table.insert({"id": key, "number": key, "name": "n"})
    table.update(0, {"number": 9})
    table.delete(1)
    capture(db, "memory")
    table.update(2, {"number": 7})
    assert [(part.kind, part.count) for part in changes_of(db, by)] == [(KIND_INSERT, 3), (KIND_UPDATE, 1)]


@pytest.mark.parametrize("memory", ["1 MiB", "64 KiB"], ids=["at once", "spooled"])
def test_row_that_came_and_went_is_nothing_though_an_absent_one_was_refreshed_between(memory: str) -> None:
    """Story: the record of an absent row names the first place of its fragment. It stood between the changes of the row
    that is there, so these were not joined: the follower reported the insert, and not the delete. (Simulation, seed
    11820.)
    """
    one = tm.HashPartition(1)
    db = captured({"memory": COLUMNS}, partition=one, transaction_memory=memory, transaction_limit="4 MiB")
    by = follower(db)
    keys = pa.RecordBatch.from_pydict({"id": pa.array([5_000], pa.int64())})
    with db.transaction() as txn:
        txn.insert("memory", (0, 1, "a"))
        noted_rows.refresh_rows(txn, db.parts.store.tables.named("memory"), keys)
        for number in range(1, 1_000):
            txn.insert("memory", (number, 1, "b" * 40))
        txn.delete("memory", 0)
    reported = changes_of(db, by)
    assert {part.kind for part in reported} == {KIND_INSERT, KIND_REFRESH}
    ids = [values(part, int(at), False)["id"] for part in reported if part.kind == KIND_INSERT for at in part.after]
    assert sorted(ids) == list(range(1, 1_000))
