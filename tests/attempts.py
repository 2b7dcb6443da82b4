"""Transactions of a test that may be tried again, counted: a storm of retries is a failure, not a delay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

RETRIES = 50


class Attempts:
    """Counts how often the transactions of a test were begun, in any thread."""

    def __init__(self, per_transaction: float) -> None:
        """per_transaction: attempts that one transaction may take, on average."""
        self.per_transaction = per_transaction
        self._wanted, self._made = itertools.count(), itertools.count()

    def run(self, db: Any, work: Callable[[Any], Any]) -> Any:
        """Run one transaction as `Database.run` does."""
        next(self._wanted)

        def attempt(txn: Any) -> Any:
            next(self._made)
            return work(txn)

        return db.run(attempt, retries=RETRIES)

    def check(self) -> None:
        """Call once, after the last transaction. Raises: AssertionError if there were too many attempts."""
        wanted, made = next(self._wanted), next(self._made)
        print(f"{made} attempts at {wanted} transactions")
        assert made <= self.per_transaction * wanted, f"{made} attempts at {wanted} transactions"
