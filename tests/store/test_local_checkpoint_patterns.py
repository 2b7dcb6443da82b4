"""NDB's testLcp: ten patterns of operations on one row, at four moments, at every position of the scan.

What a local checkpoint holds must be exactly the state at the end of its epoch (a restart through that epoch shows it),
and with the log after it the state at the crash. Crossing the scan at slot granularity finds boundary errors that lose
or double one row.
"""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.memory.arena_layout import OK, ST_MORE, ST_SPACE
from tidemark.engine.rows.lcp_kernels import scan_lcp
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

PATTERNS = (
    "INS",
    "UPD",
    "DEL",
    "INS UPD",
    "INS DEL",
    "UPD UPD",
    "UPD DEL",
    "DEL INS",
    "INS DEL INS",
    "DEL INS DEL",
)
Rows = dict[Any, Any]


def row(key: int, mark: str) -> tuple[Any, ...]:
    """A row whose var part changes length with its mark."""
    return (key, mark * (1 + key % 3), float(len(mark)), mark * 700 if len(mark) > 3 else None)


def apply(txn: tm.Transaction, model: Rows) -> None:
    """Every pattern on its own key, in one transaction."""
    for key, pattern in enumerate(PATTERNS):
        for number, operation in enumerate(pattern.split()):
            if operation == "DEL":
                txn.delete("test.account", key)
                del model[key]
                continue
            new = row(key, f"{operation.lower()}{number}")
            if operation == "INS":
                txn.insert("test.account", new)
            else:
                txn.update("test.account", key, {"owner": new[1], "balance": new[2], "note": new[3]})
            model[key] = new


def start(files: MemoryFiles) -> tuple[tm.Database, Rows]:
    """A store with the rows the patterns need, between fillers, in one fragment."""
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(1))
    model: Rows = {}
    for key, pattern in enumerate(PATTERNS):
        filler = row(1_000 + key, "f")
        db["test.account"].insert(filler)
        model[filler[0]] = filler
        if not pattern.startswith("INS"):
            db["test.account"].insert(row(key, "base"))
            model[key] = row(key, "base")
    return db, model


def checkpoint_with(db: tm.Database, at_step: int, act: Any) -> tuple[int, int]:
    """A local checkpoint that looks at one slot a step and acts before step `at_step`; (epoch, steps)."""
    lcp = db.parts.lcp
    steps = 0

    def scan(fragment: int, writer: Any, copies: Any, report: Any) -> None:
        nonlocal steps
        status = ST_MORE
        while status != OK:
            if steps == at_step:
                act()
            steps += 1
            status = scan_lcp(db.parts.store.mem, fragment, writer.block, 1, writer.state)
            if status <= ST_SPACE:
                writer.make_room(ST_SPACE - status)
        lcp.drain(copies, report)

    lcp.scan = scan  # type: ignore[method-assign]
    report = db.checkpoint()
    del lcp.scan
    return int(report["epoch"]), steps


def judge(files: MemoryFiles, epoch: int, at_epoch: Rows, at_end: Rows) -> None:
    assert rows_of(open_memory(files.kill())) == at_end
    cut = open_memory(files.kill(), through=epoch)
    assert rows_of(cut) == at_epoch


@pytest.mark.parametrize("at_step", range(20))
@pytest.mark.parametrize("moment", ["after the point", "prepared before", "rolled back"])
def test_patterns_around_the_scan_leave_the_state_of_the_epoch(moment: str, at_step: int) -> None:
    files = MemoryFiles()
    db, model = start(files)
    at_epoch = dict(model)
    if moment == "after the point":

        def act() -> None:
            with db.transaction() as txn:
                apply(txn, model)

    else:
        txn = db.transaction()
        scratch = dict(model)
        apply(txn, scratch)

        def act() -> None:
            if moment == "rolled back":
                txn.rollback()
            else:
                txn.commit(True)
                model.clear()
                model.update(scratch)

    epoch, steps = checkpoint_with(db, at_step, act)
    if at_step >= steps:
        act()
    judge(files, epoch, at_epoch, model)


def test_patterns_committed_before_the_point_are_in_the_checkpoint() -> None:
    files = MemoryFiles()
    db, model = start(files)
    with db.transaction() as txn:
        apply(txn, model)
    epoch, _ = checkpoint_with(db, -1, lambda: None)
    judge(files, epoch, model, model)


def test_pages_that_vanish_and_return_during_the_scan_lose_nothing() -> None:
    """NDB's PLCP tests: whole pages are emptied ahead of the scan, freed, and made again with other rows."""
    files = MemoryFiles()
    db = open_memory(files)
    account = db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(1))
    account.insert_many([row(key, "old") for key in range(3_000)])
    at_epoch = rows_of(db)

    def act() -> None:
        account.delete_many(list(range(500, 3_000)))
        account.insert_many([row(key, "new") for key in range(10_000, 11_500)])

    epoch, _ = checkpoint_with(db, 300, act)
    judge(files, epoch, at_epoch, rows_of(db))


def test_checkpoint_bits_are_clear_after_a_checkpoint_and_after_an_abandoned_one() -> None:
    files = MemoryFiles()
    db, model = start(files)

    def act() -> None:
        with db.transaction() as txn:
            apply(txn, model)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint_with(db, 7, act)
    assert rows_of(db) == model
    epoch, _ = checkpoint_with(db, -1, lambda: None)  # asserts bit = (row epoch > E) on every row it meets
    judge(files, epoch, model, model)
