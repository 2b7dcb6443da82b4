"""`diff` and `repair`: compare the rows of two copies, and make them equal (docs/verify.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from tidemark import opening
from tidemark.database import Database
from tidemark.engine.access import snapshot as engine_snapshot
from tidemark.engine.base.errors import FileMissing, Rejected, ValueOutOfRange
from tidemark.engine.base.out_of_memory import types_memory_error
from tidemark.engine.files.directory import PosixFiles
from tidemark.read_only import ReadOnlyDatabase
from tidemark.recovery.backup.plan import chosen_backup
from tidemark.recovery.places.names import canonical_place
from tidemark.recovery.places.storage import open_place
from tidemark.recovery.system_restart.sysfile import has_sysfile
from tidemark.recovery.verification.digest_reading import BY_KEY, BY_ROWID
from tidemark.recovery.verification.report import Pair
from tidemark.recovery.verification.sides import BackupSide, Side, SnapshotSide, ViewSide
from tidemark.repairs import Repair

if TYPE_CHECKING:
    from tidemark.engine.base.options import Size

Progress = Callable[[int, int, str], None]
Copy = Any  # a Database, ReadOnlyDatabase, Snapshot, path, place of backups, or (place, number of a backup)
LIMIT = 1_000
BATCH_ROWS = 1_000


def is_store(path: str) -> bool:
    try:
        files = PosixFiles(path)
    except (FileMissing, Rejected):
        return False
    with files:
        return has_sysfile(files)


@contextmanager
def opened_side(copy: Copy, data_memory: Size | None = None) -> Iterator[Side]:
    """Yield one side of a comparison, released at the end of the block.

    Raises: FileMissing, Damaged, Incompatible, LimitExceeded, StoreFailed, Rejected for an invalid copy.
    """
    with ExitStack() as stack:
        number = None
        if isinstance(copy, tuple) and len(copy) == 2 and isinstance(copy[1], int):
            copy, number = copy
        if isinstance(copy, (str, os.PathLike)) and number is None:
            path = canonical_place(copy)
            if path.startswith("/") and is_store(path):
                options: Any = {} if data_memory is None else {"data_memory": data_memory}
                copy = stack.enter_context(opening.open(path, read_only=True, **options))
        if isinstance(copy, Side):
            yield copy
        elif isinstance(copy, Database):
            copy.check_usable()
            snapshot = copy.parts.store.snapshots.begin(engine_snapshot.Snapshot)
            for _ in range(2):  # the first close may fail for lack of memory; after a success the second does nothing
                stack.callback(snapshot.close)
            yield SnapshotSide(snapshot, copy.parts.opened.identity[0])
        elif isinstance(copy, engine_snapshot.Snapshot):
            yield SnapshotSide(copy, b"")
        elif isinstance(copy, ReadOnlyDatabase):
            copy.check_usable()
            yield ViewSide(copy.parts)
        elif isinstance(copy, (str, os.PathLike, tuple)):
            files = open_place(copy, what="store or backup")
            stack.callback(files.close_all)
            files.read_errors_latch = False
            yield BackupSide(files, chosen_backup(files, number))
        else:
            raise Rejected(f"give a store, a snapshot, a path or a place of backups, got {type(copy).__name__}")


def _checked(limit: int | None, by: str | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueOutOfRange(f"limit must be a number of rows from 1, or None, got {limit!r}")
    if by not in (None, BY_KEY, BY_ROWID):
        raise Rejected(f"by must be 'key', 'rowid' or None, got {by!r}")


@types_memory_error()
def diff(
    a: Copy,
    b: Copy,
    tables: Sequence[str] | None = None,
    *,
    limit: int | None = LIMIT,
    by: Literal["key", "rowid"] | None = None,
    data_memory: Size | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare the rows of two copies, each as at the end of one epoch, while writers continue.

    A copy is an open store (a snapshot is taken), a `Snapshot`, a path, or `(place, number)` for a backup of a place. A
    path leads to a store, whose last local checkpoint is read into `data_memory` (None: as the store was opened last),
    or to a place of backups, which is read from its files.

    Args:
        tables: Names of tables; None: all except system tables.
        limit: Stop after this many rows that differ; None: never.
        by: How ranges are cut; see docs/verify.md, section 3. None: as suits the copies.
        progress: Called with (rows read of both sides, rows in all, "rows").

    Returns:
        A report. `is_equal`. `differences`: one for each column that differs (`table`, `key`, `column`, `a`, `b`), or
        for a row that only one side has (`only`; `column` is None, and `a` or `b` has the row as a dict). `schema`: how
        definitions differ. `tables`: the tables compared; `is_complete` is False where `limit` ended the comparison.
        Floats are compared by their bits.

    Raises:
        SnapshotTooOld: Writers changed more than `snapshot_memory` holds meanwhile.
        NoSuchTable: Neither copy has such a table.
        FileMissing: A path has neither store nor backup.
        Damaged: A file is damaged; a subclass says which.
        LimitExceeded: The rows of a store do not fit into `data_memory`.
        ValueOutOfRange: `limit` is less than 1.
        Rejected: A copy or `by` is invalid.
        StoreFailed: A store is closed or has failed.

    Examples:
        >>> with db.snapshot() as before:
        ...     changed = db["item"].update(2, {"stock": 4})
        ...     tm.diff(before, db)["differences"]
        [{'table': 'main.item', 'key': 2, 'column': 'stock', 'a': 5, 'b': 4, 'only': None}]
    """
    _checked(limit, by)
    with opened_side(a, data_memory) as side_a, opened_side(b, data_memory) as side_b:
        return Pair(side_a, side_b, tables, by, progress).diff(limit)


