"""Where the rows of a CSV file end: Arrow reads blocks of whole rows, and takes a quote without end for a value."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import kernel

W_STATE = 0  # one of the states below
W_LINE = 1  # of the next byte, from 1
W_ROW_END = 2  # position after the last row that has ended
W_ROWS = 3  # rows that have ended
W_QUOTE_LINE = 4  # of the last quote that opened a field
W_AFTER_CR = 5  # 1 if the last byte was a carriage return
CSV_WORDS = 6

FIELD_START = 0
IN_FIELD = 1
IN_QUOTES = 2
AFTER_QUOTE = 3  # a quote within quotes: the first of two, or the end

_QUOTE, _COMMA, _LF, _CR = 0x22, 0x2C, 0x0A, 0x0D


@kernel("int64(uint8[::1], int64, int64, int64[::1])", nogil=True)
def scan_csv(data, begin, end, state):
    """Read data[begin:end] of a CSV file, with the words W_… from before. Return the position after the last byte read:
    `end`, or that of a byte which follows a closing quote and ends no field.
    """
    if state.size < CSV_WORDS or not 0 <= begin <= end <= data.size:
        return -1
    now = state[W_STATE]
    line = state[W_LINE]
    after_cr = state[W_AFTER_CR]
    at = begin
    while at < end:
        byte = data[at]
        at += 1
        if byte == _LF or byte == _CR:
            is_second = byte == _LF and after_cr == 1
            after_cr = 1 if byte == _CR else 0
            if not is_second:
                line += 1
            if now != IN_QUOTES:
                if not is_second:
                    state[W_ROWS] += 1
                state[W_ROW_END] = at
                now = FIELD_START
            continue
        after_cr = 0
        if now == IN_QUOTES:
            if byte == _QUOTE:
                now = AFTER_QUOTE
        elif byte == _COMMA:
            now = FIELD_START
        elif now == FIELD_START and byte == _QUOTE:
            now = IN_QUOTES
            state[W_QUOTE_LINE] = line
        elif now == AFTER_QUOTE:
            if byte != _QUOTE:
                break
            now = IN_QUOTES
        else:
            now = IN_FIELD
    else:
        state[W_STATE] = now
        state[W_LINE] = line
        state[W_AFTER_CR] = after_cr
        return at
    state[W_LINE] = line
    return at - 1
