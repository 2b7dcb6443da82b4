"""The filter of the UNDO log at work, with GCIs ended by hand: no restart goes back past the records it has left out
(U3).
"""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import flipped, powered_off
from tests.store.disk_support import DISK, NAME, DiskStore
from tests.store.support import open_memory, rows_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.sysfile import NAMES as SYSFILES
from tidemark.recovery.system_restart.sysfile import read_copy

Moments = list[tuple[int, dict[int, Any]]]
ROWS = 24
TURNS = 6


@functools.cache
def history(undo_filter: bool = True) -> tuple[dict[str, bytes], Moments]:
    """The files of a store whose filter, if any, has left records out at every turn; epochs, and the rows at the end of
    each.

    Each turn changes rows that no other turn changes, so that replay repairs none of them by chance.
    """
    store = DiskStore(undo_filter=undo_filter)
    store.load(range(ROWS))
    store.db.checkpoint()
    moments: Moments = []
    for turn in range(1, TURNS + 1):
        if turn < TURNS - 1:
            store.db.parts.clockwork.advance_gci()
        moments.append((store.db.sync(), dict(store.rows)))
        store.flush()
        store.load(range(turn % TURNS, ROWS, TURNS), turn)
    assert (store.db.status()["disk"]["undo"]["records_filtered"] > 0) == undo_filter, "the filter is idle"
    assert all(later > epoch for (epoch, _), (later, _) in zip(moments, moments[1:], strict=False))
    return store.files.kill().snapshot(), moments


def outcomes(contents: dict[str, bytes], moments: Moments, **options: Any) -> list[str]:
    """The result of a restart through each epoch: "refused", or "exact" after its rows were compared."""
    found = []
    for epoch, rows in moments:
        files = MemoryFiles.from_snapshot(contents)
        try:
            db = open_memory(files, epoch, **DISK, **options)
        except tm.ValueOutOfRange as error:
            assert error.oldest > epoch and "UNDO" in str(error)
            assert files.snapshot() == contents, "a refused restart changes nothing"
            found.append("refused")
            continue
        assert rows_of(db, NAME) == rows, f"epoch {epoch}"
        assert db.check()["problems"] == []
        found.append("exact")
    return found


def newest_copy(contents: dict[str, bytes]) -> str:
    files = MemoryFiles.from_snapshot(contents)
    copies = {name: read_copy(files, name) for name in SYSFILES}
    return max(copies, key=lambda name: getattr(copies[name], "generation", 0))


def test_restart_through_an_epoch_before_the_filter_is_refused_and_later_ones_are_exact() -> None:
    contents, moments = history()
    found = outcomes(contents, moments)
    assert found == sorted(found, reverse=True), "refused up to an epoch, exact from there on"
    assert found[0] == "refused" and found[-1] == "exact"
    assert set(outcomes(*history(False), undo_filter=False)) == {"exact"}


@pytest.mark.parametrize("lost", ["newest", "older"])
def test_restart_through_an_epoch_knows_the_filter_by_either_copy_of_the_sysfile(lost: str) -> None:
    """Story: a flush left out the records that the newest copy of the sysfile allowed it to leave out. With that copy
    lost, the older one let a restart go back before epochs whose UNDO records were gone: rows of later epochs stood on
    the pages.
    """
    contents, moments = history()
    name = newest_copy(contents)
    if lost == "older":
        name = next(each for each in SYSFILES if each != name)
    found = outcomes({**contents, name: flipped(contents[name], 200)}, moments)
    assert found == sorted(found, reverse=True)
    assert found[0] == "refused" and found[-1] == "exact"


def test_restart_through_an_epoch_interrupted_anywhere_can_be_done_again() -> None:
    """The floor that it writes first must not itself forbid the restart point it is the floor of."""
    contents, moments = history()
    first = outcomes(contents, moments).index("exact")
    epoch, rows = moments[first]
    rng = random.Random(7)
    nth = 0
    is_over = False
    while not is_over:
        nth += 5
        memory = MemoryFiles.from_snapshot(contents)
        is_over = not powered_off(memory, nth, lambda files: open_memory(files, epoch, **DISK))
        again = open_memory(memory.crash(rng, "sectors"), epoch, **DISK)
        assert rows_of(again, NAME) == rows, f"call {nth}"
    assert nth > 40


def test_undo_group_of_which_everything_was_filtered_is_stepped_over() -> None:
    """Story: the first flush after an opening writes a group for its LSNs, even if the filter leaves out all of its
    records. The next restart looked for its first record, and ended in an IndexError: the store could not be opened any
    more.
    """
    store = DiskStore(undo_log="8 MiB")
    store.load(range(ROWS))
    store.db.checkpoint()
    store.crash()
    store.load(range(ROWS), 1)
    store.db.parts.clockwork.advance_gci()
    store.flush()
    counters = store.db.status()["disk"]["undo"]
    assert counters["groups_written"] == 1 and counters["records_filtered"] == counters["records_made"] > 0
    store.crash()
    assert rows_of(store.db, NAME) == store.rows and store.db.check()["problems"] == []
