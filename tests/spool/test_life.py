"""Spool files from their first block to their removal."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.spool.support import NAME, found, insert_spooled, low_store, open_low, rows, spool_names
from tidemark.engine.access.batch_operations import scan
from tidemark.engine.log.spool_files import FOLDER, spool_name, txid_of
from tidemark.engine.memory.arena_layout import X_USED
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification.log_listing import StoreListing


def test_spooled_transaction_is_one_small_record_in_the_log() -> None:
    db = low_store()
    before = db.status()["log"]["head_lsn"]
    insert_spooled(db)
    assert db.status()["log"]["head_lsn"] - before == 4_096
    assert db.status()["spool"]["kept_bytes"] > 200_000


def test_reservations_of_the_log_and_of_copies_are_released() -> None:
    db = low_store(redo_log="1 MiB")
    insert_spooled(db, 0, 3_000)
    with db.transaction() as txn:
        txn.update_where(NAME, {"balance": tm.col("balance") + 1})
        assert txn.spool is not None
        with db.transaction() as other:
            other.insert(NAME, (9_999, "x", 1.0, None))
    assert db[NAME].get(2_999).balance == 1_500.5
    db.checkpoint()
    db.checkpoint()
    assert db.check()["problems"] == []


def test_slices_of_a_spooled_commit_wait_for_a_slow_local_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a mutant made large commits in memory wait, which have reserved space for their copies, and let spooled
    ones, which have not, pile up; no test saw it.
    """
    db = low_store(lock_timeout_ms=1_000)
    limit, asked = db.parts.store.options.checkpoint_memory_bytes // 8, []

    def waiting_words() -> int:
        asked.append(db.parts.store.clock.monotonic())
        return limit + 1 if len(asked) < 4 else limit

    monkeypatch.setattr(db.parts.store.resources.sink, "waiting_words", waiting_words)
    with db.transaction() as txn:
        txn.insert_many(NAME, rows(0, 1_000))
        assert txn.spool is not None
    assert len(asked) >= 4 and asked[:4] == sorted(set(asked[:4])), "time passes while it waits"
    del asked[:]
    db[NAME].delete_many(range(50))
    assert not asked


def test_epochs_and_authors_of_spooled_rows_are_those_of_their_commit() -> None:
    files = MemoryFiles()
    db = low_store(files)
    db.parts.clockwork.advance_epoch()
    insert_spooled(db)
    epoch = db.status()["epoch"]["current"]
    for store in (db, open_low(files.kill())):
        table = store.parts.store.tables.by_name[NAME]
        epochs = np.concatenate([batch.epochs() for batch in scan(table, None)])
        assert set(epochs.tolist()) == {epoch}


def test_file_goes_when_two_local_checkpoints_are_newer() -> None:
    files = MemoryFiles()
    db = low_store(files)
    db.checkpoint()
    db.checkpoint()
    state = insert_spooled(db)
    assert len(spool_names(files)) == 1
    db.checkpoint()
    assert len(spool_names(files)) == 1
    db.checkpoint()
    assert spool_names(files) == ()
    assert found(open_low(files.kill())) == state


def test_file_the_older_local_checkpoint_needs_survives_restarts_that_do_not() -> None:
    files = MemoryFiles()
    db = low_store(files)
    db.checkpoint()
    db.checkpoint()
    state = insert_spooled(db)
    db.checkpoint()
    for _ in range(2):
        db = open_low(files := files.kill())
        assert len(spool_names(files)) == 1
    assert db.status()["spool"]["kept"] == 1
    for leaf in [leaf for leaf in files.list("lcp") if leaf.startswith("control-")][-1:]:
        files.unlink(f"lcp/{leaf}")  # the newest local checkpoint is lost: the one before needs the file
    again = open_low(files.kill())
    assert found(again) == state


def test_files_of_transactions_that_never_committed_are_swept() -> None:
    files = MemoryFiles()
    db = low_store(files)
    state = insert_spooled(db)
    txn = db.transaction()
    txn.insert_many(NAME, rows(5_000))
    assert len(spool_names(files)) == 2
    files = files.kill()
    assert len(spool_names(files)) == 2
    again = open_low(files)
    assert len(spool_names(files)) == 1
    assert found(again) == state


