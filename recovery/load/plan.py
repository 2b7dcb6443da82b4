"""Planning a load: reads what tasks need out of an open store. The store does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.log.load_files import FOLDER
from tidemark.recovery.backup.storage import open_place
from tidemark.recovery.load.commit import begin
from tidemark.recovery.load.directory import Directory, own_directory
from tidemark.recovery.load.job import JOB_BITS, LoadJob

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.table.table import Table


def plan_load(
    table: Table, identity: tuple[bytes, int], files: Files, root: str | None, directory: str | None = None
) -> LoadJob:
    """Return a load into a table, its directory ready for tasks. Durable on return: the permission for tasks to write.

    identity: store UUID and incarnation. files, root: of the store, and the path by which other processes know it.
    directory: a path or URI that all tasks can reach; None: the store's own folder. Raises: StorageFull, IoFailed,
    Rejected for a bad URI.
    """
    number = int.from_bytes(SystemClock().random_bytes(8), "little") & (1 << JOB_BITS) - 1
    definition = table.newest.definition.to_json()
    if directory is None:
        job = LoadJob(number, *identity, definition, f"{root or ''}/{FOLDER}", True)
        begin(job, own_directory(files))
        return job
    job = LoadJob(number, *identity, definition, str(directory))
    place = open_place(directory, create=True)
    try:
        begin(job, Directory(place))
    finally:
        place.close_all()
    return job
