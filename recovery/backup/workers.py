"""Processes that carry out the tasks of a restore in parallel.

A thread of the restoring process hands a task to each worker process, one line of its standard input. The worker
answers with lines of JSON: `{"rows": n}` as rows are done, then `{"report": ...}` or `{"error": ...}`. It ends with its
input, so it does not outlive the restoring process. If a worker dies, only its current attempt is lost: another worker
gets the task, up to `ATTEMPTS` times in all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any

from tidemark.engine.base import errors
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import Error, MemoryExhausted, Rejected, TooManyFiles
from tidemark.engine.files.layer import NO_DESCRIPTOR
from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import restore_fragment

ATTEMPTS = 3
PROGRESS_ROWS = 100_000  # rows between two lines of progress
COMMAND = "import sys; sys.path[:] = {path!r}; from tidemark.recovery.backup.workers import serve; serve()"
_NO_PROCESS = frozenset({errno.EAGAIN, errno.ENOMEM})


class Workers(Closable):
    """A `Runner` with `count` processes, for use with `with`: when the block ends, the processes have ended."""

    def __init__(self, count: int) -> None:
        self._count = count
        # Called with rows as they are done, by any thread.
        self.advance: Callable[[int], None] = lambda rows: None
        self._guard = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._idle: list[subprocess.Popen[str]] = []
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        with self._guard:
            return [each.pid for each in self._processes if each.poll() is None]

    def close(self) -> None:
        """Kill all processes, whatever they are doing; no report names the files they were writing."""
        with self._guard:
            self._is_closed = True
            ended, self._processes = self._processes, set()
        for process in ended:
            process.kill()
        for process in ended:
            _reap(process)

    def __call__(self, tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        """Yield the report of each task as it arrives. Raises: the errors of tasks; MemoryExhausted if the process of a
        task dies each time; MemoryExhausted, TooManyFiles or Rejected if no process can be started; Rejected for a
        place that is neither a path nor a URI.
        """
        if not all(isinstance(task.place, str) for task in tasks):
            raise Rejected("worker processes need a place that is a path or a URI; restore with processes=1")
        pool = ThreadPoolExecutor(self._count, "restore")
        try:
            for done in as_completed([pool.submit(self._carry_out, task.to_json()) for task in tasks]):
                yield done.result()
        except BaseException:
            self.close()  # before the pool waits for its threads, which wait for processes
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    # --- in a thread of the pool -------------------------------------------------------------------
    def _carry_out(self, task: str) -> TaskReport:
        code = 0
        for _ in range(ATTEMPTS):
            process = self._process_for_task()
            answer = self._ask(process, task)
            if answer is None:  # it died, from a signal or lack of memory
                code = self._discard(process)
                continue
            self._idle.append(process)
            if isinstance(answer, Error):
                raise answer
            return answer
        raise MemoryExhausted(
            f"a worker process of the restore died {ATTEMPTS} times (exit code {code}); restore again, with fewer"
            " processes",
            exit_code=code,
        )

    def _process_for_task(self) -> subprocess.Popen[str]:
        """Return a process for one task. Raises: see `__call__`; CancelledError after `close`."""
        with self._guard:
            if self._is_closed:
                raise CancelledError
            if self._idle:
                return self._idle.pop()
            # Give the worker the module path of this process, wherever that was started.
            command = [sys.executable, "-c", COMMAND.format(path=sys.path)]
            try:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            except OSError as cause:
                raise _start_error(cause) from cause
            self._processes.add(process)
            return process

    def _discard(self, process: subprocess.Popen[str]) -> int:
        """Forget a process that died; return its exit code. Raises: CancelledError after `close`."""
        with self._guard:
            if self._is_closed:
                raise CancelledError
            self._processes.discard(process)
        return _reap(process)

    def _ask(self, process: subprocess.Popen[str], task: str) -> TaskReport | Error | None:
        """Send a task to a process and return its answer; None if the process died."""
        for message in _answers(process, task):
            if "error" in message:
                return _error_of(*message["error"])
            if "report" in message:
                return TaskReport.from_json(message["report"])
            self.advance(message["rows"])
        return None


def _answers(process: subprocess.Popen[str], task: str) -> Iterator[dict[str, Any]]:
    """Send a task to a process and yield what it answers, until it dies."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError, ValueError):  # the pipe broke, or another thread closed it
        process.stdin.write(task + "\n")
        process.stdin.flush()
        for line in process.stdout:
            yield json.loads(line)  # ValueError for a line that the process did not finish


def _start_error(cause: OSError) -> Error:
    text = f"a worker process of the restore cannot be started ({cause}); restore again, with fewer processes"
    if cause.errno in NO_DESCRIPTOR:
        return TooManyFiles(text)
    return MemoryExhausted(text) if cause.errno in _NO_PROCESS else Rejected(text)


def _reap(process: subprocess.Popen[str]) -> int:
    """End a process, close its pipes and return its exit code."""
    process.kill()  # it may have closed its output without ending
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # buffered data can no longer be written
                pipe.close()
    return code


def _error_of(name: str, message: str, evidence: dict[str, Any]) -> Error:
    """Return a task's error as its own class."""
    found = getattr(errors, name, Error)
    return found(message, **evidence) if issubclass(found, Error) else Error(message)


# --- in a worker process --------------------------------------------------------------------------
class _RowProgress:
    """Rows done since they were last reported."""

    def __init__(self) -> None:
        self.rows = 0

    def advance(self, rows: int) -> None:
        self.rows += rows
        if self.rows >= PROGRESS_ROWS:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            _send({"rows": self.rows})
            self.rows = 0


def _send(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Carry out tasks until the input ends."""
    for line in sys.stdin:
        progress = _RowProgress()
        try:
            report = restore_fragment(RestoreTask.from_json(line), progress.advance)
        except Error as error:
            evidence = {name: value for name, value in error.evidence.items() if isinstance(value, (int, str))}
            _send({"error": [type(error).__name__, error.message, evidence]})
            continue
        progress.flush()
        _send({"report": report.to_json()})
