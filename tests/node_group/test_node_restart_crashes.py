"""The joiner or the live node dies in a node restart; large and spooled transactions; planted defects."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import tidemark.engine.store.node_copy as node_copy_module
import tidemark.engine.store.node_join as node_join_module
import tidemark.recovery.node_restart.source as source_module
from tests.node_group.support import (
    COPYING,
    SourceGone,
    Wire,
    assert_equal,
    away,
    finish,
    joined_and_reopened,
    open_node,
    restarted,
)
from tests.recovery.support import flipped, powered_off
from tests.seeds import fresh_seeds
from tests.shares import some
from tests.store.support import rows_of
from tidemark.engine.base.errors import InvariantBroken, LcpDamaged
from tidemark.engine.store.node_copy_layout import ROWID_END
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.node_restart.messages import VARIANTS, GroupPart


@pytest.mark.parametrize("seed", [1, 2, 3, *fresh_seeds(2)])
def test_source_that_dies_leaves_the_node_where_it_was_and_the_next_one_serves_it(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed, has_disk=seed % 2 == 0, rows=300, steps=10)
    expected = None
    for most in (2, 9, 40):
        variant = rng.choice(VARIANTS)
        wire = Wire(db, files, rng, writers.step, most=most, slice_slots=50)
        try:
            restarted(node, wire, through, variant)
            break
        except SourceGone:
            node = node.kill()
            wire.source.close()
        alone = open_node(MemoryFiles.from_snapshot(node.snapshot()), through)
        found = rows_of(alone, "test.wide")
        assert expected in (None, found), "what was half copied was seen"
        expected = found
        alone.close()
    wire = Wire(db, files, rng, writers.step)
    joined_and_reopened(db, node, restarted(node, wire, through), f"seed {seed}")
    db.close()


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", [5, *fresh_seeds(1)])
def test_joiner_that_loses_power_anywhere_joins_again(seed: int, variant: str) -> None:
    db, files, writers, node, through, rng = away(seed, rows=150, steps=6, has_disk=True)
    contents = node.snapshot()
    writers.step()

    def join(some: Any) -> None:
        wire = Wire(db, files, random.Random(seed), slice_slots=500)
        try:
            finish(some, restarted(some, wire, through, variant))
        finally:
            wire.source.close()

    count = 0
    for nth in some([*range(1, 40, 3), *range(40, 400, 23)], 0.5):
        broken = MemoryFiles.from_snapshot(contents)
        if not powered_off(broken, nth, join):
            break
        count += 1
        after = broken.crash(random.Random(nth))
        lone = MemoryFiles.from_snapshot(after.snapshot())
        alone = open_node(lone)  # without the others it is as before, or a whole copy
        alone.close()
        wire = Wire(db, files, rng)
        opened = restarted(after, wire, through, variant)
        assert_equal(db, opened.store, f"seed {seed}, write {nth}")
        wire.source.close()
    assert count > 5
    db.close()


def test_node_that_dies_with_groups_past_the_seam_is_where_it_was_before_it_joined() -> None:
    db, files, writers, node, through, rng = away(8)
    before = open_node(MemoryFiles.from_snapshot(node.snapshot()), through)
    expected = rows_of(before, "test.wide")
    before.close()
    wire = Wire(db, files, rng, writers.step)
    opened = restarted(node, wire, through)
    store = opened.store
    assert opened.sysfile.seam_lsn == opened.sysfile.durable_lsn > 0
    # Logged as groups of the stream are, before there is a local checkpoint.
    store.schema.log({"drop": 1_000_000, "name": "test.none"}, lambda: None)
    store.schema.log({"drop": 1_000_001, "name": "test.none"}, lambda: None)
    died = node.kill()
    alone = open_node(died)
    assert rows_of(alone, "test.wide") == expected
    alone["test.hot"].write((77, 7))
    alone.sync()
    again = open_node(died.kill())  # the groups after the seam do not count any more
    assert again["test.hot"].get(77) == (77, 7)
    assert again.check()["is_sound"], again.check()
    again.close()
    db.close()


def test_only_local_checkpoint_with_copied_rows_is_missed_if_it_is_damaged() -> None:
    db, files, writers, node, through, rng = away(12)
    opened = restarted(node, Wire(db, files, rng, writers.step), through)
    older = {name: content for name, content in node.snapshot().items() if name.startswith("lcp/")}
    finish(node, opened)
    contents = node.kill().snapshot()
    data = next(name for name in sorted(contents) if name.endswith(".data") and name not in older)
    damaged = {**older, **contents, data: flipped(contents[data], 200)}
    with pytest.raises(LcpDamaged):
        open_node(MemoryFiles.from_snapshot(damaged))
    db.close()


def test_spooled_transactions_reach_the_joiner() -> None:
    db, files, writers, node, through, rng = away(9, rows=100, steps=2)
    rounds = 0

    def spool() -> None:
        nonlocal rounds
        rounds += 1
        if rounds <= 2:
            with db.transaction() as txn:
                txn.write_many("test.wide", [(key, rounds, "s" * 1_500, None) for key in range(1_200)])

    for variant in VARIANTS:
        rounds = 0
        again = MemoryFiles.from_snapshot(node.snapshot())
        wire = Wire(db, files, rng, spool, slice_slots=20)
        opened = restarted(again, wire, through, variant)
        assert any(isinstance(each, GroupPart) and not each.is_last for each in wire.log), "no file was sent"
        joined_and_reopened(db, again, opened, variant)
        assert wire.source.progress.variant == variant
        wire.source.close()
    db.close()


def test_slices_never_show_half_of_a_large_commit() -> None:
    db, files, writers, node, through, rng = away(10, rows=3_000, steps=2)

    def large() -> None:
        for n in range(3):
            with db.transaction() as txn:
                txn.update_many("test.wide", [{"id": key, "group": n} for key in range(3_000) if key in alive])

    alive = set(rows_of(db, "test.wide"))
    thread = threading.Thread(target=large)

    class Threaded(Wire):
        def _turn(self) -> None:
            if not self.source.to_copy and self.source.to_copy is not None:
                thread.join()
            super()._turn()

    wire = Threaded(db, files, rng, slice_slots=97)
    thread.start()
    opened = restarted(node, wire, through)
    thread.join()
    joined_and_reopened(db, node, opened)
    db.close()


# --- defects that are planted ---------------------------------------------------------------------
def is_found(variant: str = "rowid_sync", seeds: range = range(8)) -> bool:
    """Return whether a history shows the defect: the joining node fails, or the copies differ."""
    for seed in seeds:
        db, files, writers, node, through, rng = away(seed + 70, rows=400, steps=10)
        wire = Wire(db, files, rng, writers.step, slice_slots=9, work_max=40)
        try:
            joined_and_reopened(db, node, restarted(node, wire, through, variant))
        except AssertionError:
            return True
        except InvariantBroken as error:
            assert "the copies differ" in error.message
            return True
    return False


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_defects_the_same_histories_are_right(variant: str) -> None:
    assert not is_found(variant)


def test_slices_that_overtake_groups_are_found(monkeypatch: Any) -> None:
    def released(self: Any) -> Any:
        while self._queue:
            message = self._queue.pop(0)
            if isinstance(message, GroupPart):
                self._sent = message.sequence
            yield message

    monkeypatch.setattr(source_module.Source, "released", released)
    monkeypatch.setattr(source_module, "order_of", lambda message: (0, 0))
    assert is_found()


@pytest.mark.parametrize(
    "name, defect",
    [
        ("find_conflicting_rows", lambda real: lambda mem, fragment, words, stop, out, state: 0),
        ("find_stale", lambda real: lambda mem, tables, words, start, stop, out, state: 0),
        ("stamp_slice", lambda real: lambda mem, fragment, words, stop: 0),
        ("set_uncopied", lambda real: lambda mem, fragment, position: real(mem, fragment, position and ROWID_END)),
        ("set_uncopied", lambda real: lambda mem, fragment, position: real(mem, fragment, position + 1)),
    ],
)
def test_defects_of_the_joiner_are_found(monkeypatch: Any, name: str, defect: Any) -> None:
    monkeypatch.setattr(node_join_module, name, defect(getattr(node_join_module, name)))
    assert is_found()


def test_empty_slots_that_are_not_sent_are_found(monkeypatch: Any) -> None:
    real = node_copy_module.scan_changed

    def without_empty(mem: Any, fragment: int, since: int, with_empty: int, *rest: Any) -> int:
        return int(real(mem, fragment, since, 0, *rest))

    monkeypatch.setattr(node_copy_module, "scan_changed", without_empty)
    assert is_found()


def test_scan_that_takes_the_wrong_epoch_is_found(monkeypatch: Any) -> None:
    real = node_copy_module.scan_changed

    def later(mem: Any, fragment: int, since: int, *rest: Any) -> int:
        return int(real(mem, fragment, since + 1, *rest))

    monkeypatch.setattr(node_copy_module, "scan_changed", later)
    assert is_found()
