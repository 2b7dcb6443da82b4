"""Damaged, missing, foreign and unreadable files of local checkpoints (F41, F58 to F60, F71 to F73)."""

from __future__ import annotations

import errno
import random

import pytest

import tidemark as tm
from tests.recovery.support import Contents, History, flipped, make_history, refused, reopened, survives
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import F_MAP, F_ROW_WORDS, PAGE_HEADER_WORDS, PAGE_SHIFT
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")


@pytest.fixture(scope="module")
def first_only() -> History:
    """Only the first local checkpoint was ever made: the log still reaches back to the empty store."""
    files = MemoryFiles()
    db = open_memory(files)
    from tests.recovery.support import put

    db.create_table("test.account", ACCOUNT, "id")
    put(db, 0, 50, 0.0)
    db.checkpoint()
    put(db, 20, 50, 1.0)
    rows = rows_of(db)
    db.close()
    return History(files.snapshot(), rows, (0, 1), (0, 0))


def data_files(history: History, lcp_id: int) -> list[str]:
    return sorted(name for name in history.contents if name.startswith(f"lcp/{lcp_id}-"))


def damage(contents: Contents, name: str, how: str, rng: random.Random) -> None:
    content = contents[name]
    if how == "flip":
        contents[name] = flipped(content, rng.randrange(len(content)), rng.randrange(8))
    elif how == "cut":
        contents[name] = content[: rng.randrange(len(content)) // 8 * 8]
    elif how == "empty":
        contents[name] = b""
    elif how == "missing":
        del contents[name]
    elif how == "zeros":
        contents[name] = bytes(len(content))


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "missing", "zeros"])
@pytest.mark.parametrize("is_newest", [True, False], ids=["newest", "older"])
def test_fragment_of_a_damaged_newest_data_file_comes_from_the_one_before_and_damage_of_an_older_one_has_no_effect(
    history: History, is_newest: bool, how: str
) -> None:
    seed = 590
    print(f"seed {seed}")
    rng = random.Random(seed)
    for name in data_files(history, history.lcp_ids[is_newest]):
        contents = history.copy()
        damage(contents, name, how, rng)
        survives(history, contents, fallbacks=int(is_newest))


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "missing", "zeros"])
def test_both_data_files_of_a_fragment_damaged_refused(history: History, how: str) -> None:
    rng = random.Random(592)
    contents = history.copy()
    older, newest = history.lcp_ids
    damage(contents, f"lcp/{newest}-1-2.data", how, rng)
    damage(contents, f"lcp/{older}-1-2.data", how, rng)
    error = refused(contents, tm.LcpDamaged)
    assert error.evidence["fragment"] == 2
    assert "account" in str(error)


def test_newest_copies_and_older_data_damaged_refused(history: History) -> None:
    contents = history.copy()
    older, newest = history.lcp_ids
    damage(contents, f"lcp/{newest}-copies.data", "zeros", random.Random(1))
    damage(contents, f"lcp/{older}-1-0.data", "zeros", random.Random(1))
    refused(contents, tm.LcpDamaged)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "zeros", "missing"])
def test_newest_control_file_damaged_the_one_before_is_loaded(history: History, how: str) -> None:
    contents = history.copy()
    damage(contents, f"lcp/control-{history.lcp_ids[1]}", how, random.Random(580))
    report = survives(history, contents)
    assert report["lcp_id"] == history.lcp_ids[0]


def test_both_control_files_damaged_refused(history: History) -> None:
    contents = history.copy()
    for lcp_id in history.lcp_ids:
        damage(contents, f"lcp/control-{lcp_id}", "zeros", random.Random(1))
    refused(contents, tm.LcpDamaged)


@pytest.mark.parametrize("how", ["flip", "missing"])
def test_first_checkpoint_damaged_the_log_is_replayed_from_its_start(first_only: History, how: str) -> None:
    for name in [*data_files(first_only, 1), "lcp/control-1"]:
        contents = first_only.copy()
        damage(contents, name, how, random.Random(593))
        survives(first_only, contents)


