"""Transactions in threads of their own, on a store for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.stage import LONG_MS, Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(LONG_MS)
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[Stage]:
    """Waits are never granted: a lock in the way is LockTimeout at once."""
    made = Stage(0)
    yield made
    made.close()
