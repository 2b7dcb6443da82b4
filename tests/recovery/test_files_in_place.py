"""Files cut, missing, replaced, copied at a bad moment; and the surroundings of a store: clock, limits, signals,
exceptions of the user's code (F71 to F76, F81, F82, F104, F118, F119).
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import in_child
from tests.recovery.support import History, make_history, put, refused, survives
from tests.store.support import ACCOUNT, SMALL, open_memory, rows_of
from tests.store.trouble import dump, promises
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

NAME = "test.account"
NEEDED = ("redo/", "undo/", "space/")  # files whose content exists nowhere else


def names_of(history: History) -> list[str]:
    return sorted(name for name in history.contents if not name.endswith("/"))


def test_any_one_file_missing_is_survived_or_named(history: History) -> None:
    for name in names_of(history):
        contents = history.copy()
        del contents[name]
        if name.startswith(NEEDED):
            assert name in str(refused(contents, tm.FileMissing))
        else:
            db = open_memory(MemoryFiles.from_snapshot(contents))
            assert rows_of(db) == history.rows, name


def assert_whole_or_named(contents: dict[str, bytes], name: str, rows: Any) -> None:
    """Missing pages are an error at the opening, or for the caller that reads them."""
    try:
        found = rows_of(open_memory(MemoryFiles.from_snapshot(contents)))
    except tm.Damaged as error:
        assert name in str(error)
    else:
        assert found == rows


def test_any_one_file_cut_anywhere_is_survived_or_named(history: History) -> None:
    rng = random.Random(71)
    for name in names_of(history):
        size = len(history.contents[name])
        lengths = {0, 512, max(0, size - 512), rng.randrange(size + 1) // 512 * 512}
        for length in sorted(length for length in lengths if length < size):
            contents = {**history.contents, name: history.contents[name][:length]}
            if name.startswith("space/"):
                assert_whole_or_named(contents, name, history.rows)
            elif name.startswith(NEEDED):
                assert name in str(refused(contents, tm.FileTruncated))
            else:
                db = open_memory(MemoryFiles.from_snapshot(contents))
                assert rows_of(db) == history.rows, f"{name} cut to {length}"


def test_any_one_file_of_another_store_is_foreign_if_it_is_read_and_else_harms_nothing(history: History) -> None:
    """F73. Story: each kind of file had a test of its own, but the UNDO log had none. An UNDO log of another store was
    called damaged, and restoring a copy of an intact file does not help.
    """
    other = make_history(seed=99)
    assert other.rows == history.rows and other.lcp_ids == history.lcp_ids
    foreign, unread = set(), set()
    for name in names_of(history):
        if other.contents[name] == history.contents[name]:  # zeros
            continue
        contents = {**history.contents, name: other.contents[name]}
        is_older = name.startswith(f"lcp/{history.lcp_ids[0]}-")
        if is_older:
            survives(history, contents)
        else:
            error = refused(contents, tm.ForeignFile)
            assert error.file == name or name.startswith("sysfile"), name
        (unread if is_older else foreign).add(re.sub(r"\d+", "n", name))
    print(sorted(foreign), sorted(unread))
    more = (
        {"space/n.data", "undo/n.undo", "double-write", "lcp/n-extents.data"}
        if "space/1.data" in history.contents
        else set()
    )
    assert foreign == {"redo/n.redo", "sysfile.n", "lcp/control-n", "lcp/n-n-n.data", "lcp/n-copies.data", *more}
    assert unread >= {"lcp/n-n-n.data", "lcp/n-copies.data"}


def test_any_one_file_of_an_earlier_day_is_damage_or_all_rows_are_there() -> None:
    """F73. Story: all files of the log were only ever put back to an earlier day together. A log without its end is
    damage, not a shorter history.
    """
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 60, 0.0)
    db.checkpoint()
    put(db, 60, 40, 0.0)
    db.sync()
    old = files.snapshot()
    put(db, 0, 100, 3.0)
    db.checkpoint()
    put(db, 50, 100, 5.0)
    rows = rows_of(db)
    db.close()
    contents = files.snapshot()
    outcomes = {}
    for name in sorted(name for name in contents if old.get(name, contents[name]) != contents[name]):
        mixed = {**contents, name: old[name]}
        if name.startswith("space/"):
            assert_whole_or_named(mixed, name, rows)
        elif name.startswith(NEEDED):
            error = refused(mixed, tm.RedoDamaged if name.startswith("redo/") else tm.UndoDamaged)
            assert error.file == name
        else:
            assert rows_of(open_memory(MemoryFiles.from_snapshot(mixed))) == rows, name
        outcomes[re.sub(r"\d+", "n", name)] = True
    expected = {"redo/n.redo", "sysfile.n"}
    more = {"space/n.data", "undo/n.undo", "double-write"} if "space/1.data" in contents else set()
    assert expected | more <= set(outcomes)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "folder": lambda path, moved: path.mkdir(),
    "link": lambda path, moved: path.symlink_to(moved),
    "dangling link": lambda path, moved: path.symlink_to(moved / "nowhere"),
    "pipe": lambda path, moved: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", KINDS)
def test_something_else_in_place_of_any_file_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "store"
    with tm.open(place, **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        put(db, 0, 20, 0.0)
        db.checkpoint()
        expected = dump(db)
    refusals = 0
    for path in sorted(path for path in place.rglob("*") if path.is_file() and path.parent.name != "catalog"):
        moved = tmp_path / "moved"
        path.rename(moved)
        KINDS[kind](path, moved)
        content = moved.read_bytes()
        try:
            with tm.open(place, **SMALL) as db:
                assert dump(db) == expected
        except (tm.Rejected, tm.Damaged) as error:
            refusals += 1
            assert "\n" not in str(error)
        assert moved.read_bytes() == content, "a link must not be written through"
        if path.exists() or path.is_symlink():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        moved.rename(path)
    assert refusals >= 5
    with tm.open(place, **SMALL) as db:
        assert dump(db) == expected


def test_unknown_files_are_ignored_and_stay(history: History) -> None:
    """Story: making a store removed every file in folders named redo and lcp, even files that were not the store's."""
    strange = {
        "notes.txt": b"1",
        "redo/notes.txt": b"do it again",
        "redo/my own.redo": b"undo",
        "redo/².redo": b"2",
        "lcp/phone": b"call",
        "lcp/more/deep": b"x",
        "redo/9999": b"2",
        "redo/copy of 0000": b"3",
        "lcp/control-": b"4",
        "lcp/control-x": b"5",
        "lcp/readme": b"6",
        "lcp/control-²": b"these were taken for numbers: ValueError, OverflowError, FileMissing",
        "lcp/²-1-0.data": b"6",
        "lcp/control-007": b"6",
        "lcp/control-" + "9" * 40: b"6",
        "lcp/99999999999999999999-1-0.data": b"6",
        "more/of/it": b"7",
        "catalog": b"8",
    }
    contents = {**history.contents, **strange}
    survives(history, contents)
    files = MemoryFiles.from_snapshot(contents)
    db = open_memory(files)
    for _ in range(3):
        db.checkpoint()
    db.close()
    assert {name: files.snapshot().get(name) for name in strange} == strange


