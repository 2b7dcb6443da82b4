"""`check --replication`: find errors in the replication settings of an open store, or a view, before replication
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.replication.settings.check import Peer, can_read_rows, check
from tidemark.replication.settings.match import ReplicationRow, row_of
from tidemark.replication.settings.options import settings
from tidemark.replication.settings.setup import SiteSettings
from tidemark.replication.settings.system_tables import NDB_REPLICATION

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store

Scan = Callable[[str], Iterable[Any]]  # the rows of a table by name


def replication_rows(definitions: Mapping[str, TableDefinition], scan: Scan) -> list[ReplicationRow]:
    """The rows of `mysql.ndb_replication`; none if the table is missing or unreadable."""
    if not can_read_rows(definitions):
        return []
    return [row_of(row._asdict()) for row in scan(NDB_REPLICATION)]


def definitions_of(store: Store) -> dict[str, TableDefinition]:
    """Definitions of all tables of a store, by name."""
    return {name: table.definition for name, table in list(store.tables.items())}


def check_replication(
    store: Store, scan: Scan, given: Mapping[str, object], channels: Sequence[str], peer: Peer | None
) -> dict[str, Any]:
    """See `Database.check_replication`."""
    options = store.options
    site = SiteSettings.from_options(settings(given), options.gcp_interval_ms, options.epoch_interval_ms)
    definitions = definitions_of(store)
    return check(definitions, replication_rows(definitions, scan), site, channels, peer).to_dict()
