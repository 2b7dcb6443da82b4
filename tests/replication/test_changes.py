"""`db.changes`: epochs from the binlog, in the types of the store, from any epoch on, while the store works."""

from __future__ import annotations

import datetime
import decimal
import gc
import random
import threading

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.site import DISK, WHOLE, account_site, open_site
from tests.seeds import fresh_seeds
from tests.store.support import ACCOUNT, open_memory
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector import binlog_rows

OPERATIONS = {"WRITE_ROW": "write", "UPDATE_ROW": "update", "DELETE_ROW": "delete"}


pytestmark = pytest.mark.usefixtures("quiet")


def images_in(epoch):
    """Yield (epoch, table, operation, image before, image after) with the columns that were logged."""
    for batch in epoch.batches():
        before, after = (None if each is None else each.to_pylist() for each in (batch.before, batch.after))
        for row in range(batch.rows):
            yield (
                epoch.epoch,
                batch.table,
                batch.operation,
                None if before is None else before[row],
                None if after is None else after[row],
            )


def all_images(db, since=0, most=None):
    """Return images of at most `most` epochs, and the epoch to continue from."""
    found = []
    with db.changes(since) as changes:
        for epoch in changes:
            found += images_in(epoch)
            since = epoch.epoch
            if most is not None:
                most -= 1
                if not most:
                    break
    return found, since


def wanted(history, number):
    return [
        (epoch, table, OPERATIONS[kind], before, after)
        for epoch, table, kind, before, after in history.expected(number)
    ]


@pytest.mark.parametrize("number", [2, 3, 6, 7, 8, 9])
@pytest.mark.parametrize("held", [binlog_rows.HELD_BYTES, 1])
@pytest.mark.parametrize("seed", [4, 754068748, *fresh_seeds(1)])
def test_changes_are_what_transactions_did_over_restarts_whatever_the_type(number, held, seed, monkeypatch):
    monkeypatch.setattr(binlog_rows, "HELD_BYTES", held)
    print("seed", seed)
    rng = random.Random(seed)
    db = open_site(**DISK)
    db.create_replication_table().insert((b"d", b"%", 0, number, None))
    history = History(db, rng, with_disk=True)
    found, since = [], 0
    for turn in range(4):
        history.run(15)
        if turn % 2:
            db.checkpoint()
        if turn == 2:
            db = open_site(db.parts.files.kill(), **DISK)
            history.db = db
        # Read some epochs now, and the rest when more have come.
        some, since = all_images(db, since, most=rng.randint(1, 6))
        found += some
    rest, _ = all_images(db, since)
    found += rest
    expected = wanted(history, number)
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [each[0] for each in found] == sorted(each[0] for each in found)
    for name in history.tables:
        for key in range(12):
            of_row = [each for each in found if each[1] == name and (each[3] or each[4]).get("id", key) == key]
            assert number == 8 or of_row == [e for e in expected if e[1] == name and (e[3] or e[4])["id"] == key]
    assert len(expected) > 40
    db.close()


EVERY_TYPE = [
    tm.Column("id", tm.VarChar(20)),
    tm.Column("small", tm.Int8),
    tm.Column("flag", tm.Bool, nullable=True),
    tm.Column("big", tm.UInt64),
    tm.Column("medium", tm.UInt16),
    tm.Column("single", tm.Float32),
    tm.Column("double", tm.Float64, nullable=True),
    tm.Column("money", tm.Decimal(38, 6)),
    tm.Column("little", tm.Decimal(9, 2), nullable=True),
    tm.Column("fixed", tm.Char(6)),
    tm.Column("octets", tm.Binary(5), nullable=True),
    tm.Column("more", tm.VarBinary(30)),
    tm.Column("text", tm.Text),
    tm.Column("blob", tm.Blob, nullable=True),
    tm.Column("day", tm.Date),
    tm.Column("hour", tm.Time),
    tm.Column("moment", tm.DateTime),
    tm.Column("instant", tm.Timestamp, nullable=True),
    tm.Column("colour", tm.Enum("red", "green", "blue"), nullable=True),
]
ROWS = [
    (
        "é",
        -128,
        True,
        2**64 - 1,
        65_535,
        1.5,
        -0.0,
        decimal.Decimal("-12345678901234567890123456789012.654321"),
        decimal.Decimal("-9999999.99"),
        "añ  ",
        b"\x01\x00\x00\x00\x00",
        b"\x00\x00",
        "long" * 1000,
        b"\xff" * 3000,
        datetime.date(9999, 12, 31),
        datetime.time(23, 59, 59, 999_999),
        datetime.datetime(1, 1, 1, 0, 0, 0, 1),
        datetime.datetime(2500, 6, 1, 12, tzinfo=datetime.UTC),
        "blue",
    ),
    (
        "",
        127,
        None,
        0,
        0,
        0.0,
        None,
        decimal.Decimal(0),
        None,
        "",
        None,
        b"",
        "",
        None,
        datetime.date(1, 1, 1),
        datetime.time(0),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        None,
        None,
    ),
]


