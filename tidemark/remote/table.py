"""`db["test.account"]` of a store of another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import RowNotFound
from tidemark.remote.scan import RemoteScan
from tidemark.scans import ByIndex

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.remote.links import Address, Links
    from tidemark.remote.transaction import RemoteTransaction
    from tidemark.replication.calls.conversation import CallLink

Progress = Callable[[int, int, str], None]


class RemoteTable:
    """One table, with the calls of `TableHandle`. Every call that writes is a transaction at the primary. Any node
    serves reads, and they see every acknowledged commit.

    Each call raises what that of `TableHandle` raises, and PeerTimeout if no node answers in time. A call that writes
    also raises PrimaryLost and CommitUnanswered, as a `RemoteTransaction` does.
    """

    def __init__(self, links: Links, transaction: Callable[[], RemoteTransaction], name: str) -> None:
        """links: the database's links. transaction: begins a transaction of the database."""
        self._links = links
        self._transaction = transaction
        self.name = name

    @property
    def definition(self) -> TableDefinition:
        """The table's definition. Raises: NoSuchTable."""
        found: TableDefinition = self._links.read(["definition", self.name])
        return found

    def _alone(self, work: Callable[[RemoteTransaction], Any]) -> Any:
        with self._transaction() as txn:
            return work(txn)

    def _read(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._links.read(["table", self.name, method, list(arguments), named])

    # --- one row ---------------------------------------------------------------------------------
    def insert(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """See `TableHandle.insert`."""
        self._alone(lambda txn: txn.insert(self.name, row))

    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> None:
        """See `TableHandle.write`."""
        self._alone(lambda txn: txn.write(self.name, row))

    def get(self, key: Any, *, index: str | None = None) -> Any:
        """See `TableHandle.get`."""
        return self._read("get", key, index=index)

    def update(self, key: Any, changes: Mapping[str, Any], where: Any = None, *, index: str | None = None) -> bool:
        """See `TableHandle.update`."""
        return bool(self._alone(lambda txn: txn.update(self.name, key, changes, where, index=index)))

    def delete(self, key: Any, where: Any = None, *, index: str | None = None) -> bool:
        """See `TableHandle.delete`."""
        return bool(self._alone(lambda txn: txn.delete(self.name, key, where, index=index)))

    def upsert(self, row: Any, set: Mapping[str, Any] | None = None, index: str | None = None) -> bool:
        """See `TableHandle.upsert`."""
        return bool(self._alone(lambda txn: txn.upsert(self.name, row, set, index)))

    # --- many rows -------------------------------------------------------------------------------
    def insert_many(self, data: Any, progress: Progress | None = None) -> int:
        """See `TableHandle.insert_many`."""
        return int(self._alone(lambda txn: txn.insert_many(self.name, data, progress)))

    def write_many(self, data: Any, progress: Progress | None = None) -> int:
        """See `TableHandle.write_many`."""
        return int(self._alone(lambda txn: txn.write_many(self.name, data, progress)))

    def upsert_many(
        self,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """See `TableHandle.upsert_many`."""
        return int(self._alone(lambda txn: txn.upsert_many(self.name, data, set, index, progress)))

    def update_many(self, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """See `TableHandle.update_many`."""
        return int(self._alone(lambda txn: txn.update_many(self.name, data, progress, index=index)))

    def delete_many(self, keys: Any, *, index: str | None = None) -> int:
        """See `TableHandle.delete_many`."""
        return int(self._alone(lambda txn: txn.delete_many(self.name, keys, index=index)))

    def update_where(self, changes: Mapping[str, Any], where: Any = None) -> int:
        """See `TableHandle.update_where`."""
        return int(self._alone(lambda txn: txn.update_where(self.name, changes, where)))

    def delete_where(self, where: Any) -> int:
        """See `TableHandle.delete_where`."""
        return int(self._alone(lambda txn: txn.delete_where(self.name, where)))

    def get_many(self, keys: Any, columns: Sequence[str] | None = None, *, index: str | None = None) -> pa.RecordBatch:
        """See `TableHandle.get_many`."""
        return self._read("get_many", keys, columns, index=index)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        partitions: Sequence[str] | None = None,
        where: Any = None,
        *,
        index: str | None = None,
        lower: Any = None,
        upper: Any = None,
        prefix: Any = None,
        reverse: bool = False,
        progress: Progress | None = None,
    ) -> RemoteScan:
        """See `TableHandle.scan`. If its node is lost during the scan it raises PeerError: begin the scan again."""
        by = ByIndex(index, lower, upper, prefix, reverse)
        by.check()
        named = {"columns": columns, "limit": limit, "partitions": partitions, "where": where}
        named |= {"index": index, "lower": lower, "upper": upper, "prefix": prefix, "reverse": reverse}
        reader = _Reader(self._links)
        return RemoteScan(self.name, named, reader.ask, False, progress, lambda name: self.definition, reader.close)

    def explain(self, columns: Sequence[str] | None = None, where: Any = None, **options: Any) -> dict[str, Any]:
        """See `TableHandle.explain`."""
        return self.scan(columns, where=where, **options).explain()

    def indexes(self) -> list[dict[str, Any]]:
        """See `TableHandle.indexes`."""
        found: list[dict[str, Any]] = self._read("indexes")
        return found

    def partitions(self) -> list[dict[str, Any]]:
        """See `TableHandle.partitions`."""
        found: list[dict[str, Any]] = self._read("partitions")
        return found

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: Any = None, progress: Progress | None = None
    ) -> pa.Table:
        """See `TableHandle.to_arrow`."""
        return self.scan(columns, where=where, progress=progress).to_arrow()

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: Any = None, progress: Progress | None = None
    ) -> Any:
        """See `TableHandle.to_pandas`."""
        return self.scan(columns, where=where, progress=progress).to_pandas()

    def to_numpy(self, where: Any = None, progress: Progress | None = None) -> Any:
        """See `TableHandle.to_numpy`."""
        return self.scan(where=where, progress=progress).to_numpy()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._links.read(["length", self.name]))

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Any) -> Any:
        row = self.get(key)
        if row is None:
            raise RowNotFound(f"{self.name} has no row with key {key!r}", table=self.name, key=key)
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self.scan())

    def __repr__(self) -> str:
        return f"<tidemark table {self.name} of another process>"


class _Reader:
    """The link of one scan: taken at the first call, given back at the end of the scan."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._taken: tuple[Address, CallLink] | None = None

    def ask(self, *what: Any) -> Any:
        """Make one call. Raises: the error of the call; PeerError, after which the scan must begin again."""
        if self._taken is not None:
            return self._taken[1].ask(list(what))
        answer, self._taken = self._links.read_on(lambda address, link: (link.ask(list(what)), (address, link)))
        return answer

    def close(self) -> None:
        """Give the link back."""
        if self._taken is not None:
            self._links.give(*self._taken)
            self._taken = None
