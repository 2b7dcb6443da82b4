"""Sealed units with a header and text (JSON), and files that are a single unit: one way to write and to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import IoFailed
from tidemark.engine.sealed.sealed_layout import Words, header_of, is_sealed, seal, write_seal
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files


def sealed_text(
    layout: np.dtype[Any], kind: int, identity: tuple[bytes, int], words_min: int, body: bytes, **fields: int
) -> Words:
    """Return a unit of at least `words_min` words: the header with these fields, and after it the text."""
    start = layout.itemsize
    words: Words = np.zeros(max(words_min, start // 8 + -(-len(body) // 8)), dtype=np.int64)
    header = header_of(words, layout)
    write_seal(header, kind, words.size, *identity)
    for name, value in fields.items():
        header[name] = value
    header["body_bytes"] = len(body)
    words.data.cast("B")[start : start + len(body)] = body
    seal(words, words.size)
    return words


def text_of(words: Words, layout: np.dtype[Any]) -> bytes:
    """Return the text of an intact unit."""
    start = layout.itemsize
    return words.tobytes()[start : start + int(header_of(words, layout)["body_bytes"])]


def read_unit(files: Files, name: str, kind: int, size_bytes: int | None = None) -> Words | None:
    """Return the words of a file that is one unit, or None if it is damaged or unreadable. size_bytes: of the unit;
    None: of the file, which has nothing after it. Raises: FileMissing, VersionTooNew, VersionTooOld.
    """
    file = files.open(name, False)
    try:
        size = files.size(file)
        words: Words = np.zeros((size if size_bytes is None else size_bytes) // 8, dtype=np.int64)
        if size < words.nbytes:
            return None
        files.pread_into(file, 0, words.data.cast("B"))
    except IoFailed:
        if files.failure.first is not None:
            raise
        return None
    finally:
        files.close(file)
    if not is_sealed(words, kind, words.size):
        return None
    if size_bytes is None and size != 8 * (int(words[1]) >> 32):
        return None
    check_version(words, name)
    return words
