"""Every change of a table that the ingest follows, at both servers, and ingests that are killed within them. Skipped
without the servers.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import tidemark as tm
from tests.ingest.killed_changes import Change, changes_of, kill_within
from tests.ingest.rig import AnySource, assert_same, take_in
from tests.seeds import fresh_seeds
from tests.shares import few, some

_TABLE = re.compile(r"\bd\.t\b")


def test_every_change_is_followed(server_name: str, either_source: AnySource, db: tm.Database) -> None:
    either_source.reset("d")
    changes = list(enumerate(changes_of(server_name)))

    def run(texts: list[tuple[int, str]]) -> None:
        either_source.sql("\n".join(_TABLE.sub(f"d.t{number}", text) + ";" for number, text in texts))
        take_in(db, either_source)

    run([(number, change.before) for number, change in changes])
    run([(number, f"{change.change}; {change.after}") for number, change in changes])
    for number, change in changes:
        assert db[f"d.t{number}"].count() > 1, change.name
        assert_same(db, either_source, f"d.t{number}")


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_ingest_killed_within_a_change_ends_equal(
    server_name: str, either_source: AnySource, tmp_path: Path, seed: int
) -> None:
    """`python -m tests.ingest.killed_changes` has more kills, of every change."""
    draw = random.Random(seed)
    changes: list[Change] = some(draw.sample(changes_of(server_name), len(changes_of(server_name))), 0.08)
    for number, change in enumerate(changes):
        print(f"{change.name}, seed {seed}")
        assert kill_within(either_source, change, tmp_path / str(number), few(2, 10), draw) == few(2, 10)
