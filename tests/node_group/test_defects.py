"""Invalid streams and copies: each ends the member with a message that names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.node_group.pair import Pair, page_of, same_slots
from tests.store.support import ACCOUNT
from tidemark.engine.log.redo_layout import GROUP_WORDS, KIND_NOOP, KIND_TRANSACTION, TRANSACTION_WORDS
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.sealed.sealed_layout import seal

NAME = "test.account"
FIRST = GROUP_WORDS + TRANSACTION_WORDS  # the first record after that of its transaction


def stage() -> Pair:
    pair = Pair()
    pair.primary.create_table(NAME, ACCOUNT, "id", tm.HashPartition(1))
    for key in range(4):
        pair.primary[NAME].insert((key, "o", 1.0, "text"))
    pair.verify()
    return pair


def insert(pair: Pair) -> None:
    pair.primary[NAME].insert((9, "o", 1.0, None))


def update(pair: Pair) -> None:
    pair.primary[NAME].update(2, {"balance": 5.0})


def delete(pair: Pair) -> None:
    pair.primary[NAME].delete(2)


def set_rowid(words: Any, rowid: int) -> None:
    words[FIRST + 2] = words[FIRST + 2] >> a.COUNT_SHIFT << a.COUNT_SHIFT | rowid


BENT: dict[str, tuple[Callable[[Pair], None], Callable[[Any], None]]] = {
    "insert where a row is": (insert, lambda words: set_rowid(words, 1)),
    "insert of a key that is there": (insert, lambda words: words.__setitem__(FIRST + 4, 3)),
    "insert on no slot of a page": (insert, lambda words: set_rowid(words, 60_000)),
    "update of no row": (update, lambda words: set_rowid(words, 7)),
    "update with another key": (update, lambda words: set_rowid(words, 1)),
    "update on a page that is not there": (update, lambda words: set_rowid(words, 5 << 16)),
    "delete of no row": (delete, lambda words: set_rowid(words, 9)),
    "table never made": (delete, lambda words: words.__setitem__(FIRST + 1, 77)),
    "fragment never made": (delete, lambda words: words.__setitem__(FIRST + 1, words[FIRST + 1] | 9 << 32)),
    "record that is too long": (delete, lambda words: words.__setitem__(FIRST, words[FIRST] + (9 << 16))),
    "no record": (delete, lambda words: words.__setitem__(FIRST, 0)),
    "group that begins with no transaction": (
        delete,
        lambda words: words.__setitem__(GROUP_WORDS, words[GROUP_WORDS] - KIND_TRANSACTION + KIND_NOOP),
    ),
    "older epoch": (delete, lambda words: words.__setitem__(8, words[8] - 1)),
}


@pytest.mark.parametrize("what", BENT)
def test_record_that_does_not_fit_ends_the_member_and_says_where(what: str) -> None:
    pair = stage()
    call, bend = BENT[what]

    def bent(words: Any) -> None:
        bend(words)
        seal(words, words.size)

    pair.stream.before = bent
    before = pair.member.parts.store.log.sequence
    with pytest.raises(tm.OutcomeUnknown):
        call(pair)
    with pytest.raises(tm.InvariantBroken, match=f"group {before} "):
        pair.member.check_usable()
    assert pair.member.parts.store.log.sequence == before, "nothing of it is in the log"


@pytest.mark.parametrize("call", [insert, update, delete])
def test_copy_that_came_apart_is_found_by_the_next_change_of_the_row(call: Any) -> None:
    pair = stage()
    table = pair.member.parts.store.tables.by_name[NAME]
    mem = pair.member.parts.store.mem
    fragment = table.fragments[0]
    base = page_of(mem, fragment, 0) << a.PAGE_SHIFT
    slot = 2 if call is not insert else 4
    at = base + a.PAGE_HEADER_WORDS + slot * int(mem[address_of(fragment) + a.F_ROW_WORDS])
    if call is insert:
        mem[base + a.PG_FRESH] = 5
        mem[at] = a.LIVE << a.STATE_SHIFT
    else:
        mem[at] = a.FREE << a.STATE_SHIFT
    with pytest.raises(tm.OutcomeUnknown):
        call(pair)
    with pytest.raises(tm.InvariantBroken, match=f"{NAME} at ROWID {slot}"):
        pair.member.check_usable()


def test_difference_in_any_word_of_a_slot_is_seen_by_these_tests() -> None:
    """The harness itself: an epoch, an author or an image that differs is found."""
    for word, bit in ((0, 1 << a.AUTHOR_SHIFT), (1, 1), (3, 1)):
        pair = stage()
        store = pair.member.parts.store
        fragment = store.tables.by_name[NAME].fragments[0]
        at = (page_of(store.mem, fragment, 0) << a.PAGE_SHIFT) + a.PAGE_HEADER_WORDS
        store.mem[at + word] ^= bit
        with pytest.raises(AssertionError):
            same_slots(pair.primary, pair.member)


def test_groups_out_of_order_or_of_others_are_refused() -> None:
    pair = stage()
    sent = [words.copy() for words in pair.stream.words]
    sequence = pair.member.parts.store.log.sequence
    assert pair.applier.apply(sent[-1].copy()) == sequence - 1, "one that came before does nothing"
    pair.verify()
    broken = sent[-1].copy()
    broken[FIRST + 4] ^= 1
    with pytest.raises(tm.RedoDamaged, match="does not belong to this store"):
        pair.applier.apply(broken)
    with pytest.raises(tm.RedoDamaged):
        pair.applier.apply(np.zeros(3, dtype=np.int64))
    foreign = sent[-1].copy()
    foreign[2] ^= 1
    seal(foreign, foreign.size)
    with pytest.raises(tm.RedoDamaged):
        pair.applier.apply(foreign)
    pair.member.check_usable()
    ahead = sent[-1].copy()
    ahead[5] = sequence + 1
    seal(ahead, ahead.size)
    with pytest.raises(tm.InvariantBroken, match="are missing"):
        pair.applier.apply(ahead)


def test_store_with_open_transactions_cannot_become_a_member() -> None:
    from tests.store.support import open_memory
    from tidemark.engine.store.group_apply import GroupApplier

    db: Any = open_memory()
    db.create_table(NAME, ACCOUNT, "id")
    txn = db.transaction()
    txn.insert(NAME, (1, "o", 1.0, None))
    with pytest.raises(tm.Rejected, match="transactions are open"):
        GroupApplier(db.parts.store)
    txn.rollback()
    db[NAME].insert((1, "o", 1.0, None))
    db.close()


def test_member_without_memory_for_a_row_ends_and_stands_at_the_group_before() -> None:
    pair = Pair.__new__(Pair)
    pair.files = (None, None)  # type: ignore[assignment]
    from tests.store.support import open_memory
    from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

    pair.files, pair.options = (MemoryFiles(), MemoryFiles()), {}
    pair.primary = open_memory(pair.files[0], data_memory="32 MiB", redo_log="16 MiB")
    pair.member = open_memory(pair.files[1], data_memory="4 MiB", redo_log="16 MiB")
    pair.join()
    pair.primary.create_table(NAME, ACCOUNT, "id")
    with pytest.raises(tm.OutcomeUnknown):
        for first in range(0, 20_000, 200):
            pair.primary[NAME].insert_many([(key, "o", 1.0, "n" * 300) for key in range(first, first + 200)])
    with pytest.raises(tm.InvariantBroken, match="no room for a row"):
        pair.member.check_usable()
    again = open_memory(pair.files[1].kill(), data_memory="8 MiB", redo_log="16 MiB")
    assert len(again[NAME]) == first
