"""A snapshot that another process holds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tidemark.calls import has_calls_of
from tidemark.derived import described, forwarded
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import Error, PeerError, SnapshotClosed
from tidemark.engine.schema.names import is_system_table, names_one_of
from tidemark.remote.executor import OF_SNAPSHOT
from tidemark.remote.keys import with_sent_keys
from tidemark.remote.scan import RemoteScan
from tidemark.snapshot import Snapshot, SnapshotTable
from tidemark.table_reads import TableReads
from tidemark.typed_rows import SnapshotTables

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.remote.links import Links
    from tidemark.scans import ScanAsked


@has_calls_of("remote snapshot")
class RemoteSnapshot(SnapshotTables["RemoteSnapshotTable"], Closable):
    """All tables of a store of another process as at the end of one epoch; use it with `with`. Any thread may read it.

    The node that executes transactions holds it for a link, and drops it when the link ends. Then a call raises
    PeerError: open another snapshot. After `close` its calls raise SnapshotClosed. Otherwise they raise what those of
    `Snapshot` raise. No crash takes back what it shows.

    Examples:
        >>> with remote.snapshot() as before:
        ...     deleted = remote["item"].delete(1)
        ...     before["item"][1].name, 1 in remote["item"], before["item"].sum("stock")
        ('pen', False, 15)
    """

    def __init__(self, links: Links) -> None:
        """Open it. Raises: PeerTimeout if no node executes transactions; LimitExceeded, StoreFailed as there."""
        self._links = links
        self._turn = threading.Lock()  # a link has one call at a time
        self._address, self.link, (self.epoch, self._names) = links.begin(["snapshot"])
        self._is_closed = False

    def _ask(self, *what: Any) -> Any:
        with self._turn:
            self._links.check_open()
            if self._is_closed:
                raise SnapshotClosed(
                    "the snapshot is closed, or its link broke; open another one with snapshot()", epoch=self.epoch
                )
            try:
                return self.link.ask(list(what))
            except BaseException as error:  # after Ctrl-C too, the link was closed before the answer
                if isinstance(error, PeerError) or not isinstance(error, Error):
                    self._lose()
                raise

    def _lose(self) -> None:
        self._is_closed = True
        self.link.close()
        self._links.gone(self._address)

    @described(Snapshot.close)
    def close(self) -> None:
        with self._turn:
            if self._is_closed:
                return
            try:
                self.link.ask(["end_snapshot"])
            except (Error, OSError):
                self._lose()  # the other process drops it with the link
                return
            self._is_closed = True
            self._links.put_back(self._address, self.link)

    def __getitem__(self, name: str) -> RemoteSnapshotTable:
        return RemoteSnapshotTable(self, self._ask("of_snapshot", name, "definition", [], {}))

    def __contains__(self, name: object) -> bool:
        return names_one_of(name, self._names)

    @described(Snapshot.tables)
    def tables(self, system: bool = False) -> list[str]:
        return sorted(name for name in self._names if system or not is_system_table(name))

    def __repr__(self) -> str:
        return f"<tidemark snapshot of epoch {self.epoch} of another process{', closed' if self._is_closed else ''}>"


@has_calls_of("remote snapshot table")
class RemoteSnapshotTable(TableReads):
    """One table of a `RemoteSnapshot`, with the calls of `SnapshotTable`, which raise as there, and as those of a
    `RemoteSnapshot`.

    Examples:
        >>> with remote.snapshot() as snapshot:
        ...     item = snapshot["item"]
        ...     len(item), item.get(2).name, item.get_many([3, 1], ["name"]).num_rows, item.max("stock")
        ...     [row.id for row in item.scan(where=tm.col("stock") > 5)]
        (3, 'cup', 2, 10)
        [1]
    """

    __slots__ = ("_definition", "_snapshot")

    def __init__(self, snapshot: RemoteSnapshot, definition: TableDefinition) -> None:
        self._snapshot = snapshot
        self._definition = definition

    @property
    def definition(self) -> TableDefinition:
        return self._definition

    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        sent = with_sent_keys(method, arguments, named, 0, lambda: self._definition)
        return self._snapshot._ask("of_snapshot", self.name, method, *sent)

    # calls: python -m tools.make_faces
    get = forwarded(SnapshotTable.get)
    get_many = forwarded(SnapshotTable.get_many)

    def _scan(self, asked: ScanAsked) -> RemoteScan:  # type: ignore[override]  # it has the calls of a Scan
        return RemoteScan(self.name, asked, self._snapshot._ask, OF_SNAPSHOT, lambda name: self._definition)

    def __len__(self) -> int:
        return int(self._forward("length", [], {}))

    def __repr__(self) -> str:
        return f"<tidemark table {self.name} of another process at epoch {self._snapshot.epoch}>"
