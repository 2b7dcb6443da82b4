"""Patterns of LIKE as programs hold them: tokens of 16 bits, a byte of the text or a wildcard."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base import limits
from tidemark.engine.base.errors import LimitExceeded
from tidemark.engine.programs import program_layout as p

_ANY, _MANY, _ESCAPE = b"_%\\"


def check_length(pattern: bytes) -> None:
    """Raises: LimitExceeded for a pattern of more than PATTERN_BYTES_MAX."""
    if len(pattern) > limits.PATTERN_BYTES_MAX:
        raise LimitExceeded(
            f"a pattern has at most {limits.PATTERN_BYTES_MAX:,} bytes, got {len(pattern):,}; shorten it"
        )


def tokens_of(pattern: bytes) -> bytes:
    """Return the tokens of a pattern, without `%` next to `%`, and with `_` before `%`, which means the same.

    Raises: LimitExceeded.
    """
    check_length(pattern)
    octets = np.frombuffer(pattern, np.uint8)
    tokens = octets.astype(np.uint16)
    is_escaped = np.zeros(octets.size, np.bool_)
    if _ESCAPE in pattern:
        places = np.arange(octets.size)
        is_slash = octets == _ESCAPE
        run = places - np.maximum.accumulate(np.where(is_slash, -1, places))
        is_escape = is_slash & (run % 2 == 1)
        is_escape[-1] = False  # one at the end of the pattern is a letter
        is_escaped[1:] = is_escape[:-1]
    tokens[(octets == _ANY) & ~is_escaped] = p.TOKEN_ANY
    tokens[(octets == _MANY) & ~is_escaped] = p.TOKEN_MANY
    if _ESCAPE in pattern:
        tokens = tokens[~is_escape]
    is_letter = tokens < p.TOKEN_ANY
    runs = np.cumsum(is_letter | np.concatenate([[True], is_letter[:-1]]) if tokens.size else is_letter)
    tokens = tokens[np.lexsort((tokens * ~is_letter, runs))]
    is_again = np.zeros(tokens.size, np.bool_)
    is_again[1:] = (tokens[1:] == p.TOKEN_MANY) & (tokens[:-1] == p.TOKEN_MANY)
    return tokens[~is_again].tobytes()


def tokens_at(constants: NDArray[np.int64], at: int) -> bytes:
    """Return the tokens of a pattern at a word of a program's constants."""
    return constants[at + 1 :].tobytes()[: int(constants[at]) * p.TOKEN_BYTES]


def may_be_slow(tokens: bytes) -> bool:
    """Whether a `_` is between two letters between two `%`, so that a row may take too many steps."""
    found = np.frombuffer(tokens, np.uint16)
    many = np.flatnonzero(found == p.TOKEN_MANY)
    if many.size < 2:
        return False
    # Without what is before the first % and after the last: a `_` that a letter follows, in the order of `tokens_of`.
    middle = found[many[0] : many[-1]]
    return bool(np.any((middle[:-1] == p.TOKEN_ANY) & (middle[1:] < p.TOKEN_ANY)))


def pattern_of(tokens: bytes) -> bytes:
    """Return a pattern that has these tokens."""
    pattern = bytearray()
    for token in np.frombuffer(tokens, np.uint16).tolist():
        if token < p.TOKEN_ANY:
            pattern += b"\\" * (token in (_ANY, _MANY, _ESCAPE))
            pattern.append(token)
        else:
            pattern.append(_MANY if token == p.TOKEN_MANY else _ANY)
    return bytes(pattern)
