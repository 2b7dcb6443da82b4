"""Both disks for the tests that every implementation must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.layer import CheckedFiles
from tidemark.recovery.crash_harness.disks import MemoryFiles


@pytest.fixture(params=["posix", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckedFiles]:
    """An empty store directory, on a real disk and in memory."""
    made: CheckedFiles = PosixFiles(tmp_path) if request.param == "posix" else MemoryFiles()
    yield made
    made.close_all()
