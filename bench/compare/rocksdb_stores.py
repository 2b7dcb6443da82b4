"""RocksDB: the keys and packed rows of LMDB. rocksdict has no transactions: a batch makes the writes of a transaction
atomic. Rows it has read are not locked, which a single calling thread does not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from bench import peers
from bench.compare.records import FIELD_BYTES, RECORD, Records, modified
from bench.compare.stores import Content, Durability
from bench.compare.subscribers import (
    ACCESS,
    BIT_1_OFFSET,
    DATA_A_OFFSET,
    FACILITY,
    FORWARDING,
    SUBSCRIBER,
    VLR_OFFSET,
    Population,
    unpacked,
)


def settings(durability: Durability) -> str:
    """What is printed beside the figure."""
    found = peers.ROCKSDB_SYNC if durability.is_synced else peers.ROCKSDB_NO_SYNC
    return f"{found}; WriteBatch, no transactions"


def _open(folder: Path, durability: Durability, pairs: peers.Pairs) -> Any:
    """A database that holds the pairs in table files."""
    database = peers.rocksdb_open(folder / "rocksdb")
    peers.rocksdb_load(database, pairs, durability.is_synced)
    database.flush()
    database.set_write_options(peers.rocksdb_write_options(durability.is_synced))
    return database


class RocksdbRecords:
    """YCSB: key → packed record."""

    def __init__(self, folder: Path, durability: Durability, data: Records, is_scanned: bool) -> None:
        self.database = _open(folder, durability, data.pairs)
        self.get, self.put, self.values = self.database.get, self.database.put, self.database.values

    def read(self, key: int) -> Sequence[Any]:
        return RECORD.unpack(self.get(key.to_bytes(8, "big")))

    def update(self, key: int, field: int, value: bytes) -> None:
        place, at = key.to_bytes(8, "big"), field * FIELD_BYTES
        image = self.get(place)
        self.put(place, image[:at] + value + image[at + FIELD_BYTES :])

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        self.put(key.to_bytes(8, "big"), RECORD.pack(*fields))

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        return [RECORD.unpack(image) for image in islice(self.values(from_key=key.to_bytes(8, "big")), count)]

    def modify(self, key: int, field: int, value: bytes) -> None:
        place = key.to_bytes(8, "big")
        fields = list(RECORD.unpack(self.get(place)))
        fields[field] = modified(fields[field], value)
        self.put(place, RECORD.pack(*fields))

    def content(self) -> Content:
        return {int.from_bytes(key, "big"): RECORD.unpack(image) for key, image in self.database.items()}

    def close(self) -> None:
        self.database.close()


class RocksdbSubscribers:
    """TATP: composite keys, sub_nbr → s_id beside them; facilities and forwardings are ranges of keys."""

    def __init__(self, folder: Path, durability: Durability, data: Population) -> None:
        self.database = _open(folder, durability, data.pairs)
        self.get, self.put, self.items = self.database.get, self.database.put, self.database.items
        self.write_options = peers.rocksdb_write_options(durability.is_synced)

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        return SUBSCRIBER.unpack(self.get(b"s" + s_id.to_bytes(4, "big")))

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        place = s_id.to_bytes(4, "big") + bytes((sf_type,))
        facility = self.get(b"f" + place)
        if facility is None or not FACILITY.unpack(facility)[0]:
            return []
        found, last = [], b"c" + place + bytes((start,))
        for _, value in takewhile(lambda pair: pair[0] <= last, self.items(from_key=b"c" + place)):
            end_time, numberx = FORWARDING.unpack(value)
            if end < end_time:
                found.append(numberx)
        return found

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        value = self.get(b"a" + s_id.to_bytes(4, "big") + bytes((ai_type,)))
        return None if value is None else ACCESS.unpack(value)

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        place = s_id.to_bytes(4, "big")
        key = b"f" + place + bytes((sf_type,))
        facility = self.get(key)
        if facility is None:
            return False
        batch = peers.rocksdict.WriteBatch(raw_mode=True)
        batch.put(key, facility[:DATA_A_OFFSET] + bytes((data_a,)) + facility[DATA_A_OFFSET + 1 :])
        key = b"s" + place
        subscriber = self.get(key)
        batch.put(key, subscriber[:BIT_1_OFFSET] + bytes((bit_1,)) + subscriber[BIT_1_OFFSET + 1 :])
        self.database.write(batch, self.write_options)
        return True

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        key = b"s" + self.get(b"n" + sub_nbr)
        self.put(key, self.get(key)[:VLR_OFFSET] + vlr_location.to_bytes(4, "little"))
        return True

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        place = self.get(b"n" + sub_nbr)
        first = b"f" + place
        keys = takewhile(lambda key: key[:5] == first, self.database.keys(from_key=first))
        if sf_type not in [key[-1] for key in keys]:
            return False
        key = b"c" + place + bytes((sf_type, start))
        if self.get(key) is not None:
            return False
        self.put(key, FORWARDING.pack(end, numberx))
        return True

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        key = b"c" + self.get(b"n" + sub_nbr) + bytes((sf_type, start))
        if self.get(key) is None:
            return False
        self.database.delete(key)
        return True

    def content(self) -> Content:
        return dict(filter(None, (unpacked(key, value) for key, value in self.database.items())))

    def close(self) -> None:
        self.database.close()
