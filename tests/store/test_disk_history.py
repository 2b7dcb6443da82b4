"""One test for each bug of disk columns and local checkpoints that NDB had and this store could have.

Each begins with the story, and repeats the steps that exposed the bug: it must not appear.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.store.disk_support import NAME, OTHER, DiskStore
from tests.store.support import open_memory
from tidemark.engine.disk.cache_layout import U_FREE, U_RESERVED
from tidemark.engine.memory.arena_layout import S_UNDO
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


def undo_word(store: DiskStore, word: int) -> int:
    mem = store.db.parts.store.mem
    return int(mem[int(mem[S_UNDO]) + word])


@pytest.mark.parametrize("is_committed", [False, True])
def test_page_emptied_flushed_and_taken_again_as_an_empty_one_keeps_its_place_in_the_log(is_committed: bool) -> None:
    """NDB bug #54986: a page that was emptied and flushed was taken again by the shortcut for empty pages, which set
    its LSN to 0, so that older UNDO records were no longer applied to it. The recipe: load, local checkpoint, clear,
    evict by reading another table, insert one row, crash after the next local checkpoint has flushed its pages.
    """
    store = DiskStore()
    store.evict()
    for _ in range(3):
        store.db.checkpoint()
    for number in range(5):
        store.load(range(20), number)
        store.db.checkpoint()
        store.delete(range(20))
        store.evict()
        if is_committed:
            store.load([100 + number], number)
        else:
            txn = store.db.transaction()
            txn.insert(NAME, (100, 1, None, b"x" * 500))
        store.flush()
        store.crash()


def test_rows_near_the_size_of_a_page_changed_by_many_threads_do_not_overflow_the_undo_buffer() -> None:
    """NDB bug #16766493: disk columns of 8 KB and more overloaded the UNDO buffer. Rows nearly as large as a page,
    parallel updates, the smallest UNDO log: every update is made or refused as a whole.
    """
    store = DiskStore(undo_log="1 MiB", lock_timeout_ms=0)
    store.load(range(30), size=2_990)
    store.db.checkpoint()
    done: list[dict[int, tuple[Any, ...]]] = [{} for _ in range(3)]

    def work(number: int) -> None:
        rng = random.Random(number)
        for turn in range(8):
            key = number * 10 + rng.randrange(10)
            row = (key, turn, None, bytes([turn]) * rng.choice([10, 1_500, 3_000]))
            try:
                store.table.write(row)
            except (tm.StorageFull, tm.MemoryExhausted):
                continue
            done[number][key] = row

    at_once(work, range(3))
    for each in done:
        store.rows.update(each)
    store.verify()
    store.crash()


def test_full_undo_log_refuses_one_transaction_and_is_freed_by_aborts_and_a_local_checkpoint() -> None:
    """NDB error 1501, UNDO log full: only a local checkpoint frees it. Only the transaction that finds it full is
    refused. Space reserved by aborted transactions is returned; a local checkpoint frees the rest.
    """
    store = DiskStore(undo_log="1 MiB", transaction_memory="1 MiB")
    store.db.create_table("test.plain", [tm.Column("id", tm.Int64)], "id")
    store.load(range(40), size=2_000)
    for turn in itertools.count(1):
        free = undo_word(store, U_FREE)
        try:
            store.load(range(40), turn, size=2_000)
        except tm.StorageFull as error:
            assert "UNDO log" in str(error) and error.retryable
            break
        assert turn < 1_000, "the UNDO log never fills"
    assert undo_word(store, U_RESERVED) == 0, "the refused gave its promise back"
    assert undo_word(store, U_FREE) >= free, "and took nothing; a flush only gives back what padding did not need"
    store.db["test.plain"].insert((1,))
    store.verify()
    txn = store.db.transaction()
    promised = 0
    with pytest.raises(tm.StorageFull):
        for key in itertools.count(1_000):
            txn.insert(NAME, (key, 0, None, b"p" * 2_000))
            promised = max(promised, undo_word(store, U_RESERVED))
    assert promised > 0 and undo_word(store, U_RESERVED) == 0
    store.db.checkpoint()
    store.db.checkpoint()
    store.load(range(40), 77, size=2_000)
    store.crash()


def test_transaction_that_no_undo_log_takes_is_refused_without_a_wait() -> None:
    """Story: one that needs more than the whole UNDO log was StorageFull, which is retryable, each time. Then the error
    came only after the time that a transaction waits for a local checkpoint, which cannot help.
    """
    store = DiskStore(undo_log="1 MiB", transaction_memory="4 MiB", lock_timeout_ms=120_000)
    txn = store.db.transaction()
    with pytest.raises(tm.TransactionTooLarge, match="needs more room than the UNDO log .*larger undo_log"):
        for key in itertools.count(1_000):
            txn.insert(NAME, (key, 0, None, b"p" * 2_000))
    assert txn.is_ended and undo_word(store, U_RESERVED) == 0
    for first in range(0, 1_000, 100):
        store.load(range(first, first + 100), size=2_000)
        store.db.checkpoint()
    with pytest.raises(tm.TransactionTooLarge):
        store.table.update_where({"cold": b"d" * 2_000})
    assert store.table.update_where({"cold": b"d" * 20}, tm.col("id") < 100) == 100
    store.rows = store.found()
    store.crash()


def test_pages_never_written_are_not_believed_whatever_is_in_their_place() -> None:
    """RonDB: UNDO met pages that were allocated but never written, read garbage as their header and undid or skipped
    records by it. Allocate pages, crash before they are written, again and again, with tables dropped and made anew.
    """
    rng = random.Random(1)
    store = DiskStore(size="64 KiB")
    for turn in range(6):
        store.load(range(40), turn)
        if turn % 2:
            store.db.checkpoint()
            store.load(range(30, 120), turn)
        store.crash(rng)
        store.recreate()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_table_dropped_and_made_again_between_local_checkpoint_and_crash_keeps_its_pages_from_old_records(
    is_flushed: bool,
) -> None:
    """NDB reuses table numbers: UNDO records of the dropped table must not touch pages of the one made after it."""
    store = DiskStore(size="64 KiB")
    store.load(range(30))
    store.db.checkpoint()
    store.load(range(30), 1, size=900)
    store.delete(range(10))
    store.recreate()
    store.load(range(25), 2)
    if is_flushed:
        store.flush()
    store.crash()
    store.db.checkpoint()
    store.load(range(25, 60), 3)
    store.crash()


def test_rows_of_a_dropped_table_are_seen_by_no_scan_of_the_one_that_has_its_pages_now() -> None:
    """NDB bug #84422: a scan in disk order showed stale rows of a dropped table that had owned the extents before."""
    store = DiskStore(size="256 KiB")
    for turn in range(4):
        store.load(range(60), turn, size=1_500)
        store.verify()
        store.recreate()
        store.db.checkpoint()
        store.db.checkpoint()  # no kept local checkpoint has the old one: its extents are free
        store.load(range(5), turn)
        store.evict()
        store.verify()
    store.crash()


