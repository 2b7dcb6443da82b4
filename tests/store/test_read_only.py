"""Read-only opening: exact rows of a local checkpoint, nothing written, nobody disturbed; damage, retirement, refusals."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from engine.clock import ManualClock
from engine.file_doubles.faults import FaultFiles, Plan, Rule
from engine.file_doubles.memory import MemoryFiles
from engine.options import Options
from recovery.attach import ATTEMPTS
from tests.recovery.support import History, changes_during, flipped, make_history, put
from tests.recovery.test_local_checkpoint_damage import damage, data_files, foreign
from tests.store.support import ACCOUNT, SMALL, open_memory, rows_of
from tests.store.test_trouble import in_child, outcome_of
from tests.store.trouble import dump
from tidemark.locator import Locator

NAME = "test.account"
WRITES = ("create", "pwrite", "truncate", "sync", "make_directory", "rename", "unlink", "lock")
ROOT = Path(__file__).resolve().parents[2]


def attach(files: Any, **options: Any) -> tm.ReadOnlyDatabase:
    """A view through a disk on which whatever would change it fails."""
    guarded = FaultFiles(files, [Rule(operation, once=False, error=errno.EROFS) for operation in WRITES])
    parsed = Options.from_keywords({"data_memory": "16 MiB", **options})
    return tm.ReadOnlyDatabase(guarded, parsed, ManualClock())


def attach_to(contents: Any, **options: Any) -> tm.ReadOnlyDatabase:
    return attach(MemoryFiles.from_snapshot(contents), **options)


def second(files: MemoryFiles) -> MemoryFiles:
    """The same disk as another process has it."""
    return MemoryFiles(files.disk)


@pytest.fixture
def writer() -> Iterator[Any]:
    """A store with 100 rows in its local checkpoint and more behind it."""
    db = open_memory()
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 100, 0.0)
    db.checkpoint()
    put(db, 50, 100, 1_000.0)
    yield db
    db.close()


@pytest.fixture(scope="module")
def history() -> History:
    return make_history()


@pytest.fixture(scope="module")
def states() -> tuple[dict[str, bytes], dict[int, Any]]:
    """The files of a store, and what each of its local checkpoints must show."""
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table(NAME, ACCOUNT, "id")
    db.create_table("test.old", [tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)], "id")
    db["test.old"].insert_many([(key, 0) for key in range(100)])
    put(db, 0, 200, 0.0)
    expected = {}
    for number in (1, 2, 3):
        before = dump(db)
        report = db.checkpoint(changes_during(db, number))
        expected[report["lcp_id"]] = before
        db[NAME].delete(number + 100)
        assert dump(db) != before
    db.close()
    return files.snapshot(), expected


# --- what is shown --------------------------------------------------------------------------------
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


def test_every_reading_call_of_a_handle_works(writer: Any) -> None:
    with attach(second(writer._files)) as view:
        accounts = view[NAME]
        assert isinstance(accounts, tm.TableHandle)
        assert len(accounts) == 100 and 99 in accounts and 149 not in accounts
        assert accounts[3].balance == 3.0 and accounts.get(149) is None
        assert accounts.get_many([5, 149, 4], ["id"]).to_pydict() == {"id": [5, 4]}
        assert {row.id for row in accounts} == set(range(100))
        assert len(list(accounts.scan(["owner"], limit=7))) == 7
        assert accounts.to_arrow(["id", tm.EPOCH]).num_rows == accounts.to_pandas().shape[0] == 100
        assert accounts.to_numpy()["id"].sum() == sum(range(100))
        assert view.tables() == [NAME] and NAME in view and "test.none" not in view
        assert accounts.definition == writer[NAME].definition and accounts.name == NAME
        with pytest.raises(tm.RowNotFound):
            accounts[149]
        with pytest.raises(tm.NoSuchTable):
            view["test.none"]


def test_status_names_epoch_checkpoint_and_that_nothing_is_written(writer: Any) -> None:
    report = writer.checkpoint()
    with attach(second(writer._files)) as view:
        status = view.status()
        assert status["store"]["read_only"] is True and status["store"]["uuid"] == writer.status()["store"]["uuid"]
        assert status["epoch"]["shown"] == view.epoch == report["epoch"]
        assert status["lcp"]["id"] == report["lcp_id"] and status["lcp"]["rows"] == report["rows"] == 150
        assert status["tables"] == {NAME: {"id": 1, "rows": 150}}


def test_tables_dropped_and_made_since_are_as_the_checkpoint_has_them(writer: Any) -> None:
    writer.drop_table(NAME)
    writer.create_table("test.young", [tm.Column("id", tm.Int64)], "id").insert((1,))
    with attach(second(writer._files)) as view:
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
    with attach(second(writer._files)) as view:
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
    with attach(second(writer._files)) as view:
        held = view._view
        assert view.refresh() == held.epoch
        assert view._view is held


def test_refresh_frees_what_nobody_reads_any_more(writer: Any) -> None:
    with attach(second(writer._files)) as view:
        accounts = view[NAME]
        assert len(accounts) == 100
        scan = iter(accounts)
        next(scan)
        old = weakref.ref(view._view.store.mem)
        writer.checkpoint()
        view.refresh()
        assert old() is not None  # the scan reads it
        assert sum(1 for _ in scan) == 99
        del scan
        assert old() is None


def test_refresh_that_fails_leaves_the_view_and_the_next_one_works(writer: Any) -> None:
    disk: MemoryFiles = writer._files
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


# --- nothing written, nobody disturbed --------------------------------------------------------------
def test_attaching_reading_refreshing_closing_change_no_byte(history: History) -> None:
    files = MemoryFiles.from_snapshot(history.contents)
    before, changes = files.snapshot(), files.disk.changes
    with attach(files) as view:
        rows_of(view)
        view.refresh()
    assert files.snapshot() == before and files.disk.changes == changes


def test_writer_keeps_its_lock_and_its_files_open(writer: Any) -> None:
    view = attach(second(writer._files))
    view.close()
    writer[NAME].insert((1_000, "late", 1.0, None))
    writer.checkpoint()
    with pytest.raises(tm.Locked):
        open_memory(second(writer._files))
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
        # Any number of readers, and a writer beside them.
        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB"):
            assert sorted(each.name for each in (tmp_path / "shop").iterdir()) == names
        tm.open(tmp_path / "shop", **SMALL).close()


# --- refusals -------------------------------------------------------------------------------------
def writing_calls(view: Any, txn: Any) -> dict[str, Callable[[], Any]]:
    accounts, row = view[NAME], (500, "x", 1.0, None)
    calls: dict[str, Callable[[], Any]] = {
        "create_table": lambda: view.create_table("test.x", ACCOUNT, "id"),
        "drop_table": lambda: view.drop_table(NAME),
        "sync": lambda: view.sync(),
        "advance_epoch": lambda: view.advance_epoch(),
        "checkpoint": lambda: view.checkpoint(),
        "run": lambda: view.run(lambda txn: txn.insert(NAME, row)),
        "get shared": lambda: txn.get(NAME, 1, lock="shared"),
        "get exclusive": lambda: txn.get(NAME, 1, lock="exclusive"),
        "scan exclusive": lambda: txn.scan(NAME, lock="exclusive"),
    }
    arguments: dict[str, tuple[Any, ...]] = {
        "insert": (row,),
        "write": (row,),
        "update": (1, {"balance": 2.0}),
        "delete": (1,),
        "insert_many": ([row],),
        "write_many": ([row],),
        "update_many": ([{"id": 1, "balance": 2.0}],),
        "delete_many": ([1],),
    }
    for name, given in arguments.items():
        calls[f"table.{name}"] = lambda name=name, given=given: getattr(accounts, name)(*given)  # type: ignore[misc]
        calls[f"txn.{name}"] = lambda name=name, given=given: getattr(txn, name)(NAME, *given)  # type: ignore[misc]
    return calls


def reading_calls(view: Any, txn: Any) -> dict[str, Callable[[], Any]]:
    accounts = view[NAME]
    return {
        "table": lambda: view[NAME],
        "tables": view.tables,
        "transaction": view.transaction,
        "refresh": view.refresh,
        "get": lambda: accounts.get(1),
        "get_many": lambda: accounts.get_many([1]),
        "scan": lambda: accounts.scan(),
        "to_arrow": accounts.to_arrow,
        "len": lambda: len(accounts),
        "in": lambda: 1 in accounts,
        "txn.get": lambda: txn.get(NAME, 1),
        "txn.get_many": lambda: txn.get_many(NAME, [1]),
        "txn.scan": lambda: txn.scan(NAME),
    }


def test_every_writing_call_raises_read_only_and_changes_nothing(writer: Any) -> None:
    with attach(second(writer._files)) as view, view.transaction() as txn:
        before = dump(view)
        calls = writing_calls(view, txn)
        assert {name: outcome_of(call)[0] for name, call in calls.items()} == dict.fromkeys(calls, "ReadOnly")
        assert dump(view) == before
        assert txn.get(NAME, 1).balance == 1.0, "a refused call leaves the transaction open"


def test_every_public_call_of_a_database_is_there_or_named_here() -> None:
    missing = {name for name in dir(tm.Database) if not name.startswith("_") and not hasattr(tm.ReadOnlyDatabase, name)}
    assert missing == {"outcome", "restart_report"}  # what the log and a restart tell
    writing = {name for name in dir(tm.Transaction) if not name.startswith("_")}
    known = {"insert", "write", "update", "delete", "insert_many", "write_many", "update_many", "delete_many"}
    read = {"get", "get_many", "scan", "commit", "rollback", "savepoint", "check"}
    inside = {"grow", "buf", "buf_bytes", "desc", "group", "is_ended", "mem", "place", "shared", "store", "thread", "txid"}
    assert writing == known | read | inside, "a new call of a transaction: does it write?"


def test_transaction_ends_and_belongs_to_its_thread(writer: Any) -> None:
    with attach(second(writer._files)) as view:
        with view.transaction() as txn:
            with txn.savepoint():
                assert txn.get(NAME, 1).id == 1
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(outcome_of(lambda: txn.get(NAME, 1))[0]))
            thread.start()
            thread.join()
            assert found == ["WrongThread"]
        for call in (lambda: txn.get(NAME, 1), lambda: txn.scan(NAME), lambda: txn.insert(NAME, (1,)), txn.commit):
            with pytest.raises(tm.TransactionEnded):
                call()
        txn.rollback()
        with pytest.raises(ValueError), view.transaction() as txn:
            raise ValueError
        assert txn.is_ended
        assert view.run(lambda txn: txn.get(NAME, 2).owner) == "owner 2"


def test_every_call_after_close_is_store_closed(writer: Any) -> None:
    view = attach(second(writer._files))
    txn = view.transaction()
    calls = {**reading_calls(view, txn), **writing_calls(view, txn)}
    view.close()
    view.close()
    assert {name: outcome_of(call)[0] for name, call in calls.items()} == dict.fromkeys(calls, "StoreClosed")
    assert view.status()["store"]["state"] == "failed"
    assert len(writer[NAME]) == 150, "the writer's store is another one"


def test_every_call_in_a_forked_child_is_forked_handle_and_the_parent_goes_on(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id").insert((1, "ann", 1.0, None))
        db.checkpoint()
    with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view, view.transaction() as txn:
        calls = {**reading_calls(view, txn), **writing_calls(view, txn)}

        def child() -> Any:
            found = {name: outcome_of(call)[0] for name, call in calls.items()}
            view.close()
            with tm.open(view.locator, data_memory="16 MiB") as again:
                return [found, again[NAME][1].owner]

        assert in_child(child) == [dict.fromkeys(calls, "ForkedHandle"), "ann"]
        assert txn.get(NAME, 1).owner == "ann" and view.refresh() == view.epoch


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
        attach(second(_one_checkpoint())).locator  # noqa: B018


def _one_checkpoint() -> MemoryFiles:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table(NAME, ACCOUNT, "id")
    db.checkpoint()
    db.close()
    return files


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
    with pytest.raises(tm.SchemaInvalid, match="did you mean data_memory"):
        tm.open(tmp_path, read_only=True, data_memroy="1 GiB")  # type: ignore[call-overload]


# --- no store, no checkpoint, little memory ----------------------------------------------------------
def test_nothing_to_show_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(tm.FileMissing, match="none"):
        tm.open(tmp_path / "none", read_only=True)
    with pytest.raises(tm.FileMissing, match="there is no store here"):
        tm.open(tmp_path, read_only=True)
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        with pytest.raises(tm.FileMissing, match="no local checkpoint yet [^\n]*; make one with checkpoint"):
            tm.open(tmp_path / "shop", read_only=True)
        db.checkpoint()
        tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB").close()


def test_first_checkpoint_ever_interrupted_is_none_yet() -> None:
    contents = _one_checkpoint().snapshot()
    contents["lcp/control-1"] = contents["lcp/control-1"][:-8]
    with pytest.raises(tm.FileMissing, match="no local checkpoint yet"):
        attach_to(contents)


def test_memory_too_small_is_memory_exhausted_and_half_of_it_is_used_by_one_thread(history: History) -> None:
    files = MemoryFiles()
    db = open_memory(files, data_memory="64 MiB", redo_log="64 MiB", transaction_memory="32 MiB")
    table = db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("text", tm.VarChar(1_000))], "id")
    table.insert_many([(key, "x" * 900) for key in range(9_000)])
    db.checkpoint()
    used = db.status()["memory"]["used_bytes"]
    db.close()
    with pytest.raises(tm.MemoryExhausted, match="do not fit into data_memory"):
        attach(second(files), data_memory=used // 2)
    with attach(second(files), data_memory=used + (1 << 20)) as view:
        assert len(view[NAME]) == 9_000


# --- damage ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "missing", "zeros"])
def test_newest_checkpoint_damaged_the_whole_one_before_is_shown(states: Any, how: str) -> None:
    contents, expected = states
    seed = 610
    print(f"seed {seed}")
    rng = random.Random(seed)
    for name in sorted(name for name in contents if name.startswith("lcp/3-") or name == "lcp/control-3"):
        damaged = dict(contents)
        damage(damaged, name, how, rng)
        with attach_to(damaged) as view:
            assert view.status()["lcp"]["id"] == 2, name
            assert view.status()["lcp"]["fallbacks"] == (0 if "control" in name else 1)
            assert dump(view) == expected[2], "a fragment of another local checkpoint is another point in time"


def test_damage_of_both_checkpoints_in_different_fragments_is_refused(history: History) -> None:
    # A restart takes each fragment from where it is intact; a view cannot, it has no log to bring them together.
    contents = history.copy()
    older, newest = history.lcp_ids
    damage(contents, f"lcp/{newest}-1-0.data", "flip", random.Random(1))
    damage(contents, f"lcp/{older}-1-2.data", "flip", random.Random(1))
    with pytest.raises(tm.LcpDamaged, match="no local checkpoint is intact") as caught:
        attach_to(contents)
    assert "\n" not in str(caught.value)
    open_memory(MemoryFiles.from_snapshot(contents)).close()


def test_unreadable_newest_data_file_the_one_before_is_shown(history: History) -> None:
    rule = Rule("pread", f"lcp/{history.lcp_ids[1]}-1-3.data", once=False, error=errno.EIO)
    files = FaultFiles(MemoryFiles.from_snapshot(history.contents), [rule])
    with tm.ReadOnlyDatabase(files, Options(data_memory="16 MiB"), ManualClock()) as view:
        assert view.epoch == history.epochs[0]


@pytest.mark.parametrize("kind", ["control-{}", "{}-1-0.data", "{}-copies.data"])
def test_file_of_another_store_is_refused(history: History, kind: str) -> None:
    contents = history.copy()
    name = "lcp/" + kind.format(history.lcp_ids[1])
    contents[name] = foreign(contents[name])
    with pytest.raises(tm.ForeignFile):
        attach_to(contents)


def test_another_store_in_the_place_of_the_one_attached_to_is_refused() -> None:
    files = _one_checkpoint()
    with attach(second(files)) as view:
        other = {name: foreign(content) for name, content in files.snapshot().items() if "redo" not in name}
        files.disk.root = MemoryFiles.from_snapshot(other).disk.root
        with pytest.raises(tm.ForeignFile, match="another store stands in the place"):
            view.refresh()
        assert len(view[NAME]) == 0


def test_directory_moved_away_or_replaced_ends_the_view_at_its_next_refresh(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        db.checkpoint()
    for is_replaced in (False, True):
        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view:
            (tmp_path / "shop").rename(tmp_path / "before")
            if is_replaced:
                shutil.copytree(tmp_path / "before", tmp_path / "shop")
            assert len(view[NAME]) == 0
            with pytest.raises(tm.IoFailed, match="open it again"):
                view.refresh()
            assert outcome_of(lambda: len(view[NAME]))[0] == "IoFailed"
            if not is_replaced:
                (tmp_path / "before").rename(tmp_path / "shop")
    tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB").close()


def test_sysfile_damaged_or_too_new_is_refused_as_by_a_restart(history: History) -> None:
    import numpy as np

    from engine.layout.sealed import FORMAT_VERSION, header_of, seal
    from engine.layout.sysfile import SYSFILE

    contents = history.copy()
    for name in ("sysfile.0", "sysfile.1"):
        contents[name] = flipped(contents[name], 200)
    with pytest.raises(tm.SysfileDamaged):
        attach_to(contents)
    for name in ("sysfile.0", "sysfile.1"):
        words = np.frombuffer(history.contents[name], dtype=np.int64).copy()
        header_of(words, SYSFILE)["version"] = FORMAT_VERSION + 1
        seal(words, words.size)
        contents[name] = words.tobytes()
    with pytest.raises(tm.VersionTooNew):
        attach_to(contents)


# --- retirement while reading ------------------------------------------------------------------------
class Racing:
    """A view's disk on which the writer works between two calls of the reader."""

    def __init__(self, db: Any, rules: list[tuple[str, str, int]], work: Callable[[], Any], once: bool = True) -> None:
        self.work = work
        self.plan = Plan([Rule(operation, name, nth=nth, once=once, stall=self._stall) for operation, name, nth in rules])
        self.files = FaultFiles(second(db._files), self.plan)
        self.struck = 0

    def _stall(self) -> None:
        self.struck += 1
        self.work()

    def attach(self) -> tm.ReadOnlyDatabase:
        return tm.ReadOnlyDatabase(self.files, Options(data_memory="16 MiB"), ManualClock())


