"""What a verification says is wrong, and what is worth a note; so many lines of it as a person can read."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBLEMS_MAX = 100


@dataclass(kw_only=True)
class Findings:
    """Part of every report of a verification."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """One more problem; behind a hundred that there are more."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        elif len(self.problems) == PROBLEMS_MAX:
            self.problems.append("and more")
