"""The servers of these tests, and an empty store for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark as tm
from tests.ingest.rig import OPTIONS, SOURCES, AnySource, Source, running_source


@pytest.fixture(scope="session")
def server() -> Iterator[Source]:
    with running_source() as running:
        yield running


@pytest.fixture
def source(server: Source) -> Source:
    server.reset("d", "e")
    return server


@pytest.fixture(scope="module", params=sorted(SOURCES))
def server_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def either_source(server_name: str) -> Iterator[AnySource]:
    """A server of each kind."""
    with SOURCES[server_name]() as running:
        yield running


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "s", **OPTIONS) as opened:
        assert isinstance(opened, tm.Database)
        yield opened
