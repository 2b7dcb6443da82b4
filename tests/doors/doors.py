"""The ways a value comes into a table. A door takes a value and says which Python value it hands over, and how: a new
door is a function here. None: it cannot express the value.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

# What libraries raise for values that they cannot express.
LIBRARY_ERRORS = (
    *(TypeError, ValueError, ArithmeticError, LookupError, AttributeError, BufferError, RuntimeError, OSError),
    *(pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException),
)


class Offer(NamedTuple):
    """A value as a door hands it over: what it is in Python, and the call that puts it into row 1 of a table."""

    value: Any
    put: Callable[[Any], Any]


Door = Callable[[Any], Offer | None]


def _many(value: Any, data: Any) -> Offer:
    return Offer(value, lambda table: table.insert_many(data))


def _columns(value: Any, column: Any) -> Offer:
    return _many(value, {"id": [1], "v": column})


def _array(value: Any) -> Any:
    """An array of a type of NumPy's own with this value, and the value it has then; None without one."""
    if isinstance(value, (list, tuple, memoryview, bytearray)) or value is np.ma.masked:
        return None
    array = np.array([value])
    return None if array.dtype == object or array.ndim != 1 else array


def _held(array: Any) -> Any:
    value = array[0]
    return None if isinstance(value, (np.datetime64, np.timedelta64)) and np.isnat(value) else value


def array(value: Any) -> Offer | None:
    made = _array(value)
    return None if made is None else _columns(_held(made), made)


def big_endian(value: Any) -> Offer | None:
    made = _array(value)
    return None if made is None else _columns(_held(made), made.astype(made.dtype.newbyteorder(">")))


def masked(value: Any) -> Offer | None:
    made = _array(value)
    return None if made is None else _columns(None, np.ma.array(made, mask=[True]))


def not_masked(value: Any) -> Offer | None:
    made = _array(value)
    return None if made is None else _columns(_held(made), np.ma.array(made, mask=[False]))


def structured(value: Any) -> Offer | None:
    made = _array(value)
    if made is None or made.dtype.names:
        return None
    rows = np.zeros(1, dtype=[("id", "i8"), ("v", made.dtype)])
    rows["id"], rows["v"] = 1, made
    return _many(_held(made), rows)


def masked_rows(value: Any) -> Offer | None:
    """Rows of a masked array, one by one."""
    found = structured(value)
    made = _array(value)
    if found is None or made.dtype == np.float16:  # NumPy warns of its own default of what is masked
        return None
    rows = np.ma.zeros(1, dtype=[("id", "i8"), ("v", made.dtype)])
    rows["id"], rows["v"] = 1, made
    rows["v"].mask = [True]
    return _many(None, iter(rows))


def object_array(value: Any) -> Offer | None:
    made = np.empty(1, dtype=object)
    made[0] = value
    return _columns(value, made)


def _present(value: Any) -> Any:
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value


def _frame(series: Any) -> Offer:
    return _many(_present(series.iloc[0]), pd.DataFrame({"id": [1], "v": series}))


def pandas_object(value: Any) -> Offer | None:
    series = pd.Series([None], dtype=object)
    series.iloc[0] = value
    return _many(_present(value), pd.DataFrame({"id": [1], "v": series}))


def pandas(value: Any) -> Offer | None:
    return _frame(pd.Series([value]))


def pandas_nullable(value: Any) -> Offer | None:
    return _frame(pd.Series([value]).convert_dtypes())


def pandas_category(value: Any) -> Offer | None:
    # Arrow has integers for decimals without a fraction, and bytes for a UUID.
    return None if isinstance(value, (Decimal, UUID)) else _frame(pd.Series([value]).astype("category"))


def pandas_sparse(value: Any) -> Offer | None:
    series = pd.Series([value])
    return None if series.dtype == object else _frame(series.astype(pd.SparseDtype(series.dtype)))


def pandas_series(value: Any) -> Offer | None:
    series = pd.Series([value])
    return _columns(_present(series.iloc[0]), series)


def _arrow(value: Any) -> Any:
    made = pa.array([value])
    is_integer = pa.types.is_decimal(made.type) and made.type.scale == 0  # taken for integers
    return None if is_integer or isinstance(made.type, pa.BaseExtensionType) else made


def _arrow_door(change: Callable[[Any], Any]) -> Door:
    def door(value: Any) -> Offer | None:
        made = _arrow(value)
        if made is None:
            return None
        made = change(made)
        return _many(made[0].as_py(), pa.table({"id": [1], "v": made}))

    return door


def _large(made: Any) -> Any:
    kinds = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return made.cast(kinds[made.type])


def _view(made: Any) -> Any:
    kinds = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    return made.cast(kinds[made.type])


def _runs(made: Any) -> Any:
    return pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), made)


def arrow_upsert(value: Any) -> Offer | None:
    """Views in `upsert_many`, which takes rows out of the batch."""
    series = pl.Series([value])
    made = pl.DataFrame({"id": [1], "v": series}, strict=True)
    return None if series.dtype == pl.Decimal else Offer(series[0], lambda table: table.upsert_many(made))


def polars(value: Any) -> Offer | None:
    series = pl.Series([value])
    return None if series.dtype == pl.Decimal else _many(series[0], pl.DataFrame({"id": [1], "v": series}))


DOORS: dict[str, Door] = {
    "insert": lambda v: Offer(v, lambda table: table.insert((1, v))),
    "insert a mapping": lambda v: Offer(v, lambda table: table.insert({"id": 1, "v": v})),
    "write": lambda v: Offer(v, lambda table: table.write((1, v))),
    "upsert": lambda v: Offer(v, lambda table: table.upsert((1, v))),
    "rows": lambda v: _many(v, [(1, v)]),
    "mappings": lambda v: _many(v, [{"v": v, "id": 1}]),
    "generator": lambda v: _many(v, (row for row in [(1, v)])),
    "write_many": lambda v: Offer(v, lambda table: table.write_many([(1, v)])),
    "upsert_many": lambda v: Offer(v, lambda table: table.upsert_many([(1, v)])),
    "list": lambda v: _columns(v, [v]),
    "object array": object_array,
    "array": array,
    "big-endian array": big_endian,
    "masked array": masked,
    "masked array, not masked": not_masked,
    "structured array": structured,
    "rows of a masked array": masked_rows,
    "pandas": pandas,
    "pandas object": pandas_object,
    "pandas nullable": pandas_nullable,
    "pandas category": pandas_category,
    "pandas sparse": pandas_sparse,
    "pandas Series": pandas_series,
    "arrow": _arrow_door(lambda made: made),
    "arrow large": _arrow_door(_large),
    "arrow view": _arrow_door(_view),
    "arrow dictionary": _arrow_door(lambda made: made.dictionary_encode()),
    "arrow dictionary of views": _arrow_door(lambda made: _view(made).dictionary_encode()),
    "arrow runs": _arrow_door(_runs),
    "polars": polars,
    "polars upsert_many": arrow_upsert,
}
