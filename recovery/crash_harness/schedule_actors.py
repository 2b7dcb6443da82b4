"""The threads that take part in a scheduled life beside the writers and the changer of the stress program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import NoPartition, NoSuchIndex, NoSuchTable, Retryable
from recovery.crash_harness.program import Violation
from recovery.crash_harness.stress import Keeper, Reader, Stress
from recovery.crash_harness.stress_rows import MAIN, UNIQUE_KEYS, is_whole
from recovery.crash_harness.stress_threads import Worker

# What a reader may be told of what another thread has dropped.
GONE = (NoSuchIndex, NoSuchTable, NoPartition, Retryable)


class Actor(Worker):
    """A thread beside the program; `counts` is told how often it did what it does."""

    name_of = "actor"

    def __init__(self, stress: Stress) -> None:
        super().__init__(self.name_of, stress.seed, stress.is_over)
        self.stress = stress
        self.db = stress.db

    def whole(self, row: Any, how: str) -> None:
        """Raises: Violation if a row is not what its stamps say."""
        if not is_whole(row):
            raise Violation(f"{self.name}: row {row.id} is not what its stamps say ({how})")


class Scanner(Reader):
    """A second reader of the same kind."""

    def __init__(self, stress: Stress) -> None:
        super().__init__(stress)
        self.name = "scanner"
        self.rng.seed(f"{stress.seed} scanner")

    pause_seconds = 0.0


ACTORS: dict[str, Callable[[Stress], Worker]] = {
    "reader": Reader,
    "scanner": Scanner,
    "keeper": Keeper,
}
ALL = frozenset({*ACTORS, "background"})


def others(stress: Stress, wanted: frozenset[str], counts: dict[str, int]) -> Sequence[Worker]:
    """The threads of these names."""
    return [make(stress) for name, make in ACTORS.items() if name in wanted]
