"""An invariant that breaks once the log has the records of a commit: either none of them is written, or the class of
the error says that the outcome is unknown. Another thread leads the log at the worst moment: as soon as the latch is
free.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.store.support import open_memory
from tidemark.engine.memory.arena_layout import ST_INVARIANT
from tidemark.engine.txn import transaction
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.t"
WIDE: dict[str, Any] = {"redo_log": "32 MiB", "data_memory": "32 MiB"}


class LedLatch:
    """The latch of a store. Once `is_due`, the next thread that releases it finds that another thread
    has led the log.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.latch = store.latch
        self.is_due = False
        self.leaders = 0

    def __enter__(self) -> bool:
        return bool(self.latch.__enter__())

    def __exit__(self, *error: Any) -> None:
        self.latch.__exit__(*error)
        if self.is_due:
            self.is_due = False
            elsewhere(self._lead)

    def _lead(self) -> None:
        self.leaders += 1
        with contextlib.suppress(tm.Error):
            self.store.log.flush()


def _store(files: MemoryFiles, kind: str) -> Any:
    memory = {"transaction_memory": "64 KiB"} if kind == "spooled" else {}
    db = open_memory(files, **WIDE, **memory)
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)]
    if kind.startswith("disk"):
        db.create_tablespace("main", "4 MiB", page_size="4 KiB", extent="64 KiB")
        columns.append(tm.Column("cold", tm.VarBinary(300), storage="disk", nullable=True))
    db.create_table(NAME, columns, "id")
    if kind == "indexed":
        db.create_index(NAME, "by_n", ["n"])
    db[NAME].insert((-1, 0, b"old") if kind.startswith("disk") else (-1, 0))
    return db


def _plant(monkeypatch: pytest.MonkeyPatch, latch: LedLatch) -> None:
    """Every kernel of a commit answers, having logged, that an invariant is broken."""

    def planted(kernel: Any) -> Any:
        def call(*arguments: Any) -> int:
            status = int(kernel(*arguments))
            if status < 0:
                return status
            latch.is_due = True
            return ST_INVARIANT

        return call

    monkeypatch.setattr(transaction, "commit_plain", planted(transaction.commit_plain))
    monkeypatch.setattr(latch.store.resources, "commit_kernel", planted(latch.store.resources.commit_kernel))
    for name in ("COMMIT_AT_ONCE", "APPLY_SLICE"):
        monkeypatch.setattr(transaction, name, tuple(planted(kernel) for kernel in getattr(transaction, name)))


@pytest.mark.parametrize("kind", ["small", "indexed", "disk", "disk held", "large", "spooled"])
def test_a_commit_that_met_a_broken_invariant_is_not_written_or_its_outcome_is_unknown(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the records were in the filling group when the latch was released. Another thread led and made them
    durable, and the caller got `InvariantBroken`, which says that the store stopped before anything happened.
    """
    files = MemoryFiles()
    db = _store(files, kind)
    store = db.parts.store
    latch = LedLatch(store)
    monkeypatch.setattr(store.resources, "latch", latch)
    monkeypatch.setattr(transaction, "SLICE_ROWS", 100_000)
    if kind == "disk held":
        *others, commit_disk = transaction.COMMIT_AT_ONCE

        def held_only(*given: Any) -> int:
            return int(commit_disk(*given)) if given[-1].size == 0 else transaction.ST_PAGE

        monkeypatch.setattr(transaction, "COMMIT_AT_ONCE", (*others[:2], held_only, held_only))
    _plant(monkeypatch, latch)
    count = {"large": 3_000, "spooled": 9_000}.get(kind, 1)
    rows = [(key, key, b"new") if kind.startswith("disk") else (key, key) for key in range(count)]
    txn = db.transaction()
    txn.insert_many(NAME, rows)
    with pytest.raises(tm.Error) as caught:
        txn.commit(True)
    assert latch.leaders == 1
    assert store.failure.first is not None
    with pytest.raises(tm.StoreFailed):
        db[NAME].get(-1)
    db.close()
    monkeypatch.undo()
    db = open_memory(files.kill(), **WIDE)
    found = len(list(db[NAME].scan())) - 1
    outcome = db.outcome(txn.txid)
    assert (found, outcome) in ((0, "aborted"), (count, "committed"))
    if isinstance(caught.value, tm.OutcomeUnknown):
        assert caught.value.evidence["txid"] == txn.txid and kind in ("large", "spooled")
    else:
        assert isinstance(caught.value, tm.InvariantBroken) and found == 0
    assert db.check()["problems"] == []
    db.close()


def test_a_schema_change_that_cannot_be_seen_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a schema change that broke after it was logged left its record to the next leader, and the store alive."""
    files = MemoryFiles()
    db = _store(files, "small")
    store = db.parts.store
    latch = LedLatch(store)
    monkeypatch.setattr(store.resources, "latch", latch)

    def breaks() -> None:
        latch.is_due = True
        raise RuntimeError("planted")

    with pytest.raises(tm.InvariantBroken, match="planted"):
        store.schema.log({"op": "planted"}, breaks)
    assert latch.leaders == 1
    with pytest.raises(tm.StoreFailed):
        db[NAME].get(-1)
    db.close()
    monkeypatch.undo()
    db = open_memory(files.kill(), **WIDE)
    assert len(list(db[NAME].scan())) == 1
    db.close()
