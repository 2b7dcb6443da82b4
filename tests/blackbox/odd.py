"""Values that are no plain Python values: scalars of NumPy and pandas, and what they mean to a column."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import Any

from tests.blackbox.kinds import UTC, Refused

REFUSED = "REFUSED"
_DAY, _MOMENT = dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, 3, 4, 5)
# Source text, and the Python value that it is; REFUSED if no column takes it.
MEANINGS: dict[str, Any] = {
    "np.int8(5)": 5,
    "np.int64(7)": 7,
    "np.uint64(2**63)": 2**63,
    "np.float32(0.5)": 0.5,
    "np.float64(1.5)": 1.5,
    "np.bool_(True)": True,
    "np.str_('ab')": "ab",
    "np.bytes_(b'ab')": b"ab",
    "np.datetime64('2024-01-02', 'D')": _DAY,
    "np.datetime64('2024-01-02T03:04:05', 'us')": _MOMENT,
    "np.datetime64('2024-01-02T03:04:05.000000001', 'ns')": REFUSED,
    "np.timedelta64(5, 'M')": REFUSED,
    "np.timedelta64(5, 'ns')": REFUSED,
    "np.timedelta64(5, 'D')": REFUSED,
    "np.complex128(1)": REFUSED,
    "pd.NaT": REFUSED,
    "pd.Timestamp('2024-01-02 03:04:05')": _MOMENT,
    "pd.Timestamp('2024-01-02 03:04:05', tz='UTC')": _MOMENT.replace(tzinfo=UTC),
    "bytearray(b'ab')": b"ab",
    "memoryview(b'ab')": b"ab",
    "True": True,
    "float('nan')": float("nan"),
}


def drawn(rng: random.Random) -> Odd:
    """Return an odd value."""
    return Odd(rng.choice(sorted(MEANINGS)))


@dataclass(frozen=True)
class Odd:
    """A value by its source text."""

    source: str

    def real(self) -> Any:
        """Return the value."""
        import numpy as np
        import pandas as pd

        return eval(self.source, {"np": np, "pd": pd})

    @property
    def means(self) -> Any:
        """The plain value. Raises: Refused."""
        found = MEANINGS[self.source]
        if isinstance(found, str) and found == REFUSED:
            raise Refused("TypeMismatch", "ValueOutOfRange")
        return found


def real(value: Any) -> Any:
    """Return a step with odd values as they enter the store."""
    return _each(value, lambda odd: odd.real())


def _each(value: Any, what: Any) -> Any:
    if isinstance(value, Odd):
        return what(value)
    if type(value) in (list, tuple):
        return type(value)(_each(each, what) for each in value)
    if type(value) is dict:
        return {name: _each(each, what) for name, each in value.items()}
    return value


def is_odd(value: Any) -> bool:
    """Whether a step has an odd value."""
    if type(value) in (list, tuple):
        return any(map(is_odd, value))
    return any(map(is_odd, value.values())) if type(value) is dict else isinstance(value, Odd)
