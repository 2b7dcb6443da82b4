"""What a call shows survives a crash: an answer waits for the log, but only for commits that it may show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

import tidemark as tm
from tests.store.support import ACCOUNT, client_of, open_memory, rows_of
from tests.waiting import wait_until
from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"
CHANGED, DELETED, NEW, OLD = 1, 2, 3, 9  # keys, by what the commit at the disk does with them


class SlowDisk:
    """A store on a disk in memory whose syncs of the log wait while `is_slow`."""

    def __init__(self, **options: Any) -> None:
        self.memory = MemoryFiles()
        self.is_slow = False
        self.at_disk, self.go_on = threading.Event(), threading.Event()
        rule = Rule("fdatasync", "redo/*", once=False, stall=self._stall)
        faulty: Any = FaultFiles(self.memory, [rule])
        self.db = open_memory(faulty, **options)
        self.db.create_table(NAME, ACCOUNT, "id")
        for key in (CHANGED, DELETED, OLD):
            self.db[NAME].insert((key, "old", 1.0, None))
        self.db.create_index(NAME, "by_owner", "owner")
        self.db.sync()

    def _stall(self) -> None:
        if self.is_slow:
            self.at_disk.set()
            self.go_on.wait(60)

    def write(self) -> None:
        """The commit. The store may fail while it is at the disk."""
        try:
            with self.db.transaction() as txn:
                txn.update(NAME, CHANGED, {"owner": "new"})
                txn.delete(NAME, DELETED)
                txn.insert(NAME, (NEW, "new", 1.0, None))
        except tm.CommitOnFailedStore:
            pass

    @contextmanager
    def commit_at_the_disk(self) -> Iterator[None]:
        """Within the context, a commit is visible, and its sync has not ended."""
        self.is_slow = True
        writer = threading.Thread(target=self.write)
        writer.start()
        self.at_disk.wait(60)
        try:
            yield
        finally:
            self.is_slow = False
            self.go_on.set()
            writer.join()

    def rows_after_power_loss(self) -> dict[Any, Any]:
        """The rows that a restart would find if power were lost now."""
        with open_memory(self.memory.image(lambda piece: False)) as db:
            return rows_of(db)


class Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: list[Any] = []
        self._call = call
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result.append(self._call())
        except tm.Error as error:
            self.result.append(type(error).__name__)

    def is_waiting(self, disk: SlowDisk) -> bool:
        """Return whether the call waits for the log, once it does or has an answer."""
        wait_until(lambda: bool(self.result or disk.db.parts.store.log.writing.followers))
        return not self.result

    def answer(self) -> Any:
        self.thread.join(60)
        return self.result[0]


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    made = SlowDisk()
    yield made
    made.go_on.set()
    made.db.close()


def in_txn(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(db: Any) -> Any:
        with db.transaction() as txn:
            return work(txn)

    return run


def rolled_back(db: Any) -> bool:
    """What a change told before it was rolled back."""
    txn = db.transaction()
    is_changed: bool = txn.update(NAME, CHANGED, {"balance": 5.0}, where=tm.col("owner") == "new")
    txn.rollback()
    return is_changed


SHOWN: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "get": (lambda db: db[NAME].get(CHANGED).owner, "new"),
    "get of a deleted row": (lambda db: db[NAME].get(DELETED), None),
    "in": (lambda db: NEW in db[NAME], True),
    "get_many": (lambda db: db[NAME].get_many([CHANGED, NEW], "owner").num_rows, 2),
    "len": (lambda db: len(db[NAME]), 3),
    "scan": (lambda db: sorted(row.id for row in db[NAME].scan()), [CHANGED, NEW, OLD]),
    "scan by index": (lambda db: len(list(db[NAME].scan(index="by_owner", prefix="new"))), 2),
    "count": (lambda db: db[NAME].scan(where=tm.col("owner") == "new").count(), 2),
    "aggregate": (lambda db: db[NAME].scan().aggregate(rows=("count",)).rows, 3),
    "partitions": (lambda db: sum(each["rows"] for each in db[NAME].partitions()), 3),
    "get in a transaction": (in_txn(lambda txn: txn.get(NAME, CHANGED).owner), "new"),
    "get with a shared lock": (in_txn(lambda txn: txn.get(NAME, CHANGED, lock="shared").owner), "new"),
    "get with an exclusive lock": (in_txn(lambda txn: txn.get(NAME, CHANGED, lock="exclusive").owner), "new"),
    "scan in a transaction": (in_txn(lambda txn: len(list(txn.scan(NAME)))), 3),
    "refused update": (lambda db: db[NAME].update(CHANGED, {"balance": 2.0}, where=tm.col("owner") == "old"), False),
    "refused delete": (lambda db: db[NAME].delete(CHANGED, where=tm.col("owner") == "old"), False),
    "update of no row": (lambda db: db[NAME].update_where({"balance": 2.0}, where=tm.col("id") == DELETED), 0),
    "error that tells of a row": (lambda db: db[NAME].insert((NEW, "x", 1.0, None)), "DuplicateKey"),
    "error that tells of no row": (lambda db: db[NAME].delete(DELETED), "RowNotFound"),
    "change that is rolled back": (rolled_back, True),
}


@pytest.mark.parametrize("name", SHOWN)
def test_client_is_shown_a_commit_after_its_sync(disk: SlowDisk, name: str) -> None:
    """Story: a client read a row and its transaction committed; the server was killed. After the restart the row was
    the one before: the commit that had been read was still on its way to the disk.
    """
    call, shown = SHOWN[name]
    with client_of(disk.db) as remote:
        with disk.commit_at_the_disk():
            asked = Call(lambda: call(remote))
            assert asked.is_waiting(disk), f"{asked.result} was shown before its sync"
            assert disk.rows_after_power_loss()[CHANGED][1] == "old"
        assert asked.answer() == shown
        assert disk.rows_after_power_loss()[CHANGED][1] == "new"


READ: dict[str, Callable[[Any], Any]] = {
    "get": lambda txn: txn.get(NAME, CHANGED).owner,
    "get of a deleted row": lambda txn: txn.get(NAME, DELETED),
    "count": lambda txn: txn.scan(NAME, where=tm.col("owner") == "new").count(),
    "refused update": lambda txn: txn.update(NAME, CHANGED, {"balance": 2.0}, where=tm.col("owner") == "old"),
}


@pytest.mark.parametrize("name", READ)
def test_transaction_of_this_process_that_reads_commits_after_what_it_read(disk: SlowDisk, name: str) -> None:
    """Story: a worker read "paid" in a transaction, committed it and sent the goods. A crash took the payment back."""
    with disk.commit_at_the_disk():
        asked = Call(lambda: in_txn(READ[name])(disk.db))
        assert asked.is_waiting(disk)
    assert asked.answer() == SHOWN[name][1]


def test_reads_of_rows_that_are_durable_wait_for_nothing(disk: SlowDisk) -> None:
    disk.db.parts.clockwork.advance_epoch()
    with client_of(disk.db) as remote:
        with disk.commit_at_the_disk():
            assert remote[NAME].get(OLD).owner == "old"
            with remote.transaction() as txn:
                assert txn.get(NAME, OLD).owner == "old"
                assert txn.get(NAME, OLD, lock="shared").owner == "old"
            with disk.db.transaction() as txn:
                assert txn.get(NAME, OLD).owner == "old"
            with disk.db.transaction():
                pass  # it has read nothing
            assert disk.db[NAME][CHANGED].owner == "new", "a call without a transaction waits for nothing"


def test_only_get_of_a_row_knows_what_it_has_seen(disk: SlowDisk) -> None:
    """A call that finds no row, or counts rows, may have seen the newest commit: its transaction waits for that."""
    calls: dict[str, Callable[[Any], Any]] = {
        "get_many": lambda txn: txn.get_many(NAME, [OLD]),
        "no row": lambda txn: txn.get(NAME, NEW),
        "scan": lambda txn: list(txn.scan(NAME, limit=1)),
        "scan by index": lambda txn: list(txn.scan(NAME, index="by_owner")),
        "scan by key": lambda txn: list(txn.scan(NAME, where=tm.col("id") == NEW)),
        "index alone": lambda txn: txn.scan(NAME, ["owner"], index="by_owner").to_arrow(),
        "count": lambda txn: txn.scan(NAME).count(),
        "refused update": lambda txn: txn.update(NAME, OLD, {"balance": 2.0}, where=tm.col("owner") == "no"),
    }
    for name, call in calls.items():
        with disk.db.transaction() as txn:
            txn.get(NAME, OLD)
            assert 0 < txn.seen <= disk.db.parts.store.epochs.current
            call(txn)
            assert txn.seen == LAST_EPOCH, name
            txn.get(NAME, OLD)
            assert txn.seen == LAST_EPOCH, name


def test_calls_that_change_rows_wait_with_their_commit(disk: SlowDisk) -> None:
    """Otherwise a transaction of many calls would pay a sync for each while others write."""
    with client_of(disk.db) as remote:
        with disk.commit_at_the_disk():
            changed = threading.Event()

            def change() -> None:
                with remote.transaction() as txn:
                    txn.insert(NAME, (20, "mine", 1.0, None))
                    txn.update(NAME, OLD, {"owner": "mine"})
                    txn.upsert(NAME, (21, "mine", 1.0, None))
                    changed.set()

            asked = Call(change)
            assert changed.wait(60)
            assert asked.is_waiting(disk)
        assert asked.answer() is None
        assert disk.rows_after_power_loss()[20][1] == "mine"


def test_with_epochs_nothing_is_waited_for() -> None:
    disk = SlowDisk(durability="epoch")
    with client_of(disk.db) as remote:
        disk.is_slow = True
        disk.write()
        for name in ("get", "scan", "get in a transaction", "refused update"):
            assert SHOWN[name][0](remote) == SHOWN[name][1]
        with disk.db.transaction() as txn:
            assert txn.get(NAME, CHANGED).owner == "new"
    disk.is_slow = False
    disk.db.close()


def test_reader_that_waits_on_a_failed_store_is_shown_nothing(disk: SlowDisk) -> None:
    with client_of(disk.db) as remote:
        with disk.commit_at_the_disk():
            asked = Call(lambda: remote[NAME].get(CHANGED))
            assert asked.is_waiting(disk)
            disk.db.parts.store.failure.latch(tm.StoreFailed("planted"))
        assert asked.answer() == "StoreFailed"


def test_counts_for_other_processes_wait_but_not_for_ever(disk: SlowDisk) -> None:
    """A status is what an operator needs while a disk hangs: it comes after a second, whatever the disk does."""
    with client_of(disk.db) as remote, tm.serve_metrics(disk.db, "127.0.0.1:0") as metrics:
        with disk.commit_at_the_disk():
            before = disk.db.parts.store.clock.monotonic()
            assert remote.status()["tables"][NAME]["rows"] == 3
            assert disk.db.parts.store.clock.monotonic() - before >= 1.0, "by the clock of the store"
        assert disk.db.parts.store.log.durable_sequence == disk.db.parts.store.log.sequence - 1
        before = disk.db.parts.store.clock.monotonic()
        text = urlopen(f"http://{metrics.name}/metrics").read().decode()
        assert f'tidemark_table_rows{{table="{NAME}"}} 3.0' in text
        assert disk.db.parts.store.clock.monotonic() == before
