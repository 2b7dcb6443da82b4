"""SIGKILL of processes that work for others, at random moments."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import psutil

ORPHANS_TIMEOUT_S = 60
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def is_spark_task(process: psutil.Process) -> bool:
    """Whether it is a Python process of Spark's tasks: forked from the daemon of tasks. Planners and committers have
    daemons of their own, which are not restarted.
    """
    command = process.cmdline()
    parent = process.parent()
    return command[-1:] == ["pyspark.worker"] and parent is not None and parent.cmdline() == command


def is_executor(process: psutil.Process) -> bool:
    """Whether it is the Java process of an executor (`local[…]` has none) that has had a task."""
    return EXECUTOR in process.cmdline() and bool(process.children())


def is_restore_worker(process: psutil.Process) -> bool:
    """Whether it is a worker process of a restore."""
    return any("tidemark.recovery.backup.workers" in each for each in process.cmdline())


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
        self.held = 0  # Python processes of tasks that outlived their executor

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


class ExecutorKiller(Killer):
    """Kills Java processes of executors. The Python processes of their tasks do not die with Java: their daemon ends
    them when it finds its input closed. Half the time they are stopped before, and continue when other processes are
    doing their work already, or have done it. They are then stragglers, like those of an executor that is cut off from
    the network.
    """

    def __init__(self, most: int, rng: random.Random, wait_s_max: float) -> None:
        super().__init__(most, is_executor, rng, wait_s_max)
        self._orphans: list[psutil.Process] = []
        self._held: list[psutil.Process] = []

    def _kill(self, process: psutil.Process) -> None:
        try:
            below = process.children(recursive=True)  # the daemon first
        except psutil.Error:
            return
        if self._rng.random() < 0.5:
            self._resume()
            self._held = [each for each in below if _signalled(each.suspend)]
            self.held += max(0, len(self._held) - 1)
        super()._kill(process)
        self._orphans += below

    def _resume(self) -> None:
        """Workers continue; their daemon, which ends them, a drawn moment later."""
        wait_s = self._rng.choice((0.0, 0.02, 0.3))
        for each in self._held[1:]:
            _signalled(each.resume)
        self._over.wait(wait_s) if not self._over.is_set() else threading.Event().wait(wait_s)
        for each in self._held[:1]:
            _signalled(each.resume)
        self._held = []

    def __exit__(self, *_: object) -> None:
        """After it, none of the processes of killed executors is left."""
        super().__exit__()
        self._resume()
        alive = psutil.wait_procs(self._orphans, ORPHANS_TIMEOUT_S)[1]
        for each in alive:
            _signalled(each.kill)
        assert not alive, f"{[each.cmdline() for each in alive if each.is_running()]} outlived their executors"


def _signalled(signal: Callable[[], object]) -> bool:
    """Send a signal to a process that may have ended."""
    try:
        signal()
    except psutil.Error:
        return False
    return True
