"""Writers and readers of snapshots in threads: what a snapshot shows is one instant, and stays it."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tidemark as tm
from tests.attempts import Attempts
from tests.store.support import open_memory

ACCOUNTS = 300
TOTAL = 100 * ACCOUNTS


class Bank:
    """Transfers between accounts, which come and go with nothing on them; the sum stays."""

    def __init__(self) -> None:
        self.db = open_memory(redo_log="64 MiB", durability="epoch", lock_timeout_ms=2_000, snapshot_memory="8 MiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64), tm.Column("note", tm.VarChar(300))]
        self.table = self.db.create_table("test.bank", columns, "id", tm.HashPartition(4))
        self.table.insert_many([(i, 100, "n" * (i % 200)) for i in range(ACCOUNTS)])
        self.db.create_index("test.bank", "by_balance", ["balance"])
        self.looks = 0
        self.attempts = Attempts(per_transaction=5)
        self.is_done = threading.Event()

    def run(self, work: Any, seed: int) -> None:
        try:
            work(random.Random(seed))
        finally:
            self.is_done.set()

    def write(self, rng: random.Random) -> None:
        for _ in range(500):
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

    def moved(self, move: Any) -> bool:
        """Whether it was done. Nobody locks the key of an account that is not there: the other may make it first."""
        try:
            self.attempts.run(self.db, move)
        except tm.DuplicateKey:
            return False
        return True

    def read(self, rng: random.Random) -> None:
        while not self.is_done.is_set() or self.looks < 4:
            with self.db.snapshot() as snapshot:
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
                assert {row.id: tuple(row) for row in shown.scan()} == first
            self.looks += 1


def test_snapshots_beside_writing_threads_show_one_instant_each() -> None:
    print("seeds 1 to 4")
    bank = Bank()
    works = [(bank.write, 1), (bank.write, 2), (bank.read, 3), (bank.read, 4)]
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(bank.run, *work) for work in works]:
            done.result()
    status = bank.db.status()["snapshots"]
    assert bank.looks >= 4 and status["versions_kept"] > 0 and status["given_up"] == 0
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
    thread = threading.Thread(target=snapshot.close)
    thread.start()
    thread.join()
    try:
        left = len(list(rows))
    except tm.SnapshotClosed:
        left = 0
    assert left < ACCOUNTS - 1, "no more than the batch that was read"
    bank.db.close()
