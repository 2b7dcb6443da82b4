"""The bytes of a row image: fixed words, then the var part with its header word, then the disk part with its own.

Word 0 of a var part: total words (bits 0-31), var column count (32-43), key words (44-55), version (56-62). Key words
follow, then one u32 end offset per var column (bit 31 = NULL) padded to a word, then the bytes padded to a word.

Word 0 of a disk part: its words (bits 0-31), version (56-62). The fixed-size disk columns follow, laid out like a fixed
image without key, then a var part without key if the table has disk columns of variable size. The fixed image of such a
table ends with one more word, the disk reference: 0 in images just encoded.

Kernels freeze these constants; the kernel cache is keyed on this file.
"""

from __future__ import annotations

VAR_WORDS_BITS = 32
VAR_COUNT_SHIFT = 32
VAR_COUNT_BITS = 12
VAR_KEY_WORDS_SHIFT = 44
VAR_KEY_WORDS_BITS = 12
VAR_VERSION_SHIFT = 56
VAR_VERSION_BITS = 7
VAR_VERSION = 1
VAR_HEADER_WORDS = 1
VAR_END_BYTES = 4
VAR_NULL_BIT = 1 << 31

VAR_WORDS_MASK = (1 << VAR_WORDS_BITS) - 1
VAR_COUNT_MASK = (1 << VAR_COUNT_BITS) - 1
VAR_KEY_WORDS_MASK = (1 << VAR_KEY_WORDS_BITS) - 1
VAR_END_MASK = VAR_NULL_BIT - 1

DISK_REFERENCE_WORDS = 1
DISK_HEADER_WORDS = 1
DISK_WORDS_MASK = (1 << 32) - 1
DISK_VERSION_SHIFT = 56
DISK_VERSION = 1

assert VAR_WORDS_BITS == VAR_COUNT_SHIFT
assert VAR_COUNT_SHIFT + VAR_COUNT_BITS == VAR_KEY_WORDS_SHIFT
assert VAR_KEY_WORDS_SHIFT + VAR_KEY_WORDS_BITS == VAR_VERSION_SHIFT
# The header word must stay a non-negative int64.
assert VAR_VERSION_SHIFT + VAR_VERSION_BITS == 63


def var_header(words: int, count: int, key_words: int) -> int:
    """Return word 0 of a var part."""
    return words | count << VAR_COUNT_SHIFT | key_words << VAR_KEY_WORDS_SHIFT | VAR_VERSION << VAR_VERSION_SHIFT


def disk_header(words: int) -> int:
    """Return word 0 of a disk part."""
    return words | DISK_VERSION << DISK_VERSION_SHIFT
