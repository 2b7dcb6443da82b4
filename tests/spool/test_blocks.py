"""Blocks of a spool file against a naive twin, and the kernels of `engine/txn/spool_kernels.py`."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_UPDATE, pack_kind
from tidemark.engine.log.spool_files import SpoolFiles, spool_name
from tidemark.engine.log.spool_layout import SPOOL_ALIGN_WORDS, SPOOL_HEADER_WORDS
from tidemark.engine.log.spool_reader import FIRST_WORD
from tidemark.engine.txn.spool import Spool
from tidemark.engine.txn.spool_kernels import block_end, has_updates
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

IDENTITY = (bytes(range(16)), 3)
TXID = (3 << 40) + 7


def records(rng: random.Random, words: int) -> list[int]:
    """Records of at least so many words, as in a buffer."""
    made: list[int] = []
    while len(made) < words:
        size = rng.choice([4, 5, 9, 60, rng.randrange(4, 900)])
        made += [pack_kind(rng.choice([KIND_UPDATE, KIND_DELETE]), 0, size)]
        made += [rng.randrange(-(1 << 62), 1 << 62) for _ in range(size - 1)]
    return made


def naive_ends(words: list[int], least: int) -> list[int]:
    """Where blocks of at least `least` words of whole records end."""
    ends, begin, at = [], 0, 0
    while at < len(words):
        at += words[at] >> 16
        if at - begin >= least:
            ends.append(at)
            begin = at
    return ends


def test_block_ends_equal_twin_for_any_records() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(50):
        words = records(rng, rng.randrange(1, 4_000))
        least = rng.randrange(1, 700)
        buf = np.array(words, dtype=np.int64)
        ends, at = [], 0
        while at < len(words):
            at = int(block_end(buf, at, len(words), least))
            ends.append(at)
        expected = naive_ends(words, least)
        assert ends == (expected if expected and expected[-1] == len(words) else [*expected, len(words)])


@pytest.mark.parametrize("word", [0, *(pack_kind(KIND_UPDATE, 0, size) for size in (1, 3, 11)), -1])
def test_block_end_of_what_is_no_record_is_refused(word: int) -> None:
    buf = np.zeros(10, dtype=np.int64)
    buf[0] = word
    assert block_end(buf, 0, 10, 100) == -1


def test_blocks_with_updates_of_some_tables_are_found_as_by_a_loop() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    found = set()
    for _ in range(300):
        words = records(rng, rng.randrange(1, 400))
        tables, at, expected = rng.sample(range(1, 9), rng.randrange(4)), 0, 0
        while at < len(words):
            table = rng.randrange(1, 40)
            words[at + 1] = table | rng.randrange(1 << 12) << 32
            expected |= words[at] & 0xFF == KIND_UPDATE and table in tables
            at += words[at] >> 16
        buf = np.array(words, dtype=np.int64)
        assert has_updates(buf, 0, len(words), np.array(tables, dtype=np.int64)) == expected
        found.add(bool(expected))
    assert found == {False, True}


class Beside:
    """A spool, and a list of the words that must be in it."""

    def __init__(self, memory_words: int = 8_192, limit_words: int = 1 << 20) -> None:
        self.files = MemoryFiles()
        self.spool = Spool(SpoolFiles(self.files, IDENTITY), TXID, memory_words, limit_words)
        self.spool.words[:FIRST_WORD] = -1
        self.model: list[int] = [-1] * FIRST_WORD
        self.buf: Any = self.spool.room(FIRST_WORD)

    def append(self, words: list[int]) -> None:
        while len(self.model) + len(words) > self.buf.size:
            self.buf = self.spool.room(len(self.model))
        self.buf[len(self.model) : len(self.model) + len(words)] = words
        self.model += words

    def resident(self) -> int:
        """Words before the tail that are not zero."""
        return int(np.count_nonzero(self.spool.words[FIRST_WORD : self.spool.head]))

    def verify(self, rng: random.Random) -> None:
        """Every block brought back has its words; blocks that are away are zero, and no others."""
        for block in self.spool.blocks:
            here = self.spool.words[block.start : block.stop]
            expected = self.model[block.start : block.stop]
            assert here.tolist() == (expected if not block.is_evicted else [0] * len(expected))
        assert self.spool.words[self.spool.head : len(self.model)].tolist() == self.model[self.spool.head :]
        for block in rng.sample(self.spool.blocks, min(5, len(self.spool.blocks))):
            self.spool.load(block.start)
            assert self.spool.words[block.start : block.stop].tolist() == self.model[block.start : block.stop]


def test_random_use_of_a_spool_equals_a_list_of_words() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(8):
        both = Beside()
        for _ in range(60):
            draw = rng.random()
            if draw < 0.7 or not both.spool.blocks:
                both.append(records(rng, rng.choice([3, 200, 2_000])))
            elif draw < 0.85:
                block = rng.choice(both.spool.blocks)
                both.spool.load(block.start)  # and change a record, as a delete that is taken back does
                both.spool.words[block.start + 1] += 1
                both.model[block.start + 1] += 1
            else:
                at = FIRST_WORD
                cuts = [at]
                while at < len(both.model):
                    at += both.model[at] >> 16
                    cuts.append(at)
                used = rng.choice(cuts[len(cuts) // 2 :])
                both.spool.truncate(used)
                del both.model[used:]
            both.verify(rng)
            assert both.resident() <= 8_192 // 4 + 2 * 1_500
        check_file(both)


def check_file(both: Beside) -> None:
    """The finished file, read by struct alone."""
    reference = both.spool.finish(len(both.model))
    content = both.files.snapshot()[spool_name(TXID)]
    assert reference.size_bytes <= len(content)
    offset = 0
    found: list[int] = []
    for number in range(int(reference.record[3])):
        _, kind, version, words, low, high, incarnation, txid, own_number, start_word, used = struct.unpack_from(
            "<QHHIQQQQQQQ", content, offset
        )
        assert (kind, version, incarnation, txid, own_number) == (0x5053, 1, 3, TXID, number)
        assert low.to_bytes(8, "little") + high.to_bytes(8, "little") == IDENTITY[0]
        assert start_word == FIRST_WORD + len(found)
        assert words % SPOOL_ALIGN_WORDS == 0 and words - SPOOL_ALIGN_WORDS < SPOOL_HEADER_WORDS + used <= words
        found += struct.unpack_from(f"<{used}q", content, offset + SPOOL_HEADER_WORDS * 8)
        padding = content[offset + (SPOOL_HEADER_WORDS + used) * 8 : offset + words * 8]
        assert not any(padding) and not any(content[offset + 72 : offset + 128])
        offset += words * 8
    assert found == both.model[FIRST_WORD:]
    assert (offset, int(reference.record[4])) == (reference.size_bytes, len(found))


def test_memory_that_was_freed_costs_nothing(tmp_path: Path) -> None:
    """Ask the system, page by page."""
    spool = Spool(SpoolFiles(PosixFiles(tmp_path), IDENTITY), TXID, 1 << 17, 1 << 24)
    some = np.array(records(random.Random(5), 30_000), dtype=np.int64)
    used, buf = FIRST_WORD, spool.room(FIRST_WORD)
    before = 0
    for turn in range(240):
        if turn == 40:  # by now, everything the first blocks need is loaded and made, code included
            before = resident_bytes()
        while used + some.size > buf.size:
            buf = spool.room(used)
        buf[used : used + some.size] = some
        used += some.size
    assert used * 8 > 40 << 20
    assert resident_bytes() - before < 4 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as source:
        return int(source.read().split()[1]) * 4_096
