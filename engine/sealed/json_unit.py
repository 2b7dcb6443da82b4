"""Sealed units with a header and text (JSON): one way to write and to read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemark.engine.sealed.sealed_layout import Words, header_of, seal, write_seal


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
