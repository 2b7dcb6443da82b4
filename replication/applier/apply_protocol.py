"""What a channel asks of who applies: transactions brought into the store, and `mysql.ndb_apply_status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tidemark.replication.channel.relay_reader import RelayTransaction
from tidemark.replication.wire.messages import Position


class StatusRow(NamedTuple):
    """A row of `mysql.ndb_apply_status`; `log_name` is empty and positions 0 where nobody knows them."""

    server_id: int
    epoch: int
    log_name: str = ""
    start_pos: int = 0
    end_pos: int = 0

    @property
    def end(self) -> Position | None:
        """Up to where the source's binlog is applied, if it is known."""
        return Position(self.log_name, self.end_pos) if self.log_name and self.end_pos else None


class ApplyStatus(Protocol):
    """`mysql.ndb_apply_status` of the replica."""

    def rows(self) -> Iterable[StatusRow]:
        """All of them, as committed."""
        ...

    def note(self, row: StatusRow) -> None:
        """Keep where to go on behind a change of the schema. No other site hears of it. Durable: as a commit."""
        ...

    def clear(self) -> None:
        """Delete them. Durable: on return."""
        ...

    def forget(self, server_id: int) -> None:
        """Delete the row of one server, if there is one. Durable: on return."""
        ...

    def unconfirm(self) -> None:
        """No epoch of this site is known to be applied at the source any more: its own row, if there is one and another
        channel does not go by it, says 0. No other site hears of it. Durable: on return.
        """
        ...

    def make_durable(self) -> None:
        """Everything applied so far is durable on return."""
        ...


class Applier(Protocol):
    """What brings transactions into the store."""

    def start(self) -> None:
        """Read settings anew: the channel begins to apply."""
        ...

    def apply(self, transaction: RelayTransaction) -> object:
        """One epoch transaction, whole and with its row of `ndb_apply_status`, or a typed error and nothing of it."""
        ...

    def statement(self, text: str, database: str, server_id: int) -> None:
        """One change of the schema, made at the server of this id. After a crash it may come again."""
        ...
