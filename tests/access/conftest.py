"""A store in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidemark as tm
from tests.store.support import open_memory


@pytest.fixture
def db() -> Iterator[tm.Database]:
    room = {"data_memory": "64 MiB", "redo_log": "32 MiB", "undo_log": "16 MiB", "transaction_memory": "16 MiB"}
    found = open_memory(page_buffer="1 MiB", **room)
    yield found
    found.close()
