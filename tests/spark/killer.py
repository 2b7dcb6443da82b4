"""SIGKILL of processes that do the work of others, at random moments."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import psutil


def is_spark_task(process: psutil.Process) -> bool:
    """Whether it is a Python process of Spark's tasks: forked from the daemon of tasks. Planners and committers have
    daemons of their own, and nobody starts them again.
    """
    command = process.cmdline()
    parent = process.parent()
    return command[-1:] == ["pyspark.worker"] and parent is not None and parent.cmdline() == command


def is_restore_worker(process: psutil.Process) -> bool:
    """Whether it is a worker process of a restore."""
    return any("recovery.backup.worker" in each for each in process.cmdline())


class Killer:
    """Kills processes below this one, one after the other, while a block runs."""

    def __init__(
        self,
        most: int,
        is_victim: Callable[[psutil.Process], bool] = is_spark_task,
        rng: random.Random | None = None,
        wait_s_max: float = 0.1,
        user_s_min: float = 0.0,
    ) -> None:
        """most: kills. wait_s_max: before each. user_s_min: processor time a victim must have used."""
        self._most = most
        self._is_victim = is_victim
        self._rng = rng or random.Random(0)
        self._wait_s_max = wait_s_max
        self._user_s_min = user_s_min
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")
        self.killed = 0

    def _run(self) -> None:
        while self.killed < self._most and not self._over.wait(self._rng.uniform(0, self._wait_s_max)):
            victims = [each for each in psutil.Process().children(recursive=True) if self._is_wanted(each)]
            if victims:
                self._kill(self._rng.choice(victims))

    def _is_wanted(self, process: psutil.Process) -> bool:
        try:
            return self._is_victim(process) and process.cpu_times().user >= self._user_s_min
        except psutil.Error:
            return False

    def _kill(self, process: psutil.Process) -> None:
        try:
            process.kill()
            self.killed += 1
        except psutil.Error:
            return  # it ended by itself

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
