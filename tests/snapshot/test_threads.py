"""Writers and readers of snapshots in threads: a snapshot shows one instant, and keeps showing it."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import tidemark as tm
from tests.attempts import Attempts
from tests.elsewhere import elsewhere
from tests.store.support import open_memory

ACCOUNTS = 300
TOTAL = 100 * ACCOUNTS
WRITERS, READERS = 2, 2
MOVES = 500  # of each writer, at least
LOOKS = 3  # of each reader, at least, while rows move
# Committed while a snapshot is open: at least, and at most. Far more would not fit in its memory.
BESIDE_MIN, BESIDE_MAX = 20, 1_000
PATIENCE_SECONDS = 120


class Bank:
    """Transfers between accounts; empty accounts are deleted and made again; the sum stays."""

    def __init__(self) -> None:
        self.db = open_memory(redo_log="64 MiB", durability="epoch", lock_timeout_ms=120_000, snapshot_memory="8 MiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64), tm.Column("note", tm.VarChar(300))]
        self.table = self.db.create_table("test.bank", columns, "id", tm.HashPartition(4))
        self.table.insert_many([(i, 100, "n" * (i % 200)) for i in range(ACCOUNTS)])
        self.db.create_index("test.bank", "by_balance", ["balance"])
        self.attempts = Attempts(per_transaction=5)
        self.changed = threading.Condition()  # of all below
        self.moves = [0] * WRITERS
        self.looks = [0] * READERS
        self.opened: dict[int, int] = {}  # for readers with an open snapshot: the number of moves at its opening
        self.has_failed = False

    def run(self, work: Any, number: int, seed: int) -> None:
        try:
            work(number, random.Random(seed))
        except BaseException:
            with self.changed:
                self.has_failed = True
                self.changed.notify_all()
            raise

    def wait_for(self, what: str, is_so: Any) -> None:
        """With `changed` held. Returns early after a failure in any thread."""
        is_over = self.changed.wait_for(lambda: self.has_failed or is_so(), PATIENCE_SECONDS)
        assert is_over, f"waited for {what}: {self.moves} moves, {self.looks} looks, open since {self.opened}"

    def is_written(self) -> bool:
        return self.has_failed or (min(self.moves) >= MOVES and min(self.looks) >= LOOKS)

    def write(self, number: int, rng: random.Random) -> None:
        while not self.is_written():
            one, other = rng.sample(range(ACCOUNTS), 2)

            def move(txn: Any, one: int = one, other: int = other) -> None:
                rows = {key: txn.get("test.bank", key, "exclusive") for key in sorted((one, other))}
                taken = rows[one].balance // 2 if rows[one] else 0
                if rows[other] is None:
                    txn.insert("test.bank", (other, taken, "back"))
                else:
                    txn.update(
                        "test.bank", other, {"balance": rows[other].balance + taken, "note": "m" * rng.randrange(250)}
                    )
                if rows[one] and rng.random() < 0.3:
                    txn.insert("test.bank", (rng.randrange(1 << 40, 1 << 50), rows[one].balance - taken, "heir"))
                    txn.delete("test.bank", one)
                elif rows[one]:
                    txn.update("test.bank", one, {"balance": rows[one].balance - taken})

            while not self.moved(move):
                pass
            with self.changed:
                self.moves[number] += 1
                self.changed.notify_all()
                self.wait_for("readers to close a snapshot", self.may_go_on)

    def has_moved_on(self, moves: int) -> bool:
        return sum(self.moves) >= moves + BESIDE_MIN or self.is_written()

    def may_go_on(self) -> bool:
        return sum(self.moves) < min(self.opened.values(), default=sum(self.moves)) + BESIDE_MAX

    def moved(self, move: Any) -> bool:
        """Whether it was done. The key of an account that does not exist cannot be locked: the other thread may make it
        first.
        """
        try:
            self.attempts.run(self.db, move)
        except tm.DuplicateKey:
            return False
        return True

    def read(self, number: int, rng: random.Random) -> None:
        while not self.is_written():
            kept = self.db.status()["snapshots"]["versions_kept"]
            with self.db.snapshot() as snapshot:
                with self.changed:
                    self.opened[number] = moves = sum(self.moves)
                shown = snapshot["test.bank"]
                first = {row.id: tuple(row) for row in shown.scan()}
                assert sum(row[1] for row in first.values()) == TOTAL
                assert shown.sum("balance") == TOTAL and len(shown) == len(first)
                by = [tuple(row) for row in shown.scan(index="by_balance", reverse=rng.random() < 0.5)]
                assert {row[0]: row for row in by} == first and len(by) == len(first)
                balances = [row[1] for row in by]
                assert balances in (sorted(balances), sorted(balances, reverse=True))
                keys = rng.sample(range(ACCOUNTS), 30)
                found = shown.get_many(keys).to_pylist()
                assert [tuple(row.values()) for row in found] == [first[key] for key in keys if key in first]
                with self.changed:
                    self.wait_for("moves beside a snapshot", partial(self.has_moved_on, moves))
                    is_beside = sum(self.moves) >= moves + BESIDE_MIN
                assert {row.id: tuple(row) for row in shown.scan()} == first
                assert not is_beside or self.db.status()["snapshots"]["versions_kept"] > kept
            with self.changed:
                del self.opened[number]
                self.looks[number] += is_beside
                self.changed.notify_all()


def test_snapshots_during_writes_show_one_instant_each() -> None:
    """Story: writers made their moves and ended. On a busy machine they had ended before a reader had opened its first
    snapshot, so no version was kept. Now writers continue until readers have looked, and a snapshot stays open until
    moves have been committed during it.
    """
    print("seeds 1 to 4")
    bank = Bank()
    works = [(bank.write, 0, 1), (bank.write, 1, 2), (bank.read, 0, 3), (bank.read, 1, 4)]
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(bank.run, *work) for work in works]:
            done.result()
    status = bank.db.status()["snapshots"]
    assert min(bank.looks) >= LOOKS and status["versions_kept"] > 0 and status["dropped"] == 0
    assert (status["open"], status["used_bytes"]) == (0, 0)
    assert bank.table.scan().sum("balance") == TOTAL
    assert bank.db.check()["problems"] == []
    bank.attempts.check()
    bank.db.close()


def test_snapshot_closed_by_another_thread_ends_its_scans() -> None:
    bank = Bank()
    snapshot = bank.db.snapshot()
    scan = snapshot["test.bank"].scan(index="by_balance")
    rows = iter(scan)
    next(rows)
    elsewhere(snapshot.close)
    try:
        left = len(list(rows))
    except tm.SnapshotClosed:
        left = 0
    assert left < ACCOUNTS - 1, "no more than the batch that was read"
    bank.db.close()
