"""The same test over tables in memory and tables on disk.

A module that says `pytestmark = pytest.mark.usefixtures("storage")` runs twice (the fixture is in `tests/conftest.py`).
The second time, every table it makes has all its columns on disk except those of its key, which must be in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tidemark.database import Database

STORAGES = ["memory", "disk"]
# For a test of such a module that only concerns tables in memory.
memory_only = pytest.mark.parametrize("storage", ["memory"], indirect=True, scope="module")
TABLESPACE: dict[str, Any] = {"size": "256 KiB", "page_size": "4 KiB", "extent": "64 KiB"}


def on_disk(columns: Iterable[Any], primary_key: str | Sequence[str]) -> list[Any]:
    """The columns, all but those of the key on disk."""
    key = (primary_key,) if isinstance(primary_key, str) else primary_key
    return [column if column.name in key else replace(column, storage="disk") for column in columns]


@contextmanager
def tables_on(storage: str) -> Iterator[None]:
    """Within the block, tables are made on this storage, whatever the columns given to `create_table` say."""
    made = Database.create_table

    def create_table(self: Any, name: str, columns: Any, primary_key: Any, *more: Any, **options: Any) -> Any:
        placed = on_disk(columns, primary_key)
        if any(column.is_disk for column in placed) and not self.tablespaces():
            self.create_tablespace("main", **TABLESPACE)
        return made(self, name, placed, primary_key, *more, **options)

    with pytest.MonkeyPatch.context() as patch:
        if storage == "disk":
            patch.setattr(Database, "create_table", create_table)
        yield
