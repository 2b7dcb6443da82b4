"""Growth of a hash index that fails in the middle: entries with tags chosen for it, and memory that is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import tidemark as tm
from tests.engine.arena_check import ArenaCheck
from tests.engine.pool_words import refuse, requests
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import OK
from tidemark.engine.rows.primary_kernels import index_insert


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def add_entries(mem, fragment, tags, first, stop):
    """Add entries [first, stop), each leading to the ROWID of its number; return how many came before
    one was refused.
    """
    for i in range(first, stop):
        if index_insert(mem, fragment, tags[i], i) != OK:
            return i - first
    return stop - first


class Index:
    """The primary index of a table without rows, filled by hand."""

    def __init__(self) -> None:
        self.db: Any = open_memory(data_memory="8 MiB")
        self.db.create_table("test.t", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(1))
        self.arena = self.db.parts.store.arena
        self.fragment = address_of(self.db.parts.store.tables.named("test.t").fragments[0])
        self.count = 0

    def add(self, tags: list[int]) -> int:
        """Return how many were added. ROWIDs continue those of earlier calls."""
        words = np.zeros(self.count + len(tags), dtype=np.int64)
        words[self.count :] = tags
        done = int(add_entries(self.arena.mem, self.fragment, words, self.count, words.size))
        self.count += done
        return done

    def entries(self) -> Counter[int]:
        """Check that the structure is sound; return how many entries each tag has."""
        found: dict[Any, int] = {}
        ArenaCheck(self.db.parts.store).hash_of(self.fragment, found, is_many=True)
        return Counter(found.values())

    def word(self, word: int) -> int:
        return int(self.arena.mem[self.fragment + word])


def test_segment_whose_entries_all_go_to_one_half_keeps_them_all() -> None:
    """Story: both halves of a split segment got the blocks for half its entries. When all entries went to one half, its
    overflow list was full before they were placed, and 829 of 3,872 keys were lost.
    """
    index = Index()
    tags = [high << a.INDEX_DEPTH_MAX | 5 for high in range(1 << a.TAG_BITS - a.INDEX_DEPTH_MAX)]
    done = index.add(tags)
    assert 512 * 7 < done < 4_096, "no segment was full"
    assert index.word(a.F_INDEX_DEPTH) == a.INDEX_DEPTH_MAX
    assert index.entries() == Counter(tags[:done])
    assert index.add([1, 2, 3]) == 3, "other keys have room"
    assert index.entries() == Counter([*tags[:done], 1, 2, 3])


def test_more_keys_of_one_tag_than_fit_are_refused_and_the_others_stay() -> None:
    index = Index()
    tags = [77] * 700
    done = index.add(tags)
    assert done == 2 * a.BUCKET_WORDS + a.BLOCK_WORDS, "both buckets and the overflow list"
    assert index.word(a.F_INDEX_DEPTH) <= a.INDEX_DEPTH_MAX
    assert index.entries() == Counter({77: done})


def growing(count: int) -> list[int]:
    """Tags in groups of a few dozen equal ones, so that overflow lists are in use while segments grow."""
    rng = np.random.default_rng(5)
    some = rng.integers(0, 1 << a.TAG_BITS, size=count).tolist()
    return [9_999 if number % 7 == 0 and number < 7 * 40 else tag for number, tag in enumerate(some)]


def test_refused_memory_at_any_step_of_growth_loses_no_entry() -> None:
    """Story: as for the segment above, with full memory. A list that overflowed while entries were placed anew lost the
    other entries too. And the memory of a half-made segment, or of the first directory, was never returned.
    """
    tags = growing(9_000)
    index = Index()
    first = requests(index.arena)
    assert index.add(tags) == len(tags) and index.word(a.F_SEGMENTS) > 2
    takes = requests(index.arena) - first
    assert takes > 30
    refused = 0
    for nth in range(1, takes + 1, max(1, takes // few(20, 1 << 30))):
        index = Index()
        refuse(index.arena, requests(index.arena) + nth)
        done = index.add(tags)
        refused += done < len(tags)
        assert index.entries() == Counter(tags[:done]), f"take {nth} of {takes}, after {done} entries"
        assert requests(index.arena) >= nth
        assert index.add(tags[done:]) == len(tags) - done
        assert index.entries() == Counter(tags), f"take {nth} of {takes}"
        index.db.parts.store.users.dropped.clear()
    assert refused >= 10
