"""As `test_programs`, with seeds that no earlier run had."""

from __future__ import annotations

import pytest

from tests.blackbox import judge, programs
from tests.blackbox.test_programs import LENGTH, assert_right
from tests.seeds import fresh_seeds
from tests.shares import few


@pytest.mark.parametrize("seed", fresh_seeds(few(20, 400)))
def test_program_of_a_new_seed_does_on_a_store_what_it_does_in_the_model(seed: int) -> None:
    steps, options = programs.make(seed, LENGTH)
    assert_right(seed, steps, judge.run(steps, options))
