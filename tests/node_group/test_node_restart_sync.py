"""A node comes back while the others keep writing."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.node_group.slots import rows_by_rowid
from tests.node_group.support import COPYING, OPTIONS, Wire, away, joined_and_reopened, open_node, restarted, settings
from tests.seeds import fresh_seeds
from tests.store.support import SMALL, rows_of
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import ForeignFile, LimitExceeded
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.node_restart.joiner import Join
from tidemark.recovery.node_restart.messages import Begin, End, Slice
from tidemark.recovery.node_restart.restart import rejoin
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.through import Through


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", [1, 2, 3, *fresh_seeds(2)])
def test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed: int, variant: str) -> None:
    db, files, writers, node, through, rng = away(seed)
    wire = Wire(
        db, files, rng, writers.step, slice_slots=rng.choice([1, 7, 100, 5_000]), slice_words=rng.choice([40, 4_000])
    )
    opened = restarted(node, wire, through, variant)
    assert (wire.source.progress.variant, wire.source.progress.why) == (variant, "")
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.parametrize("seed", [11, *fresh_seeds(1)])
def test_empty_directory_becomes_a_copy(seed: int) -> None:
    db, files, writers, _, _, rng = away(seed, stray=0)
    node = MemoryFiles()
    wire = Wire(db, files, rng, writers.step)
    opened: Any = restarted(node, wire, 0)
    assert wire.source.progress.why.startswith("full copy")
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", [21, 22, *fresh_seeds(1)])
def test_disk_columns_come_with_their_rows(seed: int, variant: str) -> None:
    db, files, writers, node, through, rng = away(seed, rows=400, steps=15, has_disk=True)
    wire = Wire(db, files, rng, writers.step, slice_slots=rng.choice([50, 5_000]))
    opened = restarted(node, wire, through, variant)
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.parametrize("seed", [31])
def test_empty_directory_gets_tablespaces_too(seed: int) -> None:
    db, files, writers, _, _, rng = away(seed, rows=300, steps=10, has_disk=True, stray=0)
    db.create_tablespace("second", "1 MiB")
    node = MemoryFiles()
    wire = Wire(db, files, rng, writers.step)
    opened = restarted(node, wire, 0)
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.parametrize("seed", [41, 42, *fresh_seeds(1)])
def test_log_replayed_from_the_live_nodes_own_files(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed, has_disk=seed % 2 == 0, steps=20)
    wire = Wire(db, files, rng, writers.step)
    opened = restarted(node, wire, through, "replay_log")
    assert (wire.source.progress.variant, wire.source.progress.why) == ("replay_log", "")
    assert not any(isinstance(message, Slice) for message in wire.log)
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


def test_log_that_was_cut_past_the_joiner_gives_way_to_synchronisation() -> None:
    db, files, writers, node, through, rng = away(43)
    for _ in range(2):
        writers.step()
        db.checkpoint()
    wire = Wire(db, files, rng, writers.step)
    opened = restarted(node, wire, through, "replay_log")
    assert wire.source.progress.variant == "rowid_sync" and "the log begins with group" in wire.source.progress.why
    joined_and_reopened(db, node, opened)
    db.close()


def test_log_is_released_for_transactions_that_need_its_room_and_rows_continue_from_there() -> None:
    db, files, writers, node, through, rng = away(44, steps=5)

    def much() -> None:
        log = db.parts.store.log
        if log.used_bytes() * 10 > log.geometry.capacity_bytes * 8:
            db.checkpoint()
            return
        db["test.wide"].write_many([writers.row(key) for key in range(2_000)])

    much()
    much()
    wire = Wire(db, files, rng, much)
    opened = restarted(node, wire, through, "replay_log")
    begun = [message.variant for message in wire.log if isinstance(message, Begin)]
    assert begun == ["replay_log", "rowid_sync"] and "room in the log" in wire.source.progress.why
    joined_and_reopened(db, node, opened)
    db.close()


@pytest.mark.soak
@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", range(40))
def test_many_histories(seed: int, variant: str) -> None:
    test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed + 1_000, variant)


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("share", [1, 10])
def test_bytes_sent_are_those_of_the_changed_rows_and_little_more(share: int, variant: str) -> None:
    db, files, writers, _, _, rng = away(50, rows=3_000, steps=0, stray=0)
    through = db.sync()
    node = MemoryFiles.from_snapshot(files.snapshot())
    alive = sorted(rows_of(db, "test.wide"))
    db["test.wide"].write_many([writers.row(key) for key in rng.sample(alive, len(alive) * share // 20)])
    for key in rng.sample(alive, 20):
        db["test.wide"].delete(key)
    rows = [rows_by_rowid(db.parts.store.tables.by_name["test.wide"], number) for number in (0, 1)]
    epochs = [(int.from_bytes(row[:8], "little"), len(row)) for each in rows for row in each.values()]
    changed = sum(size for epoch, size in epochs if epoch > through)
    wire = Wire(db, files, rng)
    opened = restarted(node, wire, through, variant)
    assert 0 < changed <= wire.copied_bytes <= 1.2 * changed
    joined_and_reopened(db, node, opened)
    db.close()


@pytest.mark.parametrize("seed", [61, *fresh_seeds(1)])
def test_node_that_goes_away_again_and_again_comes_back_each_time(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed, rows=300, steps=5, has_disk=seed % 2 == 0)
    for variant in ("rowid_sync", "replay_log", "delete_log", "rowid_sync", "delete_log", "replay_log"):
        wire = Wire(db, files, rng, writers.step, work_max=20)
        opened = restarted(node, wire, through, variant)
        assert wire.source.progress.why == "", "the log and X of a node that has joined are as good as any"
        joined_and_reopened(db, node, opened, f"seed {seed}")
        through = next(message.epoch for message in wire.log if isinstance(message, End))
        node = node.kill()
        for _ in range(3):
            writers.step()
    db.close()


def node_brought_back(db: Any, files: Any, node: Any, through: int, rng: Any) -> Any:
    """Return the wire and the store of a node brought back by whatever its files allow."""
    wire = Wire(db, files, rng)
    opened, caught_up = rejoin(node, settings(), ManualClock(), wire.source.welcome(), wire, Through(through))
    assert caught_up.sequence == opened.store.log.sequence and caught_up.next_epoch > caught_up.epoch
    return wire, opened


def test_node_whose_files_are_damaged_becomes_a_full_copy_and_says_why() -> None:
    db, files, _, node, through, rng = away(71, has_disk=True, rows=200, steps=3)
    contents = node.snapshot()
    for name in ("sysfile.0", "sysfile.1"):
        contents[name] = bytes(len(contents[name]))
    node = MemoryFiles.from_snapshot({**contents, "binlog.index": b"another room's"})
    wire, opened = node_brought_back(db, files, node, through, rng)
    assert "own files do not lead" in wire.source.progress.why or "no valid state" in wire.source.progress.why
    assert "binlog.index" in node.snapshot()
    joined_and_reopened(db, node, opened)
    db.close()


def test_node_whose_local_checkpoints_are_newer_than_the_epoch_becomes_a_full_copy() -> None:
    db, files, writers, node, _, rng = away(72, rows=200, steps=3)
    early = 1
    other = open_node(node)
    for _ in range(3):
        other["test.hot"].write((5, 5))
        other.checkpoint()
    node = node.kill()
    wire, opened = node_brought_back(db, files, node, early, rng)
    assert "before the oldest state" in wire.source.progress.why
    joined_and_reopened(db, node, opened)
    db.close()


@pytest.mark.parametrize("what", ["whole", "without its sysfile"])
def test_directory_of_another_store_is_left_alone(what: str) -> None:
    db, files, _, _, through, rng = away(73, rows=50, steps=1)
    # Clocks of tests give equal UUIDs: drawing once more gives another one.
    node = MemoryFiles()
    clock = ManualClock()
    clock.random_bytes(16)
    other = Database(node, settings(), clock)
    other.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
    other.checkpoint()
    other.close()
    contents = node.snapshot()
    if what != "whole":
        contents = {name: content for name, content in contents.items() if not name.startswith("sysfile")}
    for epoch in (through, 0):
        node = MemoryFiles.from_snapshot(contents)
        with pytest.raises(ForeignFile):
            node_brought_back(db, files, node, epoch, rng)
        assert node.snapshot() == contents
    db.close()


def test_node_without_enough_memory_says_so_and_stays_what_it_was() -> None:
    db, files, writers, node, through, rng = away(74, rows=200, steps=3)
    db["test.wide"].write_many([(key, 0, "m" * 3_000, None) for key in range(10_000, 13_000)])
    wire = Wire(db, files, rng)
    join = Join(wire.source.welcome(), wire, through)
    small = Options.from_keywords({**SMALL, **OPTIONS, "data_memory": "8 MiB"})
    with pytest.raises(LimitExceeded, match="live node"):
        Restart(node, small, ManualClock(), Through(through), catch_up=join).run()
    alone = open_node(node.kill(), through)
    assert alone["test.wide"].get(10_000) is None
    alone.close()
    db.close()
