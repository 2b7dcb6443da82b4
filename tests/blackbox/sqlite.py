"""The second judge: what SQLite finds among the rows of the model."""

from __future__ import annotations

import sqlite3
from typing import Any

from tests.blackbox.expressions import names_in, plain, sql
from tests.blackbox.kinds import Unsure
from tests.blackbox.model import Table


def answers(table: Table, where: Any) -> list[tuple[Any, ...]]:
    """Return the keys of the rows that SQLite accepts. Raises: Unsure if SQL cannot say the condition alike."""
    used = sorted(names_in(where))
    if not set(used) <= set(table.names):
        raise Unsure
    named = {name: table.column(name) for name in used}
    if not used or any(named[name].kind.name == "Char" for name in used):
        raise Unsure
    try:
        text, values = sql(where)
        rows = [[plain(row[table.names.index(name)]) for name in used] for row in table.rows.values()]
    except KeyError:
        raise Unsure from None
    db = sqlite3.connect(":memory:")
    try:
        # Without types SQLite compares values as they are.
        columns = ", ".join(f'"{name}"' for name in used)
        db.execute(f"create table t (place, {columns})")
        marks = ", ".join("?" * (len(used) + 1))
        db.executemany(f"insert into t values ({marks})", [[place, *row] for place, row in enumerate(rows)])
        found = [place for (place,) in db.execute(f"select place from t where {text}", values)]
    except (sqlite3.Error, OverflowError):
        raise Unsure from None
    finally:
        db.close()
    rows_of = list(table.rows.values())
    places = [table.names.index(name) for name in table.key]
    return [tuple(rows_of[number][place] for place in places) for number in found]


def groups(
    table: Table, where: Any, by: list[str], functions: list[tuple[str, str | None]]
) -> list[tuple[Any, ...]] | None:
    """Return the groups that SQLite finds, in the order of their keys, which are integers, text or bytes. None: SQL
    cannot say it alike.
    """
    used = [*by, *(name for _, name in functions if name is not None)]
    kinds = [table.column(name).kind for name in used]
    if not all(kind.is_integer or kind.name in ("VarChar", "Text", "VarBinary", "Blob") for kind in kinds):
        return None
    try:
        text, values = ("1", []) if where is None else sql(where)
        judged = [] if where is None else list(names_in(where))
        names = list(dict.fromkeys([*used, *judged]))
        places = [table.names.index(name) for name in names]
        rows = [[plain(row[place]) for place in places] for row in table.rows.values()]
    except KeyError:
        return None
    if any(table.column(name).kind.name == "Char" for name in judged):
        return None
    db = sqlite3.connect(":memory:")
    try:
        db.execute(f"create table t ({', '.join(map(_quoted, names))})")
        db.executemany(f"insert into t values ({', '.join('?' * len(names))})", rows)
        keys = ", ".join(map(_quoted, by))
        results = [f"{'avg' if f == 'mean' else f}({'*' if name is None else _quoted(name)})" for f, name in functions]
        found = db.execute(
            f"select {', '.join([keys, *results])} from t where {text} group by {keys} order by {keys}", values
        ).fetchall()
    except (sqlite3.Error, OverflowError):
        return None
    finally:
        db.close()
    return found


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
