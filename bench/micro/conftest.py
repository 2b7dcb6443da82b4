"""One store of 100,000 rows for all micro-benchmarks; no threads of its own, so that nothing else runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from bench.rows import COLUMNS, make_table

ROWS = 100_000


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tm.Database]:
    """The open store; its table is main.t."""
    folder = tmp_path_factory.mktemp("micro")
    with tm.open(folder, data_memory="256 MiB", redo_log="256 MiB", durability="epoch", background=False) as db:
        db.create_table("t", COLUMNS, "id").insert_many(make_table(0, ROWS))
        db.sync()
        yield db


@pytest.fixture
def table(database: tm.Database) -> Any:
    """Handle of the table."""
    return database["t"]
