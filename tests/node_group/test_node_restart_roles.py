"""A node that has joined serves the next one; a slice waits for a commit that is being applied."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.node_group.support import COPYING, Wire, assert_equal, away, finish, restarted
from tests.seeds import fresh_seeds
from tidemark.engine.txn.transaction import Transaction
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.node_restart.messages import Plan, Ready
from tidemark.recovery.node_restart.source import Source


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(1)])
def test_node_that_has_joined_serves_the_next_one(seed: int, variant: str) -> None:
    """Empty slots of a copy must have epochs at least as high as those of the live node, or stale rows would stay."""
    db, files, writers, node, through, rng = away(seed, rows=300, steps=15, stray=0)
    # Rows that the third node has and the second never had: on the second their slots are empty before and after.
    db["test.wide"].write_many([writers.row(key) for key in range(9_000, 9_300)])
    later = db.sync()
    third = MemoryFiles.from_snapshot(files.snapshot())
    for key in range(9_000, 9_300):
        db["test.wide"].delete(key)
    opened = restarted(node, Wire(db, files, rng), through, variant)
    finish(node, opened)
    face = SimpleNamespace(parts=SimpleNamespace(store=opened.store, opened=opened))
    last = restarted(third, Wire(face, node, rng), later)
    assert_equal(db, last.store, f"seed {seed}")
    db.close()


def test_slice_waits_for_a_large_commit_that_is_half_applied(monkeypatch: Any) -> None:
    db, files, writers, _, through, _ = away(3, rows=2_500, steps=0, stray=0)
    source = Source(db.parts.store, files, db.parts.opened.identity)
    source.begin(Ready(through, 1, "rowid_sync", ""))
    table = db.parts.store.tables.by_name["test.wide"]
    source.plan(Plan({(table.table_id, 0): through}))
    threads: list[threading.Thread] = []
    waited: list[bool] = []
    real = Transaction.apply_slice

    def one_slice(self: Any, group: Any) -> int:
        status = real(self, group)
        if not threads:
            threads.append(threading.Thread(target=source.step))
            threads[0].start()
            threads[0].join(0.3)
            waited.append(threads[0].is_alive())
        return status

    monkeypatch.setattr(Transaction, "apply_slice", one_slice)
    with db.transaction() as txn:
        for row in db["test.wide"].scan():
            txn.update("test.wide", row[0], {"group": 99})
    threads[0].join()
    assert waited == [True], "a slice was taken in the midst of a commit"
    db.close()
