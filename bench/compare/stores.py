"""The calls that every competitor offers to the workloads, and the durability it is set to.

Rows go in as tuples of ints and bytes and come back as sequences. Callers get fields, so a key-value store packs and
unpacks rows. Only the last values of a returned row are compared, because the caller knows the key.

A store of YCSB has records: an int64 key and ten fields of 100 bytes.

- `read(key)`: all fields of a record
- `update(key, field, value)`: replace one field
- `insert(key, fields)`: add a record
- `scan(key, count)`: the fields of up to `count` records in the order of their keys, from `key` on
- `modify(key, field, value)`: read all fields, then replace one by `records.modified` of it, as one transaction

A store of TATP has the seven transactions.

- `get_subscriber_data(s_id)`: all columns of a subscriber
- `get_new_destination(s_id, sf_type, start, end)`: numbers an active facility forwards to: start_time <= start and
  end < end_time
- `get_access_data(s_id, ai_type)`: the data of one access, or None
- `update_subscriber_data(s_id, bit_1, sf_type, data_a)`: change a facility and its subscriber; False, with nothing
  changed, without such a facility
- `update_location(sub_nbr, vlr_location)`: change the location of the subscriber with a number
- `insert_call_forwarding(sub_nbr, sf_type, start, end, numberx)`: read the facilities of the subscriber with a number,
  then add a forwarding to one; False if there is no such facility, or the forwarding exists
- `delete_call_forwarding(sub_nbr, sf_type, start)`: delete a forwarding of the subscriber with a number; False without
  one

A store of the order book (`orders`) has four calls.

- `place(order, account, symbol, side, price, quantity)`: take the money of a bid; False, with nothing changed, if the
  account has less. Then fill the order from the other side, note the trades, pay the sellers, give a bid back what it
  saved, and let the rest of the order rest; the quantity filled
- `cancel(order)`: remove a resting order and give the money of a bid back; False without one
- `depth(symbol)`: (side, rank, left) of the best orders of both sides
- `account(account)`: its cash
"""

from __future__ import annotations

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
