"""Programs by seed do on a store what they do in the model; `python -m tests.blackbox programs` runs more of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.blackbox import judge, programs
from tests.blackbox.minimise import fewest, minimised
from tests.shares import few

LENGTH = 150
SEEDS = range(few(20, 2_000))


def assert_right(seed: int, steps: list[Any], fault: judge.Fault | None) -> None:
    command = f"python -m tests.blackbox programs --seed {seed} --length {LENGTH} --steps 1"
    assert fault is None, f"step {fault.step}: {fault}\n{steps[fault.step]!r}\n{command}"


@pytest.mark.parametrize("seed", SEEDS)
def test_program_does_on_a_store_what_it_does_in_the_model(seed: int) -> None:
    steps, options = programs.make(seed, LENGTH)
    assert_right(seed, steps, judge.run(steps, options))


def test_programs_differ_by_seed_and_are_the_same_for_one() -> None:
    one, again, other = (repr(programs.make(seed, 40)) for seed in (1, 1, 2))
    assert one == again != other


def test_the_needed_steps_are_found_among_many() -> None:
    """Three steps of a hundred are needed, and two elements of a list in one of them."""
    calls = 0

    def run(steps: list[Any]) -> str | None:
        nonlocal calls
        calls += 1
        kinds = {step[0] for step in steps}
        inner = next((step[1] for step in steps if step[0] == "c"), [])
        return "broken" if kinds >= {"a", "b", "c"} and {3, 7} <= set(inner) else None

    steps: list[Any] = [("x", number) for number in range(100)]
    steps[11], steps[50], steps[99] = ("a",), ("b",), ("c", list(range(20)))
    kept = minimised(steps, "broken", run)
    assert [number for number, _ in kept] == [11, 50, 99] and kept[2][1] == ("c", [3, 7])
    assert calls < 300


def test_nothing_is_needed_where_everything_fails() -> None:
    assert fewest(list(range(50)), lambda some: True) == []
