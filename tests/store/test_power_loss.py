"""Power loss at every call that changes the disk: the acknowledged is there whole, and at most the commit under way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from engine.file_doubles.memory import MemoryFiles
from engine.file_doubles.order import OrderMonitor
from engine.file_doubles.wrapper import RawWrapper, WrappedFiles
from engine.file_protocol import Buffer, File
from tests.shares import few
from tests.store.support import ACCOUNT, open_memory, rows_of

pytestmark = pytest.mark.usefixtures("storage")

Rows = dict[Any, Any]
POLICIES = ("drop", "keep", "sectors", "torn", "growth")


class _HookRaw(RawWrapper):
    """Calls a hook before every operation that changes the disk."""

    hook: Callable[[], None]

    def create(self, name: str) -> File:
        self.hook()
        return super().create(name)

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        self.hook()
        return super().pwrite(file, buffer, offset)

    def fdatasync(self, file: File) -> None:
        self.hook()
        super().fdatasync(file)

    def sync_directory(self, path: str) -> None:
        self.hook()
        super().sync_directory(path)

    def unlink(self, name: str) -> None:
        self.hook()
        super().unlink(name)


class HookFiles(WrappedFiles):
    """Files with a hook before every change."""

    def __init__(self, inner: Any, hook: Callable[[], None]) -> None:
        raw = _HookRaw(inner.raw)
        raw.hook = hook
        super().__init__(inner, raw)


class Watched:
    """A store whose disk loses power, in a copy, before every change; each image is judged at once."""

    def __init__(self, seed: int, every: int) -> None:
        self.rng = random.Random(seed)
        self.every = every
        self.memory = MemoryFiles()
        self.acked: Rows = {}
        self.under_way: Rows = {}
        self.calls = 0
        self.states = 0
        self.is_watching = False
        self.has_table = False

    def before_change(self) -> None:
        self.calls += 1
        if not self.is_watching or self.calls % self.every:
            return
        self.is_watching = False  # the judge opens stores on other disks; only this one is watched
        policy = POLICIES[self.calls // self.every % len(POLICIES)]
        image = self.memory.crash(self.rng, policy)
        self.judge(image, policy)
        self.is_watching = True

    def judge(self, image: MemoryFiles, policy: str) -> None:
        db = open_memory(image)
        found = rows_of(db) if "test.account" in db else {}
        assert found in (self.acked, self.under_way), f"call {self.calls}, policy {policy}"
        # Once more, from what this restart has written: the same state (F11, F31).
        again = open_memory(image.crash(self.rng, "sectors"))
        assert (rows_of(again) if "test.account" in again else {}) == found
        self.states += 2

    def commit(self, db: tm.Database, changes: dict[int, Any]) -> None:
        self.under_way = {**self.acked}
        with db.transaction() as txn:
            for key, row in changes.items():
                if row is None:
                    if key in self.under_way:
                        txn.delete("test.account", key)
                        del self.under_way[key]
                else:
                    txn.write("test.account", row)
                    self.under_way[key] = row
        self.acked = self.under_way


def random_changes(rng: random.Random) -> dict[int, Any]:
    changes: dict[int, Any] = {}
    for _ in range(rng.randrange(1, 8)):
        key = rng.randrange(30)
        note = None if rng.random() < 0.7 else "n" * rng.randrange(6_000)
        changes[key] = None if rng.random() < 0.3 else (key, "o" * rng.randrange(20), rng.random(), note)
    return changes


def run_history(seed: int, steps: int, every: int) -> int:
    """A random history with local checkpoints and reopenings; returns the crash states judged."""
    watched = Watched(seed, every)
    options = {"redo_log": "1 MiB", "data_memory": "4 MiB", "transaction_memory": "256 KiB"}

    def opened() -> tm.Database:
        files: Any = OrderMonitor(HookFiles(watched.memory, watched.before_change))
        return open_memory(files, **options)

    watched.is_watching = True
    db = opened()
    db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
    for step in range(steps):
        watched.commit(db, random_changes(watched.rng))
        if step % 17 == 16:
            db.checkpoint()
        if step % 41 == 40:
            db.close()
            watched.memory = MemoryFiles(watched.memory.disk)  # a new process on the same disk
            db = opened()
    assert rows_of(db) == watched.acked
    return watched.states


@pytest.mark.parametrize("seed", range(1, few(1, 3) + 1))
def test_power_loss_before_any_change_keeps_acknowledged_transactions_whole(seed: int) -> None:
    states = run_history(seed, steps=100, every=few(6, 1))
    print(f"seed {seed}: {states} crash states")
    assert states > 50
