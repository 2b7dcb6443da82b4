"""Damage to the row with a replica's position (F69): it is found, repaired or refused, never guessed.

Story: no test showed it. A position before its rows applies changes twice, one past them leaves some out; the table has
NDB$OLD, so either leaves rows in the exceptions table.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import flipped, refused
from tests.replication.test_channel_crash import CHANNEL, judge, make_source, note, position, replica, rows, set_up
from tidemark.engine.log.group_layout import GROUP_ALIGN_BYTES
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

SEED = 69_000


@dataclass
class Killed:
    """A replica that was killed: its files, its source, the rows at each epoch, and the places of its parts."""

    contents: dict[str, bytes]
    source: Any
    states: dict[int, Any]
    lcp_ids: tuple[int, int]
    table_id: int
    end: int  # of the log
    position: int


@pytest.fixture(scope="module")
def killed() -> Killed:
    print("seed", SEED)
    rng = random.Random(SEED)
    source = make_source()
    states = {0: {}, source.parts.clockwork.advance_epoch(): {}}
    files = MemoryFiles()
    db = replica(files)
    set_up(db)
    lcp_ids = []
    with tm.Channel(source, db, **CHANNEL) as channel:
        for turn in range(9):
            note(source, rng, states)
            channel.apply_all()
            if turn in (1, 3, 5):  # nothing of the first one remains, nor of the log before the second one
                lcp_ids.append(db.checkpoint()["lcp_id"])
    table_id = db["mysql.ndb_apply_status"].definition.table_id
    end = db.parts.store.log.head_lsn
    assert position(db) == max(states) and rows(db) == states[max(states)]
    return Killed(files.kill().snapshot(), source, states, (lcp_ids[1], lcp_ids[2]), table_id, end, position(db))


def data_files(killed: Killed, lcp_id: int) -> list[str]:
    """Return the files with rows, of the position table in a local checkpoint."""
    return [
        name
        for name, content in killed.contents.items()
        if name.startswith(f"lcp/{lcp_id}-{killed.table_id}-") and b"binlog.0" in content
    ]


def middle(content: bytes) -> int:
    """Return the offset of a name of the source's binlog files: it is inside a row with a position."""
    return content.index(b"binlog.0") + 3


def test_position_damaged_in_the_newest_local_checkpoint_comes_from_the_one_before(killed: Killed) -> None:
    (name,) = data_files(killed, killed.lcp_ids[1])
    content = killed.contents[name]
    left = MemoryFiles.from_snapshot({**killed.contents, name: flipped(content, middle(content))})
    db = judge(left, killed.source, killed.states, killed.position)
    assert db.restart_report["fallbacks"] > 0


def test_position_damaged_in_both_local_checkpoints_is_refused(killed: Killed) -> None:
    names = [name for lcp_id in killed.lcp_ids for name in data_files(killed, lcp_id)]
    assert len(names) == 2
    changed = {name: flipped(killed.contents[name], middle(killed.contents[name])) for name in names}
    error = refused({**killed.contents, **changed}, tm.LcpDamaged)
    assert "ndb_apply_status" in str(error) or str(killed.table_id) in str(error)


def test_position_damaged_in_the_log_is_refused_or_goes_back_together_with_its_rows(killed: Killed) -> None:
    """The log after the local checkpoints has three epochs. A bad last group is a tail: its epoch comes again."""
    name = "redo/0000.redo"
    log = killed.contents[name]
    groups = [at for at in range(0, killed.end, GROUP_ALIGN_BYTES) if b"binlog.0" in log[at : at + GROUP_ALIGN_BYTES]]
    outcomes = []
    for at in groups[-3:]:
        changed = flipped(log, at + middle(log[at : at + GROUP_ALIGN_BYTES]))
        if at + GROUP_ALIGN_BYTES == killed.end:
            left = MemoryFiles.from_snapshot({**killed.contents, name: changed})
            assert position(replica(left.kill())) < killed.position
            judge(left, killed.source, killed.states, sorted(killed.states)[-2])
            outcomes.append("back")
        else:
            error = refused({**killed.contents, name: changed}, tm.RedoDamaged)
            assert (error.file, error.offset) == (name, at)
            outcomes.append("refused")
    assert outcomes == ["refused", "refused", "back"]
