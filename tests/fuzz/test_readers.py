"""Every reader of bytes from outside returns or refuses, whatever the bytes are.

Each refusal that a reader was written for occurs here. Inputs that once broke a reader no longer do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.__main__ import reported
from tests.fuzz.harness import ACCEPTED, CORPUS, Report, kept
from tests.fuzz.keeper import Keeper
from tests.fuzz.readers import readers
from tests.shares import few

SEED = 20_261_124
# For a reader with inputs of cost one.
INPUTS = few(5_000, 2_000_000)
READERS = readers()
KEPT = [(name, title) for name in READERS for title in kept(name)]
STORED_BYTES_MAX = 2_048


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    with Keeper() as keeper:
        yield keeper


@pytest.mark.parametrize("name", READERS)
def test_reader_survives_any_input_and_its_content_is_reached(keeper: Keeper, name: str) -> None:
    print("seed", SEED)
    reader = READERS[name]
    report = keeper.run(name, SEED, max(1, INPUTS // reader.cost))
    assert isinstance(report, Report) and not report.findings, "\n".join(reported(report, 0))
    assert report.missing(reader.reached) == [], "\n".join(reported(report, 40))


@pytest.mark.parametrize(("name", "title"), KEPT)
def test_input_that_was_too_much_once_is_none_now(keeper: Keeper, name: str, title: str) -> None:
    """The story of each is the first line of its file."""
    story, data = kept(name)[title]
    label, where, _ = keeper.judged(name, data)
    assert not where, f"{story}\nnow: {label} ({where})"
    assert label == ACCEPTED or label.partition(":")[0].isidentifier()


def test_every_file_of_the_corpus_is_of_a_reader_has_a_story_and_is_small() -> None:
    files = {path for path in CORPUS.rglob("*") if path.is_file()}
    stories = [kept(name)[title][0] for name, title in KEPT]
    assert len(files) == len(KEPT) and all(len(story) > 20 and story.endswith(".") for story in stories)
    assert all(path.stat().st_size <= STORED_BYTES_MAX for path in files)
