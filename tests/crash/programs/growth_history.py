"""The built-in program over a log that grows: as `history`, with long rows, so that its first lap makes several files.

`small_files` must be entered around a run and around every restart of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.crash.programs.history import History, Row, program
from tidemark.engine.log import geometry

FILE_BYTES = 64 << 10
START_FILES = 3  # a log keeps 64 KiB private
NOTE_BYTES = (3_000, 7_500)
STEPS = 12


@contextmanager
def small_files() -> Iterator[None]:
    """Make new logs of many small files, and begin them with a few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "FILE_BYTES_PREFERRED", FILE_BYTES)
        patch.setattr(geometry, "START_BYTES", START_FILES * FILE_BYTES)
        yield


class GrowthHistory(History):
    """A run of the program."""

    def row(self, key: int) -> Row:
        """A row with a long note."""
        row = super().row(key)
        return (*row[:3], "n" * self.rng.randrange(*NOTE_BYTES), *row[4:])


# The program, for crash states.
work = program(GrowthHistory, STEPS)