def advance(db: Any, times: int = 1) -> Callable[[], None]:
    """The writer changes a row and makes local checkpoints."""

    def work() -> None:
        for _ in range(times):
            db[NAME].update(7, {"balance": db[NAME][7].balance + 1.0})
            db.checkpoint()

    return work


@pytest.mark.parametrize(
    ("operation", "name", "nth"),
    [
        ("list", "lcp", 1),
        ("open", "lcp/control-*", 1),
        ("pread", "lcp/control-*", 1),
        ("open", "lcp/*.data", 1),
        ("open", "lcp/*.data", 3),
        ("open", "lcp/*-copies.data", 1),
        ("pread", "lcp/*.data", 2),
    ],
)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_writer_retires_the_checkpoint_while_it_is_read(
    writer: Any, operation: str, name: str, nth: int, times: int
) -> None:
    racing = Racing(writer, [(operation, name, nth)], advance(writer, times))
    with racing.attach() as view:
        assert racing.struck == 1
        assert view.status()["lcp"]["fallbacks"] == 0, "retired is not damaged"
        balance = view[NAME][7].balance
        assert balance in (7.0, writer[NAME][7].balance)
        if operation == "open" and nth == 1 and times == 3:
            assert balance == writer[NAME][7].balance, "what was to be opened is gone: the newest is shown"
        view.refresh()
        assert dump(view) == dump(writer)


