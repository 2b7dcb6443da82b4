"""`db["test.account"]` of a store in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.calls import has_calls_of
from tidemark.derived import forwarded
from tidemark.handles import TableHandle
from tidemark.remote.executor import CHANGING
from tidemark.remote.keys import with_sent_keys
from tidemark.remote.scan import RemoteScan
from tidemark.table_reads import WritableTable

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.remote.links import Address, Links
    from tidemark.remote.transaction import RemoteTransaction
    from tidemark.replication.calls.conversation import CallLink
    from tidemark.scans import ScanAsked


@has_calls_of("remote table")
class RemoteTable(WritableTable):
    """One table, with the calls of `TableHandle`. Every call that writes is a transaction at the primary. Any node
    serves reads. They see every acknowledged commit, and show no other (docs/clients.md). If its node is lost during a
    scan, the scan raises PeerError: begin it again.

    Each call raises what that of `TableHandle` raises, and PeerTimeout if no node answers in time. A call that writes
    also raises PrimaryLost and CommitUnanswered, as a `RemoteTransaction` does.

    Examples:
        In the examples of its calls `remote` is a connection to the store `db`; a table of `remote` has the calls that
        the same table of `db` has.

        >>> item = remote["item"]
        >>> item.update(1, {"stock": 9})
        True
        >>> item[1], len(item)
        (Row(id=1, name='pen', stock=9), 3)
    """

    def __init__(self, links: Links, transaction: Callable[[], RemoteTransaction], name: str) -> None:
        """links: the database's links. transaction: begins a transaction of the database."""
        self._links = links
        self._transaction = transaction
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition. Raises: NoSuchTable."""
        found: TableDefinition = self._links.read(["definition", self.name])
        return found

    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method not in CHANGING:
            arguments, named = with_sent_keys(method, arguments, named, 0, lambda: self.definition)
            return self._links.read(["table", self.name, method, arguments, named])
        with self._transaction() as txn:
            return getattr(txn, method)(self.name, *arguments, **named)

    # calls: python -m tools.make_faces
    insert = forwarded(TableHandle.insert)
    write = forwarded(TableHandle.write)
    update = forwarded(TableHandle.update)
    delete = forwarded(TableHandle.delete)
    upsert = forwarded(TableHandle.upsert)
    insert_many = forwarded(TableHandle.insert_many)
    write_many = forwarded(TableHandle.write_many)
    upsert_many = forwarded(TableHandle.upsert_many)
    update_many = forwarded(TableHandle.update_many)
    delete_many = forwarded(TableHandle.delete_many)
    update_where = forwarded(TableHandle.update_where)
    delete_where = forwarded(TableHandle.delete_where)
    get = forwarded(TableHandle.get)
    get_many = forwarded(TableHandle.get_many)
    indexes = forwarded(TableHandle.indexes)
    partitions = forwarded(TableHandle.partitions)

    def _scan(self, asked: ScanAsked) -> RemoteScan:  # type: ignore[override]  # it has the calls of a Scan
        reader = _Reader(self._links)
        return RemoteScan(self.name, asked, reader.ask, False, lambda name: self.definition, reader.close)

    def __len__(self) -> int:
        return int(self._links.read(["length", self.name]))

    def __repr__(self) -> str:
        return f"<tidemark table {self.name} of another process>"


class _Reader:
    """The link of one scan: taken at the first call, returned at the end of the scan."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._taken: tuple[Address, CallLink] | None = None

    def ask(self, *what: Any) -> Any:
        """Make one call. Raises: the error of the call; PeerError, after which the scan must begin again."""
        self._links.check_open()
        if self._taken is not None:
            return self._taken[1].ask(list(what))
        answer, self._taken = self._links.read_on(lambda address, link: (link.ask(list(what)), (address, link)))
        return answer

    def close(self) -> None:
        if self._taken is not None:
            self._links.put_back(*self._taken)
            self._taken = None
