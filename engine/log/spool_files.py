"""Spool files of an open store: written for transactions larger than memory, kept while the log refers to them (D3,
D14).

A file is named after its transaction, whose id is never reused. It is valid once a durable group of the log refers to
it, and is removed when the log's tail has passed that group. An opening removes files that no group refers to. The same
holds for load files, which a group names (`engine/log/load_files.py`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import SpoolDamaged
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.load_files import is_job_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from tidemark.engine.files.protocol import File, Files

FOLDER = "spool"
SUFFIX = ".spool"
_DIGITS = 16


def spool_name(txid: int) -> str:
    """Return the name of a transaction's spool file."""
    return f"{FOLDER}/{txid:0{_DIGITS}x}{SUFFIX}"


def txid_of(leaf: str) -> int | None:
    """Return the id of the transaction whose spool file has this name; None if it is not a spool file's name."""
    digits = leaf.removesuffix(SUFFIX)
    if not leaf.endswith(SUFFIX) or len(digits) != _DIGITS or set(digits) - set("0123456789abcdef"):
        return None
    return int(digits, 16)


def spool_ids(files: Files) -> list[int]:
    """Return the transactions that have a spool file, in order."""
    if not files.exists(FOLDER):
        return []
    return sorted(txid for leaf in files.list(FOLDER) if (txid := txid_of(leaf)) is not None)


@dataclass(frozen=True)
class Kept:
    """The files that a group of the log refers to, and its LSN."""

    lsn: int
    size_bytes: int
    names: tuple[str, ...]


def loads_in(files: Files) -> list[str]:
    """Return the names of everything in the folder of load files, in order."""
    if not files.exists(LOAD_FOLDER):
        return []
    return sorted(f"{LOAD_FOLDER}/{leaf}" for leaf in files.list(LOAD_FOLDER))


def sweep(files: Files, kept: Collection[str]) -> int:
    """Remove all spool files and load files except those in `kept`; return how many. This is not durable on return:
    after a crash, the next opening removes them.
    """
    found = [spool_name(txid) for txid in spool_ids(files)] + loads_in(files)
    gone = [name for name in found if name not in kept]
    for name in gone:
        if is_job_name(name.rpartition("/")[2]):  # rows that a load was still to be made of
            files.remove_tree(name)
        else:
            files.unlink(name)
    return len(gone)


class SpoolFiles:
    """The spool files of one open store."""

    def __init__(self, files: Files, identity: tuple[bytes, int]) -> None:
        self.files = files
        self.identity = identity
        self._guard = threading.Lock()
        self._kept: dict[int, Kept] = {}  # by transaction
        self._open: dict[int, int] = {}  # bytes in the file, by open transaction
        self.bytes_written = 0
        self.committed = 0

    def create(self, txid: int) -> File:
        """Create a transaction's file. Not durable before `sync_names`. Raises: StorageFull, TooManyFiles, …"""
        files = self.files
        with self._guard:
            if not files.exists(FOLDER):
                files.make_directory(FOLDER)
        name = spool_name(txid)
        if files.exists(name):  # a KeyboardInterrupt arrived after it was created and before that was noted
            files.unlink(name)
        return files.create(name)

    def sync_names(self) -> None:
        """Make the folder and the names in it durable."""
        self.files.sync_directory("")
        self.files.sync_directory(FOLDER)

    def grown(self, txid: int, size_bytes: int, written_bytes: int) -> None:
        """Note that an open transaction has written to its file, which now has `size_bytes`."""
        self._open[txid] = size_bytes
        self.bytes_written += written_bytes

    def keep(self, txid: int, kept: Kept) -> None:
        """Keep the files of a transaction until the log's tail has passed the group that refers to them."""
        self._kept[txid] = kept
        self._open.pop(txid, None)
        self.committed += 1

    def names_of(self, txid: int) -> frozenset[str]:
        """Return the names of a committed transaction's files that are kept because the log may be replayed."""
        kept = self._kept.get(txid)
        return frozenset() if kept is None else frozenset(kept.names)

    def kept_names(self) -> frozenset[str]:
        """Return the names of all files that are kept because the log may be replayed."""
        return frozenset(name for kept in list(self._kept.values()) for name in kept.names)

    def found(self, kept: dict[int, Kept]) -> None:
        """Add files, by transaction, to which groups in the log refer when the store is opened."""
        self._kept.update(kept)

    def remove(self, txid: int) -> None:
        """Remove the file, if any, of a transaction that was rolled back. Not durable on return, see `sweep`."""
        self._open.pop(txid, None)
        if self.files.failure.first is None and self.files.exists(spool_name(txid)):
            self.files.unlink(spool_name(txid))

    def cut(self, tail_lsn: int) -> None:
        """Remove the files of groups before the tail, `tail_lsn`. The control file that allows it is durable (W3)."""
        for txid, kept in sorted(self._kept.items()):
            if kept.lsn < tail_lsn:
                for name in kept.names:
                    if self.files.exists(name):
                        self.files.unlink(name)
                self._kept.pop(txid, None)

    def counters(self) -> dict[str, Any]:
        """Return the counters for `status()`."""
        kept, opened = list(self._kept.values()), list(self._open.values())
        return {
            "open": len(opened),
            "open_bytes": sum(opened),
            "kept": len(kept),
            "kept_bytes": sum(each.size_bytes for each in kept),
            "bytes_written": self.bytes_written,
            "committed": self.committed,
        }


def damaged(name: str, txid: int, offset: int, what: str) -> SpoolDamaged:
    """Return the error for a file of records that does not have what its transaction wrote."""
    return SpoolDamaged(
        f"{name} {what} (offset {offset}); it holds rows of transaction {txid}, restore the store from a backup",
        file=name,
        offset=offset,
        txid=txid,
    )
