"""`db.plan_load`, `db.adopt` and `db.load`: rows by the million into an open store (docs/load.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.load.adopt import Adopter
from recovery.load.plan import plan_load

if TYPE_CHECKING:
    import os

    from engine.file_protocol import Files
    from engine.store import Store
    from recovery.load.adopt import AdoptReport
    from recovery.load.job import LoadJob
    from recovery.system_restart.restart import Opened

Progress = Callable[[int, int, str], None]


class LoadCalls:
    """Part of a `Database`: bulk load."""

    _store: Store
    _files: Files
    _directory: str | None
    _opened: Opened

    check_usable: Callable[[], None]

    def plan_load(self, table: str, directory: str | os.PathLike[str] | None = None) -> LoadJob:
        """A job to load rows into a table from many processes, which need the job and nothing else (`recovery.load`).

        directory: a path or URI that all of them see, made if it is missing; None: in the store's own directory, and
        the job ends when the store is closed. The store does not change. Raises: NoSuchTable, Rejected, StorageFull,
        StoreFailed.
        """
        self.check_usable()
        place = None if directory is None else str(directory)
        return plan_load(self._store.table(table), self._opened.identity, self._files, self._directory, place)

    def adopt(self, job: LoadJob | str, progress: Progress | None = None) -> AdoptReport:
        """Take a published load in, all of it or nothing, in one transaction; others go on meanwhile.

        job: the job, or the name of one in the store's own directory. Called again it tells what the first call did.
        Durable on return: the rows. Raises: FileMissing if the load is not published, LoadRefused (`duplicates`,
        `examples`) if keys exist or the table was changed, LoadDamaged, ForeignFile, LockTimeout, MemoryExhausted,
        StorageFull, RedoOverloaded; and nothing happened. CommitInterrupted, CommitOnFailedStore: call it again.
        """
        self.check_usable()
        return Adopter(self._store, self._files, self._opened.identity).adopt(job, progress=progress)
