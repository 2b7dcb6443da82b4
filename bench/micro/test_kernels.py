"""Kernels over many words: checksums, the scan of a local checkpoint, replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bench.micro.conftest import ROWS
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.memory.arena_layout import OK, ST_SPACE
from tidemark.engine.rows.lcp_kernels import scan_lcp, start_lcp
from tidemark.engine.sealed.checksums_kernels import xxh3_signed, xxh64_words
from tidemark.engine.store.fragment_scan import SCAN_SLOTS
from tidemark.engine.store.replay_kernels import replay_group

MEBIBYTE_WORDS = 1 << 17
OPERATIONS = 20_000


def test_xxh3_of_a_mebibyte(benchmark: Any) -> None:
    words = np.arange(MEBIBYTE_WORDS, dtype=np.int64)
    assert benchmark(xxh3_signed, words, 0, words.size) != 0


def test_xxh64_of_a_mebibyte(benchmark: Any) -> None:
    words = np.arange(MEBIBYTE_WORDS, dtype=np.int64)
    assert benchmark(xxh64_words, words, 0, words.size, 42) != 0


def test_xxh64_of_a_key_of_one_word(benchmark: Any) -> None:
    words = np.arange(1, dtype=np.int64)
    assert benchmark(xxh64_words, words, 0, 1, 42) != 0


def test_scan_lcp_of_a_hundred_thousand_rows(benchmark: Any, database: Any, table: Any) -> None:
    store = database.parts.store
    fragments = table.table.fragments
    out = np.zeros(MEBIBYTE_WORDS, dtype=np.int64)
    state = np.zeros(2, dtype=np.int64)

    def setup() -> None:
        with store.latch:
            epoch, _, _ = store.epochs.close()
            for fragment in fragments:
                start_lcp(store.mem, fragment, epoch)
        state[1] = 0

    def scan() -> None:
        for fragment in fragments:
            status = ST_SPACE
            while status != OK:
                if status <= ST_SPACE:
                    state[0] = 0
                status = scan_lcp(store.mem, fragment, out, SCAN_SLOTS, state)

    benchmark.pedantic(scan, setup=setup, rounds=100)
    assert int(state[1]) == ROWS


def test_replay_group_of_twenty_thousand_updates(benchmark: Any, database: Any, table: Any) -> None:
    store = database.parts.store
    log = store.log
    database.sync()
    lsn, sequence = log.head_lsn, log.sequence
    keys = np.random.default_rng(4).permutation(ROWS)[:OPERATIONS]
    table.update_many(pa.table({"id": keys, "b": np.arange(OPERATIONS, dtype=np.float64)}))
    database.sync()
    reader = LogReader(database.parts.files, log.geometry, database.parts.opened.identity[0])
    groups = list(reader.groups(lsn, sequence))
    directory = store.tables.directory()

    def replay() -> int:
        done = 0
        for group in groups:
            state = np.zeros(2, dtype=np.int64)
            stop = GROUP_WORDS + group.records_words
            # The same after-images over the same rows: nothing changes, however often it runs.
            status = replay_group(store.mem, directory, group.words, GROUP_WORDS, stop, group.epoch, 0, 1, state)
            assert status == OK
            done += int(state[1])
        return done

    assert benchmark(replay) == OPERATIONS
