"""Data that was reported durable is not taken for a torn tail when one of its bits flips (F52, F54)."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import flipped, refused
from tests.seeds import fresh_seeds
from tests.store.support import ACCOUNT, SMALL, open_memory, rows_of
from tidemark.engine.base.options import Options
from tidemark.engine.log.group_layout import GROUP_ALIGN_BYTES
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification.check import check_closed


def last_group(db: Any) -> tuple[str, int, int]:
    """File, offset and bytes of the last group of the log."""
    from tidemark.engine.log.reader import LogReader

    log = db.parts.store.log
    reader = LogReader(db.parts.files, log.geometry, db.parts.opened.identity[0])
    last = list(reader.groups(log.tail_lsn, log.tail_sequence))[-1]
    number, offset, _, _ = log.geometry.pieces(last.lsn, GROUP_ALIGN_BYTES)[0]
    return log.geometry.name(number), offset, last.end_lsn - last.lsn


def written(durability: str = "epoch") -> tuple[Any, MemoryFiles]:
    """A store with rows in groups of several sizes, and a large one last."""
    files = MemoryFiles()
    db = open_memory(files, durability=durability)
    db.create_table("test.account", ACCOUNT, primary_key="id")
    db["test.account"].insert_many([(key, "a", 1.0, None) for key in range(100)])
    db.sync()
    db["test.account"].insert_many([(key, "a", 1.0, None) for key in range(100, 600)])
    return db, files


def problems_of(files: MemoryFiles) -> list[str]:
    from tidemark.engine.base.clock import ManualClock

    def no_catalog(sysfile: object) -> Any:
        return None

    report = check_closed(files, Options.from_keywords(SMALL), ManualClock(), no_catalog, None)
    return [problem for problem in report.problems if "REDO" in problem]


@pytest.mark.parametrize("seed", fresh_seeds(1))
@pytest.mark.parametrize("end", ["sync", "close", "checkpoint", "advance_gci"])
def test_bit_flipped_in_the_last_group_is_damage_once_it_was_reported_durable(end: str, seed: int) -> None:
    """Story: after `sync` and a crash one flipped bit in the last group lost 500 of 600 rows without an error, and
    `check` said that the store was sound: the sysfile was written with each GCI alone."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    db, files = written()
    if end == "checkpoint":  # its log begins after its rows: a row is committed while it is made
        db.checkpoint(lambda *_: (db["test.account"].write((1_000, "a", 1.0, None)), db.parts.store.log.flush()))
    else:
        db.parts.store.log.flush()
    place = last_group(db)
    if end != "checkpoint":
        getattr(db.parts.clockwork if end == "advance_gci" else db, end)()
    name, offset, size = place
    contents = files.image(lambda piece: False).snapshot()
    for _ in range(8):
        damaged = {**contents, name: flipped(contents[name], offset + rng.randrange(size), rng.randrange(8))}
        assert "was durable through LSN" in str(refused(damaged, tm.RedoDamaged))
        assert problems_of(MemoryFiles.from_snapshot(damaged))


def test_floor_never_goes_back() -> None:
    """Story: the end of a GCI read the end of the log first, and wrote the sysfile after a `sync` that had read a later
    end.
    """
    db, _ = written()
    keeper, log = db.parts.opened.keeper, db.parts.store.log
    before = log.durable_lsn, log.durable_sequence
    db.sync()
    raised = keeper.content.durable_lsn, keeper.content.durable_sequence
    assert raised == (log.durable_lsn, log.durable_sequence) > before
    keeper.write(durable_lsn=before[0], durable_sequence=before[1], gci=keeper.content.gci)
    assert (keeper.content.durable_lsn, keeper.content.durable_sequence) == raised


def test_what_a_flipped_bit_may_hide_is_the_last_batch_and_nothing_from_before_the_last_gci() -> None:
    """The part that remains in doubt: commits acknowledged since the last GCI, and of those the last batch."""
    db, files = written("commit")
    db.parts.clockwork.advance_gci()
    floor = sorted(rows_of(db))
    for key in range(1_000, 1_004):
        db["test.account"].insert((key, "a", 1.0, None))
    name, offset, _ = last_group(db)
    contents = files.image(lambda piece: False).snapshot()
    again = open_memory(MemoryFiles.from_snapshot({**contents, name: flipped(contents[name], offset + 300)}))
    assert sorted(rows_of(again)) == [*floor, 1_000, 1_001, 1_002]
    again.close()
    for back in (1, 2, 3):
        damaged = {**contents, name: flipped(contents[name], offset - back * GROUP_ALIGN_BYTES + 300)}
        refused(damaged, tm.RedoDamaged)
