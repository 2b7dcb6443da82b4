"""The check that this program reads the format of a unit."""

from __future__ import annotations

from tidemark.engine.base.errors import VersionTooNew, VersionTooOld
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, FORMAT_VERSION_OLDEST, Words


def check_version(words: Words, name: str) -> None:
    """Check that this program reads the format of an intact unit. Raises: VersionTooNew, VersionTooOld."""
    check_format(int(words[1]) >> 16 & 0xFFFF, name)


def check_format(version: int, name: str) -> None:
    """Check that this program reads format `version`. Raises: VersionTooNew, VersionTooOld."""
    if version > FORMAT_VERSION:
        raise VersionTooNew(
            f"{name} has format {version}, this program reads up to {FORMAT_VERSION}; use a newer Tidemark",
            file=name,
            found=version,
            supported=FORMAT_VERSION,
        )
    if version < FORMAT_VERSION_OLDEST:
        raise VersionTooOld(
            f"{name} has format {version}, this program reads from {FORMAT_VERSION_OLDEST}; open it once with a release"
            " of Tidemark that reads both",
            file=name,
            found=version,
            supported=FORMAT_VERSION_OLDEST,
        )
