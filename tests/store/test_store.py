"""The store end to end on simulated files: acknowledged changes are there after a crash, and no others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.storage import memory_only
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.txn.resources import SPARE_PLACES
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart import restart

pytestmark = pytest.mark.usefixtures("storage")


def make_account(db: tm.Database) -> tm.TableHandle:
    return db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))


def test_reopen_after_kill_keeps_every_acknowledged_row() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    account = make_account(db)
    for number in range(50):
        account.insert((number, f"owner {number}", number / 2, None))
    account.update(3, {"balance": -1.0})
    account.update(4, {"owner": "longer than before " * 2})
    account.delete(5)
    before = rows_of(db)
    db = open_memory(files.kill())
    assert rows_of(db) == before
    assert len(before) == 49 and before[3][2] == -1.0 and before[4][1].startswith("longer")


@memory_only
def test_as_many_places_of_transactions_are_kept_as_are_worth_it() -> None:
    db = open_memory(redo_log="16 MiB")  # each transaction has reserved its share
    open_at_once = [db.transaction() for _ in range(SPARE_PLACES + 9)]
    for txn in open_at_once:
        txn.begin()
    for txn in open_at_once:
        txn.rollback()
    assert len(db.parts.store.resources.spare_places) == SPARE_PLACES
    assert len({place.slot for place in db.parts.store.resources.spare_places}) == SPARE_PLACES
    again = [db.transaction() for _ in range(SPARE_PLACES + 9)]
    assert len(db.parts.store.resources.spare_places) == SPARE_PLACES
    for txn in again:
        txn.begin()
    assert db.parts.store.resources.spare_places == []
    for txn in again:
        txn.rollback()


def test_checkpoint_then_more_changes_then_kill_gives_all() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    account = make_account(db)
    account.insert_many([(number, "a", 1.0, "x" * (number * 37 % 3000)) for number in range(300)])
    report = db.checkpoint()
    assert report["rows"] == 300
    account.delete_many(list(range(0, 300, 3)))
    account.write_many([(number, "b", 2.0, None) for number in range(250, 350)])
    before = rows_of(db)
    db = open_memory(files.kill())
    assert rows_of(db) == before
    assert db.restart_report["lcp_id"] == 1
    db.checkpoint()
    db.checkpoint()
    files = db.parts.files.kill()  # the third checkpoint's predecessor is the fallback
    assert rows_of(open_memory(files)) == before


@memory_only
def test_opening_reports_its_progress_and_what_the_callback_raises_ends_it(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", data_memory="32 MiB", redo_log="8 MiB", background=False) as db:
        make_account(db).insert_many([(number, "a", 1.0, "n" * 400) for number in range(5_000)])
        db.checkpoint()
    calls: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, unit: str) -> None:
        calls.append((done, total, unit))

    for options in ({"background": False}, {"read_only": True}):
        calls.clear()
        with tm.open(tmp_path / "store", progress=progress, data_memory="32 MiB", **options):
            assert len(calls) >= 4, "more than once per fragment"
            assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
            assert calls[-1] == (5_000, 5_000, "rows")

    def stop(done: int, total: int, unit: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tm.open(tmp_path / "store", progress=stop, data_memory="32 MiB")
    with tm.open(tmp_path / "store", data_memory="32 MiB", background=False) as db:
        assert len(db["test.account"]) == 5_000


@memory_only
def test_opening_reports_the_log_it_reads_and_the_indexes_it_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "PROGRESS_BYTES", 64 << 10)
    options: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "8 MiB", "background": False}
    with tm.open(tmp_path / "store", **options) as db:
        account = make_account(db)
        for name in ("owner", "balance"):
            db.create_index("test.account", name, [name])
        for first in range(0, 5_000, 500):
            account.insert_many([(first + number, "a", 1.0, "n" * 400) for number in range(500)])
    calls: list[tuple[int, int, str]] = []
    tm.open(tmp_path / "store", progress=lambda *told: calls.append(told), **options).close()
    log = [(done, total) for done, total, unit in calls if unit == "bytes of log"]
    assert len(log) >= 10 and log == sorted(log) and all(0 < done <= total for done, total in log)
    assert calls[-2:] == [(1, 2, "indexes"), (2, 2, "indexes")]


def test_row_epochs_and_rowids_survive_restart_from_log_and_from_checkpoint() -> None:
    """NDB bug 56770: loading a local checkpoint changed the epochs of rows."""
    files = MemoryFiles()
    db = open_memory(files)
    account = make_account(db)
    for number in range(20):
        account.insert((number, "a", 1.0, None))
        if number % 5 == 0:
            db.parts.clockwork.advance_epoch()
    hidden = ["id", tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
    before = db["test.account"].to_arrow(hidden).sort_by("id")
    assert len(set(before.column(tm.EPOCH).to_pylist())) == 5
    db = open_memory(files.kill())
    assert db["test.account"].to_arrow(hidden).sort_by("id").equals(before)
    db.checkpoint()
    db = open_memory(db.parts.files.kill())
    assert db["test.account"].to_arrow(hidden).sort_by("id").equals(before)


def test_rollback_frees_rows_and_memory_and_releases_locks() -> None:
    db = open_memory()
    account = make_account(db)
    account.insert((1, "ann", 10.0, "note"))
    pages = db.parts.store.arena.used_pages()
    with pytest.raises(KeyError), db.transaction() as txn:
        txn.insert_many("test.account", [(number, "x" * 30, 1.0, "y" * 500) for number in range(2, 200)])
        txn.update("test.account", 1, {"note": "z" * 9_000})
        txn.delete("test.account", 1)
        txn.write("test.account", (1, "again", 0.0, None))
        raise KeyError
    assert rows_of(db) == {1: (1, "ann", 10.0, "note")}
    account.update(1, {"balance": 2.0})
    account.insert((2, "free", 1.0, None))
    assert db.parts.store.arena.used_pages() <= pages + 8


def test_savepoint_rolled_back_first_leaves_the_transaction_open() -> None:
    """Story: undoing down to "no operation" ended the transaction in shared memory, so that its later changes could not
    be rolled back: the row inserted below stayed, without a lock. Found by the stateful test.
    """
    db = open_memory()
    account = make_account(db)
    txn = db.transaction()
    with pytest.raises(ZeroDivisionError), txn.savepoint():
        txn.insert("test.account", (1, "a", 0.0, None))
        raise ZeroDivisionError
    txn.insert("test.account", (1, "b", 0.0, None))
    txn.rollback()
    assert account.get(1) is None
    assert len(account) == 0
    account.insert((1, "c", 0.0, None))


def test_drop_table_then_crash_then_same_name_is_empty() -> None:
    """NDB bug 45154: checkpoint files and log of a dropped table were picked up by its successor."""
    files = MemoryFiles()
    db = open_memory(files)
    make_account(db).insert_many([(number, "old", 1.0, None) for number in range(40)])
    db.checkpoint()
    db["test.account"].delete(7)
    db.drop_table("test.account")
    make_account(db).insert((1, "new", 2.0, None))
    db = open_memory(files.kill())
    assert rows_of(db) == {1: (1, "new", 2.0, None)}


def test_outcome_is_committed_or_aborted_and_survives_reopen() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    make_account(db)
    done = db.transaction()
    done.insert("test.account", (1, "ann", 1.0, None))
    done.commit(True)
    undone = db.transaction()
    undone.insert("test.account", (2, "bob", 1.0, None))
    undone.rollback()
    assert (db.outcome(done.txid), db.outcome(undone.txid)) == ("committed", "aborted")
    db = open_memory(files.kill())
    assert (db.outcome(done.txid), db.outcome(undone.txid)) == ("committed", "aborted")


def test_large_transaction_becomes_a_group_of_its_own() -> None:
    files = MemoryFiles()
    db = open_memory(files, redo_log="16 MiB", undo_log="32 MiB", transaction_memory="8 MiB")
    account = make_account(db)
    count = 20_000
    ids = np.random.default_rng(7).permutation(count)
    account.insert_many(pa.table({"id": ids, "owner": ["o"] * count, "balance": ids * 0.5, "note": [None] * count}))
    account.delete_many(ids[:15_000])
    before = rows_of(db)
    assert len(before) == 5_000
    assert rows_of(open_memory(files.kill(), redo_log="16 MiB")) == before


def test_log_wraps_many_times_with_checkpoints() -> None:
    files = MemoryFiles()
    db = open_memory(files, redo_log="1 MiB")
    account = make_account(db)
    account.insert_many([(number, "a", 0.0, None) for number in range(20)])
    expected = dict.fromkeys(range(20), 0.0)
    for step in range(900):
        key = step % 20
        account.update(key, {"balance": float(step)})
        expected[key] = float(step)
        if step % 60 == 59:
            db.checkpoint()
    assert db.status()["log"]["head_lsn"] > 2 * db.status()["log"]["capacity_bytes"]
    db = open_memory(files.kill())
    assert {key: row[2] for key, row in rows_of(db).items()} == expected


def test_restart_through_an_epoch_cuts_what_came_later_for_good() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    account = make_account(db)
    account.insert((1, "kept", 1.0, None))
    epoch = db.sync()
    account.insert((2, "cut", 1.0, None))
    db.close()
    db = open_memory(files.kill(), through=epoch)
    assert sorted(rows_of(db)) == [1]
    db["test.account"].insert((3, "after", 1.0, None))
    db = open_memory(db.parts.files.kill())
    assert sorted(rows_of(db)) == [1, 3]


def test_random_history_against_a_dict_with_crashes() -> None:
    seed = 20_261_121
    rng = random.Random(seed)
    files = MemoryFiles()
    db = open_memory(files)
    make_account(db)
    model: dict[int, tuple[object, ...]] = {}
    for step in range(600):
        choice = rng.random()
        txn = db.transaction()
        change = dict(model)
        for _ in range(rng.randrange(1, 6)):
            key = rng.randrange(40)
            row = (
                key,
                "o" * rng.randrange(30),
                rng.random(),
                None if rng.random() < 0.5 else "n" * rng.randrange(9_000),
            )
            if rng.random() < 0.5:
                txn.write("test.account", row)
                change[key] = row
            elif key in change:
                txn.delete("test.account", key)
                del change[key]
        if choice < 0.8:
            txn.commit(True)
            model = change
        else:
            txn.rollback()
        if step % 37 == 36:
            db.checkpoint()
        if step % 53 == 52:
            db = open_memory(db.parts.files.kill())
        if step % 10 == 9:
            assert rows_of(db) == model, f"seed {seed}, step {step}"


def test_kill_during_a_local_checkpoint_leaves_its_number_unused_and_its_files_swept() -> None:
    """Story: a killed checkpoint's number was used again, and its leftover data files made the next one fail with
    EEXIST.
    """
    files = MemoryFiles()
    db = open_memory(files)
    make_account(db).insert_many([(number, "a", 1.0, None) for number in range(50)])
    lcp = db.parts.lcp
    images: list[MemoryFiles] = []
    drain = lcp.drain
    lcp.drain = lambda *arguments: (images.append(files.kill()), drain(*arguments))[1]  # type: ignore[method-assign]
    db.checkpoint()
    db = open_memory(images[-1])
    assert [name for name in images[-1].snapshot() if name.startswith("lcp/") and name.endswith(".data")] == []
    assert db.checkpoint()["lcp_id"] == 2
    assert len(rows_of(open_memory(images[-1].kill()))) == 50


def test_damaged_newest_control_file_leaves_two_intact_roots_in_the_end() -> None:
    """Story: a damaged control file was counted as one of the two kept, so the only other root was removed (F58)."""
    files = MemoryFiles()
    db = open_memory(files)
    account = make_account(db)
    for number in range(3):
        account.insert((number, "a", 1.0, None))
        db.checkpoint()
    image = files.kill().snapshot()
    control = bytearray(image["lcp/control-3"])
    control[100] ^= 1
    broken = MemoryFiles.from_snapshot({**image, "lcp/control-3": bytes(control)})
    db = open_memory(broken)
    assert sorted(rows_of(db)) == [0, 1, 2]
    assert db.checkpoint()["lcp_id"] == 4
    kept = sorted(name for name in broken.snapshot() if "control-" in name)
    assert kept == ["lcp/control-2", "lcp/control-4"]
