"""`tm.Arbitrator`: a small process without rows that votes where a node group could split into two halves."""

from __future__ import annotations

import os
from typing import Any

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.closable import Closable
from tidemark.engine.files.directory import PosixFiles
from tidemark.replication.node_group.arbitrator_process import ArbitratorProcess, check_begin
from tidemark.replication.node_group.carrier import Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.view import ARBITRATOR
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address


class Arbitrator(Closable):
    """A running arbitrator. Use it with `with`, or close it.

    If an error ends the arbitrator, such as a failing disk, `wait` raises that error. `close` and `status` raise none.

    Examples:
        `group` has one node, which does not run, and an arbitrator: "1=127.0.0.1:7301,arbitrator=127.0.0.1:7300". In
        the examples of its calls `arbitrator` is this arbitrator, running.

        >>> secret = b"sixteen bytes or more"
        >>> with tm.Arbitrator("arbitrator", group, secret, is_new=True) as arbitrator:
        ...     arbitrator.status()["view"], arbitrator.wait(0.01)
        (0, False)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str | GroupConfiguration,
        secret: bytes,
        *,
        listen: str | tuple[str, int] | None = None,
        tls: tuple[TlsContext, TlsContext] | None = None,
        is_new: bool = False,
        living: int | None = None,
    ) -> None:
        """Run the arbitrator of a group with the record in a directory, which is created if it is missing.

        Every vote is durable before it is sent.

        Args:
            path: The directory.
            group: "1=host:port,2=host:port,arbitrator=host:port", the same at all nodes.
            secret: 16 bytes or more, known to all nodes.
            listen: The address to listen at, if it is not the one in `group`; port 0 takes a free port.
            tls: Contexts of a server and of a client.
            is_new: If the directory is empty, wait for the first node that founds the group.
            living: If the directory is empty because the disk was lost, begin with the view of this node. Its side must
                be the only one alive.

        Raises:
            SchemaInvalid: The group has no arbitrator or no node `living`, an address is invalid, or the secret is too
                weak.
            Locked: Another process has the directory.
            ViewDamaged: The record is damaged.
            ForeignFile: The directory has the record of a node, or files of two groups.
            Incompatible: The record was written by an incompatible version.
            Rejected: The directory holds a store; or it has a record, and `living` is given.
            PeerError: The address is taken.
        """
        configuration = group if isinstance(group, GroupConfiguration) else GroupConfiguration.parse(group)
        check_begin(configuration, living)
        place = configuration.address_of(ARBITRATOR) if listen is None else parse_address(listen)
        check_secret_at(place, secret, None if tls is None else tls[0])
        secrets = Secrets(secret, *(tls or (None, None)))
        self._files = PosixFiles(path, create=True)
        try:
            self._files.lock()
            self._process = ArbitratorProcess(self._files, configuration, secrets, SystemClock(), place, is_new, living)
        except BaseException:
            self._files.close_all()
            raise
        self.address = self._process.address
        self.name = f"{self.address[0]}:{self.address[1]}"
        self._process.start()

    def close(self) -> None:
        """Stop voting. A second call does nothing.

        Durable on return: every vote that was sent.

        Examples:
            >>> arbitrator.close()
        """
        self._process.close()
        self._files.close_all()

    def wait(self, seconds: float) -> bool:
        """Wait until the arbitrator has ended, at most for `seconds`; return whether it has.

        Raises: the error that ended it.

        Examples:
            >>> arbitrator.wait(0.01)
            False
        """
        return self._process.wait(seconds)

    def status(self) -> dict[str, Any]:
        """Return the arbitrator's address, the store, view and members in its record, and its links to the nodes.

        Without a record the store is None and the view 0.

        Examples:
            >>> status = arbitrator.status()
            >>> status["has_record"], status["store"], status["view"], status["members"]
            (False, None, 0, [])
        """
        return self._process.status()
