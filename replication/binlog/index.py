"""The files of a binlog and the index that names them.

`<base>.index` lists the files, one per line, oldest first, without a gap in their numbers. Names of files of later
timelines (`history.py`) have the timeline after the base name: `<base>-<timeline>.NNNNNN`. A file belongs to the binlog
once the index names it. Order of writes: a new file and its directory are synced before the index names the file; the
index is replaced by a rename; files leave the index before they are removed. A crash between these steps leaves a file
that the index does not name: a new one without a transaction, or an old one that is no longer needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemark.engine.base.errors import BinlogDamaged, FileMissing, Rejected, Retryable, StorageFull
from tidemark.engine.files.durable_files import write_again
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog.scan import read_format

_DIGITS = 6
_INDEX_BYTES_MAX = 16 << 20
_READS = 3  # of an index that another process writes


class BinlogIndex:
    """The files of a binlog in a folder, and their index. `names` are the listed files, oldest first; `timeline` is
    that of the next file.
    """

    def __init__(self, files: Files, folder: str, base: str) -> None:
        """Read the index; `exists` says whether there is one. Raises: BinlogDamaged, FileMissing, Rejected."""
        if not re.fullmatch(r"[A-Za-z0-9_\-]{1,64}", base):
            raise Rejected(f"log_bin must be 1 to 64 letters, digits, _ or -, got {base!r}", option="log_bin")
        self.files = files
        self.folder = folder
        self.base = base
        self.timeline = ""
        self._index_path = f"{folder}/{base}.index"
        self._fresh_path = f"{folder}/{base}.index_new"
        self.exists = files.exists(self._index_path)
        self.names: list[str] = self._read(self._index_path) if self.exists else self._unfinished()
        for name in self.names:
            if not files.exists(self.path(name)):
                raise FileMissing(
                    f"{name} is missing, though {self.base}.index names it; restore it from a backup", file=name
                )

    def _unfinished(self) -> list[str]:
        """Return the names in the new index if a crash within `replace` removed the old one; none if the new index is
        not whole.
        """
        if not self.files.exists(self._fresh_path):
            return []
        try:
            names = self._read(self._fresh_path)
        except BinlogDamaged:
            return []
        return names if all(self.files.exists(self.path(name)) for name in names) else []

    def settle(self) -> None:
        """Finish a replacement that a crash interrupted. Durable on return: the names as read, even if their writer was
        killed before it synced them. The opening relies on this: it removes files that the index does not name, and
        continues with the others.
        """
        if not self.exists and self.names:
            with Opened(self.files, self.files.open(self._fresh_path, writable=True)) as file:
                write_again(self.files, file)
            self.files.rename(self._fresh_path, self._index_path)
            self.exists = True
        self.files.sync_directory(self.folder)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def number_of(self, name: str) -> int | None:
        """Return the number of a file, None if the file does not belong to this binlog."""
        return number_in(self.base, name)

    @property
    def next_name(self) -> str:
        """The name of the file after the last one."""
        number = 1 if not self.names else (self.number_of(self.names[-1]) or 0) + 1
        return f"{self.base}{self.timeline and '-'}{self.timeline}.{number:0{_DIGITS}d}"

    def numbered(self, number: int) -> str | None:
        """Return the file with a number, None if the index names none."""
        return next((name for name in self.names if self.number_of(name) == number), None)

    def following(self, name: str) -> str | None:
        """Return the file after `name`, None after the last. Raises: Rejected if the index does not name `name`."""
        place = self.place_of(name)
        return self.names[place + 1] if place + 1 < len(self.names) else None

    def place_of(self, name: str) -> int:
        """Return the number of older files. Raises: Rejected if the index does not name it."""
        if name not in self.names:
            raise Rejected(f"{name} is not a file of the binlog {self.base}; it may have been purged", file=name)
        return self.names.index(name)

    def refresh(self) -> None:
        """Read the index again, because another handle has written it. Raises: BinlogDamaged, FileMissing."""
        self.names = self._read(self._index_path)

    def _read(self, path: str) -> list[str]:
        file = self.files.open(path)
        size = self.files.size(file)
        text = self.files.pread(file, 0, min(size, _INDEX_BYTES_MAX))
        self.files.close(file)
        names = [line.removeprefix(b"./").decode("ascii", "replace") for line in text.splitlines()]
        numbers = [self.number_of(name) for name in names]
        first = numbers[0] if numbers else 0
        if size > _INDEX_BYTES_MAX or first is None or numbers != [first + place for place in range(len(names))]:
            raise BinlogDamaged(
                f"{path} does not list consecutive files of {self.base}; restore it from a backup, or write the names"
                " of all existing files into it, oldest first, one per line",
                file=path,
                position=0,
            )
        return names

    def replace(self, names: Iterable[str]) -> None:
        """Replace the list of files. Durable on return: the new index. Raises: StorageFull, with nothing changed."""
        names = list(names)
        fresh = self._fresh_path
        if self.files.exists(fresh):
            self.files.unlink(fresh)
        file = self.files.create(fresh)
        try:
            self.files.pwrite(file, 0, "".join(f"./{name}\n" for name in names).encode())
        except StorageFull:
            self.files.close(file)
            self.files.unlink(fresh)
            raise
        self.files.fdatasync(file)
        self.files.close(file)
        # A crash may remove the old index without renaming the new one, so the name of the new one must be durable.
        self.files.sync_directory(self.folder)
        self.files.rename(fresh, self._index_path)
        self.files.sync_directory(self.folder)
        self.names = names
        self.exists = True

    def begin(self, head: bytes | bytearray) -> File:
        """Create the next file with these first bytes, and name it. Durable on return: both.

        Raises: Retryable if there is no room, or no descriptor left; nothing has changed then.
        """
        name = self.next_name
        file = self.files.create(self.path(name))
        try:
            self.files.pwrite(file, 0, head)
            self.files.fdatasync(file)
            self.files.sync_directory(self.folder)
            self.replace([*self.names, name])
        except Retryable:  # a file left here would make the next attempt fail
            self.files.close(file)
            self.files.unlink(self.path(name))
            raise
        return file

    def unlisted_files(self) -> list[str]:
        """Return the files of this binlog that the index does not name."""
        known = set(self.names)
        return [name for name in self.files.list(self.folder) if self.number_of(name) is not None and name not in known]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that the index does not name, or no longer names. Durable on return."""
        for name in names:
            self.files.unlink(self.path(name))
        self.files.sync_directory(self.folder)

    def purge_to(self, name: str) -> list[str]:
        """Forget and remove all files before `name`, oldest first; return their names.

        Durable on return. A crash in between leaves files that the next opening removes. Raises: Rejected if the index
        does not name `name`.
        """
        gone = self.names[: self.place_of(name)]
        if gone:
            self.replace(self.names[len(gone) :])
            self.remove(gone)
        return gone

    # --- what may be purged -----------------------------------------------------------------------
    # The caller knows what a channel or a restart needs, and passes it as `keep`.
    def expired(self, before_s: int, keep: str) -> str:
        """Return the oldest file to keep if all files that ended before `before_s` (seconds since 1970) are purged;
        `keep` and newer files stay. A file ends when the next one begins. Raises: BinlogDamaged, Rejected.
        """
        last = self.place_of(keep)
        for place in range(last):
            following = self.names[place + 1]
            with Opened(self.files, self.files.open(self.path(following))) as file:
                ended_s = read_format(self.files, file, following)[0].timestamp_s
            if ended_s >= before_s:
                return self.names[place]
        return keep

    def oversized(self, bytes_max: int, keep: str) -> str:
        """Return the oldest file to keep if at most `bytes_max` are to remain; `keep` and newer files stay in any case.

        Raises: Rejected.
        """
        last = self.place_of(keep)
        size = sum(self.files.size(self.path(name)) for name in self.names)
        for name in self.names[:last]:
            if size <= bytes_max:
                return name
            size -= self.files.size(self.path(name))
        return keep


def number_in(base: str, name: str) -> int | None:
    """Return the number of a file, None if the file does not belong to the binlog of this base name."""
    found = re.fullmatch(re.escape(base) + r"(?:-[0-9a-f]{8})?\.([0-9]{6,10})", name)
    return int(found.group(1)) if found else None


def read_index(files: Files, folder: str, base: str) -> BinlogIndex:
    """Return the files of a binlog as they are now. Retries, because the writer may purge files while their names are
    read. Raises: BinlogDamaged, FileMissing, Rejected for an invalid base name.
    """
    for _ in range(_READS):
        try:
            return BinlogIndex(files, folder, base)
        except FileMissing as error:
            missing = error
    raise missing
