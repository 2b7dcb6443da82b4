"""The end of a node restart: the node can recover from its own files again (docs/internals/node-group.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.recovery.local_checkpoint.writer import LcpReport, LocalCheckpoint, Progress


def make_recoverable(lcp: LocalCheckpoint, progress: Progress | None = None) -> LcpReport:
    """Write the local checkpoint that makes the copied state this node's own. Durable on return: the rows that it
    shows.

    Call it before another group is applied: the checkpoint's epoch has ended on the live node, the next one has not. A
    crash before the checkpoint is durable leaves the node as it was before it joined. Older checkpoints are removed: no
    log leads from them to the copied rows. Raises: StorageFull, StoreFailed.
    """
    report = lcp.run(progress)
    lcp.stand_on_newest()
    return report
