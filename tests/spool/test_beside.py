"""Transactions that spool give the same answers as transactions that do not, call by call, and the same rows
afterwards.
"""

from __future__ import annotations

import random

import pytest

from tests import shares
from tests.spool.beside import Beside

KINDS = [(kind, is_indexed) for kind in ("fixed", "var", "disk") for is_indexed in (False, True)]
KINDS.append(("unique", True))


@pytest.mark.parametrize(("kind", "is_indexed"), KINDS, ids=lambda value: str(value))
def test_random_transactions_that_spool_answer_as_those_that_do_not(kind: str, is_indexed: bool) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    both = Beside(seed, kind, is_indexed)
    spooled, number, least = 0, 0, shares.few(3, 9)
    while number < least or spooled < 2:  # what so many of a seed write may be refused for the most part
        assert number < 60, "transactions do not spool"
        spooled += both.transact(both.rng.choice([5, 40, 90]))
        both.verify()
        if number % 4 == 1:
            both.spooling.checkpoint(lambda *_: spooled_beside(both))
        if number % 3 == 2:
            both.crash()
            both.verify_whole()
        number += 1
    both.crash()
    both.verify_whole()


def spooled_beside(both: Beside) -> None:
    """A transaction while a local checkpoint scans."""
    if both.rng.random() < 0.5:
        both.transact(60)
