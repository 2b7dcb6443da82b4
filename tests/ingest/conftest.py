"""The one server of these tests, and an empty store for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark as tm
from tests.ingest.rig import OPTIONS, Source, running_source


@pytest.fixture(scope="session")
def server() -> Iterator[Source]:
    with running_source() as running:
        yield running


@pytest.fixture
def source(server: Source) -> Source:
    server.reset("d", "e")
    return server


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "s", **OPTIONS) as opened:
        assert isinstance(opened, tm.Database)
        yield opened