@types_memory_error("batches before were committed")
def repair(
    a: Copy,
    b: Copy,
    side: Literal["a", "b"],
    tables: Sequence[str] | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    by: Literal["key", "rowid"] | None = None,
    data_memory: Size | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the rows of one copy equal to those of the copy that `side` names. The repaired copy must be an open
    `Database`.

    All changes are made in transactions of at most `batch_rows` rows. A row that another transaction has changed since
    the comparison is left alone and counted in `skipped`. Definitions are reported and never changed. Columns that only
    the repaired copy has keep their values, and get their defaults in inserted rows.

    Args:
        side: "a" or "b": the copy that is right.
        batch_rows: The most rows changed in one transaction.

    Other arguments are as for `diff`.

    Returns:
        A report: `inserted`, `updated`, `deleted`, `skipped`; `schema` and `tables` as of `diff`.

    Durable on return: all changes, as the store's `durability` says.

    Raises: as `diff`; Rejected if the copy to be repaired is not an open store; ValueOutOfRange if `batch_rows` is less
    than 1; the errors of calls that write rows. Transactions that were committed before the error stay.

    Examples:
        >>> with db.snapshot() as before:
        ...     changed = db["item"].update(2, {"stock": 4})
        ...     tm.repair(before, db, side="a")["updated"]
        1
        >>> db["item"][2].stock
        5
    """
    _checked(None, by)
    if side not in ("a", "b"):
        raise Rejected(f"side must be 'a' or 'b', the one that is right, got {side!r}")
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise ValueOutOfRange(f"batch_rows must be 1 or more, got {batch_rows!r}")
    target = b if side == "a" else a
    if not isinstance(target, Database):
        raise Rejected(f"the side that is repaired must be an open store, got {type(target).__name__}; open it")
    with opened_side(a, data_memory) as side_a, opened_side(b, data_memory) as side_b:
        pair = Pair(side_a, side_b, tables, by, progress)
        work = Repair(target, side == "a", batch_rows)
        for table in pair.tables:
            for group in pair.comparison(table).groups():
                work.apply(group, table)
        report = pair.report()
    del report["is_equal"], report["is_complete"]  # they describe the rows before the repair
    return {**work.to_dict(), **report}
