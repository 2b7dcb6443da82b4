"""The words of which rows, keys and pages are made.

Kernels freeze these constants; the kernel cache is keyed on this file.
"""

from __future__ import annotations

WORD_BYTES = 8


def words_for(size_bytes: int) -> int:
    """Return the number of whole words that hold `size_bytes`."""
    return (size_bytes + WORD_BYTES - 1) // WORD_BYTES
