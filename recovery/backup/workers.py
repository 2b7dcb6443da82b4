"""Processes that carry out the tasks of a restore in parallel.

A thread of the restoring process hands tasks to each worker process. If a worker dies, only its current attempt is
lost: the task goes to another worker, up to `ATTEMPTS` times in all.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import errors
from tidemark.engine.base.errors import Error, MemoryExhausted, Rejected
from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport

if TYPE_CHECKING:
    from queue import SimpleQueue

ATTEMPTS = 3
COMMAND = "import sys; sys.path[:] = {path!r}; from tidemark.recovery.backup.worker import serve; serve()"

# Messages of the threads: a report, rows done, or an error.
_Told = TaskReport | int | BaseException


class Workers:
    """A `Runner` with `count` processes, for use with `with`: when the block ends, the processes have ended."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.advance: Callable[[int], None] | None = None  # called with rows as they are done
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()
        self._is_closed = False
        self.died = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        with self._guard:
            return [each.pid for each in self._processes.values() if each.poll() is None]

    def close(self) -> None:
        """End all processes, whatever they are doing; no report names the files they were writing."""
        with self._guard:
            self._is_closed = True
            ended = list(self._processes.values())
            self._processes.clear()
        for process in ended:
            process.kill()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for process in ended:
            _reap(process)

    def __call__(self, tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        """Yield the report of each task as it arrives. Raises: the errors of tasks; MemoryExhausted if the process of a
        task dies each time, Rejected for a place that is neither a path nor a URI.
        """
        waiting: SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        told: SimpleQueue[_Told] = queue.SimpleQueue()
        for task in tasks:
            if not isinstance(task.place, str):
                raise Rejected("worker processes need a place that is a path or a URI; restore with processes=1")
            waiting.put((1, task.to_json()))
        for number in range(min(self._count, len(tasks))):
            work = partial(self._work, number, waiting, told)
            thread = threading.Thread(target=work, name=f"restore-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        left = len(tasks)
        while left:
            got = told.get()
            if isinstance(got, BaseException):
                self.close()
                raise got
            if isinstance(got, TaskReport):
                left -= 1
                yield got
            elif self.advance is not None:
                self.advance(got)

    # --- one thread for each process -------------------------------------------------------------
    def _work(self, number: int, waiting: SimpleQueue[tuple[int, str]], told: SimpleQueue[_Told]) -> None:
        while True:
            try:
                attempt, task = waiting.get_nowait()
            except queue.Empty:
                return
            process = self._process(number)
            if process is None:
                return
            if self._ask(process, task, told):
                continue
            # It died, from a signal or lack of memory.
            with self._guard:
                if self._is_closed:
                    return
                self._processes.pop(number, None)
                self.died += 1
            code = _reap(process)
            if attempt == ATTEMPTS:
                told.put(
                    MemoryExhausted(
                        f"a worker process of the restore died {ATTEMPTS} times (exit code {code});"
                        " restore again, with fewer processes",
                        exit_code=code,
                    )
                )
                return
            waiting.put((attempt + 1, task))

    def _process(self, number: int) -> subprocess.Popen[str] | None:
        with self._guard:
            if self._is_closed:
                return None
            process = self._processes.get(number)
            if process is None:
                # Give the worker the module path of this process, wherever that was started.
                command = [sys.executable, "-c", COMMAND.format(path=sys.path)]
                process = self._processes[number] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            return process

    @staticmethod
    def _ask(process: subprocess.Popen[str], task: str, told: SimpleQueue[_Told]) -> bool:
        """Send a task to a process and read its answer; False if the process died."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(task + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if not line.endswith("\n"):
                    return False
                said: dict[str, Any] = json.loads(line)
                if "rows" in said:
                    told.put(said["rows"])
                elif "error" in said:
                    told.put(_error_of(*said["error"]))
                    return True
                else:
                    told.put(TaskReport.from_json(said["report"]))
                    return True
        except (OSError, ValueError):  # the pipe broke, or another thread closed it
            return False
        return False


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