def test_rolled_back_transaction_leaves_no_file_and_no_reservation() -> None:
    files = MemoryFiles()
    db = low_store(files)
    insert_spooled(db)
    before = db.status()
    txn = db.transaction()
    txn.update_where(NAME, {"balance": tm.col("balance") + 1})
    txn.insert_many(NAME, rows(5_000))
    txn.rollback()
    after = db.status()
    assert after["spool"]["open"] == 0 and len(spool_names(files)) == 1
    assert after["memory"]["used_bytes"] >= before["memory"]["used_bytes"]
    insert_spooled(db, 5_000)
    assert db.check()["problems"] == []


def test_names_are_those_of_transactions_and_foreign_names_are_left_alone() -> None:
    files = MemoryFiles()
    db = low_store(files)
    txn = db.transaction()
    txn.insert_many(NAME, rows())
    assert spool_names(files) == (spool_name(txn.txid).removeprefix(f"{FOLDER}/"),)
    assert txid_of(spool_names(files)[0]) == txn.txid
    txn.commit(True)
    files.create(f"{FOLDER}/notes.txt")
    files.sync_directory(FOLDER)
    files = files.kill()
    open_low(files)
    assert "notes.txt" in spool_names(files)


def test_limit_is_refused_with_nothing_left_of_the_transaction() -> None:
    files = MemoryFiles()
    db = low_store(files, transaction_limit="256 KiB")
    state = insert_spooled(db, 0, 600)
    txn = db.transaction()
    with pytest.raises(tm.TransactionTooLarge, match="transaction_limit \\(262144 bytes\\)"):
        txn.insert_many(NAME, rows(5_000, 3_000))
    assert txn.is_ended
    assert found(db) == state and len(spool_names(files)) == 1


def test_row_larger_than_transaction_memory_spools_alone() -> None:
    files = MemoryFiles()
    db = low_store(files)
    row = (1, "x", 1.0, "y" * 400_000)
    db[NAME].insert(row)
    assert tuple(open_low(files.kill())[NAME].get(1)) == row


def test_limit_below_transaction_memory_is_refused() -> None:
    with pytest.raises(tm.SchemaInvalid, match="transaction_limit"):
        open_low(transaction_limit="64 KiB", transaction_memory="128 KiB")


def test_outcome_of_spooled_transactions_is_known() -> None:
    files = MemoryFiles()
    db = low_store(files)
    one, other = db.transaction(), db.transaction()
    one.insert_many(NAME, rows())
    other.insert_many(NAME, rows(5_000))
    one.commit(True)
    again = open_low(files.kill())
    assert (again.outcome(one.txid), again.outcome(other.txid)) == ("committed", "aborted")


def test_restart_through_an_epoch_forgets_spooled_transactions_after_it() -> None:
    files = MemoryFiles()
    db = low_store(files)
    state = insert_spooled(db)
    epoch = db.sync()
    insert_spooled(db, 5_000)
    db.sync()
    files = files.kill()
    assert found(open_low(files, through=epoch)) == state
    assert len(spool_names(files)) == 1
    assert found(open_low(files.kill())) == state


def test_epoch_durability_commits_by_reference_too() -> None:
    files = MemoryFiles()
    db = low_store(files, durability="epoch")
    db.sync()
    state = insert_spooled(db)
    assert found(open_low(files.kill())) == state


def test_several_spooling_transactions_of_several_threads_commit_each_for_itself() -> None:
    files = MemoryFiles()
    db = low_store(files, data_memory="64 MiB", redo_log="8 MiB")

    def work(number: int) -> None:
        for turn in range(3):
            first = number * 10_000 + turn * 1_000
            db.run(lambda txn, first=first: txn.insert_many(NAME, rows(first)))
            db.run(lambda txn, number=number: txn.write(NAME, (number, "small", 0.0, None)))

    at_once(work, range(1, 5))
    assert db.status()["spool"]["committed"] == 12
    state = found(db)
    assert len(state) == 4 * 3 * 900 + 4
    assert found(open_low(files.kill(), data_memory="64 MiB")) == state


