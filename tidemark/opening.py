"""`tidemark.open`: a store for reading and writing, or a read-only view of its last local checkpoint."""

from __future__ import annotations

import difflib
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tidemark.database import Database, open_database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.out_of_memory import types_memory_error
from tidemark.engine.files.directory import PosixFiles
from tidemark.read_only import ReadOnlyDatabase
from tidemark.recovery.system_restart.kept_options import kept_options
from tidemark.replication.settings.options import OpenKeywords, split_keywords
from tidemark.shared_calls import Locator

if TYPE_CHECKING:
    from tidemark.control_socket import Connection
    from tidemark.engine.base.options import Size
    from tidemark.recovery.system_restart.load import Progress

# The other options concern writing.
READ_ONLY_OPTIONS = ("data_memory",)


@overload
def open(
    path: str | os.PathLike[str], *, read_only: Literal[True], progress: Progress | None = None, data_memory: Size = ...
) -> ReadOnlyDatabase: ...
@overload
def open(  # type: ignore[overload-overlap]  # a Locator is also a path, and may be read-only
    path: Locator,
    through: int | None = None,
    read_only: None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> Database | ReadOnlyDatabase: ...
@overload
def open(
    path: str | os.PathLike[str],
    through: int | None = None,
    read_only: Literal[False] | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> Database: ...
@types_memory_error()
def open(
    path: str | os.PathLike[str],
    through: int | None = None,
    read_only: bool | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Database | ReadOnlyDatabase:
    """Open the store in a directory, creating it if it is missing, and restart it.

    Args:
        path: A directory, or a `Locator`.
        through: Restart through this epoch and discard everything after it.
        read_only: Attach to the last local checkpoint, whether or not another process has the store open. No lock is
            taken and no byte is written; changes after that checkpoint are not shown. Before the first one, show what
            the log holds. Only the option `data_memory` has a meaning then. None: as the `Locator` says, otherwise
            False.
        progress: Called with (done, in all, unit) by one thread at a time: the rows of the local checkpoint while they
            are loaded, the "bytes of log" every 16 MiB while the log is read, and the indexes as they are built. An
            exception it raises ends the opening.
        options: Those of `tidemark.Options`, and the replication options of a store, which docs/replication.md lists.
            What `Options` says to last is kept in the store, and the next opening has it if it names no other. With
            `server_id` and `log_bin` the store logs its changes in MySQL's format.

    Returns:
        A `Database`, or a `ReadOnlyDatabase` with `read_only`.

    Raises:
        Locked: Another process has the store open.
        Damaged: A file fails its checksum and no second copy replaces it.
        Incompatible: The store was written by an incompatible version.
        SchemaInvalid: An option is unknown or out of range.
        FileMissing: There is no store, with `create=False`.
        Rejected: The path is not a directory.
        LimitExceeded: An option is too small for the store, such as `data_memory` for its rows.
        StorageFull: The disk has no room for the log of a new store.

    With `read_only` it raises as `ReadOnlyDatabase.refresh`. Durable on return: everything that the restart recovered.

    Examples:
        >>> with tm.open("shop", redo_log="16 MiB") as store:
        ...     item = store.create_table("item", [tm.Column("id", tm.Int64), tm.Column("name", tm.Text)], "id")
        ...     item.insert((1, "pen"))
        >>> with tm.open("shop") as store:
        ...     store["item"][1]
        Row(id=1, name='pen')
    """
    if read_only is None:
        read_only = isinstance(path, Locator) and path.read_only
    if not isinstance(read_only, bool):
        raise SchemaInvalid(f"option read_only is {read_only!r}; give True or False", option="read_only")
    for name in options:
        # `Options` does not know this name and would suggest redo_log.
        if difflib.get_close_matches(name, ["read_only"], cutoff=0.8):
            raise SchemaInvalid(f"there is no option {name!r}; did you mean read_only?", option=name)
    if not read_only:
        db = open_database(path, through, progress, **options)
        if db.parts.control is not None:
            db.parts.control.read = partial(_serve_reads, weakref.ref(db))
        return db
    split_keywords(options)
    for name in (*options, *(["through"] if through is not None else [])):
        if name not in READ_ONLY_OPTIONS:
            raise SchemaInvalid(f"option {name} has no meaning with read_only=True; leave it out", option=name)
    files = PosixFiles(path)
    kept = {name: value for name, value in kept_options(files).items() if name in READ_ONLY_OPTIONS}
    parsed = split_keywords({**kept, **options})[0]
    return ReadOnlyDatabase(files, parsed, SystemClock(), files.directory, progress)


def _serve_reads(store: weakref.ref[Database], connection: Connection) -> None:
    from tidemark.remote.owner import serve

    serve(connection, store)
