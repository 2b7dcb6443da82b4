"""A store of an older format under a program of the next one (F84), by a program that claims to be of the next format.

Story: there is only one format yet, so no test showed that a store of an older one opens, that its first local
checkpoint is in the new one, and what a crash in between leaves. The program here writes format 2 and reads from 1.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest

import tidemark as tm
from tests.golden import make
from tests.recovery.support import units
from tests.shares import few
from tests.store.test_power_loss import POLICIES
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off

NEXT = FORMAT_VERSION + 1
SEED = 84


@contextmanager
def program_of(version: int) -> Iterator[None]:
    """Within the block, the program is the one of this format."""
    with pytest.MonkeyPatch.context() as patch:
        patched = 0
        for name, module in list(sys.modules.items()):
            is_ours = name.split(".")[0] in ("engine", "recovery", "replication", "tidemark")
            if is_ours and "FORMAT_VERSION" in vars(module):
                patch.setattr(module, "FORMAT_VERSION", version)
                patched += 1
        assert patched > 1
        yield


def versions_in(content: bytes) -> set[int]:
    """Of the sealed units of a file of a local checkpoint."""
    words = np.frombuffer(content, dtype=np.int64)
    return {int(words[at // 8 + 1]) >> 16 & 0xFFFF for at, _ in units(content)}


@pytest.fixture(scope="module")
def older() -> Mapping[str, bytes]:
    return make.unpack(make.archive_name(FORMAT_VERSION))


@pytest.fixture(scope="module")
def tables() -> object:
    db = make.open_golden(MemoryFiles.from_snapshot(make.unpack(make.archive_name(FORMAT_VERSION))))
    return make.tables_of(db)


def test_store_of_the_format_before_opens_and_its_next_local_checkpoint_is_of_the_new_one(
    older: Mapping[str, bytes], tables: object
) -> None:
    files = MemoryFiles.from_snapshot(older)
    with program_of(NEXT):
        db = make.open_golden(files)
        assert make.tables_of(db) == tables
        assert db.restart_report["fallbacks"] == 0 and db.check()["is_sound"]
        lcp_id = db.checkpoint()["lcp_id"]
        db["golden.lines"].insert(("order 77", 1, 2, "after"))
        expected = make.tables_of(db)
        db.close()
        made = {
            name: versions_in(content)
            for name, content in files.snapshot().items()
            if name.startswith(f"lcp/{lcp_id}-")
        }
        made["control"] = versions_in(files.snapshot()[f"lcp/control-{lcp_id}"])
        assert len(made) > 2 and set().union(*made.values()) == {NEXT}
        assert versions_in(files.snapshot()["lcp/control-2"]) == {FORMAT_VERSION}, "the one before is still there"
        again = make.open_golden(files.kill())
        assert make.tables_of(again) == expected and again.check()["is_sound"]
    left = files.kill()
    before = left.snapshot()
    with pytest.raises(tm.VersionTooNew, match="format 2"):
        make.open_golden(left)
    assert left.snapshot() == before


def test_crash_while_a_store_comes_to_the_new_format_leaves_one_that_opens(
    older: Mapping[str, bytes], tables: object
) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)

    def come_to_it(files: object) -> None:
        db = make.open_golden(files)
        db.checkpoint()
        db.close()

    plan = Plan()
    with program_of(NEXT):
        come_to_it(FaultFiles(MemoryFiles.from_snapshot(older), plan))
    calls = plan.calls
    outcomes = {"old": 0, "new": 0}
    for turn, nth in enumerate(range(1, calls + 1, max(1, calls // few(12, calls)))):
        memory = MemoryFiles.from_snapshot(older)
        with program_of(NEXT):
            with pytest.raises(PowerOff):
                come_to_it(FaultFiles(memory, [Rule("*", nth=nth, once=False, stall=power_off)]))
            left = memory.crash(rng, POLICIES[turn % len(POLICIES)])
            assert make.tables_of(make.open_golden(left.kill())) == tables, f"call {nth}"
        before = left.snapshot()
        try:
            assert make.tables_of(make.open_golden(left)) == tables, f"call {nth}"
            outcomes["old"] += 1
        except tm.VersionTooNew:
            assert left.snapshot() == before, f"call {nth}"
            outcomes["new"] += 1
    assert outcomes["old"] > 1 and outcomes["new"] > 1, outcomes
