"""Whether a string matches a pattern of LIKE (docs/internals/access.md, section 2).

The parts of a pattern between `%` are searched from left to right. Literals are found in time linear in the text,
whatever they are: naively at first, which is fastest, then by Crochemore's search on ordered alphabets, which needs
neither memory nor a table. A `_` between two letters of such a part allows neither, so its steps are limited.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import byte_at

# How many letters the naive search may compare before the linear one continues: some, and a few for each byte.
_NAIVE_STEPS = 64
_NAIVE_STEPS_PER_BYTE = 4


@helper
def _token(program, pattern, i):
    return (program[np.uint64(pattern + (i >> 2))] >> ((i & 3) << 4)) & P.TOKEN_MASK


@helper
def _character_end(text, at, end, octets):
    """Return the address after the character at `at`, which is below `end`."""
    at += 1
    while not octets and at < end and byte_at(text, at) & 0xC0 == 0x80:
        at += 1
    return at


@helper
def _character_start(text, begin, end, octets):
    """Return the address of the character that ends at `end`, which is past `begin`."""
    end -= 1
    while not octets and end > begin and byte_at(text, end) & 0xC0 == 0x80:
        end -= 1
    return end


@helper
def _find_ordered(text, begin, end, program, pattern, first, size):
    """Find the literal tokens [first, first + size): Crochemore, String-matching on ordered alphabets (1992).

    The text at `at` is equal to the first `same` letters of the literal. `start`, `ahead`, `k` and `period` are the
    state of the search for the greatest suffix of these letters and the next one, of which `start` is the place before
    it and `period` its period. They decide how far the literal can move.
    """
    at = begin
    same = 0
    start, ahead, k, period = -1, 0, 1, 1
    while at + size <= end:
        while same < size and byte_at(text, at + same) == _token(program, pattern, first + same):
            same += 1
        if same == size:
            return at
        if same == 0:
            at += 1
            start, ahead, k, period = -1, 0, 1, 1
            continue
        while ahead + k <= same:
            one = byte_at(text, at + start + k)
            other = byte_at(text, at + ahead + k)
            if one == other:
                if k == period:
                    ahead += period
                    k = 1
                else:
                    k += 1
            elif one > other:
                ahead += k
                k = 1
                period = ahead - start
            else:
                start = ahead
                ahead += 1
                k = 1
                period = 1
        is_periodic = start < period
        for i in range(start + 1 if is_periodic else 0):
            if byte_at(text, at + i) != byte_at(text, at + period + i):
                is_periodic = False
                break
        if is_periodic:
            at += period
            same = max(same - period, 0)
            if ahead - start > period:
                ahead -= period
            else:
                start, ahead, k, period = -1, 0, 1, 1
        else:
            at += max(start + 1, min(same - start - 1, ahead + 1)) + 1
            same = 0
            start, ahead, k, period = -1, 0, 1, 1
    return -1


@helper
def _find_literal(text, begin, end, program, pattern, first, size):
    """Return the first address in [begin, end) of the literal tokens [first, first + size), or -1."""
    letter = _token(program, pattern, first)
    steps = 0
    for at in range(begin, end - size + 1):
        if byte_at(text, at) != letter:
            continue
        same = 1
        while same < size and byte_at(text, at + same) == _token(program, pattern, first + same):
            same += 1
        if same == size:
            return at
        steps += same
        if steps > _NAIVE_STEPS + _NAIVE_STEPS_PER_BYTE * (at - begin):
            return _find_ordered(text, at + 1, end, program, pattern, first, size)
    return -1


@helper
def _find_wild(text, begin, end, program, pattern, first, size, octets, limit):
    """Find tokens with `_` among them; return (first address or -1, end of the match, steps). The address is -2 if it
    takes more than `limit` steps.
    """
    steps = 0
    for start in range(begin, end - size + 1):
        at = start
        same = 0
        while same < size and at < end:
            token = _token(program, pattern, first + same)
            if token == P.TOKEN_ANY:
                at = _character_end(text, at, end, octets)
            elif byte_at(text, at) == token:
                at += 1
            else:
                break
            same += 1
        steps += same + 1
        if same == size:
            return start, at, steps
        if steps > limit:
            return -2, at, steps
    return -1, end, steps


@helper
def match_pattern(text, at, length, program, pattern, count, octets):
    """Whether a string matches the `count` tokens of a pattern at a word address: return (0 or 1, steps), or -1 for
    too many steps.
    """
    end = at + length
    i = 0
    while i < count:
        token = _token(program, pattern, i)
        if token == P.TOKEN_MANY:
            break
        if at >= end:
            return 0, i
        if token == P.TOKEN_ANY:
            at = _character_end(text, at, end, octets)
        elif byte_at(text, at) == token:
            at += 1
        else:
            return 0, i
        i += 1
    if i == count:
        return (1 if at == end else 0), i
    steps = i
    stop = count - 1
    while stop > i:
        token = _token(program, pattern, stop)
        if token == P.TOKEN_MANY:
            break
        if at >= end:
            return 0, steps
        if token == P.TOKEN_ANY:
            end = _character_start(text, at, end, octets)
        elif byte_at(text, end - 1) == token:
            end -= 1
        else:
            return 0, steps
        steps += 1
        stop -= 1
    # What is left of the pattern, [i, stop], begins and ends with %.
    limit = P.MATCH_STEPS + P.MATCH_STEPS_PER_BYTE * length
    wild = 0
    while i < stop:
        first = i + 1
        i = first
        core = first  # the part without the `_` at its end
        is_wild = False
        while i < stop:
            token = _token(program, pattern, i)
            if token == P.TOKEN_MANY:
                break
            if i - first >= end - at:
                return 0, steps
            i += 1
            if token != P.TOKEN_ANY:
                is_wild = is_wild or i - 1 > core
                core = i
        steps += i - first + 1
        if core > first:
            if is_wild:
                found, past, more = _find_wild(
                    text, at, end, program, pattern, first, core - first, octets, limit - wild
                )
                wild += more
                steps += more
                if found == -2:
                    return -1, steps
            else:
                found = _find_literal(text, at, end, program, pattern, first, core - first)
                past = found + core - first
                steps += (end if found < 0 else past) - at
            if found < 0:
                return 0, steps
            at = past
        for _ in range(core, i):
            if at >= end:
                return 0, steps
            at = _character_end(text, at, end, octets)
    return 1, steps
