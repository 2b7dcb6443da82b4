"""Recovery of a binlog at the opening, after a possible crash.

Of the files that the index names, only the newest can be torn, and the one before it in its last event, ROTATE:
everything else was durable before the index named the next file. A file marked as in use is truncated after its last
whole transaction, gets a STOP if it has no last event yet, is synced, and is then marked as whole, in this order. A
crash in between is harmless, because the next opening repeats these steps. A file whose in-use flag is clear was
durable with its ROTATE or STOP before the flag was cleared, so any error in it is damage. An end before a position that
the store knows to be durable is damage too. Files that the index does not name are left from an interrupted rotation or
purge.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from tidemark.engine.base.errors import BinlogDamaged, FileMissing
from tidemark.engine.files.durable_files import make_folder, write_again
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.scan import check_end, end_use, has_end, read_format, walk


class Recovered(NamedTuple):
    """The end of a binlog after its last whole transaction, and the numbers in its newest file: `previous` are those of
    the files before it, `last` is the event of the last whole transaction, None if the file has none.
    """

    end: Position
    previous: e.PreviousGtids
    last: e.Gtid | None
    has_unnumbered: bool

    def number_in(self, source: bytes) -> int | None:
        """Return the last number of a source; None if the newest file is not of its history."""
        if self.has_unnumbered:
            return None
        if self.last is not None:
            return self.last.number if self.last.source == source else None
        return self.previous.number_of(source)

    @property
    def number(self) -> int:
        """The last number of any source, 0 if none is known."""
        if self.last is not None and self.last.number:
            return self.last.number
        return self.previous.number_of() or 0


def recover(files: Files, index: BinlogIndex, durable: Position | None = None) -> Recovered | None:
    """Truncate the binlog after its last whole transaction; return what it ends with, None if there is no file yet.

    `durable` is a position that the store knows to be durable. Durable on return. Raises: BinlogDamaged, FileMissing.
    """
    make_folder(files, index.folder)
    index.settle()
    _sweep(files, index)
    if not index.names:
        if durable is not None:
            raise FileMissing(f"{index.base}.index is missing or empty; restore it from a backup", file=durable.file)
        return None
    newest = index.names[-1]
    with Opened(files, files.open(index.path(newest))) as file:
        found = _end_of_transactions(files, file, newest)
    position = found.end.position
    if durable is not None and (index.place_of(durable.file), durable.position) > (index.place_of(newest), position):
        raise BinlogDamaged(
            f"{newest} is whole only up to {position}, and was durable up to {durable.file} {durable.position};"
            " restore it from a backup",
            file=newest,
            position=position,
        )
    # Oldest first: a file is marked as whole only after the files before it.
    for name in index.names[-2:]:
        _end(files, index.path(name), name)
    return found


def _end(files: Files, path: str, name: str) -> None:
    """Truncate a file that is marked as in use, and mark it as whole. Durable on return."""
    with Opened(files, files.open(path, writable=True)) as file:
        if read_format(files, file, name)[0].flags & b.FLAG_IN_USE:
            end = _end_of_transactions(files, file, name).end.position
            if files.size(file) > end:
                files.truncate(file, end)
            if not has_end(files, file, name):
                header = read_format(files, file, name)[0]
                stamp = {"timestamp_s": header.timestamp_s, "server_id": header.server_id}
                stop = e.frame(e.Stop(), end, **stamp)
                files.pwrite(file, end, stop)
                end += len(stop)
            # A dead process may have written bytes without a sync, and the cleared flag says that they are on disk.
            # They are written again, not only synced: after a failed sync the page cache may show bytes that the disk
            # lacks, and no later sync writes them (F33).
            write_again(files, file, end)
            end_use(files, file)


def _sweep(files: Files, index: BinlogIndex) -> None:
    """Remove files the index does not name. Raises: BinlogDamaged if one after the newest has a transaction."""
    unlisted = index.unlisted_files()
    newest = index.number_of(index.names[-1]) or 0 if index.names else 0
    for name in unlisted:
        if (index.number_of(name) or 0) > newest and _has_transactions(files, index.path(name), name):
            raise BinlogDamaged(
                f"{name} has transactions and {index.base}.index does not name it; add its name to the index",
                file=name,
                position=0,
            )
    if unlisted:
        index.remove(unlisted)


def _has_transactions(files: Files, path: str, name: str) -> bool:
    with Opened(files, files.open(path)) as file, suppress(BinlogDamaged):
        return any(
            walked.is_boundary and walked.header.type in (b.QUERY_EVENT, b.XID_EVENT, b.INCIDENT_EVENT)
            for walked in walk(files, file, name)
        )
    return False  # the crash that kept the file out of the index tore it within its first transaction


def _end_of_transactions(files: Files, file: File, name: str) -> Recovered:
    """Return the end of the last whole transaction of a file, and its number. Raises: BinlogDamaged."""
    header, _, end = read_format(files, file, name)
    in_use = bool(header.flags & b.FLAG_IN_USE)
    previous, has_unnumbered = e.PreviousGtids(), False
    begun: e.Gtid | None = None
    last: e.Gtid | None = None
    try:
        for walked in walk(files, file, name):
            if isinstance(walked.event, e.PreviousGtids):
                previous = walked.event
            elif isinstance(walked.event, e.Gtid):
                begun = walked.event
            if walked.is_boundary:
                end = walked.end
                last = begun or last
                has_unnumbered |= last is not None and not last.number
    except BinlogDamaged:
        if not in_use:
            raise
    if not in_use:
        if end != files.size(file):
            raise Position(name, end).damaged("begins a transaction that does not end, though the file was ended")
        check_end(files, file, name, header)
    return Recovered(Position(name, end), previous, last, has_unnumbered)
