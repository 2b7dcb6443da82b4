"""Which descriptors of this process lead below a folder.

Those of earlier tests are closed when the collector runs, so a test that counts all descriptors would fail for those of
others.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def descriptors_below(folder: Path) -> list[str]:
    """The paths they lead to, sorted; a path as often as it is open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself, or closed by the collector
            path = os.readlink(f"/proc/self/fd/{number}")
            if path.removesuffix(" (deleted)").startswith(str(folder)):
                found.append(path)
    return sorted(found)
