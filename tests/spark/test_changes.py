"""Row changes from the files of a binlog, without Spark.

Epochs, pieces and rows are those of `db.changes`, whichever process has the store open. A torn, damaged, purged or
missing file is never taken for the end.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.replication.history import History
from tests.seeds import fresh_seeds
from tests.spark.support import EVERY, LOGGED, NUMBERS, SMALL, as_rows, every_column, every_row, logged, place_of
from tests.waiting import wait_until
from tidemark.recovery.spark.changes import change_arrow_schema, change_batches, make_change_plan, wants_changes
from tidemark.replication.binlog import writer
from tidemark.replication.injector.change_files import ChangeFiles
from tidemark.replication.injector.mark import FOLDER

PIECE = 32 << 20


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **LOGGED) as opened:
        yield opened


def files_of(place: Path, table: str) -> ChangeFiles:
    return ChangeFiles(str(place), make_change_plan({"path": str(place), "table": table}).definition)


def rows_in(files: ChangeFiles, definition: Any, since: int = 0, until: int | None = None, piece: int = PIECE) -> Any:
    """(rows as plain tuples, how far they reach, how many pieces)."""
    reach = files.reach(since, until, None, piece)
    schema = change_arrow_schema(definition)
    batches = [batch for each in reach.pieces for batch in change_batches(files.images(each), definition)]
    found = pa.Table.from_batches(batches, schema).to_pylist()
    rows = [(row["epoch"], row["operation"], row["before"], row["after"]) for row in found]
    if reach.obstacle is not None and reach.epoch == since:
        raise reach.obstacle
    return rows, reach.epoch, len(reach.pieces)


def rows_by_feed(db: tm.Database, table: str, since: int = 0) -> list[tuple[Any, ...]]:
    """The same by `db.changes`, with all columns of the table."""
    names = [column.name for column in db[table].definition.columns]
    found: list[tuple[Any, ...]] = []
    with db.changes(since, [table]) as changes:
        for epoch in changes:
            for row in epoch:
                images = [None if each is None else {n: getattr(each, n, None) for n in names} for each in row[3:]]
                found.append((row.epoch, row.operation, *images))
    return found


@pytest.mark.parametrize("seed", [7, *fresh_seeds(1)])
def test_changes_are_those_of_the_feed_from_any_epoch_in_pieces_of_any_size(seed: int, db: tm.Database) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    history = History(db, rng)
    for _ in range(3):
        history.run(12)
        db.binlog.rotate()
    history.run(12)
    logged(db)
    definition = db["d.memory"].definition
    files = files_of(place_of(db), "d.memory")
    expected = rows_by_feed(db, "d.memory")
    epochs = sorted({row[0] for row in expected})
    assert len(epochs) > 8 and {row[1] for row in expected} == {"write", "update", "delete"}
    for piece in (1, 700, PIECE):
        found, reached, count = rows_in(files, definition, piece=piece)
        assert found == expected and reached >= epochs[-1]
        assert count > 8 or piece != 1
    for _ in range(12):
        since, until = sorted((rng.choice(epochs) + rng.randrange(-1, 2), rng.choice(epochs) + rng.randrange(-1, 2)))
        found, reached, _ = rows_in(files, definition, since, until, 500)
        assert found == [row for row in expected if since < row[0] <= until] and reached <= max(since, until)
    # A few epochs at a time give the same.
    since, found = 0, []
    while True:
        reach = files.reach(since, None, rng.randrange(1, 4), 500)
        if reach.epoch == since:
            break
        found += rows_in(files, definition, since, reach.epoch)[0]
        since = reach.epoch
    assert found == expected and files.newest_epoch() == since
    files.close()


def test_every_type_comes_out_as_spark_takes_it(db: tm.Database) -> None:
    db.create_tablespace("main", size="1 MiB", page_size="32 KiB")
    for name, storage in (("memory", "memory"), ("disk", "disk")):
        db.create_table(name, every_column(storage), "id", partition=tm.HashPartition(2))
        db[name].insert_many(every_row(40))
        logged(db)
        files = files_of(place_of(db), name)
        rows, _, _ = rows_in(files, db[name].definition)
        assert [row[:3] for row in rows] == [(rows[0][0], "write", None)] * 40
        assert sorted(tuple(row[3].values()) for row in rows) == as_rows(every_row(40))
        assert set(rows[0][3]) == {"id", *EVERY}
        files.close()


def test_epoch_larger_than_a_piece_is_shared_by_many(db: tm.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STATEMENT_BYTES", 64 << 10)  # pieces end where statements do
    db.create_table("numbers", NUMBERS, "id")
    since = logged(db)
    with db.transaction() as txn:
        txn.insert_many("numbers", [(key, "x" * 20) for key in range(30_000)])
    epoch = logged(db)
    files = files_of(place_of(db), "numbers")
    rows, reached, pieces = rows_in(files, db["numbers"].definition, since, piece=200 << 10)
    assert pieces > 4 and reached == epoch
    assert sorted(row[3]["id"] for row in rows) == list(range(30_000)) and {row[0] for row in rows} == {epoch}
    files.close()


# --- ends, torn and damaged -------------------------------------------------------------------------
def last_file(place: Path) -> Path:
    return sorted((place / FOLDER).glob("binlog.*[0-9]"))[-1]


def copy_as_on_disk(db: tm.Database, place: Path) -> Path:
    """A copy of a store as it is on disk while it is open."""
    shutil.copytree(place_of(db), place, ignore=shutil.ignore_patterns("LOCK", "*.socket", "control*"))
    return place


def test_torn_end_of_the_file_in_use_is_no_end_and_no_damage(db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "one"))
    first = logged(db)
    whole = last_file(place_of(db)).stat().st_size
    db["numbers"].insert((2, "two"))
    second = logged(db)
    copy = copy_as_on_disk(db, tmp_path / "copy")
    path = last_file(copy)
    data = path.read_bytes()
    files = files_of(copy, "numbers")
    for size in range(whole, len(data), 3):
        path.write_bytes(data[:size])
        assert files.reach(0, None, None, PIECE).epoch == first
        assert files.newest_epoch() == first
    path.write_bytes(data)
    assert files.reach(first, None, None, PIECE).epoch == second
    files.close()


@pytest.mark.parametrize("is_ended", [False, True])
def test_every_damaged_byte_of_an_epoch_stops_the_reading(db: tm.Database, tmp_path: Path, is_ended: bool) -> None:
    db.create_table("numbers", NUMBERS, "id")
    since = logged(db)
    begin = last_file(place_of(db)).stat().st_size
    path_name = last_file(place_of(db)).name
    db["numbers"].insert((1, "one"))
    logged(db)
    end = last_file(place_of(db)).stat().st_size
    if is_ended:
        db.binlog.rotate()
    db["numbers"].insert((2, "two"))
    logged(db)
    copy = copy_as_on_disk(db, tmp_path / "copy")
    path = copy / FOLDER / path_name
    data = path.read_bytes()
    files = files_of(copy, "numbers")
    files.concurrent.clock = _Impatient()
    whole = files.reach(since, None, None, PIECE)
    for place in range(begin, end):
        spoiled = bytearray(data)
        spoiled[place] ^= 1 << place % 8
        path.write_bytes(spoiled)
        with pytest.raises(tm.BinlogDamaged):
            files.reach(since, None, None, PIECE)
        # A task itself reads the files that its planner found whole.
        with pytest.raises(tm.BinlogDamaged):
            list(files.images(whole.pieces[0]))
    files.close()


class _Impatient:
    def sleep(self, seconds: float) -> None:
        assert seconds < 1


def test_file_that_its_writer_could_not_end_is_continued(db: tm.Database, tmp_path: Path) -> None:
    """A full disk keeps the ROTATE from a file, which stays marked as in use, while the next one is written."""
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "one"))
    logged(db)
    old = last_file(place_of(db))
    size = old.stat().st_size
    head = old.read_bytes()[:64]
    db.binlog.rotate()
    db["numbers"].insert((2, "two"))
    logged(db)
    copy = copy_as_on_disk(db, tmp_path / "copy")
    data = (copy / FOLDER / old.name).read_bytes()
    assert len(data) > size
    for left in range(size, len(data), 7):  # also a ROTATE that is not whole
        (copy / FOLDER / old.name).write_bytes(head + data[64:left])
        files = files_of(copy, "numbers")
        assert [row[3]["id"] for row in rows_in(files, db["numbers"].definition)[0]] == [1, 2]
        files.close()
    # A file marked as ended must have its end.
    (copy / FOLDER / old.name).write_bytes(data[:size])
    with pytest.raises(tm.BinlogDamaged, match="was ended"):
        files_of(copy, "numbers").reach(0, None, None, PIECE)


def test_newest_file_that_was_ended_and_cut_since_is_damaged(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **LOGGED) as db:
        db.create_table("numbers", NUMBERS, "id")
        db["numbers"].insert((1, "one"))
        since = logged(db)
        size = last_file(tmp_path / "store").stat().st_size
        db["numbers"].insert((2, "two"))
        newest = logged(db)
    files = files_of(tmp_path / "store", "numbers")
    assert files.newest_epoch() == newest
    with last_file(tmp_path / "store").open("r+b") as opened:
        opened.truncate(size)  # where a transaction ends
    for call in (files.newest_epoch, lambda: files.reach(since, None, None, PIECE)):
        with pytest.raises(tm.BinlogDamaged, match="was ended"):
            call()
    files.close()


def test_epoch_that_a_crash_took_from_the_file_comes_again_under_its_number(db: tm.Database, tmp_path: Path) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "one"))
    first = logged(db)
    whole = last_file(place_of(db)).stat().st_size
    db["numbers"].insert((2, "two"))
    second = logged(db)
    db["numbers"].insert((3, "three"))
    third = logged(db)
    copy = copy_as_on_disk(db, tmp_path / "copy")
    files = files_of(copy, "numbers")
    definition = db["numbers"].definition
    before, reached, _ = rows_in(files, definition, first)
    assert reached == third
    with last_file(copy).open("r+b") as opened:
        opened.truncate(whole + 10)
    assert files.reach(third, None, None, PIECE).epoch == third
    assert files.reach(first, None, None, PIECE).epoch == first
    with tm.open(copy, **LOGGED) as again:
        assert rows_in(files, definition, first, third)[0] == before
        assert rows_in(files, definition, second, third)[0] == before[1:]
        again["numbers"].insert((4, "four"))
        fourth = logged(again)
        assert [row[3]["id"] for row in rows_in(files, definition, third, fourth)[0]] == [4]
    files.close()


# --- purged, and never logged -----------------------------------------------------------------------
def test_what_is_kept_is_not_purged_and_what_was_purged_is_reported(db: tm.Database) -> None:
    db.create_table("numbers", NUMBERS, "id")
    epochs = []
    for key in range(4):
        db["numbers"].insert((key, "x"))
        epochs.append(logged(db))
        db.binlog.rotate()
    files = files_of(place_of(db), "numbers")
    definition = db["numbers"].definition
    files.keep(epochs[0])
    newest = db.binlog.writer.end.file
    db.binlog.purge(to=newest)
    assert [row[0] for row in rows_in(files, definition, epochs[0])[0]] == epochs[1:]
    pieces = files.reach(epochs[0], None, None, 1).pieces
    files.keep(epochs[2])
    db.binlog.purge(to=newest)
    with pytest.raises(tm.PositionLost, match="no longer in the binlog"):
        files.reach(epochs[0], None, None, PIECE)
    with pytest.raises(tm.PositionLost, match="no longer in the binlog"):
        list(files.images(pieces[0]))
    with pytest.raises(tm.PositionLost, match="no longer in the binlog"):
        files_of(place_of(db), "numbers").reach(0, None, None, PIECE)
    assert [row[0] for row in rows_in(files, definition, epochs[2])[0]] == epochs[3:]
    files.close()
    assert db.binlog.purge(to=newest) or epochs[3]


def test_what_was_not_logged_is_a_gap_that_nothing_is_given_out_after(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with tm.open(place, **LOGGED) as db:
        db.create_table("numbers", NUMBERS, "id")
        db["numbers"].insert((1, "a"))
        since = logged(db)
        definition = db["numbers"].definition
    with tm.open(place, **SMALL) as db:
        db["numbers"].insert((2, "unlogged"))
    with tm.open(place, **LOGGED) as db:
        db["numbers"].insert((3, "b"))
        after = logged(db)
        db["numbers"].insert((4, "c"))
        logged(db)
    files = files_of(place, "numbers")
    rows, reached, _ = rows_in(files, definition)
    assert [row[3]["id"] for row in rows] == [1] and reached == since
    with pytest.raises(tm.PositionLost, match="not in the binlog"):
        rows_in(files, definition, since)
    # A range that ends before the gap is complete, and can be planned again.
    assert files.reach(0, None, None, PIECE).obstacle is not None
    assert files.reach(0, since, None, PIECE) == files.reach(0, since, None, PIECE)
    assert files.reach(0, since, None, PIECE).obstacle is None
    assert [row[3]["id"] for row in rows_in(files, definition, after)[0]] == [4]
    files.close()


def test_epoch_of_another_history_is_refused_and_one_without_changes_is_not(db: tm.Database) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "a"))
    newest = logged(db)
    plan = make_change_plan({"path": str(place_of(db))})
    plan.check_epoch(newest + 1, newest)
    with pytest.raises(tm.EpochGap, match="yet"):
        plan.check_epoch(newest + (50 << 32), newest)


def test_store_without_binlog_or_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with tm.open(tmp_path / "plain", **SMALL) as db:
        db.create_table("numbers", NUMBERS, "id")
        with pytest.raises(tm.Rejected, match="log_bin"):
            files_of(place_of(db), "numbers")
        place = str(place_of(db))
        for options in ({"since": "-1"}, {"until": "x"}, {"maxEpochsPerTrigger": "0"}, {"columns": "id"}):
            with pytest.raises(tm.SchemaInvalid):
                make_change_plan({"path": place, **options})
        with pytest.raises(tm.NoSuchTable):
            make_change_plan({"path": place, "table": "nothing"})
    with pytest.raises(tm.FileMissing):
        make_change_plan({"path": str(tmp_path)})
    assert wants_changes({"Changes": "TRUE"}) and not wants_changes({})
    with pytest.raises(tm.SchemaInvalid):
        wants_changes({"changes": "perhaps"})


def test_epoch_that_comes_below_the_one_a_stream_begins_after_is_not_given(db: tm.Database) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "a"))
    since = logged(db)
    files, definition = files_of(place_of(db), "numbers"), db["numbers"].definition
    db["numbers"].insert((2, "b"))
    next_epoch = logged(db)
    assert rows_in(files, definition, next_epoch + 1)[:2] == ([], next_epoch + 1)
    known = files.known_places[next_epoch + 1]
    # As if the end had been looked up before the last epoch was written.
    files.known_places[next_epoch + 1] = files.concurrent.position_after(since)
    assert files.known_places[next_epoch + 1] != known
    assert rows_in(files, definition, next_epoch + 1)[:2] == ([], next_epoch + 1)
    files.close()


# --- changes of the schema ----------------------------------------------------------------------------
def test_columns_are_those_of_the_beginning_whatever_happens_to_the_table(db: tm.Database) -> None:
    db.create_table("numbers", [*NUMBERS, tm.Column("flag", tm.Bool, nullable=True)], "id")
    db["numbers"].insert((1, "a", True))
    logged(db)
    files, definition = files_of(place_of(db), "numbers"), db["numbers"].definition
    db.add_column("numbers", tm.Column("late", tm.Int32, nullable=True))
    db.widen_column("numbers", "n", tm.VarChar(300))
    db["numbers"].insert((2, "b" * 250, False, 5))
    logged(db)
    db.drop_column("numbers", "flag")
    db["numbers"].insert((3, "c", 6))
    logged(db)
    expected = [
        {"id": 1, "n": "a", "flag": True},
        {"id": 2, "n": "b" * 250, "flag": False},
        {"id": 3, "n": "c", "flag": None},
    ]
    assert [row[3] for row in rows_in(files, definition)[0]] == expected
    fresh = files_of(place_of(db), "numbers")
    late = [row[3] for row in rows_in(fresh, db["numbers"].definition)[0]]
    assert late == [{"id": key, "n": each["n"], "late": late[key - 1]["late"]} for key, each in enumerate(expected, 1)]
    assert [each["late"] for each in late] == [None, 5, 6]
    files.close()
    fresh.close()


def test_values_of_another_column_that_had_the_name_are_no_values_of_this_one(db: tm.Database) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db["numbers"].insert((1, "12"))
    since = logged(db)
    db.drop_column("numbers", "n")
    db.add_column("numbers", tm.Column("n", tm.Int64, nullable=True))
    db["numbers"].insert((2, 12))
    logged(db)
    files, definition = files_of(place_of(db), "numbers"), db["numbers"].definition
    with pytest.raises(tm.TypeMismatch, match="begin after"):
        rows_in(files, definition)
    assert [row[3] for row in rows_in(files, definition, since)[0]] == [{"id": 2, "n": 12}]
    files.close()


@pytest.mark.parametrize("what", ["drop", "rename", "column"])
def test_what_row_changes_cannot_describe_ends_the_reading_after_what_was_before(db: tm.Database, what: str) -> None:
    db.create_table("numbers", NUMBERS, "id")
    db.create_table("other", NUMBERS, "id")
    db["numbers"].insert((1, "a"))
    since = logged(db)
    files, definition = files_of(place_of(db), "numbers"), db["numbers"].definition
    db.drop_table("other")
    {
        "drop": lambda: db.drop_table("numbers"),
        "rename": lambda: db.rename("numbers", "others"),
        "column": lambda: db.rename_column("numbers", "n", "m"),
    }[what]()
    db.create_table("last", NUMBERS, "id")
    db["last"].insert((1, "a"))
    after = logged(db)
    rows, reached, _ = rows_in(files, definition)
    assert [row[3]["id"] for row in rows] == [1] and since <= reached < after
    with pytest.raises(tm.Unsupported, match="row changes do not show"):
        rows_in(files, definition, reached)
    assert files.reach(after, None, None, PIECE).obstacle is None
    files.close()


def test_reader_follows_a_store_that_is_written_meanwhile(tmp_path: Path) -> None:
    """Story: on a busy machine 1,500 rows were written before the reader had come to rows four times. Now the writer
    continues until it has.
    """
    options = {**LOGGED, "background": True, "epoch_interval_ms": 10, "max_binlog_size": "64 KiB"}
    with tm.open(tmp_path / "store", **options) as db:
        db.create_table("numbers", NUMBERS, "id")
        enough = threading.Event()
        written: list[int] = []

        def write() -> None:
            while len(written) < 1_500 or not enough.is_set():
                key = len(written)
                db["numbers"].insert((key, "x" * (key % 20)))
                written.append(key)

        thread = threading.Thread(target=write)
        files, definition = files_of(place_of(db), "numbers"), db["numbers"].definition
        thread.start()
        since, found, turns = 0, [], 0

        def read() -> bool:
            nonlocal since, found, turns
            rows, since, _ = rows_in(files, definition, since)
            found += rows
            turns += bool(rows)
            return turns > 3

        try:
            wait_until(read)
        finally:
            enough.set()
        while thread.is_alive():
            read()
        thread.join()
        logged(db)
        found += rows_in(files, definition, since)[0]
        assert found == rows_by_feed(db, "numbers") and len(found) == len(written) >= 1_500
        files.close()
