"""Faults of the product that are known and not mended yet: each line switches off the step or the check that finds it.

A name leaves this table when its fault is mended; then the defect of that name (`defects.py`) plants it again. The
table is empty in the end.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "drop column": "a dropped column gives the others its bytes",
    "NumPy times": "numpy.timedelta64 and datetime64[ns] become integers",
    "NaT by a client": "pandas.NaT ends the link of a client",
    "pandas rounds": "to_pandas of integers beside NULL gives floats",
    "polars text": "upsert_many of polars text raises an error of pyarrow",
    "surrogates": "a text that is no Unicode is a TypeMismatch by a client, ValueOutOfRange elsewhere",
    "MAXVALUE": "add_partition by a client cannot send MAXVALUE",
    "order of a batch": "upsert_many and write_many put off rows whose key came before",
    "prefix of Binary": "starts_with and prefix= that end with a zero byte miss values whose padding begins there",
    "half a commit": "a commit in slices is seen row by row",
    "torn scans": "one call that reads a table sees some rows before a commit and others after it",
    "read, then gone": "a client is shown a commit that a kill takes back",
    "found again": "a founder that lost its directory founds a second group",
    "hung disk": "a commit under way at a primary with a hung disk waits as long as the disk hangs",
    "hung client": "a client that hangs in a transaction keeps its locks",
    "open quote": "a CSV file whose last quote has no end is loaded",
    "chain of backups": "an incremental backup after a restart lacks deletes",
}


def is_known(name: str) -> bool:
    """Whether a fault is not mended yet."""
    return name in KNOWN
