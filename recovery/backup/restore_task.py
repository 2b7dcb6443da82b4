"""What travels between the processes of a restore: tasks and their reports, plain values, JSON and back (D11).

`tasks.py` carries tasks out, `planner.py` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

SPLIT = "split"
FRAGMENTS = "fragments"


@dataclass(frozen=True)
class RestoreTask:
    """One piece of a restore. `work`: segments to be split by fragment, or fragments to be written; JSON values."""

    kind: str
    number: int
    place: Any  # of the backups: a path or a URI; None if whoever runs it has its own
    path: str | None  # directory of the new store
    source: str  # UUID of the store that was backed up, in hexadecimal
    store: str  # of the new one
    incarnation: int
    lcp_id: int
    since: int  # epoch of the backup
    until: int  # the state is that at the end of this epoch
    work: list[Any] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    @property
    def identity(self) -> tuple[bytes, int]:
        """Of the new store, for sealed units."""
        return bytes.fromhex(self.store), self.incarnation

    def to_json(self) -> str:
        """As text. Raises: TypeError for a place that is neither a path nor a URI."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> RestoreTask:
        """What `to_json` made."""
        return RestoreTask(**json.loads(text))


@dataclass(frozen=True)
class TaskReport:
    """What a task has done. `made`: of a split sections, of fragments their data files."""

    number: int
    file: str = ""
    made: list[Any] = field(default_factory=list)
    schema: list[Any] = field(default_factory=list)  # (epoch, change) of schema records
    groups: int = 0
    operations: int = 0
    rows: int = 0
    size_bytes: int = 0  # read

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> TaskReport:
        """What `to_json` made."""
        return TaskReport(**json.loads(text))


# Carries out tasks, in any order and anywhere, and gives the report of each.
Runner = Callable[[list[RestoreTask]], Iterable[TaskReport]]
