"""The parts of a node that must equal those of the others: every row of every table, and the binlog."""

from __future__ import annotations

import hashlib
from typing import Any

import tidemark as tm
from tests.replication.site import transactions_in
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.program import Violation

CLOCK = SystemClock()
BINLOG_SECONDS = 30.0
POLL_SECONDS = 0.02
Contents = dict[str, tuple[str, list[tuple[Any, ...]]]]


def contents(db: Any) -> Contents:
    """Return for each user table its definition, and every row with place, epoch and author, as one node shows them."""
    found = {}
    for name in db.tables():
        definition = db[name].definition
        places = [tm.FRAGMENT, tm.ROWID, tm.EPOCH, tm.AUTHOR]
        table = db[name].scan([*places, *(column.name for column in definition.columns)]).to_arrow()
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        found[name] = (definition.to_json().decode(), sorted(rows, key=lambda row: row[:2]))
    return found


def different(one: Contents, other: Contents) -> str:
    """Return the first difference, "" if there is none."""
    if one.keys() != other.keys():
        return f"tables {sorted(one.keys() ^ other.keys())}"
    for name, (definition, rows) in one.items():
        if definition != other[name][0]:
            return f"definition of {name}: {definition} and {other[name][0]}"
        if rows != other[name][1]:
            return f"{name}: {sorted(set(rows) ^ set(other[name][1]), key=repr)[:4]}"
    return ""


class BinlogEpoch:
    """One epoch in a binlog. `is_gap`: the binlog lacks everything between the epoch before and this one."""

    def __init__(self, epoch: int, digest: str, is_gap: bool) -> None:
        self.epoch = epoch
        self.digest = digest
        self.is_gap = is_gap


def said_since(db: Any, epoch: int, since: Any) -> tuple[list[BinlogEpoch], Any]:
    """Wait until a node's binlog has everything through an epoch; return its epochs after a place, and its end."""
    binlog = db.binlog
    deadline = CLOCK.monotonic() + BINLOG_SECONDS
    while not binlog.has_through(epoch):
        if CLOCK.monotonic() > deadline:
            raise tm.InvariantBroken(
                f"the binlog stands at epoch {binlog.handled_epoch}, {epoch} was acknowledged long ago"
            )
        CLOCK.sleep(POLL_SECONDS)
    end = binlog.durable_end()
    try:
        logged = transactions_in(db.parts.files, start=since, end=end, base=binlog.base)
    except tm.Rejected:  # the binlog was begun anew: the file of that place is gone
        logged = transactions_in(db.parts.files, end=end, base=binlog.base)
    found: list[BinlogEpoch] = []
    is_gap = False
    for each in logged:
        if each.incident:
            is_gap = True
        elif each.epoch:
            rows = [(row.table, row.kind, row.before, row.after) for row in each.rows]
            digest = hashlib.sha256(repr(rows).encode()).hexdigest() if rows else ""
            found.append(BinlogEpoch(each.epoch, digest, is_gap))
            is_gap = False
    return found, end


class Binlogs:
    """The epochs in the binlogs of all nodes: outside gaps all binlogs have the same epochs."""

    def __init__(self) -> None:
        self.places: dict[int, Any] = {}
        self._through: dict[int, int] = {}
        self._epochs: dict[int, str] = {}  # epochs with rows, as the first binlog has them
        self.gaps = self.compared = 0

    def forget(self, number: int) -> None:
        """Forget a node that has lost its disk, and its binlog with it."""
        self.places.pop(number, None)
        self._through.pop(number, None)

    def take(self, said: dict[int, tuple[list[BinlogEpoch], Any]]) -> None:
        """Take and compare the new epochs of each binlog. Raises: Violation."""
        before = dict(self._through)
        gaps: dict[int, list[tuple[int, int]]] = {number: [] for number in said}
        epochs: dict[int, dict[int, str]] = {number: {} for number in said}
        for number, (logged, place) in said.items():
            last = self._through.get(number, 0)
            for each in logged:
                if each.epoch <= last and not (each.is_gap and each.epoch == last):
                    raise Violation(f"the binlog of node {number} says epoch {each.epoch} after {last}")
                if each.is_gap:
                    gaps[number].append((last, each.epoch))
                    self.gaps += 1
                if each.digest:
                    epochs[number][each.epoch] = each.digest
                last = each.epoch
            self._through[number] = last
            self.places[number] = place
        for number, found in epochs.items():
            for epoch, digest in found.items():
                if self._epochs.setdefault(epoch, digest) != digest:
                    raise Violation(f"the binlog of node {number} says something else of epoch {epoch}")
                self.compared += 1
        for number in said:
            missing = {epoch for epoch in self._epochs if epoch > before.get(number, 0)} - epochs[number].keys()
            for epoch in sorted(missing):
                if not any(first < epoch <= last for first, last in gaps[number]):
                    raise Violation(f"the binlog of node {number} lacks epoch {epoch} and does not say so")
        self._epochs = {epoch: self._epochs[epoch] for epoch in sorted(self._epochs)[-1_000:]}
