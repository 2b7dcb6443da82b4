"""`tidemark.open`: the store in a directory, for reading and writing, or as its last local checkpoint has it."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tidemark.database import Database, open_database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.out_of_memory import types_memory_error
from tidemark.engine.files.directory import PosixFiles
from tidemark.locator import Locator
from tidemark.read_only import ReadOnlyDatabase
from tidemark.replication.settings.options import OpenKeywords, divided

if TYPE_CHECKING:
    from tidemark.engine.base.options import Size
    from tidemark.recovery.system_restart.load import Progress

# The others are about writing, and a view does not write.
READ_ONLY_OPTIONS = ("data_memory",)


@overload
def open_or_attach(
    path: str | os.PathLike[str], *, read_only: Literal[True], progress: Progress | None = None, data_memory: Size = ...
) -> ReadOnlyDatabase: ...
@overload
def open_or_attach(  # type: ignore[overload-overlap]  # a Locator is a path too, and may say more
    path: Locator,
    through: int | None = None,
    read_only: None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> Database | ReadOnlyDatabase: ...
@overload
def open_or_attach(
    path: str | os.PathLike[str],
    through: int | None = None,
    read_only: Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> Database: ...
@types_memory_error()
def open_or_attach(
    path: str | os.PathLike[str],
    through: int | None = None,
    read_only: bool | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Database | ReadOnlyDatabase:
    """Open the store in a directory (a path or a `Locator`), making it if it is missing, and restart it.

    through: restart through this epoch and forget what came later.
    read_only: attach to the last local checkpoint, whoever has the store open: no lock is taken, no byte written, and
    what the log holds behind that checkpoint is not shown. Of the options only data_memory has a meaning then. None
    is what a `Locator` says, and otherwise False.
    progress: called with (rows loaded, rows in all, "rows") while the local checkpoint is loaded, from the loading
    threads, one at a time; what it raises ends the opening.
    options: those of `tidemark.Options`, and those of replication that belong to a store
        (`replication/settings/options.py`): with `server_id` and `log_bin` its changes are logged in MySQL's format.

    Raises: Locked (another process has it), Damaged, Incompatible, SchemaInvalid for options, FileMissing with
    create=False; with read_only as `ReadOnlyDatabase.refresh`.
    """
    if read_only is None:
        read_only = isinstance(path, Locator) and path.read_only
    if not isinstance(read_only, bool):
        raise SchemaInvalid(f"option read_only is {read_only!r}; give True or False", option="read_only")
    for name in options:
        # Options know nothing of this one, and would advise redo_log.
        if difflib.get_close_matches(name, ["read_only"], cutoff=0.8):
            raise SchemaInvalid(f"there is no option {name!r}; did you mean read_only?", option=name)
    if not read_only:
        return open_database(path, through, progress, **options)
    parsed = divided(options)[0]
    for name in (*options, *(["through"] if through is not None else [])):
        if name not in READ_ONLY_OPTIONS:
            raise SchemaInvalid(f"option {name} has no meaning with read_only=True; leave it out", option=name)
    files = PosixFiles(path)
    return ReadOnlyDatabase(files, parsed, SystemClock(), files.directory, progress)
