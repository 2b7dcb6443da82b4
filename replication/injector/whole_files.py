"""Which files of the binlog have whole rows only: no update in them is logged as a write, no image lacks columns, and a
row that is only sent again has a flag that says so, which row events of version 1 have not.

A peer of MySQL takes a write for an insert, and nothing in a file tells an insert from an update that is logged as a
write. So an empty file beside it, `<file>.whole`, says that there is none. It is durable before the first row of its
file, and gone, durably, before the first row that it forbids. A file without it was written by other rules, or by a
version that left no such marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

SUFFIX: Final = ".whole"


class WholeFiles:
    """The marks of one open binlog. The thread that writes the binlog changes them; any thread may ask."""

    def __init__(self, files: Files, folder: str, names: Iterable[str]) -> None:
        """names: the files of the binlog. Marks of other files are removed."""
        self._files = files
        self._folder = folder
        # Tables whose rows are not whole, by file that was begun since the opening; other files have only their mark.
        self._begun: dict[str, set[str]] = {}
        self._marked: dict[str, bool] = {}
        kept = {name + SUFFIX for name in names}
        self._remove(name for name in files.list(folder) if name.endswith(SUFFIX) and name not in kept)

    def _path(self, file: str) -> str:
        return f"{self._folder}/{file}{SUFFIX}"

    def _remove(self, marks: Iterable[str]) -> None:
        """Remove marks, by their names. Durable on return."""
        gone = [each for each in marks if self._files.exists(f"{self._folder}/{each}")]
        for each in gone:
            self._files.unlink(f"{self._folder}/{each}")
        if gone:
            self._files.sync_directory(self._folder)

    def begin(self, file: str, is_whole: bool) -> None:
        """Mark a file before its first row, if its rows will be whole. A second call does nothing.

        Durable on return: the mark. Raises: StorageFull, TooManyFiles; call again.
        """
        if file in self._begun:
            return
        if not is_whole:
            self._remove([file + SUFFIX])  # of an earlier binlog whose files had the same names
        elif not self._files.exists(self._path(file)):
            self._files.close(self._files.create(self._path(file)))
            self._files.sync_directory(self._folder)
        self._begun[file] = set()

    def spoil(self, file: str, table: str) -> None:
        """Note that rows of a table come into a file that are not whole. Durable on return: the mark is gone."""
        tables = self._begun.setdefault(file, set())
        if table not in tables:
            self._remove([file + SUFFIX])
            tables.add(table)

    def purged(self, names: Iterable[str]) -> None:
        """Forget files that were purged. A crash leaves marks, which the next opening removes."""
        names = list(names)
        for name in names:
            self._begun.pop(name, None)
            self._marked.pop(name, None)
        self._remove(name + SUFFIX for name in names)

    def may_be_updates(self, file: str, table: str) -> bool:
        """Whether writes to a table in a file may be updates."""
        tables = self._begun.get(file)
        if tables is not None:
            return table in tables
        if file not in self._marked:
            self._marked[file] = self._files.exists(self._path(file))
        return not self._marked[file]
