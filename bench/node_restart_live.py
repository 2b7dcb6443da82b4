"""The live node of `bench.node_restart`, in a process of its own: changes while the other one is away, writers at a
steady rate, and a source that serves the join over a pipe.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from tidemark.engine.jit.registry import compile_declared
from tidemark.engine.log.group import Group
from tidemark.engine.log.reader import described
from tidemark.engine.store.node_copy import ChangeScan
from tidemark.engine.store.node_copy_layout import ROWID_END
from tidemark.recovery.node_restart.messages import Deletes, GroupPart, Plan, Ready, Slice, Taken
from tidemark.recovery.node_restart.source import Source
from tidemark.replication.node_group.codec import decode, encode

SEED = 20_261
NAME = "test.t"
FULL = "full_copy"  # the delete log is requested, but does not reach back far enough
TEXT_BYTES = 150
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("a", tm.Int64),
    tm.Column("b", tm.Float64),
    tm.Column("text", tm.VarChar(160)),
]
FRAGMENTS = 4
ROW_BYTES = 216  # of a row in a slice
BATCH = 5_000
DELETED_SHARE = 0.1  # of the rows that change; as many new rows are inserted under other keys
EPOCH_SECONDS = 0.1
WARM_SECONDS = 0.3
ALONE_SECONDS = 1.0  # the same writers without a join, after it
LATE_OPERATIONS = 50  # a writer deletes the row that it inserted this many inserts ago


@dataclass(frozen=True)
class Setting:
    """One cell. variant: as of a join, or FULL; rate: transactions a second; times: that each row was updated."""

    factor: int
    rows: int
    share: float
    variant: str
    rate: int
    times: int = 1


@dataclass
class Served:
    """The live node's report on one join."""

    variant: str = ""
    why: str = ""
    changed_rows: int = 0
    changed_bytes: int = 0  # of the rows with a newer epoch, as a slice has them
    deleted_rows: int = 0
    seconds: float = 0.0
    bytes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("rows", "deletes", "log", "stream", "other"), 0)
    )
    messages: int = 0
    rows: int = 0
    slots: int = 0
    items: int = 0  # of the delete log
    writers: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)


def options_of(rows: int, variant: str = "") -> dict[str, Any]:
    """Return the options of both nodes: no local checkpoint runs meanwhile, and the log has room for everything."""
    size = rows * ROW_BYTES
    return {
        "data_memory": (64 << 20) + 3 * size,
        "redo_log": (64 << 20) + 3 * size,
        "snapshot_memory": 1 << 20,
        "delete_log": 0 if variant == FULL else "64 MiB",
        "durability": "epoch",
        "background": False,
        "lock_timeout_ms": 1_000,
    }


def rows_of(keys: Any, text: str) -> pa.Table:
    """Rows with these keys."""
    count = len(keys)
    return pa.table(
        {
            "id": pa.array(keys, type=pa.int64()),
            "a": pa.array(np.arange(count)),
            "b": pa.array(np.full(count, 0.5)),
            "text": pa.array([text * TEXT_BYTES] * count),
        }
    )


class Feed:
    """A commit partner that keeps the groups for the source and never blocks a commit."""

    def __init__(self) -> None:
        self.groups: deque[Any] = deque()
        self._last = 0

    def offer(self, txid: int, names: tuple[str, ...]) -> None:
        """Files stay where they are."""

    def send(self, group: Group) -> None:
        """Keep a group that is about to be written."""
        if group.sequence > self._last:
            self._last = group.sequence
            self.groups.append(described(group.words[: group.written_words].copy()))

    def wait(self, sequence: int) -> None:
        """Return at once."""

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """Do nothing."""


class Writer(threading.Thread):
    """Runs transactions of one row, each at its time; a late writer catches up without pauses."""

    def __init__(self, db: Any, rows: int, keys: Any, rate: int) -> None:
        """keys: those of the rows to update."""
        super().__init__(daemon=True)
        self.db = db
        self.rate = rate
        self.keys = keys
        self.next_key = 4 * rows
        self.made: deque[int] = deque()
        self.done: list[float] = []
        self.late: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Write until `over` is set."""
        rng = np.random.default_rng(SEED)
        table, text = self.db[NAME], "w" * TEXT_BYTES
        due = time.perf_counter()
        while not self.over.is_set():
            keys = self.keys[rng.integers(0, len(self.keys), 1_000)].tolist()
            kinds = rng.random(1_000).tolist()
            for key, kind in zip(keys, kinds, strict=True):
                due += 1 / self.rate
                wait = due - time.perf_counter()
                if wait > 0:
                    self.over.wait(wait)
                if kind < 0.8:
                    table.update(key, {"b": kind})
                elif kind < 0.9 or len(self.made) < LATE_OPERATIONS:
                    self.next_key += 1
                    self.made.append(self.next_key)
                    table.insert((self.next_key, 1, kind, text))
                else:
                    table.delete(self.made.popleft())
                now = time.perf_counter()
                self.done.append(now)
                self.late.append(now - due)
                if self.over.is_set():
                    return

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Return transactions per second, and by how many milliseconds the latest one missed its time."""
        done = np.array(self.done)
        late = np.array(self.late)[: len(done)]
        inside = (done >= begin) & (done <= end)
        return {
            "per_second": float(inside.sum() / max(end - begin, 1e-9)),
            "pause_ms": float(late[inside].max(initial=0.0) * 1e3),
            "median_ms": float(np.median(late[inside]) * 1e3) if inside.any() else 0.0,
        }


