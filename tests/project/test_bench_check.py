"""What `make bench-check` says of two lists of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.check import compare, last_kept, medians
from bench.report import OURS


def run(ours: float, peer: float) -> dict[str, dict[str, float]]:
    return {"get": {OURS: ours, "SQLite": peer}, "transaction": {OURS: 2 * ours}}


def test_medians_are_of_each_figure() -> None:
    found = medians([run(1.0, 5.0), run(9.0, 6.0), run(2.0, 7.0)])
    assert found == {"get": {OURS: 2.0, "SQLite": 6.0}, "transaction": {OURS: 4.0}}


def test_a_call_that_takes_longer_is_slower_unless_its_peers_do_too() -> None:
    for ours, peer, is_slower in [(1.0, 5.0, False), (1.3, 5.0, True), (1.3, 6.5, False), (0.5, 2.0, False)]:
        found = compare([run(1.0, 5.0)] * 3, [run(ours, peer)] * 3)
        assert [each.is_slower for each in found] == [is_slower] * 2, (ours, peer)


def test_a_faster_machine_hides_no_slower_call() -> None:
    (get, _) = compare([run(1.0, 5.0)], [run(1.3, 2.5)])
    assert get.is_slower and get.noise == 0.5


def test_calls_of_one_side_alone_are_left_out() -> None:
    found = compare([{**run(1.0, 5.0), "old": {OURS: 1.0}}], [{**run(1.0, 5.0), "new": {OURS: 1.0}}])
    assert [each.what for each in found] == ["get", "transaction"]


def test_the_newest_figures_say_what_was_before(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="--against"):
        last_kept(tmp_path)
    for date, commit in (("2026-11-29", "abc+"), ("2026-11-28", "def")):
        (tmp_path / f"{date}-x-ordinary.json").write_text(f'{{"commit": "{commit}"}}')
    assert last_kept(tmp_path) == "abc"
