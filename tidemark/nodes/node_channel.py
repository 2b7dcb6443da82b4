"""The channel of a node group that is a replica site: created and run at the node that leads, and nowhere else.

When a life of a node ends, the node closes its store, and the store closes its channel. A thread here watches which
node leads, and creates the channel when this node does. The position is in `mysql.ndb_apply_status`, a table of the
group, so nothing is kept here. Changes that were applied but not acknowledged by every member are past that position
at the next primary, so the source sends them again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from tidemark.engine.base.errors import Error, Rejected, SchemaInvalid
from tidemark.replication.channel.receiver import Worker, is_transient
from tidemark.replication.settings.options import validate
from tidemark.replication.wire.wire import check_secret_at, parse_address
from tidemark.sites.channel import Channel
from tidemark.sites.channel_links import ChannelKeywords, channel_options
from tidemark.sites.failover import check_failover_options

if TYPE_CHECKING:
    from tidemark.database import Database
    from tidemark.engine.base.clock import Clock
    from tidemark.replication.settings.conflict_function import Role
    from tidemark.replication.wire.wire import TlsContext

_log = logging.getLogger("tidemark.replication")

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0
Address = str | tuple[str, int]


class _Source(TypedDict):
    source: Address


class NodeChannelKeywords(ChannelKeywords, _Source, total=False):
    """The arguments of `tm.Channel` without the store and the calls by hand. Sources are addresses, because the node
    that leads changes from process to process.
    """

    name: str
    secret: bytes
    tls: TlsContext | None
    copy: bool
    conflict_role: Role | str | int | None
    ignore_server_ids: Iterable[int]
    replicate_do: Iterable[str]
    replicate_ignore: Iterable[str]
    failed_source: int
    heartbeat_ms: int
    other_sources: Iterable[Address]
    failover_after_ms: int
    heartbeat_from: int


# Arguments that are no options of the channel (`channel_options`).
_AT_THE_NODE = ("source", "secret", "tls", "copy", "conflict_role", "other_sources", "failover_after_ms")


def _checked(given: NodeChannelKeywords, secret: bytes, server_id: int) -> dict[str, Any]:
    """Return the arguments of the channel, with the group's secret if none is given. Raises: SchemaInvalid,
    InvalidName, Rejected for server id 0.
    """
    if not server_id:
        raise Rejected("server_id 0 does not replicate; give the nodes another one", option="server_id")
    if not isinstance(given, Mapping):
        raise SchemaInvalid(f"channel must be a mapping of arguments of tm.Channel, got {type(given).__name__}")
    known = NodeChannelKeywords.__annotations__.keys()
    unknown = sorted(set(given) - known, key=str)
    if unknown or "source" not in given:
        what = f"there is no option {unknown[0]!r}" if unknown else "it has no source"
        raise SchemaInvalid(f"{what}; the options of a group's channel are {', '.join(sorted(known))}")
    made: dict[str, Any] = {"secret": secret, **given}
    for name in ("ignore_server_ids", "replicate_do", "replicate_ignore", "other_sources"):
        value = made.get(name, ())
        made[name] = (value,) if isinstance(value, str) else tuple(value)  # each life iterates over the values
    for each in (made["source"], *made["other_sources"]):
        if not isinstance(each, (str, tuple)):
            raise SchemaInvalid(
                f"a source of a group's channel must be an address like host:port, got {type(each).__name__}"
            )
        check_secret_at(parse_address(each), made["secret"], made.get("tls"))
    if made.get("conflict_role") is not None:
        validate("conflict_role", made["conflict_role"])
    _, options = channel_options(**{name: value for name, value in made.items() if name not in _AT_THE_NODE})
    after_ms, others = made.get("failover_after_ms", 0), len(made["other_sources"])
    check_failover_options(server_id, others, after_ms, options.heartbeat_from, options.filter(server_id))
    return made


class NodeChannel:
    """The channel of a group at one node: `start` it, and `close` it after the node has ended."""

    def __init__(
        self,
        given: NodeChannelKeywords,
        secret: bytes,
        server_id: int,
        leading: Callable[[], Database | None],
        clock: Clock,
    ) -> None:
        """secret: the group's. leading: returns the store of this node if it leads. Raises: SchemaInvalid,
        InvalidName, Rejected for server id 0.
        """
        self._given: Mapping[str, Any] = _checked(given, secret, server_id)
        self._leading = leading
        self._clock = clock
        self._turn = threading.Lock()
        self._at: Database | None = None  # the store of this node while it leads
        self._error: Error | None = None  # the error that kept the channel from being created there
        self._due_at = 0.0
        self.channel: Channel | None = None
        self._worker = Worker("tidemark-node-channel", self._run)

    def start(self) -> None:
        """Begin to watch which node leads."""
        self._worker.start()

    def close(self) -> None:
        """Stop watching and close the channel if it is at this node. Closing the store interrupts a first copy."""
        self._worker.stop()
        self._drop()

    def again(self) -> None:
        """Restart the channel if it is at this node and has ended, or create it if that failed before. At other nodes
        do nothing.

        Raises: any error of starting a channel.
        """
        with self._turn:
            channel, self._due_at = self.channel, 0.0
        if channel is not None:
            channel.start()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(POLL_SECONDS):
            db = self._leading()
            if db is not self._at:
                self._drop()
                self._at, self._error, self._due_at = db, None, 0.0
            if db is not None and self.channel is None and self._clock.monotonic() >= self._due_at:
                self._make(db)

    def _make(self, db: Database) -> None:
        """Create and start the channel, and retry after transient errors. Any other error is kept until `again` is
        called or this node leads again.
        """
        given = dict(self._given)
        self._due_at = float("inf")
        try:
            channel = Channel(given.pop("source"), db, skip_start=False, **given)
        except Error as error:
            if self._leading() is not db:
                return  # the store was closed in between
            if is_transient(error):
                self._due_at = self._clock.monotonic() + RETRY_SECONDS
            self._error = error
            _log.error("the channel of the group cannot be made: %s: %s", type(error).__name__, error.message)
            return
        with self._turn:
            self.channel, self._error = channel, None
        _log.info("the channel of the group runs here")

    def _drop(self) -> None:
        with self._turn:
            channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()

    def status(self) -> dict[str, Any]:
        """`is_here`: whether the channel was created at this node. `error`: what prevents its creation, or what ended
        the receiver or applier. `channel`: as `Channel.status`; None at other nodes.
        """
        channel, error = self.channel, self._error
        if channel is not None:
            try:
                channel.check_running()
            except Error as found:
                error = found
        return {
            "is_here": channel is not None,
            "error": None if error is None else f"{type(error).__name__}: {error.message}",
            "channel": None if channel is None else channel.status(),
        }
