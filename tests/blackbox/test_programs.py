"""Programs by seed do on a store what they do in the model; `python -m tests.blackbox programs` runs more of them."""

from __future__ import annotations

import pytest

from tests.blackbox import judge, programs
from tests.seeds import fresh_seeds
from tests.shares import few

LENGTH = 150
FIXED = few(20, 2_000)
FRESH = few(20, 200)


@pytest.mark.parametrize("seed", [*range(FIXED), *fresh_seeds(FRESH)])
def test_program_does_on_a_store_what_it_does_in_the_model(seed: int) -> None:
    steps, options = programs.make(seed, LENGTH)
    fault = judge.run(steps, options)
    command = f"python -m tests.blackbox programs --seed {seed} --length {LENGTH} --steps 1"
    assert fault is None, f"step {fault.step}: {fault}\n{steps[fault.step]!r}\n{command}"
