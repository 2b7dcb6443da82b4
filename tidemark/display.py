"""What a prompt or a notebook shows of stores, tables, scans and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from tidemark.engine.base.errors import Error, StoreClosed

ROWS_SHOWN = 10
TABLES_SHOWN = 100
NAMES_SHOWN = 8
CHARACTERS_SHOWN = 80


def short(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def state_of(first: type[Error] | None) -> str:
    """Return the state of a store by the class of its first failure."""
    if first is None:
        return "open"
    return "closed" if issubclass(first, StoreClosed) else "failed"


def html_table(title: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as a table of HTML. Everything is escaped; long values are cut."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(value))}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    # A value may be a gigabyte long.
    text = repr(value[:CHARACTERS_SHOWN]) if isinstance(value, bytes) else str(value)[: CHARACTERS_SHOWN + 1]
    return text if len(text) <= CHARACTERS_SHOWN else text[: CHARACTERS_SHOWN - 1] + "…"
