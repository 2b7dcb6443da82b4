"""The rules of conflict functions for channels, checked before a channel is created.

NDB$EPOCH and NDB$EPOCH_TRANS compare with the epochs of one peer, so at most one channel may apply their tables. They
need one primary, so only one side of a pair may have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.settings.match import ReplicationRow, find_row
from tidemark.replication.settings.setup import SiteSettings, check_channels, check_pair, exceptions_of, set_up


def check_functions(
    tables: Mapping[str, TableDefinition],
    rows: Sequence[ReplicationRow],
    site: SiteSettings,
    channels: Sequence[str],
    peer: tuple[Sequence[ReplicationRow], int] | None = None,
) -> None:
    """Refuse channels that the conflict functions of a site's tables do not allow. `rows` are those of
    `mysql.ndb_replication`, `channels` the names of all channels that will apply here, `peer` the rows and the server
    id of the other side of a pair, if known. Raises: SchemaInvalid, naming the rows, or the channels, and the table.
    """
    if not any(row.conflict_fn is not None for row in rows):
        return
    for name, definition in tables.items():
        if is_system_table(name):
            continue
        row = find_row(rows, *name.partition(".")[::2], site.server_id).row
        if row is None or row.conflict_fn is None:
            continue
        setup = set_up(definition, row, site, exceptions_of(name, tables))
        if setup.function is None:
            continue
        finding = check_channels(name, setup, channels)
        if finding is None and peer is not None:
            finding = check_pair(name, list(rows), site.server_id, list(peer[0]), peer[1])
        if finding is not None:
            raise SchemaInvalid(finding.text, table=name, rule=finding.rule)