def test_memory_column_of_variable_size_set_to_null_in_a_table_with_disk_columns() -> None:
    """NDB bug #79253: setting a dynamic column in memory to NULL in a table with disk columns."""
    store = DiskStore()
    store.load(range(1, 30))
    store.db.checkpoint()
    for key in range(1, 30):
        store.table.update(key, {"note": None})
        store.rows[key] = (*store.rows[key][:2], None, store.rows[key][3])
    store.verify()
    store.crash()
    store.table.update(5, {"note": "back", "n": 9})
    store.rows[5] = (5, 9, "back", store.rows[5][3])
    store.crash()


def test_data_files_added_again_and_again_are_there_after_a_kill() -> None:
    """NDB bug #22605467: adding data files repeatedly hung, and after a kill the node could not start."""
    store = DiskStore(size="64 KiB", autoextend=False)
    for turn in range(6):
        store.db.add_datafile("main", "64 KiB")
        store.load(range(turn * 15, turn * 15 + 15), turn, size=2_000)
        if turn == 3:
            store.db.checkpoint()
        store.crash()
    assert len(store.db.status()["tablespaces"]) == 1


def test_undo_log_goes_round_its_ring_many_times_with_a_crash_at_every_turn() -> None:
    """NDB: the head of the UNDO log exactly at the end of a file. The ring wraps; wherever its head is, a restart finds
    it (the exact end of a file: `test_head_at_a_file_end_continues_in_the_next_file_or_the_first`).
    """
    rng = random.Random(2)
    store = DiskStore(undo_log="1 MiB", undo_filter=False)
    store.load(range(40))
    files = set()
    for turn in range(24):
        store.load(rng.sample(range(40), 30), turn, size=rng.choice([300, 1_500]))
        if turn % 2:
            store.db.checkpoint()
        files.add(store.db.parts.store.disk.undo.head // (1 << 18))
        store.crash(rng)
    assert len(files) > 2


def test_page_with_room_reserved_but_not_changed_keeps_its_lsn_when_all_is_flushed() -> None:
    """NDB: a page that was only pre-allocated from was flushed with LSN 0 instead of its old one, so that its older
    records were undone no more.
    """
    store = DiskStore()
    store.load(range(10))
    store.db.checkpoint()
    store.load(range(10), 1, size=700)
    txn = store.db.transaction()
    for key in range(100, 104):
        txn.insert(NAME, (key, 0, None, b"reserved"))
    store.flush()
    store.evict()
    store.flush()
    store.crash()


def test_rows_deleted_and_loaded_again_while_a_local_checkpoint_pauses_are_counted_right() -> None:
    """NDB bug #24664: the next local checkpoint hung at a table while all its rows were deleted and loaded again; after
    the crash the number of rows was wrong.
    """
    store = DiskStore()
    store.db.checkpoint()
    store.load(range(80))
    keys = range(80)
    store.lcp_with(lambda: store.delete(keys), lambda: store.load(keys, 1, size=100))
    store.crash()
    assert len(store.table) == 80


def test_row_grown_and_deleted_in_one_transaction_before_the_local_checkpoint_has_passed_it() -> None:
    """NDB bug #81934: the copy kept of a deleted row of variable size had the length of its last update, not the one it
    had before the transaction.
    """
    store = DiskStore()
    store.load(range(60), size=50)

    def grow_and_delete() -> None:
        with store.db.transaction() as txn:
            for key in range(30):
                txn.update(NAME, key, {"note": "n" * 60, "cold": b"g" * 3_000})
                txn.delete(NAME, key)
        for key in range(30):
            del store.rows[key]

    store.lcp_with(grow_and_delete)
    store.crash()
    store.db.checkpoint()
    store.crash()


def test_load_and_delete_at_the_start_of_a_local_checkpoint_survive_a_crash() -> None:
    """NDB bug #41915: a local checkpoint that began together with loads and deletes of 30 rows of a disk table, its
    scan slowed down, then a crash of all nodes.
    """
    store = DiskStore()
    store.load(range(30))
    for turn in range(4):
        again = functools.partial(store.load, range(30), turn)
        work = [lambda: store.delete(range(30)), again, store.flush]
        store.lcp_with(*work[turn % 2 :])
        store.crash()
        store.load(range(30))


def test_table_made_and_filled_before_the_first_local_checkpoint_has_its_rows_after_a_crash() -> None:
    """NDB bug #29506869: a disk table filled before there was any local checkpoint lost its rows in a crash."""
    for is_flushed in (False, True):
        store = DiskStore()
        store.load(range(60))
        if is_flushed:
            store.flush()
        store.crash()
        store.crash()


@pytest.mark.parametrize("left", [0, 20])
def test_everything_changed_many_times_while_a_local_checkpoint_is_slow_comes_back_to_its_end(left: int) -> None:
    """NDB testSystemRestart SR_UNDO: delay a local checkpoint; load, update, delete half, update by scan, clear, load,
    clear; let it finish; restart; nothing is left, or half in the second round.
    """
    store = DiskStore()

    def halve() -> None:
        store.delete(range(20, 40))
        store.load(range(20), 3, size=900)

    store.load(range(40))
    store.lcp_with(lambda: store.load(range(40), 2), halve, lambda: store.delete(list(store.rows)))
    store.lcp_with(lambda: store.load(range(40), 4), lambda: store.delete(range(left, 40)), store.flush)
    store.crash()
    assert len(store.table) == left


@pytest.mark.parametrize("case", ["SR_DD_1", "SR_DD_2", "SR_DD_3"])
@pytest.mark.parametrize("seed", range(2))
def test_crash_at_random_moments_of_loading_clearing_and_replacing_disk_rows(case: str, seed: int) -> None:
    """NDB testSystemRestart SR_DD_1 (load upward), SR_DD_2 (load and clear), SR_DD_3 (delete random rows, scan update,
    insert them again), each until a crash; restart, count, update by scan, clear, and on from there.
    """
    rng = random.Random(f"{case} {seed}")
    store = DiskStore()
    first = 0
    for turn in range(4):
        store.load(range(first, first + 40), turn)
        for step in range(rng.randint(1, 6)):
            if case == "SR_DD_1":
                store.load(range(first + 40 * step, first + 40 * step + rng.randint(1, 60)), step)
            elif case == "SR_DD_2":
                store.delete(list(store.rows))
                store.load(range(rng.randint(1, 100)), step)
            else:
                gone = rng.sample(sorted(store.rows), 15)
                store.delete(gone)
                store.load(list(store.rows), step, size=rng.choice([100, 501, 2_000]))
                store.load(gone, step)
            if rng.random() < 0.4:
                store.db.checkpoint() if rng.random() < 0.6 else store.flush()
        store.crash(rng)
        store.load(list(store.rows), 99)
        first = max(store.rows, default=0)
        store.crash(rng)
        store.delete(list(store.rows))


def test_disk_insert_that_finds_no_room_inside_a_batch_on_one_key_rolls_all_of_it_back() -> None:
    """NDB testBasic DDInsertFailUpdateBatch: the insert of a disk row failed at pre-allocation, inside a batch that had
    other operations on the same key.
    """
    store = DiskStore(size="256 KiB", autoextend=False)
    store.load(range(5), size=3_000)
    before = dict(store.rows)
    txn = store.db.transaction()
    with pytest.raises(tm.StorageFull) as caught:
        for key in itertools.count(10):
            txn.insert(NAME, (key, 0, None, b"x" * 3_000))
            txn.update(NAME, key, {"cold": b"y" * 2_900, "n": 5})
            txn.delete(NAME, key)
            txn.insert(NAME, (key, 1, None, b"z" * 3_000))
    assert "tablespace main" in str(caught.value)
    assert store.found() == before
    store.verify()
    store.crash()
    assert OTHER not in store.db


def test_pages_that_a_killed_process_wrote_are_synced_before_their_copies_are_overwritten() -> None:
    # The data files are synced when the next batch comes; until then the double-write file has every page they may
    # lose. A killed process leaves its last batch unsynced. Story: the next process took the data files for synced. Its
    # first batch overwrote the copies, and a power loss then tore pages that could not be repaired.
    store = DiskStore()
    store.load(range(40), 1, size=2_500)

    def unsynced(memory: MemoryFiles) -> int:
        return sum(piece.name.startswith("space/") for piece in memory.pieces())

    assert unsynced(store.files), "the last batch is in its place, unsynced"
    memory = store.files.kill()
    at_first_batch: list[int] = []
    plan = Plan()
    store.files = FaultFiles(memory, plan)
    store.db.close()
    store.db = open_memory(store.files, **store.options)
    plan.add(Rule("pwrite", "double-write", stall=lambda: at_first_batch.append(unsynced(memory))))
    while not at_first_batch:
        store.load(range(40), 2, size=2_500)
    assert at_first_batch == [0]
    store.files = memory
    store.crash(random.Random(1))
