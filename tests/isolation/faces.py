"""The faces of a store over which plays run: threads of one store, clients of a served one, clients of a node group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.isolation.stage import Face
from tests.node_group.site import PATIENCE_MS, site_of
from tests.store.support import client_of, open_memory

# Nothing waits that long: a play ends each wait.
PATIENT: dict[str, Any] = {"lock_timeout_ms": PATIENCE_MS}


def make_tables(db: Any, storage: str = "memory") -> None:
    """Make the table of the plays, and that of rules."""
    disk: dict[str, Any] = {"storage": "disk"} if storage == "disk" else {}
    if disk:
        db.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("name", tm.VarChar(20)),
        tm.Column("n", tm.Int64, **disk),
        tm.Column("g", tm.Int64),
    ]
    db.create_table("t", columns, "id", partition=tm.HashPartition(4) if storage == "partitions" else None)
    db.create_index("t", "by_name", ["name"], unique=True)
    db.create_index("t", "by_g", ["g"])
    db.create_index("t", "by_id_g", ["id", "g"])
    db.create_table("rule", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db["rule"].insert((1, 0))


@contextmanager
def threads(folder: Path, storage: str = "memory") -> Iterator[Face]:
    """Threads of one store."""
    with open_memory(data_memory="64 MiB", redo_log="32 MiB", **PATIENT) as db:
        make_tables(db, storage)
        yield Face(db, db.status)


@contextmanager
def clients(folder: Path) -> Iterator[Face]:
    """Clients of a store that is served."""
    with tm.open(folder / "store", data_memory="64 MiB", redo_log="32 MiB", **PATIENT) as db:
        make_tables(db)
        with client_of(db, PATIENCE_MS) as remote:
            yield Face(remote, db.status, is_remote=True, part=1 / 2)


@contextmanager
def node_group(folder: Path) -> Iterator[Face]:
    """Clients of a node group that ask its second node: transactions are at its primary."""
    with site_of(folder, 2, **PATIENT) as site, site.nodes[2].connect(PATIENCE_MS) as remote:
        make_tables(remote)
        yield Face(remote, lambda: site.db(1).status(), is_remote=True, part=1 / 4)


FACES: dict[str, Callable[[Path], AbstractContextManager[Face]]] = {
    "threads": threads,
    "threads, disk": lambda folder: threads(folder, "disk"),
    "threads, partitions": lambda folder: threads(folder, "partitions"),
    "clients": clients,
    "node group": node_group,
}
