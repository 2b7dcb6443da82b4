"""What the search of the site finds first, judged by headings and weights: the search itself runs in a browser.

A heading counts a thousand times as much as text there, and a page's weight (`docs/site/hooks.py`, `BOOSTS`) multiplies
both.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from tests.documents.test_docstrings import assigned

DOCS = Path(__file__).parents[2] / "docs"
BOOSTS: dict[str, float] = ast.literal_eval(assigned("BOOSTS"))
# What a newcomer types, and the pages that answer it: one of them is first.
SEARCHES = {
    "install": ("start/install.md",),
    "group by": ("expected.md",),
    "join": ("expected.md",),
    "foreign key": ("expected.md",),
    "TTL": ("expected.md",),
    "read only": ("expected.md",),
    "backup": ("backup.md",),
    "async": ("expected.md", "guide.md"),
    "decimal": ("expected.md",),
    "compatibility": ("compatibility.md",),
    "docker": ("guide.md",),
    "pandas": ("guide.md",),
    "getting started": ("start/README.md",),
    "unique": ("expected.md",),
    "sql": ("expected.md",),
    "sqlite": ("migration.md",),
    "restore": ("backup.md",),
}
STOP_WORDS = {"by", "only"}


def boost(page: str) -> float:
    """The weight of a page, as the hook gives it."""
    return next((weight for start, weight in BOOSTS.items() if page.startswith(start)), 1.0)


def score(page: str, words: list[str]) -> float:
    """The weight of a page times the best share of these words in one of its headings."""
    prose = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    best = 0.0
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        found = re.findall(r"\w+", heading.lower())
        hits = sum(any(each.startswith(word) for each in found) for word in words)
        best = max(best, hits / len(found) if found else 0.0)
    return best * boost(page)


@pytest.mark.parametrize("search", SEARCHES)
def test_search_finds_the_page_that_answers_it_first(search: str) -> None:
    """Story: "install" led to a record of a decision, "join" to node groups, and "TTL" to nothing."""
    words = [word.lower() for word in search.split() if word not in STOP_WORDS]
    pages = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
    first = max(pages, key=lambda page: score(page, words))
    assert first in SEARCHES[search]


def test_weights_are_of_pages_that_exist() -> None:
    assert [start for start in BOOSTS if not (DOCS / start).exists()] == []


def test_the_reference_has_each_public_name_once() -> None:
    """Story: three defaults came, the reference had a paragraph on them, and `make docs` failed for days: the hook that
    counts names runs only where the tools of the site are.
    """
    directives: list[str] = []
    for page in (DOCS / "reference").glob("*.md"):
        directives += re.findall(r"^#* ?::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for module in ast.literal_eval(assigned("COMPLETE")):
        names = [f"{module}.{name}" for name in importlib.import_module(module).__all__]
        assert {name: directives.count(name) for name in names if directives.count(name) != 1} == {}


def test_the_search_works_from_files_and_loads_nothing_from_elsewhere() -> None:
    """Story: opened as a file the search waited for ever. Browsers start no Worker from files, and the plugin for that
    takes its stand-in from another host, unless one is named.
    """
    settings = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    (named,) = re.findall(r"^ +- (site/iframe-worker\.js)\b", settings, re.MULTILINE)
    assert re.search(r"^  - offline\b", settings, re.MULTILINE) and (DOCS / named).exists()