def test_first_checkpoint_damaged_and_log_overwritten_is_lcp_damage_not_log_damage() -> None:
    # Story: the log after the first checkpoint is gone once a second one was made and the ring has wrapped. A replay
    # from LSN 0 then found no group and blamed the log.
    history = make_history(lcps=2)
    contents = history.copy()
    damage(contents, "lcp/1-1-0.data", "zeros", random.Random(1))
    damage(contents, "lcp/2-1-0.data", "zeros", random.Random(1))
    log = bytearray(contents["redo/0000.redo"])
    log[0:4_096] = bytes(4_096)
    contents["redo/0000.redo"] = bytes(log)
    refused(contents, tm.LcpDamaged)


def test_restart_after_a_fallback_keeps_what_it_needed(history: History) -> None:
    # Story: the next checkpoint counted the damaged one as one of the two kept, removed the one the fragment had come
    # from, and cut the log after it.
    contents = history.copy()
    older, newest = history.lcp_ids
    damage(contents, f"lcp/{newest}-1-1.data", "zeros", random.Random(1))
    db, files = reopened(contents)
    db.checkpoint()
    db.close()
    names = files.snapshot()
    assert f"lcp/control-{older}" in names and f"lcp/control-{newest}" not in names
    third = dict(names)
    damage(third, f"lcp/{newest + 1}-1-1.data", "zeros", random.Random(1))
    again, _ = reopened(third)
    assert rows_of(again) == history.rows
    again.close()


def test_kill_right_after_a_fallback_falls_back_again(history: History) -> None:
    contents = history.copy()
    damage(contents, f"lcp/{history.lcp_ids[1]}-copies.data", "flip", random.Random(4))
    for _ in range(3):
        db, files = reopened(contents)
        assert rows_of(db) == history.rows
        contents = files.kill().snapshot()


def test_unreadable_files_of_both_checkpoints_refused(history: History) -> None:
    memory = MemoryFiles.from_snapshot(history.contents)
    before = memory.snapshot()
    files = FaultFiles(memory, [Rule("pread", "lcp/*-1-3.data", once=False, error=errno.EIO)])
    with pytest.raises(tm.LcpDamaged):
        open_memory(files)  # type: ignore[arg-type]
    assert memory.snapshot() == before


def test_data_file_in_place_of_that_of_another_checkpoint_or_fragment_is_damage(history: History) -> None:
    older, newest = history.lcp_ids
    one, two = f"lcp/{newest}-1-0.data", f"lcp/{newest}-1-1.data"
    contents = history.contents
    for changed in ({one: contents[f"lcp/{older}-1-0.data"]}, {one: contents[two], two: contents[one]}):
        survives(history, {**contents, **changed}, fallbacks=1)


def test_restart_through_an_epoch_before_every_checkpoint_says_which_are_possible(history: History) -> None:
    files = MemoryFiles.from_snapshot(history.contents)
    before = files.snapshot()
    with pytest.raises(tm.ValueOutOfRange, match=str(history.epochs[0])):
        open_memory(files, through=history.epochs[0] - 1)
    assert files.snapshot() == before


def test_row_whose_bit_disagrees_with_its_epoch_is_named_and_ends_the_store() -> None:
    """Story: the error said only that there was such a row, but not which one of millions."""
    db = open_memory()
    db.create_table("test.t", ACCOUNT, "id", partition=tm.HashPartition(1))
    db["test.t"].insert_many([(number, "o", 1.0, None) for number in range(10)])
    mem, table = db.parts.store.mem, db.parts.store.tables.by_name["test.t"]
    (fragment,) = table.by_number.values()
    page = int(mem[mem[mem[address_of(fragment) + F_MAP]]])
    row = (page << PAGE_SHIFT) + PAGE_HEADER_WORDS + 3 * int(mem[address_of(fragment) + F_ROW_WORDS])
    mem[row + 1] += 1 << 40
    text = rf"row 0\.3 of table {table.table_id}, fragment 0, has epoch {int(mem[row + 1])} and checkpoint bit 0"
    with pytest.raises(tm.InvariantBroken, match=text):
        db.checkpoint()
    with pytest.raises(tm.InvariantBroken):
        db["test.t"].get(1)
