"""The end of a node restart: the node can recover from its own files again (docs/node-group.md, 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.recovery.local_checkpoint.writer import LcpReport, LocalCheckpoint, Progress


def make_recoverable(lcp: LocalCheckpoint, progress: Progress | None = None) -> LcpReport:
    """Make the local checkpoint behind which this node counts. Durable on return: everything it took.

    It must have begun before another group is applied: its epoch has ended on the live node, the next one has not. A
    crash before it is durable leaves the node where it was before it joined. Those before it go: rows that were
    copied are in no log that leads from them to here. Raises: StorageFull, StoreFailed.
    """
    report = lcp.run(progress)
    lcp.stand_on_newest()
    return report
