"""Tasks of a restore and their reports, passed between processes: plain values, JSON and back (D11).

`tasks.py` carries tasks out, `planner.py` creates them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tidemark.engine.schema.definition import TableDefinition

SPLIT = "split"
FRAGMENTS = "fragments"


def read_definition(value: Any) -> TableDefinition:
    """Return a definition that is a part of JSON. Raises: SchemaInvalid."""
    return TableDefinition.from_json(json.dumps(value).encode())


@dataclass(frozen=True)
class _Text:
    """A task or a report as text."""

    def to_json(self) -> str:
        """Return it as text. Raises: TypeError for a place that is neither a path nor a URI."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class RestoreTask(_Text):
    """One piece of a restore. `work`: segments to split by fragment, or fragments to write; JSON values."""

    kind: str
    number: int
    place: Any  # of the backups: a path or a URI; None if the executing process has its own
    path: str | None  # directory of the new store
    source: str  # UUID of the store that was backed up, in hexadecimal
    store: str  # UUID of the new store
    incarnation: int
    lcp_id: int
    since: int  # epoch of the backup
    until: int  # the restored state is that at the end of this epoch
    work: list[Any] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    tables: list[Any] = field(default_factory=list)  # definitions of the fragments' tables, as they were backed up

    def definition(self, table_id: int) -> TableDefinition:
        """Return the definition of a table, as it was backed up. Raises: LookupError."""
        return next(made for each in self.tables if (made := read_definition(each)).table_id == table_id)

    @property
    def identity(self) -> tuple[bytes, int]:
        """The identity of the new store, for sealed units."""
        return bytes.fromhex(self.store), self.incarnation


@dataclass(frozen=True)
class TaskReport(_Text):
    """Result of a task. `made`: sections of a split, or data files of fragments."""

    number: int
    file: str = ""
    made: list[Any] = field(default_factory=list)
    schema: list[Any] = field(default_factory=list)  # (epoch, change) of schema records
    groups: int = 0
    operations: int = 0
    rows: int = 0
    size_bytes: int = 0  # read


# Carries out tasks, in any order and anywhere, and returns the report of each.
Runner = Callable[[list[RestoreTask]], Iterable[TaskReport]]
