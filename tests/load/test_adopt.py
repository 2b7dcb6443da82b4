"""An adopted load looks as if every row had been inserted, at once; a refused one leaves nothing."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import content
from tests.elsewhere import elsewhere
from tests.engine.arena_check import check_arena
from tests.load.support import NAME, by_key, found, leaves, new_store, own_place, published, row, rows, written
from tests.store.support import open_memory
from tests.waiting import wait_until
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import F_PAGES, F_RELEASED, ST_DROPPED, ST_PAGES
from tidemark.engine.txn import adopted_records
from tidemark.recovery import load
from tidemark.recovery.load.adopt import Adopter, mark_of

SHAPES: dict[str, dict[str, Any]] = {
    "memory": {},
    "disk": {"on_disk": True},
    "ranges": {"partition": tm.RangePartition("id", [("low", 300), ("middle", 900), ("rest", tm.MAXVALUE)])},
    "one": {"partition": tm.HashPartition(1)},
}


def sound(db: Any) -> None:
    check_arena(db)
    assert db.check()["problems"] == []


@pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_adopted_rows_are_there_with_the_epoch_of_the_commit_and_after_every_restart(shape: str, indexed: bool) -> None:
    db = new_store(**SHAPES[shape])
    if indexed:
        db.create_index(NAME, "by_n", ["n"])
        db.create_index(NAME, "by_email", ["email"], unique=True, ordered=True)
    before = rows(0, 200)
    db[NAME].insert_many(before)
    db[NAME].delete_many(list(range(50, 90)))
    want = by_key(before[:50] + before[90:])
    made = rows(1_000, 1_500)
    job = published(db, made, parts=2)
    assert found(db) == want
    report = db.adopt(job)
    assert (report.rows, report.is_repeated) == (1_500, False)
    want |= by_key(made)
    assert found(db) == want
    loaded = [each for each in content(db)[NAME] if each[4] >= 1_000]
    assert len({each[1] for each in loaded}) == 1, "rows of one load have one epoch"
    sound(db)
    if indexed:
        of_index = [each.id for each in db[NAME].scan(index="by_n", lower=(7,), upper=(8,))]
        assert sorted(of_index) == sorted(key for key in want if key % 100 == 7)
        assert sorted(each.id for each in db[NAME].scan(index="by_email", reverse=True)) == sorted(want)
        assert db[NAME].get("1234@example.com", index="by_email").id == 1_234
    # The rows live on: they are changed and deleted, and others inserted.
    db[NAME].update(1_234, {"text": "changed", "cold": b"other"})
    db[NAME].delete(1_235)
    db[NAME].insert(row(5_000))
    want = found(db)
    sound(db)
    for step in range(4):
        if step == 2:
            db.checkpoint()
        files = db.parts.files.kill()
        db = open_memory(files, data_memory="32 MiB", redo_log="16 MiB", undo_log="16 MiB")
        assert found(db) == want
        sound(db)


def test_load_files_stay_until_the_log_is_cut_after_them() -> None:
    db = new_store()
    db.adopt(published(db, rows(0, 500)))
    named = leaves(db)
    assert named and all(name.endswith(".load") for name in named)
    db.checkpoint()
    assert leaves(db) == named, "a local checkpoint can be damaged: the one before needs the log"
    db.checkpoint()
    db.checkpoint()
    assert leaves(db) == []
    assert len(found(open_memory(db.parts.files.kill(), data_memory="32 MiB", redo_log="16 MiB"))) == 500


def test_snapshot_taken_before_does_not_see_the_rows() -> None:
    db = new_store()
    db[NAME].insert_many(rows(0, 10))
    job = published(db, rows(100, 800))
    with db.snapshot() as before:
        db.adopt(job)
        assert len(list(before[NAME].scan())) == 10 and before[NAME].get(500) is None
        with db.snapshot() as after:
            assert len(list(after[NAME].scan())) == 810


def pages_of(db: Any) -> list[int]:
    """How many pages each fragment has."""
    mem, fragments = db.parts.store.mem, map(address_of, db[NAME].table.fragments)
    return [int(mem[each + F_PAGES] - mem[each + F_RELEASED]) for each in fragments]


@pytest.mark.parametrize("shape", SHAPES)
def test_duplicates_are_counted_and_shown_and_nothing_happens(shape: str) -> None:
    db = new_store(**SHAPES[shape])
    db.create_index(NAME, "by_email", ["email"], unique=True)
    before = rows(0, 300)
    db[NAME].insert_many(before)
    want = content(db)
    pages = pages_of(db)
    made = rows(290, 400)  # 10 keys exist
    made[200] = (10_000, "3@example.com", 1, None, None)  # this email, too
    made += [made[350], made[351]]  # and two rows occur twice
    job = published(db, made, parts=3)
    with pytest.raises(tm.LoadRefused) as refused:
        db.adopt(job)
    error = refused.value
    if shape == "disk":  # after the first duplicate, rows of the load are not compared with each other
        assert error.is_at_least and 1 <= error.duplicates <= 13
    else:
        assert (error.duplicates, error.is_at_least) == (13, False)
        assert {each["key"] for each in error.examples} <= {*range(290, 300), "3@example.com", 640, 641}
        assert all(each["values"]["id"] for each in error.examples)
    assert content(db) == want
    sound(db)
    assert all(now - then in (0, 1) for now, then in zip(pages_of(db), pages, strict=True))
    # The rows in the way can be deleted, and the same load adopted.
    assert load.abort(job, published=True, place=own_place(db))
    assert leaves(db) == []
    db[NAME].delete_many(list(range(290, 300)))
    again = published(db, rows(290, 400))
    db.adopt(again)
    assert len(found(db)) == 690


def test_adopted_twice_it_is_there_once() -> None:
    db = new_store()
    job = published(db, rows(0, 100))
    first = db.adopt(job)
    with pytest.raises(tm.FileMissing):
        db.adopt(job)  # no file of it is left in the store's own folder
    assert len(found(db)) == first.rows == 100


def test_adoption_whose_caller_never_knew_is_reported_again(tmp_path: Any) -> None:
    with tm.open(tmp_path / "store", background=False, data_memory="32 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        import pyarrow as pa

        job = db.plan_load("t", tmp_path / "jobs")
        load.publish(job, load.write_parts(job, 0, [pa.record_batch({"id": pa.array(range(1_000))})]))
        kept = {path.name: path.read_bytes() for path in (tmp_path / "jobs").iterdir()}
        first = db.adopt(job)
        marks = [path.name for path in (tmp_path / "jobs").iterdir()]
        assert marks == []
        for name, data in kept.items():  # as a crash right after the commit leaves it
            (tmp_path / "jobs" / name).write_bytes(data)
        (tmp_path / "jobs" / (job.name + ".adopting")).write_bytes(mark_of(job.name, first.txid, 1_000))
        again = db.adopt(job)
        assert (again.is_repeated, again.rows, again.txid) == (True, 1_000, first.txid)
        assert list((tmp_path / "jobs").iterdir()) == []
        assert len(db["t"]) == 1_000
        # The mark of a transaction that never ended changes nothing.
        other = db.plan_load("t", tmp_path / "jobs")
        load.publish(other, load.write_parts(other, 0, [pa.record_batch({"id": pa.array(range(2_000, 2_500))})]))
        with db.transaction() as txn:
            aborted = txn.txid
            txn.rollback()
        (tmp_path / "jobs" / (other.name + ".adopting")).write_bytes(mark_of(other.name, aborted, 500))
        assert not db.adopt(other).is_repeated
        assert len(db["t"]) == 1_500


def test_table_changed_since_the_plan_is_refused() -> None:
    db = new_store()
    job = published(db, rows(0, 50))
    db.add_column(NAME, tm.Column("more", tm.Int32, nullable=True))
    with pytest.raises(tm.LoadRefused, match="plan another one"):
        db.adopt(job)
    db.drop_table(NAME)
    with pytest.raises(tm.LoadRefused, match="dropped"):
        db.adopt(job)
    sound(db)


def test_table_renamed_or_indexed_since_the_plan_takes_the_load() -> None:
    db = new_store()
    job = published(db, rows(0, 50))
    db.create_index(NAME, "by_n", ["n"])
    db.rename_column(NAME, "n", "number")
    db.adopt(job)
    assert sorted(each.id for each in db[NAME].scan(index="by_n")) == list(range(50))
    sound(db)


def test_partition_dropped_since_the_plan_is_refused() -> None:
    db = new_store(**SHAPES["ranges"])
    job = published(db, rows(0, 1_000))
    db.drop_partition(NAME, "middle")
    with pytest.raises(tm.LoadRefused, match="plan another one"):
        db.adopt(job)
    assert found(db) == {}
    sound(db)


def test_load_of_another_store_is_refused() -> None:
    db = new_store()
    job = published(db, rows(0, 10))
    with pytest.raises(tm.ForeignFile):
        Adopter(db.parts.store, db.parts.files, (b"another store 16", 1)).adopt(job)


def test_key_that_a_transaction_holds_is_waited_for_and_then_everything_goes_back() -> None:
    db = new_store(lock_timeout_ms=0)
    job = published(db, rows(0, 400))
    txn = db.transaction()
    txn.insert(NAME, row(123))
    with pytest.raises(tm.LockTimeout):
        elsewhere(lambda: db.adopt(job))
    txn.rollback()
    assert found(db) == {}
    sound(db)
    db.adopt(job)
    assert len(found(db)) == 400
    sound(db)


def test_concurrent_writers_continue_and_nothing_is_mixed_up() -> None:
    """Story: on a busy machine the load was adopted before the writer had begun."""
    db = new_store(lock_timeout_ms=200_000)
    db.create_index(NAME, "by_n", ["n"])
    made = rows(100_000, 3_000)
    job = published(db, made, parts=2)
    done: list[int] = []
    stop = threading.Event()

    def write() -> None:
        rng = random.Random(3)
        key = 0
        while not stop.is_set() and key < 3_000:
            db[NAME].insert(row(key))
            done.append(key)
            if rng.random() < 0.2:
                victim = rng.choice(done)
                done.remove(victim)
                db[NAME].delete(victim)
            key += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(done) > 20 or not writer.is_alive())
        db.adopt(job)
    finally:
        stop.set()
        writer.join()
    want = by_key(made) | {key: row(key) for key in done}
    assert found(db) == want
    sound(db)
    files = db.parts.files.kill()
    assert found(open_memory(files, data_memory="32 MiB", redo_log="16 MiB", undo_log="16 MiB")) == want


def test_memory_exhausted_in_the_middle_leaves_the_store_as_it_was() -> None:
    db = new_store(data_memory="3 MiB")
    db[NAME].insert_many(rows(0, 50))
    want = content(db)
    job = published(db, rows(100, 20_000))
    with pytest.raises(tm.MemoryExhausted):
        db.adopt(job)
    assert content(db) == want
    sound(db)
    db[NAME].insert(row(60_000))


def test_page_numbers_used_up_are_a_limit_which_no_retry_cures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: it was MemoryExhausted, which is retryable, though page numbers are never used again."""
    db = new_store()
    want = content(db)
    job = published(db, rows(100, 200))
    monkeypatch.setattr(adopted_records, "reserve_pages", lambda *arguments: ST_PAGES)
    with pytest.raises(tm.LimitExceeded, match="make a new table with more fragments") as refused:
        db.adopt(job)
    assert not refused.value.retryable
    assert content(db) == want
    sound(db)


def test_partition_dropped_in_the_middle_is_not_called_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a partition was dropped after an adoption had looked it up. The message said that its page numbers were
    used up, and to make a table with more fragments.
    """
    db = new_store()
    job = published(db, rows(100, 200))
    monkeypatch.setattr(adopted_records, "reserve_pages", lambda *arguments: ST_DROPPED)
    with pytest.raises(tm.LoadRefused, match="columns, checks or partitions .* were changed"):
        db.adopt(job)
    sound(db)


def test_empty_load_changes_nothing() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    load.publish(job, written(db, job, []), own_place(db))
    assert db.adopt(job).rows == 0
    assert leaves(db) == [] and found(db) == {}
