"""The history of a store, made once for each storage and module."""

from __future__ import annotations

import pytest

from tests.recovery.support import History, make_history


@pytest.fixture(scope="module")
def history(storage: str) -> History:
    return make_history()