@pytest.mark.parametrize("order", ["log first", "log last", "shuffled"])
def test_files_copied_one_by_one_from_an_open_store_open_as_a_moment_of_it_or_are_refused(order: str) -> None:
    seed = 75
    rng = random.Random(seed)
    opened = 0
    for attempt in range(12):
        files = MemoryFiles()
        db = open_memory(files)
        db.create_table(NAME, ACCOUNT, "id")
        moments = [rows_of(db)]
        taken: dict[str, bytes] = {}
        names = sorted(files.snapshot())
        if order == "log last":
            names.reverse()
        if order == "shuffled":
            rng.shuffle(names)
        for name in names:
            for _ in range(rng.randrange(3)):
                put(db, rng.randrange(200), 5, float(rng.randrange(100)))
                moments.append(rows_of(db))
            if attempt % 3 == 0 and rng.random() < 0.3:
                db.checkpoint()
            if rng.random() < 0.3:
                db.parts.clockwork.advance_gci()
            if name in files.snapshot():
                taken[name] = files.snapshot()[name]
        copied = MemoryFiles.from_snapshot(taken)
        try:
            found = rows_of(open_memory(copied))
        except tm.Damaged:
            assert copied.snapshot() == taken
            continue
        except tm.NoSuchTable:
            found = {}
        opened += 1
        assert found in moments, f"seed {seed}, attempt {attempt}: no state the store ever had"
    assert opened > 0


