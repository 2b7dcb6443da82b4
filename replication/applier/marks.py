"""How operations are marked on their way to the binlog, and rows made to travel again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.access.noted_rows import refresh_rows, tag
from tidemark.engine.log.redo_layout import AUTHOR_MASK
from tidemark.replication.settings.any_value import NO_LOGGING, REFLECT, REFRESH, RESERVED

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def tag_applied(txn: Transaction, source_id: int, server_id: int, is_reflected_back: bool) -> None:
    """For rows that a server has changed and a source sent, which is their author; an id that does not fit one counts
    as the greatest.
    """
    any_value = REFLECT if is_reflected_back else server_id & ~RESERVED
    tag(txn, any_value, min(source_id, AUTHOR_MASK))


def tag_position(txn: Transaction, logger_id: int) -> None:
    """For a row of `ndb_apply_status` that goes on under the id of who logged it, 0 for the own one."""
    tag(txn, logger_id & ~RESERVED, 0)


def tag_local(txn: Transaction) -> None:
    """For changes this site makes by itself, which other sites hear of as of those of its users."""
    tag(txn, 0, 0)


def tag_own(txn: Transaction) -> None:
    """For rows of this site that no binlog takes: those of exceptions tables."""
    tag(txn, NO_LOGGING, 0)


def refresh(txn: Transaction, table: Table, keys: pa.RecordBatch) -> None:
    """Let rows, or their absence, travel again as they are; rows there become this site's own."""
    tag(txn, REFRESH, 0)
    refresh_rows(txn, table, keys)
