"""What a channel requires of its applier: to apply transactions and to keep `mysql.ndb_apply_status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tidemark.replication.channel.relay_reader import RelayTransaction
from tidemark.replication.wire.messages import Position


class StatusRow(NamedTuple):
    """A row of `mysql.ndb_apply_status`; `log_name` is empty and positions are 0 if they are unknown."""

    server_id: int
    epoch: int
    log_name: str = ""
    start_pos: int = 0
    end_pos: int = 0

    @property
    def end(self) -> Position | None:
        """The position up to which the source's binlog is applied, None if it is unknown."""
        return Position(self.log_name, self.end_pos) if self.log_name and self.end_pos else None


class ApplyStatus(Protocol):
    """`mysql.ndb_apply_status` of the replica."""

    def rows(self) -> Iterable[StatusRow]:
        """Return all rows, as committed."""
        ...

    def note(self, row: StatusRow) -> None:
        """Store the position after a schema change. It is not sent to other sites. It is as durable on return as a
        commit.
        """
        ...

    def clear(self) -> None:
        """Delete the rows. Durable on return."""
        ...

    def forget(self, server_id: int) -> None:
        """Delete the row of one server, if there is one. Durable on return."""
        ...

    def unconfirm(self) -> None:
        """Set the row of this site, if there is one and no other channel uses it, to epoch 0: no epoch of this site is
        known to be applied at the source any more. This is not sent to other sites. Durable on return.
        """
        ...

    def make_durable(self) -> None:
        """Make everything applied so far durable."""
        ...


class Applier(Protocol):
    """Applies transactions to the store."""

    def start(self) -> None:
        """Read the settings again. The channel calls this before it begins to apply."""
        ...

    def apply(self, transaction: RelayTransaction) -> object:
        """Apply one epoch transaction, whole and with its row of `ndb_apply_status`; on a typed error, nothing of it is
        applied.
        """
        ...

    def statement(self, text: str, database: str, server_id: int) -> None:
        """Execute one schema change, made at the server of this id. After a crash it may be executed again."""
        ...
