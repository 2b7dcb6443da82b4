"""Faults of the product that are known and not mended yet: each line switches off the step or the check that finds it.

A name leaves this table when its fault is mended; then the defect of that name (`defects.py`) plants it again. The
table is empty in the end.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "surrogates": "a text that is no Unicode is a TypeMismatch by a client, ValueOutOfRange elsewhere",
    "MAXVALUE": "add_partition by a client cannot send MAXVALUE",
    "prefix of Binary": "starts_with and prefix= that end with a zero byte miss values whose padding begins there",
}


def is_known(name: str) -> bool:
    """Whether a fault is not mended yet."""
    return name in KNOWN