# --- what surrounds a store ----------------------------------------------------------------------
def test_clock_that_jumps_either_way_orders_nothing() -> None:
    files = MemoryFiles()
    clock = ManualClock()
    db = Database(files, Options.from_keywords(SMALL), clock)
    db.create_table(NAME, ACCOUNT, "id")
    epochs = []
    for number, seconds in enumerate([0.0, -1e9, 3e9, -5e8, 0.0, 86_400.0]):
        clock.jump(seconds)
        put(db, number * 10, 3, 1.0)
        epochs.append(db.sync())
        if number % 2:
            db.checkpoint()
        db.parts.clockwork.advance_gci()
    assert epochs == sorted(set(epochs))
    expected = dump(db)
    again = Database(files.kill(), Options.from_keywords(SMALL), ManualClock(start_us=1))
    assert dump(again) == expected
    put(again, 0, 1, 5.0)
    assert again.sync() > epochs[-1]


def test_address_space_too_small_for_data_memory_is_a_limit_which_no_retry_cures(tmp_path: Path) -> None:
    def child() -> list[str]:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        warnings.simplefilter("ignore", tm.MemoryWarning)  # of a machine with less
        try:
            tm.open(tmp_path / "store", **{**SMALL, "data_memory": "64 GiB"}).close()
        except tm.Error as error:
            return [type(error).__name__, str(error)]
        return ["opened", ""]

    kind, message = in_child(child)
    assert kind == "LimitExceeded" and "data_memory" in message and "\n" not in message
    with tm.open(tmp_path / "store", **SMALL) as db:
        assert db.tables() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_process_ended_by_a_signal_without_close_loses_nothing_acknowledged(tmp_path: Path, number: int) -> None:
    with tm.open(tmp_path, **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
    child = os.fork()
    if child == 0:
        try:
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)  # the test runner may ignore it, which is inherited
            db = tm.open(tmp_path, **SMALL)
            put(db, 0, 10, 1.0)
            txn = db.transaction()
            txn.insert(NAME, (99, "never", 1.0, None))
            os.kill(os.getpid(), number)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == number
    with tm.open(tmp_path, **SMALL) as db:  # the lock died with its process (F76)
        assert sorted(rows_of(db)) == list(range(10))


def test_exception_in_the_users_code_rolls_back_and_comes_through() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table(NAME, ACCOUNT, "id")
    put(db, 0, 50, 0.0)
    before, promised = dump(db), promises(db)

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("of the user")

    def in_transaction() -> None:
        with db.transaction() as txn:
            txn.update(NAME, 3, {"balance": 9.0})
            fail()

    def work(txn: Any) -> None:
        txn.delete(NAME, 4)
        fail()

    def rows() -> Any:
        yield (100, "a", 1.0, None)
        fail()

    for call in (
        in_transaction,
        lambda: db.run(work),
        lambda: db[NAME].insert_many(rows()),
        lambda: db[NAME].insert_many([(200, "a", 1.0, None)], fail),
        lambda: db.checkpoint(fail),
    ):
        with pytest.raises(ZeroDivisionError, match="of the user"):
            call()
        assert dump(db) == before and promises(db) == promised
    db.checkpoint()
    assert dump(open_memory(files.kill())) == before


def test_table_dropped_under_an_open_scan_ends_it_in_one_of_two_ways() -> None:
    db = open_memory(data_memory="32 MiB", redo_log="16 MiB", undo_log="32 MiB")
    db.create_table(NAME, ACCOUNT, "id")
    for first in range(0, 6_000, 1_000):
        put(db, first, 1_000, 0.0)
    for rows_read in (0, 1, 500):
        db.create_table(f"test.t{rows_read}", ACCOUNT, "id")
        db[f"test.t{rows_read}"].insert_many([(key, "o", 1.0, "n" * 50) for key in range(3_000)])
        scan = iter(db[f"test.t{rows_read}"].scan())
        seen = [next(scan)[0] for _ in range(rows_read)]
        db.drop_table(f"test.t{rows_read}")
        put(db, 0, 1_000, 5.0)  # takes the memory again
        try:
            seen += [row[0] for row in scan]
        except tm.Error as error:
            assert type(error) in (tm.NoSuchTable, tm.TransactionEnded)
        else:
            assert sorted(seen) == list(range(3_000))
        assert len(set(seen)) == len(seen) and set(seen) <= set(range(3_000))
    assert len(db[NAME]) == 6_000
