"""The fault catalogue is complete: each of its entries says what covers it, and none is postponed.

Story: two dozen entries said that their tests come later, long after the rooms were built; some had tests by then that
no entry named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.recovery.crash_harness.places import FAULTS

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"### (F\d+) [^\n]+\n\n(.*?)\n?Tests:\n\n(.*?)\n?Tools: ([^\n]*)\.\s*", re.DOTALL)
COUNT = 120
# Enumerations that count the places they reached: an entry that names one is among the faults whose places it asserts.
COUNTED = "test_power_loss_before_any_change_keeps_acknowledged_transactions_whole"


def entries(text: str) -> list[tuple[str, str, str, str]]:
    """(entry, outcome, tests, tools) of each section that is one of a fault."""
    found = (ENTRY.fullmatch(section) for section in re.split(r"^(?=##)", text, flags=re.MULTILINE))
    return [(each[1], each[2].strip(), each[3], each[4]) for each in found if each]


def tools(text: str) -> set[str]:
    """The tools the catalogue explains."""
    explained = text.partition("\n## Tools\n")[2].partition("\n## ")[0]
    return {name for names in re.findall(r"^- \*\*(.+?)\*\*: ", explained, re.MULTILINE) for name in names.split(", ")}


def faults_of(text: str) -> Iterator[str]:
    """What is wrong with a catalogue."""
    found = entries(text)
    numbers = [entry for entry, _, _, _ in found]
    expected = [f"F{number:02}" for number in range(1, COUNT + 1)]
    if numbers != expected:
        yield f"entries are not F01 to F{COUNT}, each once: {sorted(set(numbers) ^ set(expected))}"
    known = tools(text)
    for entry, outcome, tests, worked_with in found:
        if not outcome:
            yield f"{entry} has no outcome"
        names = re.findall(r"`test_\w+`", tests)
        if not names:
            yield f"{entry} has no test"
        if re.search(r"\blater\b", tests):
            yield f"{entry} puts its tests off"
        unknown = {each for each in worked_with.split(", ") if each} - known
        if unknown or not worked_with:
            yield f"{entry} has the tools {worked_with!r}"
        if f"`{COUNTED}`" in tests and entry not in FAULTS:
            yield f"{entry} names {COUNTED}, which does not say that it was there"


def test_each_entry_has_a_test_and_its_tools_and_none_is_put_off() -> None:
    assert list(faults_of(CATALOGUE)) == []


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("### F60 ", "### F59 ", "entries are not"),
        ("### F60 ", "### ", "entries are not"),
        (r"### F60 [\s\S]*?(?=### F61 )", "", "entries are not"),
        (r"(?s)(### F60 [^\n]*\n\n).*?\n\n(Tests:)", r"\1\2", "F60 has no outcome"),
        (r"(?s)(### F60 .*?)- `test_\w+`\n", r"\1", "F60 has no test"),
        (r"(?s)(### F60 .*?- `test_\w+`)\n", r"\1 (files; later: links)\n", "F60 puts its tests off"),
        (r"(?s)(### F60 .*?\nTools: )damage\.", r"\1hope.", "F60 has the tools 'hope'"),
        (r"(?s)(### F60 .*?\n)Tools: damage\.\n", r"\1", "entries are not"),
        (r"(?s)(### F60 .*?- )`test_\w+`\n", rf"\1`{COUNTED}`\n", "F60 names"),
    ],
)
def test_catalogue_with_a_gap_is_seen(before: str, after: str, what: str) -> None:
    changed = CATALOGUE.replace(before, after) if "\\" not in before else re.sub(before, after, CATALOGUE)
    assert changed != CATALOGUE
    assert any(what in line for line in faults_of(changed)), list(faults_of(changed))
