"""The problems and notes of a verification, limited to a readable number of lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Damaged, Incompatible, IoFailed

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

PROBLEMS_MAX = 100


@dataclass(kw_only=True)
class Findings:
    """Part of every report of a verification."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Add a problem; past a hundred, add one line "and more" and drop the rest."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        elif len(self.problems) == PROBLEMS_MAX:
            self.problems.append("and more")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, the verdict first."""
        return {"is_sound": not self.problems, **asdict(self)}

    @contextmanager
    def noting(self, files: Files) -> Iterator[None]:
        """Within the block, make damage, and what cannot be read, a problem. Raises: StoreFailed if the disk fails."""
        try:
            yield
        except (Damaged, Incompatible, IoFailed) as error:
            if files.failure.first is not None:
                raise
            self.add(error.message)


@dataclass
class CheckReport(Findings):
    """Counts of a verification, and the problems found; `notes` are no damage, or damage the next opening repairs."""

    files: int = 0
    bytes: int = 0
    groups: int = 0
    pages: int = 0
    rows: int = 0
    seconds: float = 0.0
