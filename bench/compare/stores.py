"""The calls that every competitor offers to the workloads, and the durability it is set to.

Rows go in as tuples of ints and bytes and come back as sequences. Callers get fields, so a key-value store packs and
unpacks rows. Only the last values of a returned row are compared, because the caller knows the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Operation = tuple[str, tuple[Any, ...]]  # the name of a store's method, and its arguments
Content = dict[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Durability:
    """One column of the comparison, and what each store calls it."""

    label: str
    ours: str  # durability=
    synchronous: str  # SQLite's pragma
    is_synced: bool  # LMDB's sync, RocksDB's WriteOptions.sync
    append_fsync: str  # Redis' appendfsync


SOON = Durability("durable soon", "epoch", "normal", False, "everysec")
ON_RETURN = Durability("durable on return", "commit", "full", True, "always")
DURABILITIES = (SOON, ON_RETURN)


class Store(Protocol):
    """An open store that was just loaded."""

    def content(self) -> Content:
        """Every row by its key; of TATP the key starts with the name of the table."""

    def close(self) -> None:
        """Close it; its files stay."""


class RecordStore(Store, Protocol):
    """Records of YCSB: an int64 key and ten fields of 100 bytes."""

    def read(self, key: int) -> Sequence[Any]:
        """All fields of a record."""

    def update(self, key: int, field: int, value: bytes) -> None:
        """Replace one field."""

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        """Add a record."""

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        """The fields of up to `count` records in the order of their keys, from `key` on."""

    def modify(self, key: int, field: int, value: bytes) -> None:
        """Read all fields, then replace one by `records.modified` of it, as one transaction."""


class SubscriberStore(Store, Protocol):
    """The seven transactions of TATP."""

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        """All columns of a subscriber."""

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        """Numbers an active facility forwards to: start_time <= start and end < end_time."""

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        """The data of one access, or None."""

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        """Change a facility and its subscriber; False, with nothing changed, without such a facility."""

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        """Change the location of the subscriber with a number."""

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        """Read the facilities of the subscriber with a number, then add a forwarding to one; False if there is no such
        facility, or the forwarding exists.
        """

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        """Delete a forwarding of the subscriber with a number; False without one."""
