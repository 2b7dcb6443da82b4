"""Trouble: misuse of a store, and memory, log or disk that run out. Each gives its class and leaves no trace."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tidemark as tm
from tests.descriptors import descriptors_below
from tests.elsewhere import elsewhere, in_child
from tests.storage import memory_only
from tests.store.support import ACCOUNT, open_memory, rows_of
from tests.store.trouble import dump, nothing_happens, promises
from tests.waiting import wait_until
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

NAME = "test.account"
Rows = list[tuple[Any, ...]]

FORMS: dict[str, Callable[[Rows], Any]] = {
    "tuples": lambda rows: rows,
    "dicts": lambda rows: [dict(zip(("id", "owner", "balance", "note"), row, strict=True)) for row in rows],
    "arrow": lambda rows: pa.table(
        [list(column) for column in zip(*rows, strict=True)], names=[c.name for c in ACCOUNT]
    ),
    "numpy": lambda rows: np.array(rows, dtype=[("id", "i8"), ("owner", "U40"), ("balance", "f8"), ("note", object)]),
    "pandas": lambda rows: pd.DataFrame(rows, columns=[c.name for c in ACCOUNT]),
}


def account_store(files: Any = None, **options: Any) -> Any:
    db = open_memory(files, **options)
    db.create_table(NAME, ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
    db[NAME].insert_many([(-number, "old", 1.0, "n" * 100) for number in range(1, 20)])
    return db


def every_call(db: Any, txn: Any) -> dict[str, Callable[[], Any]]:
    """Every call that a user can make on an open store of any face, and on a transaction of it."""
    table = db[NAME]
    plain = ("tables", "transaction", "snapshot", "sync", "checkpoint")
    row = (1_000, "a", 1.0, None)
    return {
        "get": lambda: table.get(-1),
        "getitem": lambda: table[-1],
        "contains": lambda: -1 in table,
        "len": lambda: len(table),
        "insert": lambda: table.insert(row),
        "write": lambda: table.write(row),
        "update": lambda: table.update(-1, {"balance": 2.0}),
        "delete": lambda: table.delete(-1),
        "get_many": lambda: table.get_many([-1, -2]),
        "insert_many": lambda: table.insert_many([row]),
        "write_many": lambda: table.write_many([row]),
        "update_many": lambda: table.update_many({"id": [-1], "balance": [2.0]}),
        "delete_many": lambda: table.delete_many([-1]),
        "scan": lambda: list(table.scan()),
        "to_arrow": table.to_arrow,
        "to_numpy": table.to_numpy,
        "to_pandas": table.to_pandas,
        **{name: getattr(db, name) for name in plain if hasattr(db, name)},
        "getitem of the store": lambda: db[NAME],
        "contains of the store": lambda: NAME in db,
        "run": lambda: db.run(lambda txn: None),
        **({"outcome": lambda: db.outcome(1)} if hasattr(db, "outcome") else {}),
        "create_table": lambda: db.create_table("test.more", ACCOUNT, primary_key="id"),
        "drop_table": lambda: db.drop_table(NAME),
        "txn.get": lambda: txn.get(NAME, -1),
        "txn.get exclusive": lambda: txn.get(NAME, -1, lock="exclusive"),
        "txn.get shared": lambda: txn.get(NAME, -1, lock="shared"),
        "txn.insert": lambda: txn.insert(NAME, row),
        "txn.write": lambda: txn.write(NAME, row),
        "txn.update": lambda: txn.update(NAME, -1, {"balance": 2.0}),
        "txn.update of a var column": lambda: txn.update(NAME, -1, {"note": "new"}),
        "txn.delete": lambda: txn.delete(NAME, -1),
        "txn.get_many": lambda: txn.get_many(NAME, [-1]),
        "txn.insert_many": lambda: txn.insert_many(NAME, [row]),
        "txn.write_many": lambda: txn.write_many(NAME, [row]),
        "txn.update_many": lambda: txn.update_many(NAME, {"id": [-1], "balance": [2.0]}),
        "txn.delete_many": lambda: txn.delete_many(NAME, [-1]),
        "txn.scan": lambda: list(txn.scan(NAME)),
        "txn.savepoint": lambda: txn.savepoint().__enter__(),
        "txn.commit": lambda: txn.commit(),
    }


def test_every_call_after_close_is_store_closed_and_changes_nothing() -> None:
    """Story: `"item" in db` was True, and a scan made before returned its rows."""
    files = MemoryFiles()
    db = account_store(files)
    txn = db.transaction()
    txn.insert(NAME, (500, "open", 0.0, None))
    before = rows_of(db)
    scan, begun, snapshot = db[NAME].scan(), iter(db[NAME].scan()), db.snapshot()
    next(begun)
    calls = every_call(db, txn) | {
        "scan made before": lambda: list(scan),
        "count of it": scan.count,
        "next of it": lambda: next(scan),
        "snapshot made before": lambda: snapshot[NAME],
        "contains of it": lambda: NAME in snapshot,
    }
    db.close()
    contents = files.snapshot()
    for name, call in calls.items():
        with pytest.raises(tm.StoreClosed, match="the store is closed; open it again"):
            call()
            pytest.fail(f"{name} worked on a closed store")
    db.close()
    txn.rollback()
    assert files.snapshot() == contents
    assert rows_of(open_memory(files.kill())) == before


def test_every_call_of_another_thread_on_a_transaction_is_wrong_thread() -> None:
    db = account_store()
    txn = db.transaction()
    txn.insert(NAME, (500, "mine", 0.0, None))
    promised = promises(db)
    caught: dict[str, BaseException | None] = {}

    def other() -> None:
        for name, call in every_call(db, txn).items():
            if name.startswith("txn."):
                caught[name] = None
                try:
                    call()
                except tm.Error as error:
                    caught[name] = error

    elsewhere(other)
    assert {name: type(error) for name, error in caught.items()} == dict.fromkeys(caught, tm.WrongThread)
    assert "begin one in this thread" in str(caught["txn.get"])
    assert promises(db) == promised
    txn.update(NAME, 500, {"balance": 7.0})
    txn.commit(True)
    assert db[NAME][500].balance == 7.0
    assert -1 in db[NAME] and 1_000 not in db[NAME]


def outcome_of(call: Callable[[], Any]) -> list[Any]:
    try:
        call()
    except tm.Error as error:
        return [type(error).__name__, error.evidence.get("pid")]
    return ["worked", None]


def test_every_call_in_a_forked_child_is_forked_handle_and_the_parent_continues(tmp_path: Path) -> None:
    options: Any = {"data_memory": "16 MiB", "redo_log": "2 MiB", "background": False}
    db = tm.open(tmp_path / "shop", **options)
    db.create_table(NAME, ACCOUNT, primary_key="id").insert_many([(-1, "a", 1.0, None), (-2, "b", 1.0, None)])
    txn = db.transaction()
    txn.insert(NAME, (500, "parent", 0.0, None))
    calls = every_call(db, txn)

    def child() -> Any:
        found = {name: outcome_of(call)[0] for name, call in calls.items()}
        found["close"] = outcome_of(db.close)[0]
        found["open"] = outcome_of(lambda: tm.open(tmp_path / "shop", **options))
        return found

    found = in_child(child)
    assert found.pop("open") == ["Locked", os.getpid()]
    assert found.pop("close") in ("worked", "ForkedHandle")
    assert found == dict.fromkeys(calls, "ForkedHandle")
    txn.commit(True)
    before = rows_of(db)
    assert sorted(before) == [-2, -1, 500]
    db.close()
    with tm.open(tmp_path / "shop", **options) as again:
        assert rows_of(again) == before


def test_openings_that_are_refused_leave_no_descriptor(tmp_path: Path) -> None:
    """Story: a process that tried again and again to open a store which another process had open kept a descriptor of
    the directory each time, and ran out of them in the end.
    """
    refused = {
        tm.Locked: lambda: tm.open(tmp_path / "shop"),
        tm.FileMissing: lambda: tm.open(tmp_path / "none", create=False),
        tm.Rejected: lambda: tm.restore(tmp_path / "place", tmp_path),
    }
    with tm.open(tmp_path / "shop", data_memory="16 MiB", redo_log="8 MiB", background=False) as db:
        db.backup(tmp_path / "place")
        for error, call in refused.items():
            before = descriptors_below(tmp_path)
            for _ in range(5):
                with pytest.raises(error):
                    call()
            assert descriptors_below(tmp_path) == before, error


def test_second_open_of_the_same_store_is_locked_and_names_the_holder(tmp_path: Path) -> None:
    options: Any = {"data_memory": "16 MiB", "redo_log": "2 MiB", "background": False}
    with tm.open(tmp_path / "shop", **options) as db:
        contents = {path.name: path.read_bytes() for path in (tmp_path / "shop").rglob("*") if path.is_file()}
        os.symlink(tmp_path / "shop", tmp_path / "other name")
        for path in (tmp_path / "shop", tmp_path / "other name", tmp_path / "shop" / ".." / "shop"):
            assert outcome_of(lambda path=path: tm.open(path, **options)) == ["Locked", os.getpid()]
            assert in_child(lambda path=path: outcome_of(lambda: tm.open(path, **options))) == ["Locked", os.getpid()]
        with pytest.raises(tm.Locked, match=rf"this process \(pid {os.getpid()}\) has .*shop open; close it"):
            tm.open(tmp_path / "shop")
        program = f"import tidemark as tm; tm.open({str(tmp_path / 'shop')!r})"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert f"Locked: process {os.getpid()} has" in other.stderr and "close it there" in other.stderr
        now = {path.name: path.read_bytes() for path in (tmp_path / "shop").rglob("*") if path.is_file()}
        assert now == contents
        db.create_table(NAME, ACCOUNT, primary_key="id").insert((1, "a", 1.0, None))


def fill_memory(db: Any) -> int:
    """Insert batches until memory is full, then rows; how many."""
    count = 0
    for step in (20, 1):
        try:
            while True:
                rows = [(count + place, "x" * 30, 1.0, "y" * 1_000) for place in range(step)]
                db[NAME].insert_many(rows)
                count += step
        except tm.MemoryExhausted:
            continue
    return count


@memory_only
def test_full_memory_refuses_every_form_and_gives_room_after_deletes() -> None:
    options = {"data_memory": "2 MiB", "transaction_memory": "8 MiB", "redo_log": "32 MiB"}
    db = account_store(**options)
    count = fill_memory(db)
    assert count > 300
    large = [(10**6 + number, "x" * 40, 1.0, "y" * 3_000) for number in range(60)]
    for form in FORMS.values():
        with nothing_happens(db, tm.MemoryExhausted, **options):
            db[NAME].insert_many(form(large))
        with nothing_happens(db, tm.MemoryExhausted, reopen=False):
            db[NAME].write_many(form([(number, "x", 1.0, "z" * 20_000) for number in range(100)]))
    for call in (
        lambda: db[NAME].insert((10**6, "x", 1.0, "y" * 300_000)),
        lambda: db[NAME].write((0, "x", 1.0, "y" * 300_000)),
        lambda: db[NAME].update(0, {"note": "y" * 300_000}),
        lambda: db[NAME].update_many({"id": list(range(100)), "note": ["z" * 20_000] * 100}),
    ):
        with nothing_happens(db, tm.MemoryExhausted, **options):
            call()
    assert db[NAME][0].owner == "x" * 30
    for first in range(0, count, 50):  # each delete needs a little memory itself until it is committed
        db[NAME].delete_many(list(range(first, min(first + 50, count))))
    assert fill_memory(db) > 0.95 * count


@memory_only
def test_memory_exhausted_inside_a_transaction_rolls_all_of_it_back() -> None:
    db = account_store(data_memory="2 MiB", transaction_memory="8 MiB", redo_log="32 MiB")
    fill_memory(db)
    with nothing_happens(db, tm.MemoryExhausted), db.transaction() as txn:
        txn.update(NAME, -1, {"balance": 99.0})
        txn.delete(NAME, -2)
        with txn.savepoint():
            txn.insert_many(NAME, [(10**6 + number, "x", 1.0, "y" * 3_000) for number in range(100)])


def test_full_log_refuses_after_the_timeout_and_continues_after_local_checkpoints() -> None:
    options = {"redo_log": "1 MiB", "transaction_memory": "128 KiB", "lock_timeout_ms": 700}
    db = account_store(**options)
    with pytest.raises(tm.RedoOverloaded):
        while True:
            db[NAME].update(-1, {"balance": 2.0})
    clock = db.parts.store.clock
    for call in (
        lambda: db[NAME].insert((1, "a", 1.0, None)),
        lambda: db[NAME].update(-1, {"balance": 3.0}),
        lambda: db[NAME].delete(-1),
        lambda: db[NAME].insert_many(FORMS["arrow"]([(1, "a", 1.0, None)])),
        lambda: db[NAME].delete_many([-1]),
        lambda: db.transaction().begin(),
        lambda: db.transaction().get(NAME, -1, lock="shared"),
    ):
        begun = clock.monotonic()
        with nothing_happens(db, tm.RedoOverloaded, **options):
            call()
        assert 0.7 <= clock.monotonic() - begun < 0.8
    assert db[NAME][-1].balance == 2.0
    db.checkpoint()
    db.checkpoint()
    db[NAME].insert((1, "a", 1.0, None))
    expected = rows_of(db)
    assert rows_of(open_memory(db.parts.files.kill(), **options)) == expected


@pytest.mark.parametrize("follower", ["archive", "binlog"])
def test_full_log_names_what_keeps_it(follower: str) -> None:
    """Story: where the archive kept the log, the error asked for a local checkpoint, which waits for the archive, or
    for space for a binlog that had everything.
    """
    db = account_store(redo_log="1 MiB", transaction_memory="128 KiB", lock_timeout_ms=0)
    store = db.parts.store

    def refuse(epoch: int) -> None:
        raise tm.StorageFull("no room in the place")

    store.room.followers[follower] = refuse
    store.room.follower_holds_log = lambda: True
    with pytest.raises(tm.StorageFull):
        db.checkpoint()
    kind = tm.RedoOverloaded if follower == "archive" else tm.BinlogOverloaded
    with pytest.raises(kind, match=f"full of epochs that are not in the {follower} yet"):
        while True:
            db[NAME].update(-1, {"balance": 2.0})
    del store.room.followers[follower]
    store.room.follower_holds_log = lambda: False
    db.checkpoint()
    assert store.room.awaited is None


def test_full_log_of_a_store_without_spool_files_names_the_option_that_gives_them() -> None:
    db = account_store(redo_log="1 MiB", transaction_memory="128 KiB", transaction_limit="128 KiB", lock_timeout_ms=0)
    with pytest.raises(tm.RedoOverloaded, match="or open it with a transaction_limit above transaction_memory"):
        while True:
            db[NAME].update(-1, {"balance": 2.0})


def test_transaction_larger_than_the_log_goes_to_a_file_or_is_too_large_at_once() -> None:
    """Story: with transaction_memory above the size of the log, a large transaction filled the log and ended with
    RedoOverloaded, which `Database.run` retried for half a minute, though no retry could succeed.
    """
    rows = [(number, "a", 1.0, "n" * 1_200) for number in range(1_000)]
    options = {"redo_log": "1 MiB", "transaction_memory": "2 MiB"}
    db = account_store(**options)
    for form in FORMS.values():
        assert db[NAME].insert_many(form(rows)) == len(rows)
        found = rows_of(open_memory(db.parts.files.kill(), **options))
        assert [found.get(row[0]) for row in rows] == rows
        db = account_store(**options)
    options |= {"transaction_limit": "2 MiB"}
    db = account_store(**options)
    for form in FORMS.values():
        with nothing_happens(db, tm.TransactionTooLarge, **options) as caught:
            db[NAME].insert_many(form(rows))
        assert "split it, or make the store with a larger redo_log" in str(caught[0])
        assert "transaction_limit" in str(caught[0])
    db[NAME].insert_many(rows[:300])


def test_transaction_past_its_memory_is_refused_in_every_form() -> None:
    options = {"transaction_memory": "128 KiB", "transaction_limit": "128 KiB"}
    db = account_store(**options)
    rows = [(number, "x" * 40, 1.0, "y" * 400) for number in range(1_000)]
    for form in FORMS.values():
        for call in (db[NAME].insert_many, db[NAME].write_many):
            with nothing_happens(db, tm.TransactionTooLarge, **options):
                call(form(rows))
    with nothing_happens(db, tm.TransactionTooLarge, **options):
        db[NAME].insert((1, "x", 1.0, "y" * 200_000))
    with nothing_happens(db, tm.TransactionTooLarge, **options), db.transaction() as txn:
        for row in rows:
            txn.insert(NAME, row)
    db[NAME].insert_many(rows[:100])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_disk_full_at_every_step_of_a_local_checkpoint_leaves_the_store_intact(number: int) -> None:
    files = MemoryFiles()
    db = account_store(files)
    db.checkpoint()
    db[NAME].update(-1, {"balance": 5.0})
    before = dump(db)
    db.close()
    contents = files.snapshot()
    nth = 0
    while True:
        nth += 1
        faulty = FaultFiles(MemoryFiles.from_snapshot(contents), [Rule("space", "lcp/*", nth=nth, error=number)])
        db = open_memory(faulty)
        if not faulty.fired:
            try:
                db.checkpoint()
            except tm.StorageFull:
                pass
            else:
                assert not faulty.fired, f"call {nth} failed unnoticed"
                break
        assert dump(db) == before
        assert db.status()["store"]["state"] == "open"
        db[NAME].insert((nth, "after", 1.0, None))
        report = db.checkpoint()
        assert report["rows"] == len(before[NAME]) + 1
        db[NAME].delete(nth)
        assert {row[:4] for row in dump(db)[NAME]} == {row[:4] for row in before[NAME]}
        expected = rows_of(db)
        again = open_memory(MemoryFiles.from_snapshot(_live(faulty)))
        assert rows_of(again) == expected
        db.close()
    assert nth > 4, "a local checkpoint writes more than that"


def _live(files: Any) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def walk(path: str) -> None:
        for name in files.list(path):
            full = f"{path}/{name}" if path else name
            try:
                file = files.open(full)
            except tm.Rejected:
                walk(full)
                continue
            found[full] = files.pread(file, 0, files.size(file))
            files.close(file)

    walk("")
    return found


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("rows", [1, 5_000])
def test_interrupted_commit_names_the_transaction_to_ask_about(rows: int) -> None:
    memory = MemoryFiles()
    db = account_store(memory, transaction_memory="4 MiB", redo_log="8 MiB", data_memory="16 MiB")
    db.close()
    files = FaultFiles(MemoryFiles(memory.disk), [Rule("fdatasync", "redo/*", nth=3, stall=_interrupt)])
    db = open_memory(files, transaction_memory="4 MiB", redo_log="8 MiB", data_memory="16 MiB")
    batch = [(number, "new", 0.0, "n" * 100) for number in range(rows)]
    with pytest.raises(tm.CommitInterrupted, match=r"ask outcome\(") as caught:
        db[NAME].insert_many(batch)
    assert isinstance(caught.value, KeyboardInterrupt) and isinstance(caught.value, tm.OutcomeUnknown)
    assert db.outcome(caught.value.txid) == "committed"
    assert len(db[NAME]) == 19 + rows


def test_commit_on_a_store_that_fails_names_the_transaction_to_ask_about() -> None:
    memory = MemoryFiles()
    account_store(memory).close()
    db = open_memory(FaultFiles(MemoryFiles(memory.disk), [Rule("fdatasync", "redo/*", nth=3, error=errno.EIO)]))
    with pytest.raises(tm.CommitOnFailedStore) as caught:
        db[NAME].insert((7, "new", 0.0, None))
    again = open_memory(MemoryFiles(memory.disk).kill())
    assert again.outcome(caught.value.txid) == ("committed" if 7 in again[NAME] else "aborted")


@pytest.mark.parametrize(("error", "level"), [(tm.StoreClosed, logging.INFO), (tm.IoFailed, logging.ERROR)])
def test_threads_of_a_store_that_ends_say_so_and_an_ordered_end_is_no_error(
    error: type[tm.StoreFailed], level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: each takeover had an ERROR in the log of the removed node, for threads that ended as requested."""
    caplog.set_level(logging.INFO, "tidemark")
    db = account_store(background=True)
    db.parts.store.failure.latch(error("this is the end"))
    db.parts.store.room.on_full()  # a local checkpoint is requested
    wait_until(lambda: any("background work stopped" in record.getMessage() for record in caplog.records))
    said = [record for record in caplog.records if "background work stopped" in record.getMessage()]
    assert {record.levelno for record in said} == {level}
    db.close()


