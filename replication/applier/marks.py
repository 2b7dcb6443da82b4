"""Tags of operations for the binlog, and refreshes of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.applied.noted_rows import refresh_rows, tag
from tidemark.engine.log.redo_layout import AUTHOR_MASK
from tidemark.replication.settings.any_value import NO_LOGGING, REFLECT, REFRESH, RESERVED

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def tag_applied(txn: Transaction, source_id: int, server_id: int, is_reflected_back: bool) -> None:
    """Tag rows that a server has changed and a source has sent; the source is their author. An id that does not fit the
    author becomes the largest author.
    """
    any_value = REFLECT if is_reflected_back else server_id & ~RESERVED
    tag(txn, any_value, min(source_id, AUTHOR_MASK))


def tag_position(txn: Transaction, logger_id: int) -> None:
    """Tag a row of `ndb_apply_status` that is passed on under the id of its logger, 0 for this site."""
    tag(txn, logger_id & ~RESERVED, 0)


def tag_local(txn: Transaction) -> None:
    """Tag changes that the applier itself makes, which are sent to other sites like those of this site's callers."""
    tag(txn, 0, 0)


def tag_own(txn: Transaction) -> None:
    """Tag rows of this site that the binlog does not get: rows of exceptions tables."""
    tag(txn, NO_LOGGING, 0)


def refresh(txn: Transaction, table: Table, keys: pa.RecordBatch) -> None:
    """Refresh rows: send their current state, or their absence. Existing rows become this site's own."""
    tag(txn, REFRESH, 0)
    refresh_rows(txn, table, keys)