def test_writer_that_always_is_ahead_ends_the_attempt_in_one_line(writer: Any) -> None:
    racing = Racing(writer, [("open", "lcp/*-1-1.data", 1)], advance(writer, 3), once=False)
    with pytest.raises(tm.SnapshotTooOld, match="retired before they were loaded; try again"):
        racing.attach()
    assert racing.struck == ATTEMPTS


def test_refresh_overtaken_by_the_writer_shows_the_newest(writer: Any) -> None:
    racing = Racing(writer, [("open", "lcp/2-1-1.data", 1)], advance(writer, 3))
    with racing.attach() as view:
        writer.checkpoint()
        assert view.refresh() == view.epoch
        assert racing.struck == 1 and dump(view) == dump(writer)


def test_damaged_newest_and_the_one_before_retired_meanwhile_the_next_is_shown(writer: Any) -> None:
    writer.checkpoint()
    disk: Any = writer._files.disk
    disk.root.live["lcp"].live["2-1-0.data"].live[100] ^= 1
    racing = Racing(writer, [("open", "lcp/1-1-0.data", 1)], advance(writer, 2))
    with racing.attach() as view:
        assert racing.struck == 1
        assert dump(view) == dump(writer)


def test_control_file_half_written_is_no_checkpoint_yet(states: Any) -> None:
    contents, expected = states
    for size in (0, 8, len(contents["lcp/control-3"]) // 2):
        with attach_to({**contents, "lcp/control-4": contents["lcp/control-3"][:size]}) as view:
            assert dump(view) == expected[3]


# --- beside a writer that works ----------------------------------------------------------------------
ACCOUNTS, REFRESHES, VIEWS = 40, 200, 60
TRANSFERS = """
import random, sys
import tidemark as tm
rng = random.Random(int(sys.argv[2]))
with tm.open(sys.argv[1], data_memory="16 MiB", redo_log="8 MiB", durability="epoch") as db:
    accounts = db.create_table("test.account", [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64),
                                                tm.Column("note", tm.VarChar(2000))], "id")
    accounts.insert_many([(key, 1000, "") for key in range(40)])
    db.checkpoint()
    print("ready", flush=True)

    def transfer(*_):
        with db.transaction() as txn:
            one, two = rng.sample(range(40), 2)
            amount = rng.randrange(50)
            for key, change in ((one, -amount), (two, amount)):
                row = txn.get("test.account", key, lock="exclusive")
                if rng.random() < 0.2:
                    txn.delete("test.account", key)
                    txn.insert("test.account", (key, row.balance + change, row.note))
                else:
                    txn.update("test.account", key, {"balance": row.balance + change, "note": "n" * rng.randrange(2000)})

    while True:
        for _ in range(5):
            transfer()
        db.checkpoint(transfer)
"""


def check_transfers(view: tm.ReadOnlyDatabase, accounts: Any) -> None:
    rows = accounts.to_arrow(["id", "balance", tm.EPOCH]).to_pydict()
    assert sum(rows["balance"]) == ACCOUNTS * 1_000
    assert sorted(rows["id"]) == list(range(ACCOUNTS)) and len(accounts) == ACCOUNTS
    assert max(rows["$EPOCH"]) <= view.epoch
    assert all(accounts[key].balance == balance for key, balance in zip(rows["id"], rows["balance"], strict=True))


def test_reader_refreshing_beside_a_writing_process_sees_every_time_one_point_in_time(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    process = subprocess.Popen(
        [sys.executable, "-c", TRANSFERS, str(tmp_path / "bank"), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with tm.open(tmp_path / "bank", read_only=True, data_memory="16 MiB") as view:
            accounts = view[NAME]
            seen = [view.epoch]
            while len(seen) <= REFRESHES or len(set(seen)) < VIEWS:
                held = iter(accounts)
                first = next(held)
                seen.append(view.refresh())
                check_transfers(view, accounts)
                assert view.status()["lcp"]["fallbacks"] == 0, "what the writer retires is not damaged"
                assert first.balance + sum(row.balance for row in held) == ACCOUNTS * 1_000
            assert seen == sorted(seen), "never back"
            assert process.poll() is None, "the writer did not notice"
            process.send_signal(signal.SIGKILL)
            process.wait()
            last = view.refresh()
            check_transfers(view, accounts)
            # Opening recovers what the log holds behind it; the view stays where it is.
            with tm.open(tmp_path / "bank", data_memory="16 MiB", background=False) as db:
                assert sum(db[NAME].to_arrow(["balance"]).to_pydict()["balance"]) == ACCOUNTS * 1_000
                assert view.epoch == last
                report = db.checkpoint()
                assert view.refresh() == report["epoch"] > last
                assert dump(view) == dump(db)
    finally:
        process.kill()
        process.communicate()


def test_threads_of_one_process_write_refresh_and_read(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    errors: list[BaseException] = []
    is_over = threading.Event()

    def guarded(work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                while not is_over.is_set():
                    work()
            except BaseException as error:
                errors.append(error)
                is_over.set()

        return threading.Thread(target=run)

    with tm.open(tmp_path / "shop", **{**SMALL, "redo_log": "16 MiB", "durability": "epoch"}) as db:
        db.create_table(NAME, ACCOUNT, "id").insert_many([(key, "", 100.0, None) for key in range(ACCOUNTS)])
        db.checkpoint()

        def transfer() -> None:
            with db.transaction() as txn:
                one, two = rng.sample(range(ACCOUNTS), 2)
                for key, change in ((one, -1.0), (two, 1.0)):
                    txn.update(NAME, key, {"balance": txn.get(NAME, key).balance + change, "note": "n" * key})

        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view:
            accounts = view[NAME]

            def read() -> None:
                with view.transaction() as txn:
                    one = sum(row.balance for row in txn.scan(NAME))
                    two = sum(txn.get(NAME, key).balance for key in range(ACCOUNTS))
                assert one == two == sum(accounts.to_numpy()["balance"]) == ACCOUNTS * 100.0

            threads = [guarded(transfer), guarded(db.checkpoint), guarded(read), guarded(view.refresh)]
            for thread in threads:
                thread.start()
            for _ in range(REFRESHES):
                view.refresh()
                if is_over.is_set():
                    break
            is_over.set()
            for thread in threads:
                thread.join()
            assert not errors, errors
            db.checkpoint()
            view.refresh()
            assert dump(view) == dump(db)
