"""Figures of `bench.takeover`: which times count for a kill, and that the page's tables are where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.report import put_table
from bench.takeover_figures import first_after, judged, resumed, table_of

BEFORE = [(0.1, 0.2), (0.9, 1.1)]  # the second one was in flight at the kill


def test_a_commit_under_way_at_the_kill_is_not_the_next_one() -> None:
    """Its acknowledgement may have been in flight when the primary died."""
    assert first_after([*BEFORE, (1.2, 1.7), (1.8, 1.9)], 1.0) == 1.7
    with pytest.raises(ValueError):
        first_after(BEFORE, 1.0)


def test_reads_continue_after_the_last_refusal() -> None:
    """A lease lets a survivor answer for a while after the kill: that is not the end of the pause."""
    answered = [*BEFORE, (1.2, 1.21), (1.6, 1.61), (1.8, 1.81)]
    assert resumed(answered, [0.5, 1.3, 1.5], 1.0) == 1.61
    assert resumed(answered, [0.5], 1.0) == 1.0


def test_a_kill_reports_the_first_and_the_last_writer() -> None:
    """And of each survivor separately."""
    writers = [[*BEFORE, (1.2, 1.5)], [*BEFORE, (1.2, 1.75)]]
    kill = judged(1.0, writers, {2: ([(1.2, 1.25)], [1.1]), 3: ([(1.2, 1.25)], [])}, 1, 2)
    assert [kill.first_ms, kill.last_ms] == pytest.approx([500, 750])
    assert kill.reads_ms == {"2": pytest.approx(250), "3": 0.0}
    assert (kill.lost, kill.unknown) == (1, 2)


def test_tables_replace_those_of_the_last_run_and_nothing_else(tmp_path: Path) -> None:
    """Medians and maxima of all kills; reads of all survivors count alike."""
    kills = [judged(0.0, [[(0.1, end)]], {2: ([(0.1, 0.3)], [0.05])}, 1, 0).to_dict() for end in (0.5, 0.6, 0.9)]
    clients = {"one_us": 900.0, "many_per_second": 1_234.0}
    trip = {"one_us": 150.0, "own_us": None, "members_us": None, "many_per_second": None}
    settings: dict[str, Any] = {
        "threads": 16,
        "round_trips": {"one durable write": trip, "a group": {**trip, "own_us": 80.0, "members_us": 40.0}},
        "shared": {"one store": {**trip, "many_per_second": 90_000.0}},
        "takeovers": {"three": {"clients": clients, "kills": kills}},
    }
    table = table_of(settings)
    assert "| three nodes | 3 | 600 | 900 | 600 | 900 | 300 | 300 |" in table
    assert "3 were lost" in table
    assert "| a group | 150 | 80 | 40 | – |" in table
    assert "| one store | 150.0 | 90,000 |" in table
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table of bench.takeover -->\nold\n<!-- end of the table -->\nbehind\n", "utf-8")
    put_table(page, "bench.takeover", table, "figures.json")
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nbehind\n")
    assert "old" not in text and "figures.json" in text and table in text
