"""Crashes of a store whose partitions come and go."""

from __future__ import annotations

from tests.crash.programs import partition_history
from tests.shares import share
from tidemark.recovery.crash_harness.crash_states import crash_states
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import Ledger, open_simulated


def test_crash_states_of_partitions_that_come_and_go_show_what_was_promised() -> None:
    report = crash_states(partition_history.work, partition_history.verify, seed=7, per_point=1, share=share(0.08))
    assert report.points > 300
    assert report.second_restarts > 7


def test_crash_states_of_partitions_with_disk_columns_show_what_was_promised() -> None:
    report = crash_states(
        partition_history.tiny_disk_work, partition_history.verify, seed=3, per_point=1, share=share(0.05)
    )
    assert report.points > 200


def test_program_changes_partitions_during_local_checkpoints_too() -> None:
    """Otherwise the enumeration covers less than it claims."""
    ledger, calls = Ledger(), []

    class Watched(partition_history.PartitionHistory):
        is_beside = False

        def commit_beside(self) -> None:
            self.is_beside = True
            super().commit_beside()
            self.is_beside = False

        def _change(self, bounds: list[tuple[str, int]], after: object) -> None:
            calls.append((self.is_beside, len(bounds) > len(self.bounds)))
            super()._change(bounds, after)  # type: ignore[arg-type]

    disk = MemoryFiles()
    Watched(lambda **options: open_simulated(OrderMonitor(MemoryFiles(disk.disk)), **options), 7, ledger).run(60)
    assert set(calls) == {(False, False), (False, True), (True, False), (True, True)}


def test_partition_lost_by_a_restart_is_seen() -> None:
    ledger, disk = Ledger(), MemoryFiles()
    history = partition_history.PartitionHistory(
        lambda **options: open_simulated(MemoryFiles(disk.disk), **options), 7, ledger
    )
    history.run(20)
    db = open_simulated(disk.kill())
    assert partition_history.verify(db, ledger) == []
    db.add_partition("test.account", "more", 1_000)
    assert partition_history.verify(db, ledger)
