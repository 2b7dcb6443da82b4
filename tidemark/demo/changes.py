"""The process that changes rows loaded in bulk, and is killed.

`python -m tidemark.demo.changes STORE ARCHIVE PLACE SEED`. Each batch is one transaction: it changes quantities of
lines, deletes lines, inserts lines, and adds a row to `bulk.batches`. After BATCHES_BEFORE batches it makes a backup,
which a restore to that moment must equal; then it continues. When a commit or the backup is durable, and not before, it
prints a line of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

import tidemark as tm
from tidemark.demo.data import DATA_MEMORY

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_BEFORE = 20
BATCH_ROWS = 500
FIRST_NEW_KEY = 1_000_000_000


def changed(lines: pa.RecordBatch, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the keys of these lines with new quantities."""
    rows = lines.select(["l_orderkey", "l_linenumber"]).to_pylist()
    return [{**row, "l_quantity": Decimal(int(rng.integers(1, 5_100))).scaleb(-2)} for row in rows]


def batch(db: tm.Database, number: int, keys: list[int], rng: np.random.Generator) -> None:
    chosen = [(keys[place], 1) for place in rng.choice(len(keys), 3 * BATCH_ROWS, replace=False).tolist()]
    with db.transaction() as txn:
        found = txn.get_many("bulk.lineitem", chosen[:BATCH_ROWS])
        txn.update_many("bulk.lineitem", changed(found, rng))
        moved = txn.get_many("bulk.lineitem", chosen[BATCH_ROWS : 2 * BATCH_ROWS])
        places = zip(moved.column("l_orderkey").to_pylist(), moved.column("l_linenumber").to_pylist(), strict=True)
        txn.delete_many("bulk.lineitem", list(places))
        first = FIRST_NEW_KEY + number * BATCH_ROWS
        new = [{**row, "l_orderkey": first + place} for place, row in enumerate(moved.to_pylist())]
        txn.insert_many("bulk.lineitem", new)
        txn.insert("bulk.batches", {"number": number, "lines": len(found) + 2 * len(new)})


def emit(**what: int) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(store: str, archive: str, place: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with tm.open(store, data_memory=DATA_MEMORY, archive=archive) as db:
        keys = db["bulk.orders"].to_arrow(columns=["o_orderkey"]).column(0).to_pylist()
        number = 0
        while True:
            number += 1
            batch(db, number, keys, rng)
            emit(batch=number)
            if number == BATCHES_BEFORE:
                emit(expected=db.backup(place)["epoch"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
