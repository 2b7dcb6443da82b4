"""The soak's own counting; the turns are tested where their programs are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from tests.soak.__main__ import counts_in, main, soak, table
from tests.soak.turns import HARNESS, TURNS, Turn
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.crash_harness.__main__ import command_line
from tidemark.recovery.crash_harness.program import resolve


@pytest.mark.parametrize(
    "said",
    [
        json.dumps({"kills": 3, "second_kills": 9, "points": 40}),
        "lives 5, kills 3, points 40, seconds 7.5",
        "seeds 1:2: 3 kills, 40 points",
        '{"kills": 1, "points": 15}\n{"kills": 2, "points": 25}',
    ],
)
def test_numbers_are_found_before_and_after_their_names(said: str) -> None:
    assert counts_in(said, ("kills", "points")) == {"kills": 3, "points": 40}


def counting(name: str) -> Turn:
    return Turn(name, lambda seed: (name, str(seed)), ("kills",))


def run_all(minutes: float, seed: int = 7, broken: str = "") -> tuple[dict[str, Any], list[tuple[str, str]], list[str]]:
    """Run a soak of three turns of a minute each; return also their seeds."""
    clock, said, ran = ManualClock(), [], []

    def run(arguments: Sequence[str]) -> tuple[int, str]:
        name, own = arguments
        ran.append((name, own))
        clock.advance(60)
        return int(name == broken), "kills 2"

    rows = soak([counting(name) for name in "abc"], minutes, seed, said.append, run, clock)
    return rows, ran, said


def test_turns_follow_each_other_and_each_round_has_the_next_seed() -> None:
    rows, ran, _ = run_all(7)
    names = [name for name, _ in ran]
    assert len(ran) == 7 and names[:3] == names[3:6] and set(names[:3]) == set("abc")
    assert [int(own) for _, own in ran] == [7, 7, 7, 8, 8, 8, 9]
    assert sum(row.counts["kills"] for row in rows.values()) == 14


def test_no_turn_begins_when_the_time_is_over_and_the_table_says_what_had_none() -> None:
    rows, ran, _ = run_all(0.5)
    shown = table(rows)
    assert len(ran) == 1 and f"| {ran[0][0]} | 7 | 1 | 0 | 60 | kills 2 |" in shown
    assert shown.endswith("No turn in this time: " + ", ".join(sorted({*"abc"} - {ran[0][0]})) + ".")


def test_broken_turn_is_reported_with_its_command_and_counted() -> None:
    rows, _, said = run_all(3, broken="b")
    assert [row.broken for row in rows.values()] == [0, 1, 0]
    assert "BROKEN, exit code 1: python b 7\nkills 2" in said


def test_wrong_usage_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no such turn"])
    assert "no turn has no such turn in its name" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [turn.name for turn in TURNS]


@pytest.mark.parametrize(
    "turn", [turn for turn in TURNS if turn.name != "tests marked soak"], ids=lambda turn: turn.name
)
def test_turn_names_what_is_there(turn: Turn) -> None:
    dash, module, *rest = turn.arguments(3)
    assert dash == "-m" and find_spec(module) is not None and turn.counted
    if module == HARNESS:
        asked = command_line().parse_args(rest)
        for program in (getattr(asked, "work", None), getattr(asked, "verify", None)):
            assert program is None or callable(resolve(program))
