"""`tm.diff`: every difference is found exactly, whatever the sides are and however ranges are cut."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

import tidemark as tm
from tests.backup.support import take
from tests.digest.support import COLUMNS, ON_DISK, ON_FILES, backup_side, found, naive, row_of, rows_in, store
from tests.elsewhere import beside
from tests.replication.site import open_site
from tests.seeds import fresh_seeds
from tests.waiting import wait_until
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification import compare
from tidemark.recovery.verification import digest_ranges as ranges


@pytest.fixture
def small(monkeypatch):
    """Narrow ranges of few rows, as for many rows."""
    monkeypatch.setattr(compare, "COLLECTED_ROWS", 20)
    monkeypatch.setattr(compare, "SMALL_RANGE_ROWS", 2)
    monkeypatch.setattr(ranges, "RANGES_MAX", 8)
    monkeypatch.setattr(ranges, "FAN_BITS", 4)
    monkeypatch.setattr(ranges, "SUMS_MAX", 1 << 9)


def test_one_bit_of_one_column_of_one_row_of_100_000_is_found_exactly():
    rows = [row_of(key) for key in range(100_000)]
    a = store(rows)
    random.Random(1).shuffle(rows)
    b = store(rows, fragments=7)
    report = tm.diff(a, b)
    assert report["is_equal"] and report["is_complete"] and not report["differences"]
    assert [(each["rows_a"], each["rows_b"], each["passes"]) for each in report["tables"]] == [(100_000, 100_000, 1)]
    b["d.t"].update(77_777, {"number": 777 ^ 1})
    report = tm.diff(a, b)
    assert not report["is_equal"]
    assert report["differences"] == [
        {"table": "d.t", "key": 77_777, "column": "number", "a": 777, "b": 776, "only": None}
    ]
    (table,) = report["tables"]
    assert (table["by"], table["changed"], table["only_a"], table["only_b"]) == ("key", 1, 0, 0)


def test_backup_is_compared_by_rowid_and_only_pages_that_differ_are_read_again():
    a = store([row_of(key) for key in range(50_000)])
    place = MemoryFiles()
    take(a, place)
    assert tm.diff(a, backup_side(place))["is_equal"]
    a["d.t"].update(7, {"name": "other"})
    a["d.t"].delete(40_000)
    a["d.t"].insert(row_of(50_001))
    report = tm.diff(a, backup_side(place))
    (table,) = report["tables"]
    assert (table["by"], table["passes"]) == ("rowid", 1)
    # Once each, fragments of the backup once more, and of the store a few pages.
    assert 125_000 <= table["rows_read"] < 140_000
    assert found(report) == {(7, "name", "'other'", "'n7'"), (40_000, None, False, True), (50_001, None, True, False)}
    take(a, place, incremental=True)
    assert tm.diff(a, backup_side(place))["is_equal"]
    between = tm.diff(backup_side(place, 1), backup_side(place, 2))
    assert {each[0] for each in found(between)} == {7, 40_000, 50_001}


@pytest.mark.parametrize("by", ["key", "rowid", None])
@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(4)])
def test_random_differences_of_random_stores_are_those_of_a_naive_comparison(seed, by, small):
    print("seed", seed)
    rng = random.Random(seed)
    a = store([row_of(key) for key in range(rng.choice([0, 1, 300, 900]))], fragments=rng.choice([1, 3]))
    place = MemoryFiles()
    take(a, place)
    old = rows_in(a)
    for _ in range(rng.choice([0, 1, 5, 60, 400])):
        key = rng.randrange(1_000)
        if key in a["d.t"] and rng.random() < 0.4:
            a["d.t"].delete(key)
        else:
            a["d.t"].write(row_of(key, rng.choice([0, 0, 1, 1_000])))
        if rng.random() < 0.02:
            take(a, place, incremental=rng.random() < 0.7)
            old = rows_in(a)
    report = tm.diff(a, backup_side(place), by=by, limit=None)
    wanted = naive(rows_in(a), old)
    assert found(report) == wanted
    assert report["is_equal"] is not bool(wanted)
    (table,) = report["tables"]
    assert table["differing"] == len({each[0] for each in wanted})
    back = tm.diff(backup_side(place), a, by=by, limit=None)
    assert found(back) == {(key, column, y, x) for key, column, x, y in wanted}


@pytest.mark.parametrize("seed", [3, *fresh_seeds(3)])
def test_rows_at_other_rowids_are_no_difference_by_rowid_either(seed, small):
    print("seed", seed)
    rng = random.Random(seed)
    keys = list(range(600))
    a = store([row_of(key) for key in keys])
    rng.shuffle(keys)
    b = store([row_of(key) for key in keys])
    for how in ("key", "rowid"):
        report = tm.diff(a, b, by=how)
        assert report["is_equal"], report["differences"][:3]
    b["d.t"].update(5, {"number": -1})
    assert found(tm.diff(a, b, by="rowid")) == {(5, "number", "5", "-1")}


def test_store_that_has_little_in_common_with_its_backup_is_compared_by_key(monkeypatch):
    monkeypatch.setattr(compare, "ROWIDS_DIFFER", 4)
    a = store([row_of(key) for key in range(20_000)])
    place = MemoryFiles()
    take(a, place)
    a["d.t"].update_where({"number": -1})
    a["d.t"].delete(5)
    report = tm.diff(a, backup_side(place), limit=None)
    (table,) = report["tables"]
    assert (table["by"], table["changed"], table["only_b"]) == ("key", 19_999, 1)
    assert {each["column"] for each in report["differences"]} == {None, "number"}


def test_comparison_that_writers_outrun_ends_with_an_error():
    columns = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(500))]
    a = store([(key, "x" * 400) for key in range(3_000)], columns=columns, snapshot_memory="256 KiB")
    b = store([(key, "x" * 400) for key in range(3_000)], columns=columns)
    is_first = True

    def progress(done, total, unit):
        nonlocal is_first
        if is_first:
            a["d.t"].update_where({"v": "y" * 400})
            a["d.t"].update_where({"v": "z" * 400})
        is_first = False

    with pytest.raises(tm.SnapshotTooOld):
        tm.diff(a, b, progress=progress)
    assert a.status()["snapshots"]["open"] == 0


def test_values_exchanged_between_rows_and_columns_do_not_cancel_out():
    columns = [tm.Column("id", tm.Int64), tm.Column("x", tm.Int64), tm.Column("y", tm.Int64)]
    a = store([(1, 10, 20), (2, 30, 40), (3, 5, 5)], columns=columns)
    b = store([(1, 30, 40), (2, 10, 20), (3, 5, 5)], columns=columns)
    assert {each[:2] for each in found(tm.diff(a, b))} == {(1, "x"), (1, "y"), (2, "x"), (2, "y")}
    c = store([(1, 20, 10), (2, 40, 30), (3, 5, 5)], columns=columns)
    assert {each[:2] for each in found(tm.diff(a, c))} == {(1, "x"), (1, "y"), (2, "x"), (2, "y")}


def test_floats_are_compared_by_their_bits():
    columns = [tm.Column("id", tm.Int64), tm.Column("x", tm.Float64), tm.Column("y", tm.Float32)]
    nan = float("nan")
    a = store([(1, 0.0, 1.5), (2, nan, nan), (3, 1.0, 0.0)], columns=columns)
    b = store([(1, -0.0, 1.5), (2, nan, nan), (3, 1.0, 0.0)], columns=columns)
    assert found(tm.diff(a, b)) == {(1, "x", "0.0", "-0.0")}


def test_limit_ends_the_comparison_and_says_so():
    a, b = store([row_of(key) for key in range(5_000)]), store([row_of(key, 1) for key in range(5_000)])
    report = tm.diff(a, b, limit=10)
    assert len({each["key"] for each in report["differences"]}) == 10
    assert not report["is_complete"] and not report["is_equal"]
    whole = tm.diff(a, b, limit=None)
    assert whole["is_complete"] and len({each["key"] for each in whole["differences"]}) == 5_000
    assert tm.diff(a, b, limit=5_000)["is_complete"]


# --- disk columns, views, paths -------------------------------------------------------------------
def test_disk_columns_are_compared_with_those_of_backups_and_of_memory():
    rows = [(key, f"n{key}", key, None if key % 3 == 0 else "far" * (key % 20)) for key in range(3_000)]
    a = store(rows, columns=ON_DISK, page_buffer="2 MiB", undo_log="16 MiB")
    place = MemoryFiles()
    take(a, place)
    in_memory = store(rows, columns=[*COLUMNS[:3], tm.Column("far", tm.VarChar(60), nullable=True)])
    assert tm.diff(a, backup_side(place))["is_equal"] and tm.diff(a, in_memory)["is_equal"]
    a["d.t"].update(100, {"far": "near"})
    wanted = {(100, "far", "'near'", "None" if 100 % 3 == 0 else repr("far" * (100 % 20)))}
    assert found(tm.diff(a, backup_side(place))) == found(tm.diff(a, in_memory)) == wanted
    take(a, place, incremental=True)
    assert tm.diff(a, backup_side(place))["is_equal"]


def test_columns_added_after_a_backup_read_as_their_default_in_older_levels():
    columns = [tm.Column("id", tm.Int64), tm.Column("number", tm.Int32)]
    a = store([(key, key) for key in range(500)], columns=columns)
    place = MemoryFiles()
    take(a, place)
    a.add_column("d.t", tm.Column("late", tm.VarChar(9), nullable=True, default="new"))
    a["d.t"].update(3, {"late": "changed"})
    take(a, place, incremental=True)
    assert tm.diff(a, backup_side(place))["is_equal"]
    report = tm.diff(backup_side(place, 1), backup_side(place, 2))
    assert [(each["column"], each["what"], each["a"]) for each in report["schema"]] == [
        ("late", "column is missing", None)
    ]
    assert not report["is_equal"] and not report["differences"]


def test_paths_of_stores_and_backups_are_compared(tmp_path):
    with tm.open(tmp_path / "a", **ON_FILES) as a:
        a.create_table("d.t", COLUMNS, "id")
        a["d.t"].insert_many([row_of(key) for key in range(1_000)])
        a.backup(tmp_path / "backups")
        a.checkpoint()
        a["d.t"].delete(17)
        for other in (tmp_path / "a", tmp_path / "backups", (tmp_path / "backups", 1), f"file://{tmp_path}/backups"):
            report = tm.diff(a, other)
            assert found(report) == {(17, None, False, True)}
            assert report["a"]["epoch"] > report["b"]["epoch"]
        with tm.open(tmp_path / "a", read_only=True) as view:
            assert tm.diff(view, tmp_path / "backups")["is_equal"]
    tm.restore(tmp_path / "backups", tmp_path / "copy", **ON_FILES)
    with tm.open(tmp_path / "copy", **ON_FILES) as copy:
        assert tm.diff(copy, tmp_path / "backups", by="rowid")["tables"][0]["by"] == "rowid"
        assert tm.diff(copy, tmp_path / "backups")["is_equal"]


def test_what_is_no_copy_is_refused(tmp_path):
    a = store()
    for other in (5, None, object()):
        with pytest.raises(tm.Rejected):
            tm.diff(a, other)
    with pytest.raises(tm.FileMissing):
        tm.diff(a, tmp_path / "nothing")
    with pytest.raises(tm.Rejected):
        tm.diff(a, a, by="rows")
    with pytest.raises(tm.ValueOutOfRange):
        tm.diff(a, a, limit=0)
    with pytest.raises(tm.NoSuchTable):
        tm.diff(a, a, ["d.other"])
    with pytest.raises(tm.Rejected, match="fragments"):
        tm.diff(a, store(fragments=2), by="rowid")


def test_damaged_side_ends_with_the_error_and_never_with_equal():
    a = store([row_of(key) for key in range(2_000)], fragments=1)
    place = MemoryFiles()
    take(a, place)
    names = [name for name in place.snapshot() if name.endswith(".parquet")]
    file = place.open(names[0], True)
    size = place.size(file)
    rng = random.Random(7)
    for _ in range(20):
        at = rng.randrange(size)
        before = place.pread(file, at, 1)
        place.pwrite(file, at, bytes([before[0] ^ 1 << rng.randrange(8)]))
        with pytest.raises(tm.Damaged):
            tm.diff(a, backup_side(place))
        place.pwrite(file, at, before)
    assert tm.diff(a, backup_side(place))["is_equal"]


# --- definitions ----------------------------------------------------------------------------------
def test_differences_of_definitions_are_reported_and_the_rest_is_compared():
    a = store([(1, "x", 5, None), (2, "y", 6, None)])
    columns = [
        tm.Column("number", tm.Int64),
        tm.Column("name", tm.Text, nullable=True),
        tm.Column("id", tm.Int64),
        tm.Column("price", tm.Float64, nullable=True),
        tm.Column("more", tm.Bool, nullable=True),
    ]
    b = store(columns=columns)
    b["d.t"].insert_many([(5, "x", 1, None, True), (6, "z", 2, 1.0, None)])
    a.create_table("d.only", COLUMNS, "id")
    b.create_table("d.keyed", COLUMNS, "id")
    a.create_table("d.keyed", COLUMNS, ["id", "number"])
    report = tm.diff(a, b)
    assert {(each["table"], each["column"], each["what"]) for each in report["schema"]} == {
        ("d.keyed", None, "primary key differs"),
        ("d.only", None, "table is missing"),
        ("d.t", "name", "type differs"),
        ("d.t", "number", "type differs"),
        ("d.t", "price", "type differs"),
        ("d.t", "more", "column is missing"),
    }
    assert found(report) == {(2, "name", "'y'", "'z'")}
    assert [each["name"] for each in report["tables"]] == ["d.t"]


def test_tables_of_the_system_are_compared_only_by_name():
    a, b = open_site(server_id=1), open_site(server_id=2)
    assert tm.diff(a, b)["is_equal"]
    a["mysql.ndb_apply_status"].write((9, 5, "", 0, 0))
    assert tm.diff(a, b)["is_equal"]
    assert not tm.diff(a, b, ["mysql.ndb_apply_status"])["is_equal"]


# --- beside writers, and after replication --------------------------------------------------------
def test_comparison_during_writes_shows_each_side_at_one_epoch():
    columns = [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64)]
    a = store([(key, 100) for key in range(2_000)], columns=columns)
    b = store([(key, 100) for key in range(2_000)], columns=columns)
    stop = threading.Event()
    begun = threading.Event()  # a busy machine once compared before the first transfer

    def transfer(seed: int) -> None:
        rng = random.Random(seed)
        with suppress(tm.Retryable):
            while not stop.is_set():
                one, two = rng.sample(range(2_000), 2)
                with a.transaction() as txn:
                    txn.update("d.t", one, {"balance": txn.get("d.t", one, lock="exclusive").balance - 1})
                    txn.update("d.t", two, {"balance": txn.get("d.t", two, lock="exclusive").balance + 1})
                begun.set()

    with a.snapshot() as before, beside(stop, transfer, [3]):
        wait_until(begun.is_set)
        for _ in range(5):
            report = tm.diff(a, b, limit=None)
            assert sum(each["a"] - each["b"] for each in report["differences"]) == 0
        assert tm.diff(before, b)["is_equal"]
    assert report["differences"]


def test_sites_are_equal_after_replication_and_a_change_outside_it_is_found_and_repaired():
    a, b = open_site(server_id=1, redo_log="16 MiB"), open_site(server_id=2, redo_log="16 MiB")
    a.create_table("d.t", COLUMNS, "id")
    rng = random.Random(5)
    with tm.Channel(a, b) as channel:
        for _ in range(30):
            for _ in range(20):
                key = rng.randrange(300)
                if key in a["d.t"] and rng.random() < 0.3:
                    a["d.t"].delete(key)
                else:
                    a["d.t"].write(row_of(key, rng.randrange(3)))
            a.sync()
            channel.apply_all()
    assert tm.diff(a, b)["is_equal"]
    key = next(iter(rows_in(a)))
    b["d.t"].update(key, {"number": 123_456})
    b["d.t"].insert(row_of(9_999))
    assert found(tm.diff(a, b)) == {
        (key, "number", str(a["d.t"][key].number), "123456"),
        (9_999, None, False, True),
    }
    done = tm.repair(a, b, side="a")
    assert (done["inserted"], done["updated"], done["deleted"], done["skipped"]) == (0, 1, 1, 0)
    assert tm.diff(a, b)["is_equal"]
