"""Found by Spark through its name: makes `format("tidemark")` known in every session without a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.recovery.spark.source import TidemarkSource

if TYPE_CHECKING:
    from tidemark.recovery.spark.changes import Opener

__all__ = ["DefaultSource"]


def _open_changes() -> Opener:
    # Imported here: Spark imports this module in every session, only to learn that the source exists.
    from tidemark.replication.injector.change_files import ChangeFiles

    return ChangeFiles


class DefaultSource(TidemarkSource):
    """The data source with the reader of binlogs, which `recovery` may not import."""

    opener = staticmethod(_open_changes)
