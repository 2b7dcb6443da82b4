"""One store, made once; each test gets a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.support import make_store


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("cli") / "store")


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))
