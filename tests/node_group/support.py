"""A live store, a node that was away, and a link between them; writers of the live store run between its messages."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import tidemark as tm
from tests.node_group.slots import different_slots
from tests.store.support import SMALL, open_memory, rows_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.log.reader import LogReader
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint
from tidemark.recovery.node_restart.joiner import Join
from tidemark.recovery.node_restart.messages import DELETE_LOG, ROWID_SYNC, Plan, Ready, Taken
from tidemark.recovery.node_restart.restart import make_recoverable
from tidemark.recovery.node_restart.source import Source
from tidemark.recovery.system_restart.restart import Opened, Restart
from tidemark.recovery.system_restart.through import Through
from tidemark.replication.node_group.codec import RESTART_MESSAGES, decode, encode

COPYING = (ROWID_SYNC, DELETE_LOG)  # the variants that copy rows
WORK_MAX = 150  # rounds of the writers while a node joins
OPTIONS: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "8 MiB", "undo_log": "8 MiB", "delete_log": "1 MiB"}


def settings() -> Options:
    """Options of both nodes."""
    return Options.from_keywords({**SMALL, **OPTIONS})


def open_node(files: MemoryFiles | None = None, through: int | None = None) -> Any:
    """Open a node that the test drives by hand."""
    return open_memory(files, through, **OPTIONS)


class Stream:
    """The groups of a live store's log, in order, as a commit partner receives them."""

    def __init__(self, db: Any, files: MemoryFiles) -> None:
        opened = db.parts.opened
        self._log = db.parts.store.log
        with db.parts.store.latch:
            self._log.divide()
            self._at = (self._log.head_lsn, self._log.sequence)
        self._reader = LogReader(files, self._log.geometry, opened.identity[0])

    def groups(self, most: int = 1 << 30) -> list[Any]:
        """Make the next groups durable and return them."""
        self._log.flush()
        found: list[Any] = []
        while len(found) < most and self._at[0] < self._log.durable_lsn:
            group = self._reader.group_at(*self._at)
            assert group is not None
            self._at = (group.end_lsn, group.sequence + 1)
            found.append(group)
        return found


def carried(message: Any) -> Any:
    """Return a message as another process decodes it."""
    return decode(bytearray(b"".join(encode(message))), RESTART_MESSAGES)


class SourceGone(Exception):
    """The live node died."""


class Wire:
    """A link from a joiner to a source, on one thread: while the joiner waits for a message, the live node works."""

    def __init__(
        self,
        db: Any,
        files: MemoryFiles,
        rng: random.Random,
        work: Callable[[], object] = lambda: None,
        most: int | None = None,
        work_max: int = WORK_MAX,
        **options: Any,
    ) -> None:
        """work: what the live node does between two steps. most: number of messages after which the source dies.
        work_max: how often `work` is called at most.
        """
        self.source = Source(db.parts.store, files, db.parts.opened.identity, **options)
        self.stream = Stream(db, files)
        self.work = work
        self._rng = rng
        self._most = most
        self._queue: deque[Any] = deque()
        self.log: list[Any] = []
        self._work_left = work_max

    def send(self, message: Any) -> None:
        """Send a message from the joiner to the source."""
        message = carried(message)
        if isinstance(message, Ready):
            self._queue.extend(self.source.begin(message))
        elif isinstance(message, Plan):
            self.source.plan(message)
        elif isinstance(message, Taken):
            self.source.taken(message)

    def receive(self) -> Any:
        """Return the next message to the joiner; the live node takes turns in random order before that."""
        turns = 0
        while not self._queue:
            turns += 1
            assert turns < 10_000, "nothing comes any more"
            self._turn()
        if self._rng.random() < 0.5:
            self._turn()
        message = carried(self._queue.popleft())
        self.log.append(message)
        if self._most is not None and len(self.log) > self._most:
            raise SourceGone
        return message

    def _turn(self) -> None:
        if not self.source.progress.is_done and self._work_left > 0:
            self._work_left -= 1
            self.work()
        if self._rng.random() < 0.4:
            self.source.read()
        if self._rng.random() < 0.6:
            self._queue.extend(self.source.step())
        if self._rng.random() < 0.5:
            for group in self.stream.groups(self._rng.randrange(1, 5)):
                self._queue.extend(self.source.group(group))

    @property
    def copied_bytes(self) -> int:
        """Bytes of the slices that were sent."""
        return int(self.source.progress.bytes)


def restarted(
    files: MemoryFiles, wire: Any, through: int, variant: str = "rowid_sync", sequence: int | None = None
) -> Opened:
    """Bring a node back from its files and the live node. sequence: of the last group of the epoch `through`."""
    join = Join(wire.source.welcome(), wire, through, variant)
    options = settings()
    end = Through(through, sequence) if through else None
    restart = Restart(files, options, ManualClock(), end, catch_up=join)
    return restart.run()


def finish(files: MemoryFiles, opened: Opened) -> LocalCheckpoint:
    """Make a joined store recover without the live node."""
    store = opened.store
    lcp = LocalCheckpoint(store, files, opened.identity, opened.sysfile.next_lcp_id, opened.unsound)
    make_recoverable(lcp)
    return lcp


def assert_equal(db: Any, store: Any, said: str = "") -> None:
    """Check that both stores have the same slots."""
    found = different_slots(db.parts.store, store)
    assert not found, f"{said} {found[:5]}"


