"""A load on one machine: threads write load files of one input in parallel, then all files are adopted.

Threads, not processes: the expensive part runs without the GIL, and no data has to be sent. A batch goes to any free
thread, so each thread writes a part of every fragment. Each batch carries the number of its first row in the input.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidemark.recovery.load.directory import Directory, directory_of
from tidemark.recovery.load.tasks import write_numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tidemark.recovery.load.job import FragmentReport, LoadJob

WAITING_BATCHES = 4
POLL_SECONDS = 0.1


class _Workers:
    """Threads that take batches until there are no more, or one of them fails."""

    def __init__(self, job: LoadJob, count: int, place: Directory | None) -> None:
        self._job = job
        self._place = place
        self._count = count
        self._batches: queue.Queue[tuple[int, pa.RecordBatch] | None] = queue.Queue(WAITING_BATCHES)
        self._is_stopped = threading.Event()

    def run(self, batches: Iterable[tuple[int, pa.RecordBatch]]) -> list[FragmentReport]:
        """Write all batches; raise the error of a thread. All threads have ended on return."""
        with ThreadPoolExecutor(self._count, "tidemark-load") as pool:
            futures = [pool.submit(self._work, part) for part in range(self._count)]
            is_done = False
            try:
                for numbered in batches:
                    if not self._hand_over(numbered):
                        break
                for _ in futures:
                    self._hand_over(None)
                is_done = True
            finally:
                if not is_done:
                    self._is_stopped.set()
            reports = [future.result() for future in futures]
        return [report for part in reports for report in part]

    def _hand_over(self, numbered: tuple[int, pa.RecordBatch] | None) -> bool:
        while not self._is_stopped.is_set():
            try:
                self._batches.put(numbered, timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def _taken(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        while True:
            try:
                numbered = self._batches.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._is_stopped.is_set():
                    raise _Stopped from None
                continue
            if numbered is None:
                return
            yield numbered

    def _work(self, part: int) -> list[FragmentReport]:
        is_done = False
        try:
            with directory_of(self._job, self._place) as place:
                reports = write_numbered(self._job, 0, self._taken(), part, place)
            is_done = True
            return reports
        except _Stopped:
            return []  # the thread that stopped it reports the reason
        finally:
            if not is_done:
                self._is_stopped.set()


class _Stopped(Exception):
    """Another thread, or the caller, has failed."""


def write_natively(
    job: LoadJob, batches: Iterable[tuple[int, pa.RecordBatch]], workers: int, place: Directory | None = None
) -> list[FragmentReport]:
    """Write load files of batches, each with the number of its first row, in `workers` threads. Durable on return: the
    files.

    Raises: the errors of reading the input and of `write_parts`; leftover files are then removed by `abort`.
    """
    return _Workers(job, workers, place).run(batches)
