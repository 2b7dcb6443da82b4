"""Row changes as a stream of Spark, and as a batch of epochs (docs/spark.md, section 8).

Spark keeps the stream reader in one planning process while a query runs, and calls `read` in executors. Spark's own
checkpoint has the progress of a query, as an epoch; the store records nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tidemark.engine.base.errors import EpochGap, Unsupported
from tidemark.recovery.spark.changes import change_batches
from tidemark.recovery.spark.failures import evidence_noted

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2 a source always reads everything
    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A marker that this Spark does not use."""


if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.recovery.spark.changes import ChangeLog, ChangePiece, ChangePlan, Opener

Offset = dict[str, int]
OFFSET = "epoch"


def _read(plan: ChangePlan, opener: Opener, partition: Any) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a task. partition: None if there is nothing to read."""
    if partition is None:
        return
    definition = plan.definition
    with closing(opener(plan.place, definition)) as log, evidence_noted():
        yield from change_batches(log.images(partition.value), definition)


def _partitions(pieces: Sequence[ChangePiece]) -> list[InputPartition]:
    return [InputPartition(piece) for piece in pieces]


class ChangeReader(DataSourceReader):
    """The changes of some epochs, read once."""

    def __init__(self, plan: ChangePlan, opener: Opener) -> None:
        self._plan = plan
        self._opener = opener

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises: PositionLost, EpochGap, Unsupported, Damaged."""
        plan = self._plan
        with closing(self._opener(plan.place, plan.definition)) as log:
            plan.check_epoch(max(plan.since, plan.until or 0), log.newest_epoch())
            reach = log.reach(plan.since, plan.until, None, plan.task_bytes)
        if reach.obstacle is not None:
            raise reach.obstacle
        return _partitions(reach.pieces)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a task, in the order of the binlog."""
        return _read(self._plan, self._opener, partition)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes after an epoch, as they arrive. An offset is {"epoch": n}: all changes through n were returned."""

    def __init__(self, plan: ChangePlan, opener: Opener) -> None:
        """Raises: Unsupported for a limit that this Spark does not pass to its sources."""
        if plan.epochs_max is not None and ReadMaxRows is None:
            raise Unsupported("option maxEpochsPerTrigger needs Spark 4.2 or newer; leave it out, or update pyspark")
        self._plan = plan
        self._opener = opener
        self._log: ChangeLog | None = None
        self._target: int | None = None  # of a query that stops: the epoch that was the newest at its start
        self._last: int | None = None  # epochs are planned through this one
        self._is_checked = False
        self._planned: tuple[int, int, tuple[ChangePiece, ...]] = (0, 0, ())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that executors need, without open files."""
        return {**self.__dict__, "_log": None}

    def _opened(self) -> ChangeLog:
        if self._log is None:
            self._log = self._opener(self._plan.place, self._plan.definition)
        return self._log

    def initialOffset(self) -> Offset:
        """Return the offset at which a query without a checkpoint begins."""
        self._last = self._plan.since
        return {OFFSET: self._last}

    def getDefaultReadLimit(self) -> Any:
        """Return the limit in epochs, as a limit in rows because Spark has none in epochs; without one, everything.
        Spark passes it back, unless everything is to be read.
        """
        return ReadAllAvailable() if self._plan.epochs_max is None else ReadMaxRows(self._plan.epochs_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query with the epoch that is newest now."""
        self._target = self._opened().newest_epoch()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the end of the next batch; `start` itself if there is nothing new.

        Raises: PositionLost, EpochGap, Unsupported, Damaged, if no more changes can be returned.
        """
        log = self._opened()
        since = self._last if start is None else int(start[OFFSET])
        if since is None:
            # Before Spark 4.2 a resumed query does not pass its start here, only to `partitions`.
            return {OFFSET: log.newest_epoch()}
        # Changes through `since` were returned, and Spark has recorded that.
        log.keep(since)
        epochs_max = None if limit is None or isinstance(limit, ReadAllAvailable) else self._plan.epochs_max
        reach = log.reach(since, self._target, epochs_max, self._plan.task_bytes)
        if reach.epoch == since:
            if reach.obstacle is not None and (self._target is None or since < self._target):
                raise reach.obstacle
            if not self._is_checked:
                self._plan.check_epoch(since, log.newest_epoch())
        self._is_checked = True
        self._planned = (since, reach.epoch, reach.pieces)
        return {OFFSET: reach.epoch}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises: as `latestOffset`; nothing of the batch is read then."""
        since, until = int(start[OFFSET]), int(end[OFFSET])
        self._last = until
        if until <= since:
            return []
        log = self._opened()
        log.keep(since)
        if self._planned[:2] != (since, until):
            reach = log.reach(since, until, None, self._plan.task_bytes)
            if reach.obstacle is not None:
                raise reach.obstacle
            if reach.epoch != until:
                raise EpochGap(
                    f"epoch {until}, which the query has begun to read, is not in the binlog (newest: {reach.epoch});"
                    " if a crash took the end of the file, open the store, which writes it again",
                    epoch=until,
                )
            self._planned = (since, until, reach.pieces)
        return _partitions(self._planned[2])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a task, in the order of the binlog."""
        return _read(self._plan, self._opener, partition)

    def stop(self) -> None:
        """Close the log at the end of the query."""
        if self._log is not None:
            self._log.close()
            self._log = None
