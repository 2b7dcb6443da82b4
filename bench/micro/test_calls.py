"""Kernels under the calls of a transaction: put_rows, touch_rows, commit_plain; and get_many as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.micro.conftest import ROWS
from bench.rows import make_table
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import MODE_INSERT, MODE_UPDATE, OK, ST_MORE, X_ROW
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.key_hashes_kernels import hash_images, sort_by_fragment
from tidemark.engine.txn.operations_kernels import put_rows, touch_rows

BATCH = 1_000
KEYS = 200
SEED = 3


def test_put_rows_of_a_thousand_new_rows(benchmark: Any, database: Any, table: Any) -> None:
    inner = table.table
    (batch,) = to_columns(make_table(ROWS, BATCH), inner.definition)
    encoded = encode_rows(inner.format, batch)
    hashes, order = np.empty(BATCH, dtype=np.int64), np.empty(BATCH, dtype=np.int64)
    hash_images(inner.hash_header, inner.format.key_words, encoded.images, NOTHING, BATCH, hashes)
    fragments = len(inner.fragments)
    sort_by_fragment(hashes, BATCH, fragments, order, np.empty(fragments + 1, dtype=np.int64))

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        txn = database.parts.store.transactions.begin()
        txn.grow(2 * encoded.images.size)
        return (txn,), {}

    def put(txn: Any) -> None:
        # The index may grow now and then, which ends a call early.
        mem, desc, buf, images = txn.mem, txn.desc, txn.buf, encoded.images
        status, begin = ST_MORE, 0
        while status == ST_MORE:
            status = put_rows(mem, inner.handle, desc, buf, images, NOTHING, order, hashes, begin, BATCH, MODE_INSERT)
            begin = int(mem[desc + X_ROW])
        assert status == OK

    benchmark.pedantic(put, setup=setup, teardown=lambda txn: txn.rollback(), rounds=200)
    benchmark.extra_info["rows"] = BATCH
    assert len(table) == ROWS


def test_get_many_of_ten_thousand_random_keys(benchmark: Any, table: Any) -> None:
    keys = np.random.default_rng(SEED).integers(0, ROWS, 10_000)
    found = benchmark(table.get_many, keys)
    assert found.column("id").to_numpy().tolist() == keys.tolist()


def _random_keys() -> list[Any]:
    return list(np.random.default_rng(SEED).permutation(ROWS)[:KEYS, None])


def _touch(txn: Any, handle: int, key: Any) -> None:
    place = (txn.mem, handle, txn.desc, txn.buf, key, NOTHING, 1, 0, 1)
    assert touch_rows(*place, MODE_UPDATE, NOTHING) == OK


def test_touch_rows_of_two_hundred_rows(benchmark: Any, database: Any, table: Any) -> None:
    keys = _random_keys()
    handle = table.table.handle

    def touch(txn: Any) -> None:
        for key in keys:
            _touch(txn, handle, key)

    benchmark.pedantic(
        touch,
        setup=lambda: ((database.parts.store.transactions.begin(),), {}),
        teardown=lambda txn: txn.rollback(),
        rounds=500,
    )
    benchmark.extra_info["rows"] = KEYS


def test_commit_plain_of_two_hundred_one_row_updates(benchmark: Any, database: Any, table: Any) -> None:
    keys = _random_keys()
    handle = table.table.handle

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        transactions = []
        for key in keys:
            txn = database.parts.store.transactions.begin()
            _touch(txn, handle, key)
            transactions.append(txn)
        return (transactions,), {}

    def commit(transactions: list[Any]) -> None:
        for txn in transactions:
            txn.commit(False)

    benchmark.pedantic(commit, setup=setup, rounds=200)
    benchmark.extra_info["transactions"] = KEYS
    database.sync()
