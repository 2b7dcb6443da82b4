"""A file that is closed when its `with` block ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files


class Opened:
    """An open file of `files`; the block begins with the file, and its end closes it."""

    __slots__ = ("_file", "_files")

    def __init__(self, files: Files, file: File) -> None:
        self._files = files
        self._file = file

    def __enter__(self) -> File:
        return self._file

    def __exit__(self, *error: object) -> None:
        self._files.close(self._file)