def test_every_type_comes_out_exactly_as_of_the_store():
    db = open_site(**WHOLE)
    db.create_table("t.all", EVERY_TYPE, "id")
    db["t.all"].insert_many(ROWS)
    db.sync()
    with db.changes() as changes:
        epochs = list(changes)
        (batch,) = [batch for epoch in epochs for batch in epoch.batches()]
        rows = [change.after for epoch in epochs for change in epoch]
    stored = db["t.all"].to_arrow()
    assert batch.after.schema.types == stored.schema.types
    assert batch.after.schema.names == stored.schema.names
    assert sorted(map(tuple, rows)) == sorted(map(tuple, db["t.all"].scan()))
    assert [batch.primary_key, batch.server_id] == [("id",), 1]
    db.close()


def test_schema_changes_in_the_middle_stand_before_the_rows_and_rows_have_the_columns_of_then():
    db = open_site(**WHOLE)
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("flag", tm.Bool),
        tm.Column("n", tm.VarChar(5)),
        tm.Column("at", tm.Timestamp, nullable=True),
    ]
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    db.create_table("t.t", columns, "id")
    db["t.t"].insert((1, True, "five", when))
    db.sync()
    db.widen_column("t.t", "n", tm.VarChar(300))
    db.drop_column("t.t", "flag")
    db.add_column("t.t", tm.Column("late", tm.VarChar(9), nullable=True))
    db.rename("t.t", "t.u")
    db["t.u"].insert((2, "n" * 250, when, "x"))
    db.sync()
    with db.changes() as changes:
        epochs = list(changes)
        rows = [(change.table, change.after._asdict()) for epoch in epochs for change in epoch]
        held = [place for place, epoch in enumerate(epochs) if list(epoch.rows())]
    assert rows[0] == ("t.t", {"id": 1, "flag": 1, "n": "five", "at": when.replace(tzinfo=None)})
    assert rows[1] == ("t.u", {"id": 2, "n": "n" * 250, "at": when, "late": "x"})
    said = [" ".join(text.split()[:2]) for epoch in epochs for text in epoch.statements]
    assert said == ["CREATE DATABASE", "CREATE TABLE", *["ALTER TABLE"] * 4]
    places = [place for place, epoch in enumerate(epochs) if epoch.statements]
    assert places[0] <= held[0] < places[1] < places[-1] <= held[1]
    db.close()


def test_type_of_a_dropped_column_is_still_known_while_the_table_has_its_name():
    db = open_site(**WHOLE)
    db.create_table("t.t", [tm.Column("id", tm.Int64), tm.Column("flag", tm.Bool)], "id")
    db["t.t"].insert((1, True))
    db.sync()
    db.drop_column("t.t", "flag")
    with db.changes() as changes:
        assert [change.after._asdict() for epoch in changes for change in epoch] == [{"id": 1, "flag": True}]
    db.close()


