"""Read-only opening: exact rows of a local checkpoint, nothing written, no other process disturbed; what is refused."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere, in_child
from tests.recovery.support import History, put
from tests.store.read_only import NAME, attach, attach_to, history, one_checkpoint, second, states, writer
from tests.store.support import ACCOUNT, SMALL, open_memory, rows_of
from tests.store.test_trouble import every_call, outcome_of
from tests.store.trouble import dump
from tidemark.calls import READ_ONLY, calls_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.shared_calls import Locator

__all__ = ["history", "states", "writer"]


# --- what is visible ------------------------------------------------------------------------------
def test_view_is_the_checkpoint_exactly_with_hidden_columns(states: Any) -> None:
    contents, expected = states
    with attach_to(contents) as view:
        assert view.status()["lcp"]["id"] == 3
        assert dump(view) == expected[3]
    with attach_to({name: content for name, content in contents.items() if name != "lcp/control-3"}) as view:
        assert dump(view) == expected[2]


def test_view_of_a_closed_store_leaves_out_what_the_log_holds(states: Any) -> None:
    contents, expected = states
    reopened = open_memory(MemoryFiles.from_snapshot(contents))
    with attach_to(contents) as view:
        assert 103 in view[NAME] and 103 not in reopened[NAME]
    reopened.close()


def test_status_names_epoch_checkpoint_and_that_nothing_is_written(writer: Any) -> None:
    report = writer.checkpoint()
    with attach(second(writer.parts.files)) as view:
        status = view.status()
        assert status["store"]["read_only"] is True and status["store"]["uuid"] == writer.status()["store"]["uuid"]
        assert status["epoch"]["shown"] == view.epoch == report["epoch"]
        assert status["lcp"]["id"] == report["lcp_id"] and status["lcp"]["rows"] == report["rows"] == 150
        (table,) = status["tables"].items()
        assert table[0] == NAME and (table[1]["id"], table[1]["rows"]) == (1, 150)


def test_tables_dropped_and_made_since_are_as_the_checkpoint_has_them(writer: Any) -> None:
    writer.drop_table(NAME)
    writer.create_table("test.young", [tm.Column("id", tm.Int64)], "id").insert((1,))
    with attach(second(writer.parts.files)) as view:
        accounts = view[NAME]
        assert view.tables() == [NAME] and len(accounts) == 100
        writer.create_table(NAME, ACCOUNT, "id")
        writer.checkpoint()
        view.refresh()
        assert view.tables() == [NAME, "test.young"] and len(view["test.young"]) == 1
        # Another table of the same name is another table, as for a handle of a Database.
        with pytest.raises(tm.NoSuchTable, match="dropped"):
            len(accounts)
        assert len(view[NAME]) == 0


# --- refresh --------------------------------------------------------------------------------------
def test_refresh_moves_handles_and_leaves_scans_and_transactions_where_they_were(writer: Any) -> None:
    with attach(second(writer.parts.files)) as view:
        accounts, first = view[NAME], view.epoch
        scan = iter(accounts.scan(limit=None))
        next(scan)
        with view.transaction() as txn:
            report = writer.checkpoint()
            assert view.epoch == first
            assert view.refresh() == view.epoch == report["epoch"] > first
            assert len(accounts) == 150 and accounts[60].balance == 1_060.0
            assert txn.get(NAME, 60).balance == 60.0 and len(list(txn.scan(NAME))) == 100
            assert 1 + sum(1 for _ in scan) == 100
        with view.transaction() as txn:
            assert txn.get(NAME, 60).balance == 1_060.0


def test_refresh_without_a_newer_checkpoint_keeps_the_view(writer: Any) -> None:
    with attach(second(writer.parts.files)) as view:
        held = view.parts
        assert view.refresh() == held.epoch
        assert view.parts is held


def test_refresh_frees_what_is_not_read_any_more(writer: Any) -> None:
    with attach(second(writer.parts.files)) as view:
        accounts = view[NAME]
        assert len(accounts) == 100
        scan = iter(accounts)
        next(scan)
        old = weakref.ref(view.parts.store.mem)
        writer.checkpoint()
        view.refresh()
        assert old() is not None  # the scan reads it
        assert sum(1 for _ in scan) == 99
        del scan
        assert old() is None


def test_refresh_that_fails_leaves_the_view_and_the_next_one_works(writer: Any) -> None:
    disk: MemoryFiles = writer.parts.files
    with attach(second(disk)) as view:
        before = dump(view)
        writer.checkpoint()
        writer.checkpoint()
        bad = disk.snapshot()
        for name in [name for name in bad if name.endswith(".data")]:
            node = disk.disk.root.live["lcp"].live[name.partition("/")[2]]
            node.live[100] ^= 1
        with pytest.raises(tm.LcpDamaged, match="checksum"):
            view.refresh()
        assert dump(view) == before
        report = writer.checkpoint()
        assert view.refresh() == report["epoch"]
        assert dump(view) == dump(writer)


def test_refresh_after_a_restart_through_an_older_epoch_follows_it_back() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 10, 0.0)
    older = db.checkpoint()["epoch"]
    put(db, 10, 10, 0.0)
    db.checkpoint()
    db.close()
    with attach(second(files)) as view:
        assert len(view[NAME]) == 20
        open_memory(second(files), through=older).close()
        assert view.refresh() == older
        assert len(view[NAME]) == 10


# --- nothing written, no other process disturbed ------------------------------------------------------
def test_attaching_reading_refreshing_closing_change_no_byte(history: History) -> None:
    files = MemoryFiles.from_snapshot(history.contents)
    before, changes = files.snapshot(), files.disk.changes
    with attach(files) as view:
        rows_of(view)
        view.refresh()
    assert files.snapshot() == before and files.disk.changes == changes


def test_writer_keeps_its_lock_and_its_files_open(writer: Any) -> None:
    view = attach(second(writer.parts.files))
    view.close()
    writer[NAME].insert((1_000, "late", 1.0, None))
    writer.checkpoint()
    with pytest.raises(tm.Locked):
        open_memory(second(writer.parts.files))
    assert writer.status()["store"]["state"] == "open"


def test_directory_that_must_not_be_written_is_enough() -> None:
    """As another user than root: root may write everything."""
    folder = Path(tempfile.mkdtemp())
    try:
        with tm.open(folder / "shop", **SMALL) as db:
            db.create_table(NAME, ACCOUNT, "id")
            put(db, 0, 10, 0.0)
            db.checkpoint()
        for each in (folder, *folder.rglob("*")):
            each.chmod(0o555 if each.is_dir() else 0o444)

        def child() -> Any:
            if os.getuid() == 0:
                os.setuid(65_534)
            found = [outcome_of(lambda: tm.open(folder / "shop", **SMALL))[0]]
            with tm.open(folder / "shop", read_only=True, data_memory="16 MiB") as view:
                return [*found, len(view[NAME]), view[NAME][3].owner]

        assert in_child(child) == ["ReadOnly", 10, "owner 3"]
        assert not (folder / "shop" / "control.sock").exists()
    finally:
        for each in (folder, *folder.rglob("*")):
            each.chmod(0o755)
        shutil.rmtree(folder)


def test_opened_without_leaving_a_lock_file(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        db.checkpoint()
    (tmp_path / "shop" / "LOCK").unlink()
    names = sorted(each.name for each in (tmp_path / "shop").iterdir())
    with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB"):
        # Any number of readers, and a writer at the same time.
        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB"):
            assert sorted(each.name for each in (tmp_path / "shop").iterdir()) == names
        tm.open(tmp_path / "shop", **SMALL).close()


# --- refusals -------------------------------------------------------------------------------------
def writing_calls(view: Any, txn: Any) -> dict[str, Callable[[], Any]]:
    """Every call that a store opened for reading refuses; those of a table with arguments, which it looks at first."""
    accounts, row = view[NAME], {"id": 500, "owner": "x", "balance": 1.0}
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: view.run(lambda txn: txn.insert(NAME, row)),
        "get shared": lambda: txn.get(NAME, 1, lock="shared"),
        "get exclusive": lambda: txn.get(NAME, 1, lock="exclusive"),
        "scan exclusive": lambda: txn.scan(NAME, lock="exclusive"),
    }
    for face, made in (("read-only store", view), ("read-only transaction", txn)):
        calls |= {f"{face}, {call.name}": getattr(made, call.name) for call, why in calls_of(face) if why == READ_ONLY}
    given: dict[str, tuple[Any, ...]] = dict.fromkeys(("insert", "write", "upsert"), (row,))
    given |= dict.fromkeys(("insert_many", "write_many", "upsert_many", "update_many"), ([row],))
    given |= {"update": (1, {"balance": 2.0}), "update_where": ({"balance": 1.0},), "delete_where": (tm.col("id") > 0,)}
    given |= {"delete": (1,), "delete_many": ([1],)}
    assert given.keys() == {call.name for call, why in calls_of("read-only table") if why == READ_ONLY}
    return calls | {f"table.{name}": partial(getattr(accounts, name), *arguments) for name, arguments in given.items()}


def test_every_writing_call_raises_read_only_and_changes_nothing(writer: Any) -> None:
    with attach(second(writer.parts.files)) as view, view.transaction() as txn:
        before = dump(view)
        calls = writing_calls(view, txn)
        assert {name: outcome_of(call)[0] for name, call in calls.items()} == dict.fromkeys(calls, "ReadOnly")
        assert dump(view) == before
        assert txn.get(NAME, 1).balance == 1.0, "a refused call leaves the transaction open"


def test_transaction_ends_and_belongs_to_its_thread(writer: Any) -> None:
    with attach(second(writer.parts.files)) as view:
        with view.transaction() as txn:
            with txn.savepoint():
                assert txn.get(NAME, 1).id == 1
            with pytest.raises(tm.WrongThread):
                elsewhere(lambda: txn.get(NAME, 1))
        for call in (lambda: txn.get(NAME, 1), lambda: txn.scan(NAME), lambda: txn.insert(NAME, (1,)), txn.commit):
            with pytest.raises(tm.TransactionEnded):
                call()
        txn.rollback()
        with pytest.raises(ValueError), view.transaction() as txn:
            raise ValueError
        assert txn.is_ended
        assert view.run(lambda txn: txn.get(NAME, 2).owner) == "owner 2"


def test_every_call_after_close_is_store_closed(writer: Any) -> None:
    view = attach(second(writer.parts.files))
    txn = view.transaction()
    calls = {**every_call(view, txn), **writing_calls(view, txn)}
    view.close()
    view.close()
    assert {name: outcome_of(call)[0] for name, call in calls.items()} == dict.fromkeys(calls, "StoreClosed")
    assert view.status()["store"]["state"] == "failed"
    assert len(writer[NAME]) == 150, "the writer's store is another one"


def test_every_call_in_a_forked_child_is_forked_handle_and_the_parent_continues(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id").insert((1, "ann", 1.0, None))
        db.checkpoint()
    with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view, view.transaction() as txn:
        calls = {**every_call(view, txn), **writing_calls(view, txn)}

        def child() -> Any:
            found = {name: outcome_of(call)[0] for name, call in calls.items()}
            view.close()
            with tm.open(view.locator, data_memory="16 MiB") as again:
                return [found, again[NAME][1].owner]

        assert in_child(child) == [dict.fromkeys(calls, "ForkedHandle"), "ann"]
        assert txn.get(NAME, 1).owner == "ann" and view.refresh() == view.epoch


def test_close_waits_for_the_refresh_of_another_thread(writer: Any) -> None:
    closing: list[threading.Thread] = []

    def close_meanwhile() -> None:
        closing.append(threading.Thread(target=view.close))
        closing[0].start()
        closing[0].join(0.05)
        assert closing[0].is_alive(), "the files were closed under the refresh"

    rule = Rule("pread", "lcp/2-1-2.data", stall=close_meanwhile)
    files = FaultFiles(second(writer.parts.files), [rule])
    view = tm.ReadOnlyDatabase(files, Options(data_memory="16 MiB"), ManualClock())
    report = writer.checkpoint()
    assert view.refresh() == report["epoch"]
    closing[0].join()
    assert outcome_of(view.refresh)[0] == "StoreClosed"


def test_locator_attaches_and_the_view_does_not_pickle(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        db.checkpoint()
        with tm.open(db.locator, read_only=True, data_memory="16 MiB") as view:
            locator = pickle.loads(pickle.dumps(view.locator))
            assert locator == Locator(str(tmp_path / "shop"), read_only=True)
            with tm.open(locator, data_memory="16 MiB") as again:
                assert isinstance(again, tm.ReadOnlyDatabase) and again.epoch == view.epoch
            with pytest.raises(tm.Unsupported, match="db.locator"):
                pickle.dumps(view)
    with tm.open(locator, read_only=False, **SMALL) as db:
        assert isinstance(db, tm.Database)
    with pytest.raises(tm.Unsupported):
        attach(second(one_checkpoint())).locator  # noqa: B018


@pytest.mark.parametrize(
    "options",
    [{"redo_log": "4 MiB"}, {"durability": "epoch"}, {"create": False}, {"background": False}, {"through": 1}]
    + [{"transaction_memory": "1 MiB"}, {"lock_timeout_ms": 0}, {"checkpoint_memory": "1 MiB"}],
)
def test_option_without_meaning_is_refused_by_its_name(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(tm.SchemaInvalid, match=f"^option {next(iter(options))} has no meaning [^\n]*; leave it out$"):
        tm.open(tmp_path, read_only=True, **options)
    assert list(tmp_path.iterdir()) == []


def test_option_read_only_of_nonsense_and_misspelt_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(tm.SchemaInvalid, match="option read_only is 'yes'; give True or False"):
        tm.open(tmp_path, read_only="yes")  # type: ignore[call-overload]
    with pytest.raises(tm.SchemaInvalid, match="did you mean read_only"):
        tm.open(tmp_path, readonly=True)  # type: ignore[call-overload]
    with pytest.raises(tm.SchemaInvalid, match="did you mean data_memory"):
        tm.open(tmp_path, read_only=True, data_memroy="1 GiB")  # type: ignore[call-overload]


# --- no store, no checkpoint, little memory ----------------------------------------------------------
def test_nothing_to_show_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(tm.FileMissing, match="none"):
        tm.open(tmp_path / "none", read_only=True)
    with pytest.raises(tm.FileMissing, match="there is no store in .*: it is empty; check the path"):
        tm.open(tmp_path, read_only=True)
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view:
            assert view.tables() == [NAME] and view.status()["lcp"]["id"] == 0
        db.checkpoint()
        tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB").close()


def test_first_checkpoint_ever_interrupted_is_none_yet_and_the_log_is_shown() -> None:
    contents = one_checkpoint().snapshot()
    contents["lcp/control-1"] = contents["lcp/control-1"][:-8]
    with attach_to(contents) as view:
        assert view.tables() == [NAME] and view.status()["lcp"]["id"] == 0


def test_memory_too_small_is_memory_exhausted_and_more_than_half_of_it_is_filled_by_one_thread() -> None:
    files = MemoryFiles()
    db = open_memory(files, data_memory="64 MiB", redo_log="64 MiB", transaction_memory="32 MiB")
    # One fragment: its loader alone needs nearly all of the memory; two loaders would get half each.
    columns = [tm.Column("id", tm.Int64), tm.Column("text", tm.VarChar(1_000))]
    table = db.create_table(NAME, columns, "id", tm.HashPartition(1))
    table.insert_many([(key, "x" * 900) for key in range(9_000)])
    db.checkpoint()
    used = db.status()["memory"]["used_bytes"]
    db.close()
    with pytest.raises(tm.LimitExceeded, match="do not fit into data_memory"):
        attach(second(files), data_memory=used * 3 // 4)
    with attach(second(files), data_memory=used + (1 << 20)) as view:
        assert len(view[NAME]) == 9_000
