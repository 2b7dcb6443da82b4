"""Where the rows of a CSV file end, as it is read piece by piece."""

from __future__ import annotations

import numpy as np

from tidemark.engine.rows import csv_kernels as k


class CsvRows:
    """The rows and quotes of a CSV file up to the last byte that was read."""

    def __init__(self) -> None:
        self._state = np.zeros(k.CSV_WORDS, np.int64)
        self._state[k.W_LINE] = 1

    def read(self, data: bytearray, begin: int) -> bool:
        """Read data[begin:]; return False at a byte that follows a closing quote and ends no field."""
        return int(k.scan_csv(np.frombuffer(data, np.uint8), begin, len(data), self._state)) == len(data)

    def take(self) -> int:
        """Return the position in the data after the last row that has ended, or 0, and count rows anew."""
        end = int(self._state[k.W_ROW_END])
        self._state[k.W_ROW_END] = self._state[k.W_ROWS] = 0
        return end

    @property
    def rows(self) -> int:
        """Rows that have ended since `take`."""
        return int(self._state[k.W_ROWS])

    @property
    def line(self) -> int:
        """The line of the next byte, from 1."""
        return int(self._state[k.W_LINE])

    @property
    def quote_line(self) -> int:
        """The line of the last quote that opened a field."""
        return int(self._state[k.W_QUOTE_LINE])

    @property
    def is_in_quotes(self) -> bool:
        """Whether that quote is not closed yet."""
        return int(self._state[k.W_STATE]) == k.IN_QUOTES