def test_transaction_larger_than_memory_comes_in_many_batches():
    db, _ = account_site(
        transaction_memory="64 KiB", transaction_limit="8 MiB", redo_log="4 MiB", binlog_cache_size="4 KiB"
    )
    since = db.sync()
    with db.transaction() as txn:
        for number in range(9_000):
            txn.insert("test.account", (number, "owner", float(number), "x" * 200))
    db.sync()
    db["test.account"].delete(5)
    db.sync()
    assert db.status()["spool"]["committed"] == 1
    with db.changes(since) as changes:
        large, small = list(changes)
        sizes = [batch.rows for batch in large.batches()]
        assert sum(sizes) == 9_000 and max(sizes) < 9_000
        assert large.to_arrow("test.account").column("after").combine_chunks().field("id").to_pylist() == list(
            range(9_000)
        )
        # Read half of the one, all of the other, and the rest of the one.
        begun = large.rows()
        first = [next(begun).after.id for _ in range(10)]
        assert [(each.operation, each.before.id) for each in small] == [("delete", 5)]
        assert first + [each.after.id for each in begun] == list(range(9_000))
    db.close()


def test_only_tables_asked_for_come_and_epochs_of_others_are_skipped():
    db, table = account_site()
    db.create_table("test.other", ACCOUNT, "id")
    since = db.sync()
    for number in range(3):
        table.insert((number, "a", 1.0, None))
        db.sync()
        db["test.other"].insert((number, "b", 1.0, None))
        newest = db.sync()
    with db.changes(since, ["test.other"]) as changes:
        assert [(each.table, each.after.id) for epoch in changes for each in epoch] == [
            ("test.other", number) for number in range(3)
        ]
        assert changes.epoch == newest
    db.close()


# --- from where on --------------------------------------------------------------------------------
def test_epoch_that_was_purged_is_refused_and_what_is_read_is_not_purged():
    db, table = account_site()
    epochs = []
    for number in range(4):
        table.insert((number, "a", 1.0, None))
        epochs.append(db.sync())
        db.binlog.rotate()
    with db.changes(epochs[0]) as changes:
        first = next(changes)
        assert first.epoch == epochs[1]
        db.binlog.purge(to=db.binlog.writer.end.file)
        assert [epoch.epoch for epoch in changes] == epochs[2:]
    db.binlog.purge(to=db.binlog.writer.end.file)
    with pytest.raises(tm.PositionLost, match="snapshot"):
        db.changes(epochs[0])
    table.insert((9, "a", 1.0, None))
    newest = db.sync()
    assert [epoch.epoch for epoch in db.changes(epochs[3])] == [newest]
    db.close()


def test_what_was_not_logged_is_a_gap_that_nothing_is_given_out_after():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    since = db.sync()
    db.close()
    db = open_memory(db.parts.files.kill())
    db["test.account"].insert((2, "unlogged", 1.0, None))
    db.close()
    db, table = account_site(db.parts.files.kill())
    table.insert((3, "a", 1.0, None))
    newest = db.sync()
    changes = db.changes()
    found = []
    with pytest.raises(tm.PositionLost, match="not in the binlog"):
        found += [change.after.id for epoch in changes for change in epoch]
    with pytest.raises(tm.PositionLost):
        found += list(db.changes(since))
    assert found == []
    table.insert((4, "a", 1.0, None))
    db.sync()
    assert [change.after.id for epoch in db.changes(newest) for change in epoch] == [4]
    db.close()


@pytest.mark.parametrize("since", [-1, True, 1.0, None])
def test_what_is_no_epoch_is_refused(since):
    db, _ = account_site()
    with pytest.raises(tm.ValueOutOfRange):
        db.changes(since)
    db.close()


def test_epoch_of_the_future_and_a_store_without_binlog_are_refused():
    db, _ = account_site()
    own = list(db.binlog.on_written)
    with pytest.raises(tm.EpochGap):
        db.changes(db.parts.store.epochs.current + 5)
    assert db.binlog.on_written == own and db.binlog.pins == {}
    db.close()
    plain = open_memory()
    with pytest.raises(tm.Rejected, match="binlog"):
        plain.changes()
    plain.close()


# --- following ------------------------------------------------------------------------------------
def test_follower_gets_epochs_as_they_are_closed_and_ends_when_it_is_closed():
    db, table = account_site()
    own = list(db.binlog.on_written)
    since = db.sync()
    seen: list[int] = []
    came = threading.Semaphore(0)
    changes = db.changes(since, follow=True)

    def read():
        for epoch in changes:
            seen.extend(change.after.id for change in epoch)
            came.release()

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(5):
        table.insert((number, "a", 1.0, None))
        db.sync()
        assert came.acquire(timeout=100)
        assert seen == list(range(number + 1))
    changes.close()
    reader.join(100)
    assert not reader.is_alive()
    assert db.binlog.on_written == own and db.binlog.pins == {}
    changes.close()
    with pytest.raises(StopIteration):
        next(changes)
    db.close()