def test_schema_changes_with_a_full_log_are_refused_and_never_go_over_what_is_needed() -> None:
    # Story: schema changes reserved no space in the log, which keeps only 64 KiB back. With the log full, the
    # seventeenth table made or dropped overwrote its first group, and the store could not be opened any more.
    files = MemoryFiles()
    db = open_memory(files)
    log = db.parts.store.log
    columns = [tm.Column("id", tm.Int64)]
    with pytest.raises(tm.RedoOverloaded, match="redo_log"):
        for number in range(10_000):
            db.create_table(f"t{number}", columns, "id")
            if number % 2:
                db.drop_table(f"t{number}")
    assert log.head_lsn - log.tail_lsn <= log.geometry.capacity_bytes
    names = db.tables()
    assert number > 300 and len(names) >= number // 2
    assert open_memory(files.kill()).tables() == names
    for _ in range(2):
        db.checkpoint()
    db.create_table("again", columns, "id")
    assert open_memory(files.kill()).tables() == sorted([*names, "main.again"])


def test_log_that_would_go_over_groups_that_are_needed_ends_the_store_instead() -> None:
    """L4 is verified again right before the write: if a reservation ever fails, no needed group is lost."""
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("t", [tm.Column("id", tm.Int64)], "id")
    names = db.tables()
    db.parts.store.log.tail_lsn -= db.parts.store.log.geometry.capacity_bytes
    with pytest.raises(tm.CommitOnFailedStore) as caught:
        db["t"].insert((1,))
    assert "groups that are needed" in str(caught.value.__cause__)
    assert open_memory(files.kill()).tables() == names
