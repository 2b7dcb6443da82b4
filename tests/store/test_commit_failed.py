"""A large commit that breaks off in the middle, and the threads that wait for its epoch to close.

Story: the stress program over disk columns lost power while a commit was being applied in slices. The committing thread
died holding the epoch, and the thread that wanted a local checkpoint waited for it for ever. The same wait would have
kept `close()` from returning after a read error in the midst of such a commit.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.txn.transaction import Transaction


class Died(BaseException):
    """Ends a thread without a message."""


@pytest.mark.parametrize("spools", [False, True])
def test_epoch_held_by_a_commit_that_failed_ends_every_wait(monkeypatch: pytest.MonkeyPatch, spools: bool) -> None:
    memory = {"transaction_memory": "64 KiB"} if spools else {}
    db = open_memory(redo_log="32 MiB", **memory)
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db["t"].insert_many([(key, 0) for key in range(20_000)])
    apply, calls = Transaction.apply_slice, [0]

    def dies(txn: Any, group: Any) -> int:
        calls[0] += 1
        if calls[0] == 2:
            raise Died
        return apply(txn, group)

    monkeypatch.setattr(Transaction, "apply_slice", dies)
    with pytest.raises(Died):
        db["t"].update_where({"n": 1})
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            db.checkpoint()
        except tm.StoreFailed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(100)
    assert not waiting.is_alive() and "ended in the middle" in str(ended[0])
    with pytest.raises(tm.StoreFailed):
        db["t"].get(1)
    db.close()
    assert calls[0] == 2
