"""Spark and the store: sessions, tables as DataFrames, bulk work on many cores (docs/spark.md).

`import tidemark.spark` needs no Spark; its calls do (`pip install 'tidemark[spark]'`), and say what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from engine.files import PosixFiles
from recovery.spark.failures import typed_errors
from recovery.spark.plan import newest_local_checkpoint, option_map
from recovery.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Pinned", "pinned", "read", "session", "typed_errors"]


class Pinned:
    """The newest local checkpoint of a store, kept until `close`, the end of the block, or the end of this process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        files = PosixFiles(path)
        try:
            self.directory = files.directory
            self.lcp_id, self.epoch, self._pin = newest_local_checkpoint(files)
        finally:
            files.close_all()

    @property
    def options(self) -> dict[str, str]:
        """What names it to `spark.read.format("tidemark").options(...)`, the path included."""
        return {"path": self.directory, "lcp": str(self.lcp_id)}

    def close(self) -> None:
        """Let it go: the next local checkpoints may remove it. Harmless twice."""
        self._pin.release()

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pinned(path: str | os.PathLike[str]) -> Pinned:
    """Keep the newest local checkpoint of a store, which another process may have open, for reads that take long or
    are repeated: the owner goes on making local checkpoints, but does not remove this one.

    Memory columns only. Raises: FileMissing (no store, or no local checkpoint yet), Unsupported where the file system
    has no locks.
    """
    return Pinned(path)


def read(
    spark: SparkSession,
    place: str | os.PathLike[str] | Pinned,
    table: str | None = None,
    options: Mapping[str, Any] = {},
) -> DataFrame:
    """A table as a DataFrame: of the newest backup in a place, or of a local checkpoint of a store.

    table: may be left out if there is one only. options: those of docs/spark.md, section 3.
    Raises: FileMissing, NoSuchTable, NoSuchColumn, SchemaInvalid, BackupDamaged, LcpDamaged, SnapshotTooOld.
    """
    chosen = {**(place.options if isinstance(place, Pinned) else {"path": os.fspath(place)}), **options}
    if table is not None:
        chosen["table"] = table
    with typed_errors():
        # Options first: with a schema at hand, Spark asks for nothing before the first action.
        return spark.read.format("tidemark").options(**option_map(chosen)).load()
