"""The faces of a store, each opened once for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.isolation.faces import FACES, threads
from tests.isolation.stage import Face


@pytest.fixture(scope="module", params=FACES)
def face(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    with FACES[request.param](tmp_path_factory.mktemp("face")) as made:
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """Threads of one store."""
    with threads(tmp_path_factory.mktemp("here")) as made:
        yield made
