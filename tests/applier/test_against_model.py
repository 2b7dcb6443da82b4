"""Every conflict function gives the same result on real stores as in the reference model, for any size of batches."""

from __future__ import annotations

import random

import pytest

from tests.applier.stage import FUNCTIONS, Pair, cases, play
from tidemark.replication.applier.applier import ApplierOptions

SEED = 20_261_121
HISTORIES = {"whole": 2, "single": 1, "small": 1}
STEPS = 50
BATCHES = {
    "whole": ApplierOptions(),
    "single": ApplierOptions(allow_batching=False),
    "small": ApplierOptions(batch_bytes=40),
}


@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize(("function", "on_both", "roles", "types"), FUNCTIONS, ids=lambda each: str(each))
def test_random_histories_end_as_the_model(
    function: str | None, on_both: bool, roles: bool, types: tuple[int, ...], batches: str
) -> None:
    r = random.Random(f"{SEED} {function}")
    conflicts = 0
    for _ in range(HISTORIES[batches]):
        binlog_type, seed = r.choice(types), r.randrange(1 << 32)
        print("seed", seed, "binlog_type", binlog_type)
        pair = Pair(cases(function, on_both, roles, binlog_type), BATCHES[batches])
        conflicts += play(pair, seed, STEPS)
    assert conflicts > 0 or function is None or batches != "whole", "the histories meet no conflict"
