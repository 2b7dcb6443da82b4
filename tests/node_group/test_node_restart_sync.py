"""A node comes back by ROWID synchronisation while the others keep writing."""

from __future__ import annotations

from typing import Any

import pytest

from engine.file_doubles.memory import MemoryFiles
from recovery.node_restart.messages import Begin, End, Slice
from recovery.node_restart.verify import rows_by_rowid
from tests.node_group.support import Wire, away, joined_and_reopened, restarted
from tests.seeds import fresh_seeds
from tests.store.support import rows_of


@pytest.mark.parametrize("seed", [1, 2, 3, *fresh_seeds(2)])
def test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed)
    wire = Wire(
        db, files, rng, writers.step, slice_slots=rng.choice([1, 7, 100, 5_000]), slice_words=rng.choice([40, 4_000])
    )
    opened = restarted(node, wire, through)
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


@pytest.mark.parametrize("seed", [21, 22, *fresh_seeds(1)])
def test_disk_columns_come_with_their_rows(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed, rows=400, steps=15, has_disk=True)
    wire = Wire(db, files, rng, writers.step, slice_slots=rng.choice([50, 5_000]))
    opened = restarted(node, wire, through)
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


def test_log_that_was_cut_behind_the_joiner_gives_way_to_synchronisation() -> None:
    db, files, writers, node, through, rng = away(43)
    for _ in range(2):
        writers.step()
        db.checkpoint()
    wire = Wire(db, files, rng, writers.step)
    opened = restarted(node, wire, through, "replay_log")
    assert wire.source.progress.variant == "rowid_sync" and "the log begins with group" in wire.source.progress.why
    joined_and_reopened(db, node, opened)
    db.close()


def test_log_is_given_up_for_transactions_that_need_its_room_and_rows_go_on_from_there() -> None:
    db, files, writers, node, through, rng = away(44, steps=5)

    def much() -> None:
        log = db._store.log
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
@pytest.mark.parametrize("seed", range(40))
def test_many_histories(seed: int) -> None:
    test_node_that_was_away_equals_the_live_one_whatever_was_written_meanwhile(seed + 1_000)


@pytest.mark.parametrize("share", [1, 10])
def test_bytes_sent_are_those_of_the_changed_rows_and_little_more(share: int) -> None:
    db, files, writers, _, _, rng = away(50, rows=3_000, steps=0, stray=0)
    through = db.sync()
    node = MemoryFiles.from_snapshot(files.snapshot())
    alive = sorted(rows_of(db, "test.wide"))
    db["test.wide"].write_many([writers.row(key) for key in rng.sample(alive, len(alive) * share // 20)])
    for key in rng.sample(alive, 20):
        db["test.wide"].delete(key)
    rows = [rows_by_rowid(db._store.tables["test.wide"], number) for number in (0, 1)]
    epochs = [(int.from_bytes(row[:8], "little"), len(row)) for each in rows for row in each.values()]
    changed = sum(size for epoch, size in epochs if epoch > through)
    wire = Wire(db, files, rng)
    opened = restarted(node, wire, through)
    assert 0 < changed <= wire.copied_bytes <= 1.2 * changed
    joined_and_reopened(db, node, opened)
    db.close()


@pytest.mark.parametrize("seed", [61, *fresh_seeds(1)])
def test_node_that_goes_away_again_and_again_comes_back_each_time(seed: int) -> None:
    db, files, writers, node, through, rng = away(seed, rows=300, steps=5, has_disk=seed % 2 == 0)
    for variant in ("rowid_sync", "replay_log", "rowid_sync", "replay_log"):
        wire = Wire(db, files, rng, writers.step, work_max=20)
        opened = restarted(node, wire, through, variant)
        assert wire.source.progress.why == "", "the log and X of a node that has joined are as good as any"
        joined_and_reopened(db, node, opened, f"seed {seed}")
        through = next(message.epoch for message in wire.log if isinstance(message, End))
        node = node.kill()
        for _ in range(3):
            writers.step()
    db.close()