def joined_and_reopened(db: Any, files: MemoryFiles, opened: Opened, said: str = "") -> None:
    """Check that the node equals the live one now, and after its local checkpoint, a crash and a restart alone."""
    assert_equal(db, opened.store, said)
    finish(files, opened)
    again = open_node(files.kill())
    assert_equal(db, again.parts.store, f"{said}, reopened")
    report = again.check()
    assert report["is_sound"], f"{said} {report}"
    for name in db.parts.store.tables.by_name:
        assert rows_of(again, name) == rows_of(db, name), f"{said} {name}"
    again.close()


class Writers:
    """Random transactions on the tables of a live node."""

    def __init__(self, db: Any, rng: random.Random, tables: int = 3, has_disk: bool = False) -> None:
        self.db = db
        self.rng = rng
        storage: dict[str, Any] = {"storage": "disk"} if has_disk else {}
        db.create_table(
            "test.wide",
            [
                tm.Column("id", tm.Int64),
                tm.Column("group", tm.Int32),
                tm.Column("note", tm.Text, nullable=True),
                tm.Column("far", tm.VarChar(300), nullable=True, **storage),
            ],
            "id",
            partition=tm.HashPartition(2),
        )
        db.create_table(
            "test.hot", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id", partition=tm.HashPartition(1)
        )
        db.create_table(
            "test.named",
            [tm.Column("name", tm.VarChar(60)), tm.Column("n", tm.Int64), tm.Column("value", tm.Float64)],
            "name",
            partition=tm.HashPartition(2),
        )
        db.create_index("test.wide", "by_group", "group")
        db.create_index("test.named", "by_n", ["n", "value"])
        self.counter = 0
        self.keys = 0

    def row(self, key: int) -> tuple[Any, ...]:
        """Return a row of the wide table."""
        self.counter += 1
        note = None if key % 3 else "x" * self.rng.randrange(1, 200)
        return (key, key % 17, note, f"far {self.counter}" * self.rng.randrange(1, 8))

    def fill(self, rows: int) -> None:
        """Insert this many rows into the wide table, half as many into the named one, and eight hot ones."""
        self.keys = rows * 3 // 2
        self.db["test.wide"].write_many([self.row(key) for key in range(rows)])
        self.db["test.named"].write_many([(f"name {key}" * (1 + key % 3), key, 1.0) for key in range(rows // 2)])
        self.db["test.hot"].write_many([(key, 0) for key in range(8)])

    def step(self) -> None:
        """Run one or two transactions."""
        log = self.db.parts.store.log
        if log.used_bytes() * 2 > log.geometry.capacity_bytes:
            self.db.checkpoint()
        for _ in range(self.rng.randrange(1, 3)):
            choice = self.rng.choice(
                [self._hot, self._hot, self._wide, self._wide, self._named, self._bulk, self._epoch]
            )
            with self.db.transaction() as txn:
                choice(txn)

    def _hot(self, txn: Any) -> None:
        key = self.rng.randrange(8)
        if txn.get("test.hot", key) is not None:
            txn.delete("test.hot", key)
        if self.rng.random() < 0.7:
            self.counter += 1
            txn.insert("test.hot", (key, self.counter))

    def _wide(self, txn: Any) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            key = self.rng.randrange(self.keys)
            if self.rng.random() < 0.4 and txn.get("test.wide", key) is not None:
                txn.delete("test.wide", key)
            elif self.rng.random() < 0.5:
                txn.write("test.wide", self.row(key))
            elif txn.get("test.wide", key) is not None:
                txn.update("test.wide", key, {"group": self.rng.randrange(50)})

    def _named(self, txn: Any) -> None:
        key = self.rng.randrange(self.keys // 2)
        name = f"name {key}" * (1 + key % 3)
        if txn.get("test.named", name) is not None:
            txn.delete("test.named", name)
        else:
            self.counter += 1
            txn.insert("test.named", (name, self.counter, 0.5))

    def _bulk(self, txn: Any) -> None:
        """Empty some pages, or fill them again."""
        first = self.rng.randrange(self.keys)
        if self.rng.random() < 0.6:
            for key in range(first, first + 150):
                if txn.get("test.wide", key) is not None:
                    txn.delete("test.wide", key)
        else:
            txn.write_many("test.wide", [self.row(key) for key in range(first, first + 150)])

    def _epoch(self, txn: Any) -> None:
        self.db.parts.clockwork.advance_epoch() if self.rng.random() < 0.8 else None


def away(seed: int, rows: int = 800, steps: int = 30, has_disk: bool = False, stray: int = 5) -> Any:
    """Return a live node with its writers, and the files of a node that went away after epoch X. The files have some
    commits of later epochs that the live node never had. (db, files, writers, node's files, X, rng)
    """
    rng = random.Random(seed)
    files = MemoryFiles()
    db = open_node(files)
    writers = Writers(db, rng, has_disk=has_disk)
    writers.fill(rows)
    if rng.random() < 0.7:
        db.checkpoint()
    for _ in range(rng.randrange(10)):
        writers.step()
    through = db.sync()
    node = MemoryFiles.from_snapshot(files.snapshot())
    if stray:
        other = open_node(node)
        strays = Writers.__new__(Writers)
        strays.db, strays.rng, strays.counter, strays.keys = other, random.Random(seed + 1), 1_000_000, rows
        for _ in range(stray):
            strays.step()
        other.sync()
        node = node.kill()
    for _ in range(steps):
        writers.step()
    if rng.random() < 0.5:
        db.checkpoint()
    return db, files, writers, node, through, rng
