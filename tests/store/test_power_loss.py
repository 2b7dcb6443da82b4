"""Power loss at every call that changes the disk: acknowledged commits are there whole, and at most one more, under
way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.shares import few
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.files.protocol import Buffer, File, flat
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.disks.power_loss import Piece
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper, WrappedFiles
from tidemark.recovery.crash_harness.places import FAULTS, Places, missing

pytestmark = pytest.mark.usefixtures("storage")

Rows = dict[Any, Any]
POLICIES = ("drop", "keep", "sectors", "torn", "growth")


class _HookRaw(RawWrapper):
    """Calls a hook before every operation that changes the disk, and another one once it is done."""

    before: Callable[[], None]
    after: Callable[[str, str, bytes], None]

    def create(self, name: str) -> File:
        self.before()
        file = super().create(name)
        self.after("create", name, b"")
        return file

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        self.before()
        count = super().pwrite(file, buffer, offset)
        self.after("pwrite", file.name, bytes(flat(buffer)))
        return count

    def fdatasync(self, file: File) -> None:
        self.before()
        super().fdatasync(file)
        self.after("fdatasync", file.name, b"")

    def sync_directory(self, path: str) -> None:
        self.before()
        super().sync_directory(path)
        self.after("sync_directory", path, b"")

    def unlink(self, name: str) -> None:
        self.before()
        super().unlink(name)
        self.after("unlink", name, b"")


class HookFiles(WrappedFiles):
    """Files with a hook before every change, and one that receives each change: operation, name, bytes written."""

    def __init__(
        self,
        inner: Any,
        before: Callable[[], None],
        after: Callable[[str, str, bytes], None] = lambda operation, name, data: None,
    ) -> None:
        raw = _HookRaw(inner.raw)
        raw.before, raw.after = before, after
        super().__init__(inner, raw)


class NotedFiles(MemoryFiles):
    """Remembers for each piece whether the last image kept it."""

    asked: dict[Piece, bool]

    def image(self, survives: Callable[[Piece], bool], fill: Callable[[int], bytes] = bytes) -> MemoryFiles:
        self.asked = {}

        def noted(piece: Piece) -> bool:
            return self.asked.setdefault(piece, survives(piece))

        return super().image(noted, fill)


class Watched:
    """A store whose disk loses power, in a copy, before every change; each image is judged at once."""

    def __init__(self, seed: int, every: int) -> None:
        self.rng = random.Random(seed)
        self.every = every
        self.memory = NotedFiles()
        self.places = Places()
        self.counts: Counter[str] = Counter()
        self.acked: Rows = {}
        self.under_way: Rows = {}
        self.calls = 0
        self.states = 0
        self.is_watching = False
        self.has_table = False

    def before_change(self) -> None:
        self.calls += 1
        if not self.is_watching:
            return
        due = self.calls % self.every == 0
        turn = self.calls // self.every % len(POLICIES)
        for policy in (POLICIES[turn], *POLICIES):
            image = self.memory.crash(self.rng, policy)
            kept = [piece for piece, is_kept in self.memory.asked.items() if is_kept]
            names = self.places.names(list(self.memory.asked), kept, self.under_way != self.acked)
            if due or names - self.counts.keys():  # each of its turn, and each that lies where none was yet
                self.counts.update(names)
                self.is_watching = False  # the judge opens stores on other disks; only this one is watched
                self.judge(image, policy)
                self.is_watching = True
            due = False

    def after_change(self, operation: str, name: str, data: bytes) -> None:
        self.places.step(operation, name, data)

    def judge(self, image: MemoryFiles, policy: str) -> None:
        db = open_memory(image)
        found = rows_of(db) if "test.account" in db else {}
        assert found in (self.acked, self.under_way), f"call {self.calls}, policy {policy}"
        # Once more, from the files of this restart: the same state (F11, F31).
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

    def fill_log(self, db: tm.Database) -> None:
        """Fill the logs so far that the next changes reach the end of their files and overwrite their oldest groups
        (F10).
        """
        self.is_watching = False
        for _ in range(2):
            db.checkpoint()  # all before it may be cut
        log = db.parts.store.log
        while log.geometry.capacity_bytes - log.head_lsn > 64 << 10:
            self.commit(db, {key: (key, "filler", 0.0, "f" * 6_000) for key in range(8)})
        db.checkpoint()
        self.is_watching = True


def random_changes(rng: random.Random) -> dict[int, Any]:
    changes: dict[int, Any] = {}
    for _ in range(rng.randrange(1, 8)):
        key = rng.randrange(30)
        note = None if rng.random() < 0.7 else "n" * rng.randrange(6_000)
        changes[key] = None if rng.random() < 0.3 else (key, "o" * rng.randrange(20), rng.random(), note)
    return changes


def run_history(seed: int, steps: int, every: int) -> Watched:
    """A random history with local checkpoints and reopenings; return the verdicts."""
    watched = Watched(seed, every)
    options = {"redo_log": "1 MiB", "data_memory": "4 MiB", "transaction_memory": "256 KiB"}

    def opened() -> tm.Database:
        files: Any = OrderMonitor(HookFiles(watched.memory, watched.before_change, watched.after_change))
        return open_memory(files, **options)

    watched.is_watching = True
    db = opened()
    db.create_table("test.account", ACCOUNT, primary_key="id", partition=tm.HashPartition(2))
    for step in range(steps):
        if step == steps // 2:
            watched.fill_log(db)
        watched.commit(db, random_changes(watched.rng))
        if step % 17 == 16:
            db.checkpoint()
        if step % 41 == 40:
            db.close()
            watched.memory = NotedFiles(watched.memory.disk)  # a new process on the same disk
            db = opened()
    assert rows_of(db) == watched.acked
    return watched


@pytest.mark.parametrize("seed", range(1, few(1, 3) + 1))
def test_power_loss_before_any_change_keeps_acknowledged_transactions_whole(seed: int) -> None:
    watched = run_history(seed, steps=100, every=few(6, 1))
    print(f"seed {seed}: {watched.states} crash states, {dict(watched.counts)}")
    assert watched.states > 50
    assert missing(watched.counts, FAULTS) == {}
