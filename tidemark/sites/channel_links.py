"""The arguments of a channel: its source, an open store or an address with credentials, and its options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tidemark.database import Database
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.options import parse_size
from tidemark.replication.channel.channel import DEFAULT_NAME, ChannelOptions, check_name
from tidemark.replication.channel.endpoint import Endpoint, check_source
from tidemark.replication.settings.options import settings, validate
from tidemark.replication.wire.messages import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address

if TYPE_CHECKING:
    from tidemark.engine.base.options import Size

Source = Database | str | tuple[str, int]


class ChannelKeywords(TypedDict, total=False):
    """Options of `replication/settings/options.py` that belong to a channel."""

    replica_allow_batching: bool
    replica_batch_size: Size
    replica_transaction_retries: int
    max_relay_log_size: Size
    clear_apply_status: bool
    allow_skip_epoch: bool


@dataclass(frozen=True)
class Link:
    """A source: an open store, or an address with its credentials."""

    store: Endpoint | None
    address: tuple[str, int] | None
    secret: bytes = b""
    tls: TlsContext | None = None

    @property
    def shown(self) -> str:
        """The source as messages and status show it."""
        return "this process" if self.address is None else f"{self.address[0]}:{self.address[1]}"


def link_to(own: Endpoint, source: Source, secret: bytes | None, tls: TlsContext | None) -> Link:
    """Return the link to a source. Raises: SchemaInvalid for an invalid source; Rejected and PeerRefused for a store of
    this process that cannot be the source.
    """
    if isinstance(source, Database):
        if secret is not None or tls is not None:
            raise SchemaInvalid("a source in the same process needs neither secret nor tls; leave them out")
        source.check_usable()
        check_source(own, source.endpoint)
        return Link(source.endpoint, None)
    if not isinstance(source, (str, tuple)):
        raise SchemaInvalid(f"a source must be a Database or an address like host:port, got {type(source).__name__}")
    if secret is None:
        raise SchemaInvalid("a source at an address needs the secret it is served with; give secret=")
    address = parse_address(source)
    check_secret_at(address, secret, tls)
    return Link(None, address, secret, tls)


def channel_options(
    name: str = DEFAULT_NAME,
    ignore_server_ids: Iterable[int] = (),
    replicate_do: Iterable[str] = (),
    replicate_ignore: Iterable[str] = (),
    failed_source: int = 0,
    heartbeat_ms: int = 1_000,
    heartbeat_from: int = 0,
    **options: Unpack[ChannelKeywords],
) -> tuple[dict[str, Any], ChannelOptions]:
    """Return every option of replication with its value, and those of the channel; see `tm.Channel`. Raises:
    SchemaInvalid, InvalidName.
    """
    name = check_name(name)
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise SchemaInvalid(f"heartbeat_ms is {heartbeat_ms}; give {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX:,}")
    ignored = validate("ignore_server_ids", tuple(ignore_server_ids))
    values = settings({**options, "ignore_server_ids": ignored})
    return values, ChannelOptions(
        name=name,
        ignore_server_ids=ignored,
        replicate_do=tuple((replicate_do,) if isinstance(replicate_do, str) else replicate_do),
        replicate_ignore=tuple((replicate_ignore,) if isinstance(replicate_ignore, str) else replicate_ignore),
        clear_apply_status=values["clear_apply_status"],
        relay_file_bytes=parse_size("max_relay_log_size", values["max_relay_log_size"]),
        heartbeat_ms=heartbeat_ms,
        failed_source=failed_source,
        heartbeat_from=heartbeat_from,
    )