def test_listing_shows_the_reference_and_what_it_refers_to() -> None:
    files = MemoryFiles()
    db = low_store(files)
    insert_spooled(db)
    db.close()
    files = files.kill()
    entries = list(StoreListing(files).redo())
    (reference,) = [entry for entry in entries if entry["kind"] == "files"]
    inserted = [entry for entry in entries if entry["kind"] == "insert"]
    assert reference["file"].startswith(FOLDER) and reference["bytes"] > 200_000
    assert {entry["key"] for entry in inserted} == set(range(900))
    assert {entry["file"] for entry in inserted} == {reference["file"]}
    assert StoreListing(files).sizes_bytes()["spool files"] == reference["bytes"]


def test_scans_and_reads_of_others_see_nothing_before_the_commit() -> None:
    db = low_store()
    insert_spooled(db, 0, 300)
    with db.transaction() as txn:
        txn.update_where(NAME, {"balance": tm.col("balance") + 1})
        txn.insert_many(NAME, rows(5_000))
        assert txn.spool is not None
        assert db[NAME].get(5_000) is None and len(found(db)) == 300
        assert db[NAME].get(4).balance == 2.0 and txn.get(NAME, 4).balance == 3.0


STEPS = [
    ("create", f"{FOLDER}/*"),
    ("pwrite", f"{FOLDER}/*"),
    ("pread", f"{FOLDER}/*"),
    ("fdatasync", f"{FOLDER}/*"),
    ("sync_directory", FOLDER),
    ("sync_directory", ""),
]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize(("operation", "where"), STEPS, ids=[f"{step} {where}" for step, where in STEPS])
def test_failed_call_before_the_commit_is_in_the_log_leaves_nothing_of_it(
    operation: str, where: str, number: int
) -> None:
    """Afterwards the store may be dead or continue; the transaction has not happened, and its file is removed."""
    if number == errno.ENOSPC and operation not in ("create", "pwrite"):
        return
    files = MemoryFiles()
    db = low_store(files)
    for first in range(0, 300, 100):
        db[NAME].insert_many(rows(first, 100))
    before = found(db)
    db.close()
    seen = 0
    for nth in range(1, 200):
        disk = files.kill()
        plan = Plan()
        db = open_low(FaultFiles(disk, plan))
        plan.add(Rule(operation, where, nth=nth, error=number))  # now: an opening syncs the directory, too
        txn = db.transaction()
        try:
            txn.update_where(NAME, {"balance": tm.col("balance") + 1})
            txn.insert_many(NAME, rows(5_000, 300))
            txn.update_where(NAME, {"balance": tm.col("balance") - 1})
            txn.commit(True)
        except tm.Error as error:
            seen += 1
            if isinstance(error, tm.Retryable):
                assert txn.is_ended and found(db) == before
                db[NAME].insert((99_999, "x", 1.0, None))
                db[NAME].delete(99_999)
            state = found(open_low(later := disk.kill()))
            assert state == before or (operation == "pread" and len(state) == 600), f"call {nth}: {error}"
            assert len(spool_names(later)) == (len(state) == 600)
            continue
        assert not plan.fired
        break
    assert seen > 0


def test_rollback_to_a_savepoint_frees_the_memory_after_it() -> None:
    """Story: the buffer kept its grown length, so later records stayed in memory instead of going to the file. A
    replica that applied an epoch a second time had all its records in memory.
    """
    db = low_store()
    with db.transaction() as txn:
        txn.insert(NAME, (-1, "before", 0.0, None))
        for _ in range(3):
            with pytest.raises(KeyError), txn.savepoint():
                txn.insert_many(NAME, rows())
                raise KeyError
            spool = txn.spool
            assert spool is not None
            used = int(txn.mem[txn.desc + X_USED])
            memory_words = db.parts.store.resources.transaction_words
            assert txn.buf.size - used <= memory_words // 2
            rest = spool.words[txn.buf.size + 512 : 900 * 40]  # whole pages of the system
            assert rest.size and not rest.any()
        txn.insert_many(NAME, rows())
        assert int(txn.mem[txn.desc + X_USED]) - spool.head <= memory_words
    assert len(found(db)) == 901
