"""The directory of a job: the names of its files, and files created whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.files.directory import real_path
from tidemark.engine.files.durable_files import make_folder, write_whole
from tidemark.engine.files.opened import Opened
from tidemark.engine.log.load_files import FOLDER, is_job_name
from tidemark.recovery.places.names import canonical_place
from tidemark.recovery.places.storage import at_place, full_disk_named, open_place
from tidemark.recovery.system_restart.place import has_store

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.load.job import LoadJob

NEW = ".new"
OPEN = ".open"
PUBLISHED = ".published"
ABORTED = ".aborted"
ADOPTING = ".adopting"
MANIFEST = ".manifest"


class Directory:
    """The directory with the files of a job: the root of `files`, or a folder in it."""

    def __init__(self, files: Files, folder: str = "") -> None:
        self.files = files
        self.folder = folder

    def name(self, leaf: str) -> str:
        """Return the name by which `files` knows a file."""
        return f"{self.folder}/{leaf}" if self.folder else leaf

    def exists(self, leaf: str) -> bool:
        return self.files.exists(self.name(leaf))

    def leaves(self, prefix: str) -> list[str]:
        if self.folder and not self.files.exists(self.folder):
            return []
        return [leaf for leaf in self.files.list(self.folder) if leaf.startswith(prefix)]

    def sync(self) -> None:
        """Make names durable."""
        self.files.sync_directory(self.folder)

    def write(self, leaf: str, content: bytes) -> None:
        """Create a file, whole or not at all. Durable on return: content and name."""
        unnamed = self.name(leaf + NEW)
        if self.files.exists(unnamed):
            self.files.unlink(unnamed)
        write_whole(self.files, unnamed, self.name(leaf), content)

    def read(self, leaf: str) -> bytes:
        """Return the content of a file. Raises: FileMissing, IoFailed."""
        with Opened(self.files, self.files.open(self.name(leaf))) as file:
            file.read_errors_latch = False
            return self.files.pread(file, 0, self.files.size(file))

    def remove(self, leaf: str) -> None:
        """Remove a file, or the folder of a job, if it exists; another process may remove it, too. Not durable on
        return.
        """
        try:
            if self.exists(leaf):
                (self.files.remove_tree if is_job_name(leaf) else self.files.unlink)(self.name(leaf))
        except FileMissing:
            return


@contextmanager
def directory_of(job: LoadJob, place: Directory | None = None) -> Iterator[Directory]:
    """Open the directory of a job for the block, unless it is given. Raises: StorageFull, which names the directory."""
    if place is not None:
        yield place
        return
    files = open_place(job.directory, what="load")
    try:
        with full_disk_named(job.directory):
            yield Directory(files)
    finally:
        files.close_all()


@contextmanager
def shared_directory(place: str | os.PathLike[str]) -> Iterator[Directory]:
    """Open a directory of loads for the block. Raises: Rejected if it is a store's own: there load files are a part of
    the log.
    """
    name = canonical_place(place)
    if name.startswith("/"):
        above, leaf = os.path.split(real_path(name))
        if leaf == FOLDER:
            with at_place(above, what="load") as store:
                if has_store(store):
                    raise Rejected(f"{name} is a part of the store in {above}, whose next opening removes what is left")
    with at_place(name, what="load") as files:
        yield Directory(files)


def own_directory(files: Files) -> Directory:
    """Return the folder for loads in a store, created if it is missing. Durable on return."""
    make_folder(files, FOLDER)
    return Directory(files, FOLDER)
