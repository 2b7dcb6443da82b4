"""How operations are marked on their way to the binlog, and rows made to travel again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.applied_rows import touch_rows_again
from engine.layout.arena import X_TAIL_WORD
from engine.layout.redo import AUTHOR_MASK
from replication.any_value import NO_LOGGING, REFLECT, REFRESH, RESERVED

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.table import Table
    from engine.transaction import Transaction


def tag(txn: Transaction, any_value: int, author: int) -> None:
    """What the transaction does from now on carries these."""
    txn.mem[txn.desc + X_TAIL_WORD] = any_value | author << 32


def tag_applied(txn: Transaction, source_id: int, server_id: int, is_reflected_back: bool) -> None:
    """For rows that a server has changed and a source sent, which is their author; an id that does not fit one counts
    as the greatest.
    """
    any_value = REFLECT if is_reflected_back else server_id & ~RESERVED
    tag(txn, any_value, min(source_id, AUTHOR_MASK))


def tag_own(txn: Transaction) -> None:
    """For rows of this site that no binlog takes: those of exceptions tables."""
    tag(txn, NO_LOGGING, 0)


def refresh(txn: Transaction, table: Table, keys: pa.RecordBatch) -> None:
    """Let rows, or their absence, travel again as they are; rows there become this site's own."""
    tag(txn, REFRESH, 0)
    touch_rows_again(txn, table, keys)
