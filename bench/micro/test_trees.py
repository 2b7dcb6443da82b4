"""Ordered indexes, per entry: words of a key, insert, remove, search, scan, load. Divide by the rows of the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench.micro.conftest import ROWS
from tests.index.whole import WholeIndex, encode_places, tree_delete_run, tree_insert_run

BATCH = 1_000


@pytest.fixture
def index(database: Any, table: Any) -> Iterator[WholeIndex]:
    """An index over column b, filled."""
    inner = table.table
    made = WholeIndex(database.parts.store.arena, inner.definition, inner.format.layout, ["b"], inner.fragments)
    made.build()
    yield made
    made.drop()


def chosen(index: WholeIndex) -> Any:
    """Places of a thousand rows at random."""
    places = np.concatenate(list(index.scan()))
    return places[np.random.default_rng(5).permutation(ROWS)[:BATCH]]


def test_key_words_of_a_thousand_rows(benchmark: Any, index: WholeIndex) -> None:
    places = chosen(index)
    out, lengths = np.zeros(3 * BATCH, dtype=np.int64), np.zeros(BATCH, dtype=np.int64)
    assert benchmark(encode_places, index.mem, index.handle, places, BATCH, 1, out, lengths) == BATCH


def test_remove_a_thousand_entries(benchmark: Any, index: WholeIndex) -> None:
    places = chosen(index)

    def setup() -> None:
        index.reserve(BATCH)
        index.insert(places)
        index.release(BATCH)

    benchmark.pedantic(
        tree_delete_run, args=(index.mem, index.handle, places, 0, BATCH), setup=setup, rounds=100, warmup_rounds=1
    )


def test_insert_a_thousand_entries(benchmark: Any, index: WholeIndex) -> None:
    places = chosen(index)
    index.reserve(BATCH)

    def setup() -> None:
        index.delete(places)

    benchmark.pedantic(
        tree_insert_run, args=(index.mem, index.handle, places, 0, BATCH), setup=setup, rounds=100, warmup_rounds=1
    )
    index.release(BATCH)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_all_entries(benchmark: Any, index: WholeIndex, reverse: bool) -> None:
    assert benchmark(lambda: sum(len(each) for each in index.scan(reverse=reverse))) == ROWS


def test_search_of_one_value(benchmark: Any, index: WholeIndex) -> None:
    shape = index.shape
    assert benchmark(lambda: sum(len(each) for each in index.scan(shape.below([1.5]), shape.above([1.5])))) >= 0


def test_collect_sort_and_load_all_entries(benchmark: Any, database: Any, table: Any) -> None:
    inner = table.table

    def build() -> int:
        made = WholeIndex(database.parts.store.arena, inner.definition, inner.format.layout, ["b"], inner.fragments)
        made.build()
        entries = made.counters()["entries"]
        made.drop()
        return entries

    assert benchmark(build) == ROWS
