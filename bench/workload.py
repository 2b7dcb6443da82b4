"""A stream of updates, deletes and inserts with a rate and a skew, for the finding on local checkpoints; seeded.

80 % updates, 10 % deletes, 10 % inserts. Updated keys are drawn uniformly or by Zipf's law with exponent 0.99 over a
random order of the keys. Deleted keys are a fifth of the keys kept for that, each deleted once; inserted keys are new.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import F_LCP_ACTIVE, F_LCP_PAGES, F_LCP_POSITION

SEED = 4_711
ZIPF = 0.99
DELETE_SHARE = 0.2  # of the keys, never updated
BURST_SECONDS = 0.002
BATCH_ROWS = 1_000
POOL = 1_000_000


@dataclass
class Stretch:
    """What the writer did and measured in one stretch."""

    operations: int = 0
    seconds: float = 0.0
    longest_ms: float = 0.0
    kept_deletes: int = 0  # deletes of rows a running scan had not reached

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds if self.seconds else 0.0


def zipf_ranks(items: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Ranks by Zipf's law, 0 the most frequent of `items`."""
    steps = np.cumsum(np.arange(1, items + 1, dtype=np.float64) ** -ZIPF)
    ranks: np.ndarray = np.searchsorted(steps, rng.random(count) * steps[-1])
    return ranks


def draw_keys(keys: np.ndarray, skew: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Keys to update."""
    if skew == "uniform":
        return keys[rng.integers(0, len(keys), count)]
    ranks = zipf_ranks(len(keys), count, rng)
    drawn: np.ndarray = rng.permutation(keys)[ranks]
    return drawn


class Writer:
    """One writing thread. rate: operations per second; 0: as fast as possible; -1: in transactions of 1,000 rows."""

    def __init__(self, db: tm.Database, rows: int, rate: int, skew: str, seed: int = SEED) -> None:
        rng = np.random.default_rng([seed, rows])
        order = rng.permutation(rows)
        doomed = int(rows * DELETE_SHARE)
        self.table: Any = db["t"]
        self.mem = db.parts.store.mem
        self.rate = rate
        self.updates = draw_keys(order[doomed:], skew, POOL, rng)
        self.doomed = order[:doomed]
        self.next_update = self.next_delete = 0
        self.next_insert = rows
        self.update_list = self.updates.tolist()
        self.doomed_list = self.doomed.tolist()
        self._find_places(rows)
        self._pause = threading.Event()

    def _find_places(self, rows: int) -> None:
        """Fragment address and ROWID of every key, so that a delete can be compared with the scan's position."""
        found = self.table.scan([self.table.definition.primary_key[0], tm.ROWID, tm.FRAGMENT]).to_arrow()
        keys, rowids, fragments = (column.to_numpy() for column in found.columns)
        addresses = np.array(self.table.table.fragments, dtype=np.int64)
        self.rowids = np.zeros(rows, dtype=np.int64)
        self.fragments = np.zeros(rows, dtype=np.int64)
        self.rowids[keys] = rowids
        self.fragments[keys] = addresses[fragments]

    def _is_ahead(self, key: int) -> bool:
        """Whether a running scan has not reached this row."""
        mem, fragment, rowid = self.mem, self.fragments[key], self.rowids[key]
        return bool(
            mem[address_of(fragment) + F_LCP_ACTIVE]
            and rowid >= mem[address_of(fragment) + F_LCP_POSITION]
            and rowid >> 16 < mem[address_of(fragment) + F_LCP_PAGES]
        )

    def run(self, seconds: float, stop: threading.Event | None = None) -> Stretch:
        """Write for a while, or until `stop`."""
        found = Stretch()
        clock = time.perf_counter
        began = now = clock()
        while now - began < seconds and not (stop is not None and stop.is_set()):
            if self.rate < 0:
                self._batch(found)
            else:
                self._burst(found, 50 if self.rate == 0 else max(10, int(self.rate * BURST_SECONDS)) // 10 * 10)
            now = clock()
            if self.rate > 0:
                early = began + found.operations / self.rate - now
                if early > 0:
                    self._pause.wait(early)
                    now = clock()
        found.seconds = now - began
        return found

    def _burst(self, found: Stretch, operations: int) -> None:
        """One-row transactions, ten kinds in turn; each is timed."""
        table, clock = self.table, time.perf_counter
        last = clock()
        for number in range(operations):
            kind = number % 10
            if kind < 8:
                key = self.update_list[self.next_update % POOL]
                table.update(key, {"b": float(self.next_update)})
                self.next_update += 1
            elif kind == 8:
                key = self.doomed_list[self.next_delete]
                self.next_delete += 1
                found.kept_deletes += self._is_ahead(key)
                table.delete(key)
            else:
                table.insert((self.next_insert, 0.0, 0, b"inserted meanwhile..", 1))
                self.next_insert += 1
            now = clock()
            found.longest_ms = max(found.longest_ms, (now - last) * 1_000)
            last = now
        found.operations += operations

    def _batch(self, found: Stretch) -> None:
        """Eight transactions of 1,000 updates, one of 1,000 deletes, one of 1,000 inserts; each is timed."""
        for number in range(10):
            began = time.perf_counter()
            if number < 8:
                at = self.next_update % (POOL - BATCH_ROWS)
                keys = np.unique(self.updates[at : at + BATCH_ROWS])
                self.table.update_many(pa.table({"id": keys, "b": np.full(len(keys), float(self.next_update))}))
                self.next_update += BATCH_ROWS
            elif number == 8:
                keys = self.doomed[self.next_delete : self.next_delete + BATCH_ROWS]
                self.next_delete += len(keys)
                found.kept_deletes += sum(map(self._is_ahead, keys.tolist()))
                self.table.delete_many(keys)
            else:
                keys = np.arange(self.next_insert, self.next_insert + BATCH_ROWS)
                self.next_insert += BATCH_ROWS
                self.table.insert_many(_new_rows(keys))
            found.longest_ms = max(found.longest_ms, (time.perf_counter() - began) * 1_000)
            found.operations += len(keys)


def _new_rows(keys: np.ndarray) -> pa.Table:
    names = pa.FixedSizeBinaryArray.from_buffers(pa.binary(20), len(keys), [None, pa.py_buffer(bytes(20 * len(keys)))])
    zeros = np.zeros(len(keys))
    return pa.table({"id": keys, "b": zeros, "ts": keys, "name": names, "flags": zeros.astype(np.uint32)})
