"""Crashes, faults and signals of a store whose transactions spool."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.programs import spool_history
from tests.shares import share
from tidemark.engine.log.spool_files import FOLDER
from tidemark.recovery.crash_harness.crash_states import crash_states
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import Ledger, open_simulated, whole_state


def test_crash_states_of_spooled_transactions_show_what_was_promised() -> None:
    report = crash_states(spool_history.tiny_work, whole_state, seed=1, per_point=1, share=share(0.12))
    assert report.points > 150
    assert report.second_restarts > 15


@pytest.mark.parametrize("history", [spool_history.SpoolHistory, spool_history.DiskSpoolHistory])
def test_program_spools_and_rolls_back_and_reads_back(history: type[spool_history.SpoolHistory]) -> None:
    """Otherwise the enumeration covers less than it claims."""
    ledger, disk, calls = Ledger(), MemoryFiles(), Counter[str]()

    class Watched(OrderMonitor):
        def pread_into(self, file: object, offset: int, buffer: object) -> int:
            calls["pread"] += getattr(file, "name", "").startswith(FOLDER)
            return super().pread_into(file, offset, buffer)  # type: ignore[arg-type]

    run = history(lambda **options: open_simulated(Watched(MemoryFiles(disk.disk)), **options), 2, ledger)
    run.run(40)
    assert min(run.spooled) > 0 and calls["pread"] > 50
    assert whole_state(open_simulated(disk.kill()), ledger) == []
