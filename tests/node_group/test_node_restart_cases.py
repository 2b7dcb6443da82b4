"""The cases of a copied slot and the rules for operations of the stream, one by one (docs/internals/node-group.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.node_group.slots import rows_by_rowid
from tests.node_group.support import COPYING, Wire, joined_and_reopened, open_node, restarted
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.node_restart.messages import GroupPart, Slice

Work = Callable[[Any], None]
TABLE = "test.slots"
FIRST_IMAGE_WORD = 2  # after epoch and author


def keys_by_slot(store: Any) -> dict[int, int]:
    """Return the key at each ROWID of the one fragment."""
    rows = rows_by_rowid(store.tables.by_name[TABLE], 0)
    return {rowid: int(np.frombuffer(row, dtype=np.int64)[FIRST_IMAGE_WORD]) for rowid, row in rows.items()}


def cases_met(node: dict[int, int], live: dict[int, int], slots: int) -> set[int]:
    """Return the cases that a copy of all slots in order meets, computed with a dict for either side."""
    met: set[int] = set()
    held = dict(node)
    for slot in range(slots):
        key, here = live.get(slot), held.get(slot)
        elsewhere = next((at for at, other in held.items() if other == key and at != slot), None)
        if key is None:
            met.add(7 if here is None else 4)
            held.pop(slot, None)
            continue
        if here == key:
            met.add(1)
        elif elsewhere is not None:
            met.add(2 if here is None else 3)
            del held[elsewhere]
        else:
            met.add(5 if here is None else 6)
        held[slot] = key
    return met


def node_and_live(before: Work, after: Work) -> Any:
    """Make a live node with ten rows at slots 0 to 9, worked on by `before` and, after the joiner's epoch, by
    `after`.
    """
    files = MemoryFiles()
    db = open_node(files)
    db.create_table(TABLE, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id", partition=tm.HashPartition(1))
    for key in range(10):
        db[TABLE].insert((key, 0))
    before(db)
    through = db.sync()
    node = MemoryFiles.from_snapshot(files.snapshot())
    after(db)
    return db, files, node, through


def changes(text: str) -> Work:
    """Make single commits: "-3" deletes key 3, "+3" inserts it, "=3" updates it."""

    def work(db: Any) -> None:
        for step in text.split():
            key = int(step[1:])
            if step[0] == "-":
                db[TABLE].delete(key)
            elif step[0] == "+":
                db[TABLE].insert((key, 1))
            else:
                db[TABLE].update(key, {"n": key + 100})

    return work


CASES = {
    "1_same_key_at_the_slot": ("", "=3"),
    "2_key_elsewhere_and_the_slot_is_free": ("-2", "-9 +77 +9"),
    "3_key_elsewhere_and_another_key_at_the_slot": ("", "-9 -2 +9"),
    "4_slot_is_empty_on_the_live_node": ("", "-4"),
    "5_key_unknown_and_the_slot_is_free": ("-5", "+50"),
    "6_key_unknown_and_another_key_at_the_slot": ("", "-6 +60"),
    "7_both_slots_are_empty": ("-7", "+70 -70"),
}


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slots", [1, 1_000])
def test_case(name: str, slots: int, variant: str) -> None:
    before, after = CASES[name]
    db, files, node, through = node_and_live(changes(before), changes(after))
    was = open_node(MemoryFiles.from_snapshot(node.snapshot()))
    met = cases_met(keys_by_slot(was.parts.store), keys_by_slot(db.parts.store), 10)
    assert int(name[0]) in met, f"the history meets {met}"
    was.close()
    wire = Wire(db, files, random.Random(1), slice_slots=slots)
    joined_and_reopened(db, node, restarted(node, wire, through, variant), name)
    assert wire.source.progress.variant == variant
    db.close()


def test_slots_that_have_not_changed_are_not_sent() -> None:
    db, files, node, through = node_and_live(changes(""), changes("=3 -4"))
    wire = Wire(db, files, random.Random(1))
    restarted(node, wire, through)
    sent = np.concatenate([message.words for message in wire.log if isinstance(message, Slice)])
    entry = rows_by_rowid(db.parts.store.tables.by_name[TABLE], 0)[3]
    row_words = 1 + len(entry) // 8
    # The row of key 3, the empty slot of key 4, and everything past the last slot that was ever used.
    assert sent.size == row_words + 2 + 2
    assert list(sent[row_words : row_words + 2]) == [-1 - 4, 5]
    db.close()


def test_page_that_was_freed_deletes_its_rows_and_one_made_anew_its_stale_ones() -> None:
    def fill(db: Any) -> None:
        db[TABLE].insert_many([(key, 0) for key in range(1_000, 6_000)])

    def empty(db: Any) -> None:
        for first in range(1_000, 6_000, 500):
            with db.transaction() as txn:
                for key in range(first, first + 500):
                    txn.delete(TABLE, key)
        db[TABLE].insert_many([(key, 1) for key in range(9_000, 9_700)])

    db, files, node, through = node_and_live(fill, empty)
    wire = Wire(db, files, random.Random(1), slice_slots=100)
    joined_and_reopened(db, node, restarted(node, wire, through))
    assert sum(len(message.words) for message in wire.log if isinstance(message, Slice)) < 700 * 12
    db.close()


# --- operations of the stream ---------------------------------------------------------------------
class Halfway(Wire):
    """Works once, when slots 0 to 4 of the table are copied and the others are not."""

    def __init__(self, db: Any, files: MemoryFiles, work: Work) -> None:
        super().__init__(db, files, random.Random(1), slice_slots=5)
        self.live = db
        self._once: Work | None = work
        self.joiner_saw: list[Any] = []

    def _turn(self) -> None:
        copied = [message for message in self.log if isinstance(message, Slice)]
        if copied and self._once is not None:
            assert copied[-1].stop == 5
            self._once(self.live)
            self._once = None
            for group in self.stream.groups():
                self._queue.extend(self.source.group(group))
            return
        self._queue.extend(self.source.step())
        for group in self.stream.groups():
            self._queue.extend(self.source.group(group))


RULES = {
    "operations_at_copied_slots_are_executed": ("", "", "=1 -2 +22"),
    "update_of_a_slot_not_copied_is_ignored": ("", "", "=7"),
    "delete_of_a_slot_not_copied_takes_the_row_there": ("", "", "-7"),
    "insert_at_a_slot_not_copied_is_ignored": ("-8", "", "+80"),
    "insert_at_a_copied_slot_takes_the_stale_row_with_its_key_away": ("-1", "-8 +88", "+8"),
    "insert_of_the_same_key_at_its_slot_not_copied": ("", "", "-6 +6"),
    "key_moves_from_a_slot_not_copied_to_a_copied_one_and_back": ("-3", "", "-9 +99 +9 -99 -9 +9"),
}


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, variant: str) -> None:
    before, after, during = RULES[name]
    db, files, node, through = node_and_live(changes(before), changes(after))
    wire = Halfway(db, files, changes(during))
    opened = restarted(node, wire, through, variant)
    kinds = [type(message) for message in wire.log if isinstance(message, (Slice, GroupPart))]
    assert kinds.index(GroupPart) > kinds.index(Slice) and kinds[::-1].index(Slice) == 0, "groups came in the middle"
    joined_and_reopened(db, node, opened, name)
    db.close()
