"""Ways to read and to write rows of one table: a play is the same by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tidemark as tm

Lock = Literal["shared", "exclusive"] | None
NAMES = {key: f"row {key}" for key in range(10)}
KEYS = tuple(NAMES)
THIRD = tm.col("n") % 3 == 0
EVERY = 1_000  # above every n


@dataclass(frozen=True)
class Way:
    """How transactions read rows, and how they write them. lock: of the rows that they read."""

    name: str
    reading: str = "key"
    writing: str = "update"
    lock: Lock = None

    def read(self, txn: Any, keys: Iterable[int]) -> dict[int, int]:
        """Return n by id, of the rows with these keys that there are."""
        wanted = set(keys)
        found = _READS[self.reading](txn, wanted, self.lock)
        return {key: n for key, n in found.items() if key in wanted}

    def find(self, txn: Any) -> int:
        """Return how many rows have a multiple of 3 as n."""
        found = _FINDS.get(self.reading)
        if found is not None:
            return found(txn, self.lock)
        return sum(n % 3 == 0 for n in _READS[self.reading](txn, KEYS, self.lock).values())

    def write(self, txn: Any, key: int, n: int) -> None:
        """Set n of a row that there is."""
        _WRITES[self.writing](txn, key, n)


def _by_id(rows: Iterable[Any]) -> dict[int, int]:
    return {row.id: row.n for row in rows}


def _of_batch(batch: Any) -> dict[int, int]:
    return dict(zip(batch["id"].to_pylist(), batch["n"].to_pylist(), strict=True))


def _by_key(txn: Any, keys: Iterable[int], lock: Lock, **index: Any) -> dict[int, int]:
    found = {key: txn.get("t", NAMES[key] if index else key, **_of(lock), **index) for key in sorted(keys)}
    return {key: row.n for key, row in found.items() if row is not None}


def _of(lock: Lock) -> dict[str, Any]:
    """Snapshots have no argument for a lock."""
    return {} if lock is None else {"lock": lock}


def _groups(txn: Any, where: Any = None) -> dict[int, int]:
    return _by_id(txn.aggregate("t", where=where, by="id", n=("max", "n")))


_READS: Mapping[str, Callable[[Any, Iterable[int], Lock], dict[int, int]]] = {
    "key": _by_key,
    "unique index": lambda txn, keys, lock: _by_key(txn, keys, lock, index="by_name"),
    "get_many": lambda txn, keys, lock: _of_batch(txn.get_many("t", sorted(keys), ["id", "n"], **_of(lock))),
    "keys of a condition": lambda txn, keys, lock: _by_id(
        txn.scan("t", where=tm.col("id").isin(sorted(keys)), **_of(lock))
    ),
    "condition": lambda txn, keys, lock: _by_id(txn.scan("t", where=tm.col("n") < EVERY, **_of(lock))),
    "ordered index": lambda txn, keys, lock: _by_id(txn.scan("t", index="by_g", lower=0, upper=EVERY, **_of(lock))),
    "index only": lambda txn, keys, lock: {
        row.id: row.g
        for row in txn.scan("t", ["id", "g"], index="by_id_g", lower=(0, 0), upper=(EVERY, 0), **_of(lock))
    },
    "full scan": lambda txn, keys, lock: _by_id(txn.scan("t", **_of(lock))),
    "aggregate": lambda txn, keys, lock: _groups(txn),
}
_FINDS: Mapping[str, Callable[[Any, Lock], int]] = {
    "condition": lambda txn, lock: len(list(txn.scan("t", where=THIRD, **_of(lock)))),
    # Of the plays' values, those from 30 on are the multiples of 3.
    "ordered index": lambda txn, lock: len(list(txn.scan("t", index="by_g", lower=30, upper=EVERY, **_of(lock)))),
    "aggregate": lambda txn, lock: int(txn.aggregate("t", where=THIRD, n=("count",)).n),
}


def _replaced(txn: Any, key: int, n: int) -> None:
    txn.delete("t", key)
    txn.insert("t", (key, NAMES[key], n, n))


_WRITES: Mapping[str, Callable[[Any, int, int], object]] = {
    "update": lambda txn, key, n: txn.update("t", key, {"n": n, "g": n}),
    "update by a unique index": lambda txn, key, n: txn.update("t", NAMES[key], {"n": n, "g": n}, index="by_name"),
    "update_where": lambda txn, key, n: txn.update_where("t", {"n": n, "g": n}, where=tm.col("id") == key),
    "update_many": lambda txn, key, n: txn.update_many("t", {"id": [key], "n": [n], "g": [n]}),
    "write": lambda txn, key, n: txn.write("t", (key, NAMES[key], n, n)),
    "upsert": lambda txn, key, n: txn.upsert("t", (key, NAMES[key], n, n)),
    "delete and insert": _replaced,
}

BY_KEY = Way("key")
READING = [Way(f"read by {name}", reading=name) for name in _READS]
WRITING = [Way(f"write by {name}", writing=name) for name in _WRITES if name != "update"]
FINDING = [way for way in READING if way.reading != "keys of a condition"]
LOCKING = [way for way in READING if way.reading != "aggregate"]  # an aggregate locks no rows