def test_reader_that_was_not_closed_holds_nothing_when_it_is_gone():
    db, table = account_site()
    own = list(db.binlog.on_written)
    table.insert((1, "a", 1.0, None))
    db.sync()
    changes = db.changes()
    next(changes)
    assert len(db.binlog.pins) == 1
    del changes
    gc.collect()
    assert db.binlog.on_written == own and db.binlog.pins == {}
    db.close()


def test_closing_the_store_ends_a_follower_and_rows_of_it_are_refused():
    db, table = account_site()
    table.insert((1, "a", 1.0, None))
    db.sync()
    changes = db.changes(follow=True)
    epoch = [next(changes), next(changes)][1]
    ended = threading.Event()

    def read():
        assert list(changes) == []
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    db.close()
    assert ended.wait(100)
    reader.join()
    with pytest.raises(tm.StoreClosed):
        list(epoch)


def test_changes_of_another_site_carry_its_id_and_own_reads_are_none():
    db, table = account_site(log_exclusive_reads=True)
    since = db.sync()
    table.insert((1, "a", 1.0, None))
    with db.transaction() as txn:
        txn.get("test.account", 1, lock="exclusive")
    db.sync()
    with db.changes(since) as changes:
        assert [(each.operation, each.after.id) for epoch in changes for each in epoch] == [("write", 1)]
    assert changes.position > Position("", 0)
    db.close()


# --- tables and damage ----------------------------------------------------------------------------
def test_arrow_table_of_an_epoch_has_all_columns_whatever_each_change_logged():
    db, table = account_site(log_updated_only=True, log_update_as_write=False)
    since = db.sync()
    table.insert((1, "ann", 1.0, None))
    table.insert((2, "bob", 1.0, "x"))
    table.update(1, {"balance": 2.0})
    table.update(2, {"note": "y", "owner": "eve"})
    table.delete(1)
    db.sync()
    with db.changes(since) as changes:
        (epoch,) = changes
        rows = epoch.to_arrow("test.account").to_pylist()
        assert epoch.to_arrow("test.none").num_rows == 0
    names = ["id", "owner", "balance", "note"]
    plain = [
        (
            row["operation"],
            None if row["before"] is None else [row["before"].get(name) for name in names],
            None if row["after"] is None else [row["after"].get(name) for name in names],
        )
        for row in rows
    ]
    assert {row["epoch"] for row in rows} == {epoch.epoch}
    assert sorted(plain, key=repr) == sorted(
        [
            ("write", None, [1, "ann", 1.0, None]),
            ("write", None, [2, "bob", 1.0, "x"]),
            ("update", [1, None, 1.0, None], [1, None, 2.0, None]),
            ("update", [2, "bob", None, "x"], [2, "eve", None, "y"]),
            ("delete", [1, None, None, None], None),
        ],
        key=repr,
    )
    db.close()


def test_damaged_byte_of_the_binlog_is_never_given_out_as_a_change():
    db, table = account_site()
    for number in range(5):
        table.insert((number, "a", float(number), "note"))
        db.sync()
    files, name = db.parts.files, f"binlog/{db.binlog.writer.end.file}"
    with db.changes() as changes:
        whole = [tuple(change.after) for epoch in changes for change in epoch]
    rng = random.Random(3)
    file = files.open(name, True)
    refused = 0
    for _ in range(40):
        at = rng.randrange(4, db.binlog.writer.end.position)
        before = files.pread(file, at, 1)
        files.pwrite(file, at, bytes([before[0] ^ 1 << rng.randrange(8)]))
        found = []
        try:
            with db.changes() as changes:
                found = [tuple(change.after) for epoch in changes for change in epoch]
        except (tm.Damaged, tm.PeerError):
            refused += 1
        assert found == whole[: len(found)]
        files.pwrite(file, at, before)
    assert refused > 30
    db.close()