def change(db: Any, setting: Setting) -> tuple[Any, int]:
    """Change a share of the rows, in large transactions; return the keys of updated rows, and the number of deletes."""
    rng = np.random.default_rng([SEED, setting.rows])
    keys = rng.permutation(setting.rows)
    changed = max(10, int(setting.rows * setting.share))
    deleted = max(1, int(changed * DELETED_SHARE))
    table = db[NAME]
    for first in range(0, deleted, BATCH):
        table.delete_many(keys[first : min(first + BATCH, deleted)].tolist())
    for time_ in range(setting.times):
        for first in range(deleted, changed, BATCH):
            table.update_many(rows_of(keys[first : min(first + BATCH, changed)], str(time_ % 10)))
    for first in range(0, deleted, BATCH):
        table.insert_many(rows_of(np.arange(first, min(first + BATCH, deleted)) + 2 * setting.rows, "n"))
    db.sync()
    return keys[deleted:changed], deleted


def changed_after(db: Any, through: int) -> tuple[int, int]:
    """Return the number of rows with an epoch after `through`, and their bytes in slices."""
    rows = size_bytes = 0
    scan = ChangeScan(db.parts.store.mem, 1 << 20)
    for fragment in db.parts.store.tables.by_name[NAME].fragments:
        at = 0
        while at < ROWID_END:
            found = scan.next(fragment, at, through, False, 1 << 20)
            at = found.stop
            rows += found.rows
            size_bytes += found.words.nbytes
    return rows, size_bytes


class Service:
    """Carries messages between source and pipe on one thread, and counts them."""

    def __init__(self, db: Any, through: int, pipe: Connection, feed: Feed, served: Served) -> None:
        self.source = Source(db.parts.store, db.parts.files, db.parts.opened.identity)
        self._db = db
        self._through = through
        self._log = db.parts.store.log
        self._pipe = pipe
        self._feed = feed
        self._served = served
        self.began = 0.0

    def run(self) -> None:
        """Serve one join to its end."""
        source = self.source
        while not source.progress.is_done or source.awaited_sequence:
            sent = self._served.messages
            while self._pipe.poll(0):
                self._take(decode(bytearray(self._pipe.recv_bytes())))
            source.read()
            self._send(source.step())
            if source.awaited_sequence > self._log.durable_sequence:
                self._log.wait(source.awaited_sequence)
            while self._feed.groups:
                self._send(source.group(self._feed.groups.popleft()))
            if sent == self._served.messages:
                self._pipe.poll(0.001)
        self._served.seconds = time.perf_counter() - self.began
        progress = source.progress
        self._served.variant, self._served.why = progress.variant, progress.why
        self._served.rows, self._served.slots, self._served.items = progress.rows, progress.slots, progress.deletes
        source.close()

    def _take(self, message: Any) -> None:
        if isinstance(message, Ready):
            served = self._served
            served.changed_rows, served.changed_bytes = changed_after(self._db, self._through)
            self.began = time.perf_counter()
            self._send(self.source.begin(message))
        elif isinstance(message, Plan):
            self.source.plan(message)
        elif isinstance(message, Taken):
            self.source.taken(message)

    def _send(self, messages: list[Any]) -> None:
        for message in messages:
            data = b"".join(encode(message))
            kind = "other"
            if isinstance(message, Slice):
                kind = "rows"
            elif isinstance(message, Deletes):
                kind = "deletes"
            elif isinstance(message, GroupPart):
                registered = self.source.registered
                kind = "log" if registered is None or message.sequence <= registered else "stream"
            self._served.bytes[kind] += len(data)
            self._served.messages += 1
            self._pipe.send_bytes(data)


def tick(db: Any, is_over: threading.Event) -> None:
    """Close an epoch ten times a second."""
    while not is_over.wait(EPOCH_SECONDS):
        db.sync()


def main(pipe: Connection, control: Connection) -> None:
    """Receive and serve cells (folder, setting, epoch), one after the other, until None arrives."""
    compile_declared()
    for folder, setting, through in iter(control.recv, None):
        serve(folder, setting, through, pipe, control)
        gc.collect()


def serve(folder: str, setting: Setting, through: int, pipe: Connection, control: Connection) -> None:
    """Change rows, tell the joiner when to start, serve the join, continue alone for a while, and send the report. The
    writers update only rows that have changed anyway, so that they do not alter the share.
    """
    served = Served()
    with tm.open(Path(folder), **options_of(setting.rows, setting.variant)) as db:
        keys, served.deleted_rows = change(db, setting)
        feed = Feed()
        db.parts.store.log.flush()
        db.parts.store.log.partner = feed
        service = Service(db, through, pipe, feed, served)
        writer = Writer(db, setting.rows, keys, setting.rate)
        ticker = threading.Thread(target=tick, args=(db, writer.over), daemon=True)
        ticker.start()
        writer.start()
        writer.over.wait(WARM_SECONDS)
        control.send(service.source.welcome())
        service.run()
        end = time.perf_counter()
        while not control.poll(0.01):  # the joiner makes its local checkpoint, on another core
            feed.groups.clear()
        control.recv()
        while pipe.poll(0):
            pipe.recv_bytes()
        begin_alone = time.perf_counter()
        writer.over.wait(ALONE_SECONDS)
        end_alone = time.perf_counter()
        writer.over.set()
        writer.join()
        ticker.join()
        served.writers = writer.between(service.began, end)
        served.alone = writer.between(begin_alone, end_alone)
        db.parts.store.log.partner = None
    control.send(asdict(served))
