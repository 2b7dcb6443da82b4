"""A thread of the stress program: it runs steps until the program is over; an error that ends it ends all threads."""

from __future__ import annotations

import abc
import random
import threading

from tidemark.engine.base.errors import Error
from tidemark.recovery.crash_harness.program import PowerOff, Violation


class Worker(threading.Thread, abc.ABC):
    """A thread that does `step` again and again."""

    pause_seconds = 0.0

    def __init__(self, name: str, seed: int, is_over: threading.Event) -> None:
        super().__init__(name=name)
        self.rng = random.Random(f"{seed} {name}")
        self.is_over = is_over
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.step()
                self.pause()
        except (Error, Violation, PowerOff) as error:
            self.failed = error
        except BaseException as error:
            self.failed = error  # nothing else may come out of a store
            raise
        finally:
            self.is_over.set()

    def pause(self) -> None:
        """Between two steps."""
        self.is_over.wait(self.pause_seconds)

    @abc.abstractmethod
    def step(self) -> None:
        """One thing this thread does."""
