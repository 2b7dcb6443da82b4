"""The guide's tables of isolation say what the plays show."""

from __future__ import annotations

from pathlib import Path

from tests.isolation.levels import ALLOWED, ANOMALIES, LEVELS
from tests.isolation.remedies import REMEDIES

PAGE = Path(__file__).parents[2] / "docs" / "guide.md"
POSSIBLE = {True: "possible", False: "no"}
# The first words of each row of the table of remedies.
ROWS = {
    "`lock=": "locks",
    "one call that computes": "one change",
    "one call that reads": "one read",
    "`db.snapshot()`": "snapshot",
    "a row that stands for the rule": "rule",
}


def tables() -> list[list[list[str]]]:
    """The tables of the section, as lists of rows."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Isolation\n")
    found: list[list[list[str]]] = [[]]
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_guide_says_which_anomalies_each_level_allows() -> None:
    head, _, *rows = tables()[0]
    assert set(LEVELS) <= set(head[2:]) <= set(ALLOWED)
    said = {row[0].partition(",")[0]: dict(zip(head[2:], row[2:], strict=True)) for row in rows}
    assert said == {name: {level: POSSIBLE[name in ALLOWED[level]] for level in head[2:]} for name in ANOMALIES}


def test_guide_says_what_prevents_them() -> None:
    head, _, *rows = tables()[1]
    said = {
        name: dict(zip(head[1:], row[1:], strict=True))
        for row in rows
        for words, name in ROWS.items()
        if row[0].startswith(words)
    }
    assert said == REMEDIES and len(rows) == len(REMEDIES)
