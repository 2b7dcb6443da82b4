"""The subscribers and the transactions of TATP, seeded: four tables, seven transactions, the standard mix.

Columns, cardinalities, ranges and the uneven choice of subscribers are those of its specification: one to four
accesses and facilities of a subscriber, none to three forwardings of a facility, start times 0, 8 and 16. Key-value
stores keep a table by the letter its keys start with, then the parts of the key, big-endian.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench import peers
from bench.compare.stores import Operation

SEED = 20_261_127
NUMBER_DIGITS = 15
TYPES = (1, 2, 3, 4)
STARTS = (0, 8, 16)
ACTIVE_SHARE = 0.85
# Shares in percent.
MIX = {
    "get_subscriber_data": 35,
    "get_new_destination": 10,
    "get_access_data": 35,
    "update_subscriber_data": 2,
    "update_location": 14,
    "insert_call_forwarding": 2,
    "delete_call_forwarding": 2,
}
FLAGS = [f"{name}_{number}" for name in ("bit", "hex", "byte2") for number in range(1, 11)]
LOCATIONS = ["msc_location", "vlr_location"]
INTEGERS = {tm.UInt32: pa.uint32(), tm.UInt8: pa.uint8()}
Rows = list[tuple[Any, ...]]

# Column types of each table; the first `KEY_PARTS` of them are its key.
TABLES: dict[str, dict[str, Any]] = {
    "subscriber": {
        "s_id": tm.UInt32,
        "sub_nbr": tm.Binary(NUMBER_DIGITS),
        **dict.fromkeys(FLAGS, tm.UInt8),
        **dict.fromkeys(LOCATIONS, tm.UInt32),
    },
    "access_info": {
        "s_id": tm.UInt32,
        "ai_type": tm.UInt8,
        "data1": tm.UInt8,
        "data2": tm.UInt8,
        "data3": tm.Binary(3),
        "data4": tm.Binary(5),
    },
    "special_facility": {
        "s_id": tm.UInt32,
        "sf_type": tm.UInt8,
        "is_active": tm.UInt8,
        "error_cntrl": tm.UInt8,
        "data_a": tm.UInt8,
        "data_b": tm.Binary(5),
    },
    "call_forwarding": {
        "s_id": tm.UInt32,
        "sf_type": tm.UInt8,
        "start_time": tm.UInt8,
        "end_time": tm.UInt8,
        "numberx": tm.Binary(NUMBER_DIGITS),
    },
}
KEY_PARTS = {"subscriber": 1, "access_info": 2, "special_facility": 2, "call_forwarding": 3}

# Packed values of key-value stores, and keys up to the last part.
SUBSCRIBER = struct.Struct(f"<{NUMBER_DIGITS}s30BII")
ACCESS = struct.Struct("<BB3s5s")
FACILITY = struct.Struct("<BBB5s")
FORWARDING = struct.Struct(f"<B{NUMBER_DIGITS}s")
VALUES = {
    "subscriber": SUBSCRIBER,
    "access_info": ACCESS,
    "special_facility": FACILITY,
    "call_forwarding": FORWARDING,
}
LETTERS = {"subscriber": b"s", "access_info": b"a", "special_facility": b"f", "call_forwarding": b"c"}
NUMBER_LETTER = b"n"  # from sub_nbr to s_id
BIT_1_OFFSET = NUMBER_DIGITS
VLR_OFFSET = SUBSCRIBER.size - 4
DATA_A_OFFSET = 2
S_ID_BYTES = 4


def packed_key(table: str, parts: tuple[int, ...]) -> bytes:
    """The key of a row in a key-value store."""
    return LETTERS[table] + parts[0].to_bytes(S_ID_BYTES, "big") + bytes(parts[1:])


def packed_number(sub_nbr: bytes) -> bytes:
    """The key under which the s_id of a number is kept."""
    return NUMBER_LETTER + sub_nbr


def unpacked(key: bytes, value: bytes) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """(table, parts of the key …) and values of what a key-value store holds; None for a number's s_id."""
    for table, letter in LETTERS.items():
        if key[:1] == letter:
            s_id = int.from_bytes(key[1 : 1 + S_ID_BYTES], "big")
            return (table, s_id, *key[1 + S_ID_BYTES :]), VALUES[table].unpack(value)
    return None


def columns(table: str) -> list[tm.Column]:
    """Columns of a table, for Tidemark."""
    return [tm.Column(name, kind) for name, kind in TABLES[table].items()]


def uneven(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Subscribers by the specification's non-uniform choice, 1 … count."""
    reach = 65_535 if count <= 1_000_000 else 1_048_575 if count <= 10_000_000 else 2_097_151
    return (rng.integers(0, reach + 1, size) | rng.integers(1, count + 1, size)) % count + 1


def words(count: int, size: int, first: int, last: int, rng: np.random.Generator) -> list[bytes]:
    """Strings of one length out of a range of characters."""
    return rng.integers(first, last + 1, (count, size), dtype=np.uint8).view(f"S{size}").ravel().tolist()


def some(owners: int, least: int, values: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each owner `least` … len(values) different ones of the values, each number as likely: owners and values."""
    order = rng.random((owners, len(values))).argsort(axis=1)
    chosen = np.arange(len(values)) < rng.integers(least, len(values) + 1, owners)[:, None]
    return np.nonzero(chosen)[0], np.array(values)[order[chosen]]


class Population:
    """All rows of all tables, as each store wants to load them."""

    def __init__(self, count: int) -> None:
        self.count = count
        rng = np.random.default_rng([SEED, count])
        self.tables: dict[str, Rows] = {"subscriber": self._subscribers(rng)}
        owners, kinds = some(count, 1, TYPES, rng)
        data = rng.integers(0, 256, (2, len(owners)))
        texts = words(len(owners), 3, 65, 90, rng), words(len(owners), 5, 65, 90, rng)
        self.tables["access_info"] = list(
            zip((owners + 1).tolist(), kinds.tolist(), *data.tolist(), *texts, strict=True)
        )
        owners, kinds = some(count, 1, TYPES, rng)
        is_active = rng.random(len(owners)) < ACTIVE_SHARE
        facility = (owners + 1).tolist(), kinds.tolist(), is_active.astype(int).tolist()
        data = rng.integers(0, 256, (2, len(owners)))
        text = words(len(owners), 5, 65, 90, rng)
        self.tables["special_facility"] = list(zip(*facility, *data.tolist(), text, strict=True))
        places, starts = some(len(owners), 0, STARTS, rng)
        ends = starts + rng.integers(1, 9, len(starts))
        numbers = words(len(starts), NUMBER_DIGITS, 48, 57, rng)
        forwarding = (owners[places] + 1).tolist(), kinds[places].tolist(), starts.tolist(), ends.tolist()
        self.tables["call_forwarding"] = list(zip(*forwarding, numbers, strict=True))

    def _subscribers(self, rng: np.random.Generator) -> Rows:
        count = self.count
        flags = [rng.integers(0, high, (10, count)).tolist() for high in (2, 16, 256)]
        places = rng.integers(1, 1 << 32, (2, count)).tolist()
        ids = range(1, count + 1)
        numbers = (b"%015d" % s_id for s_id in ids)
        return list(zip(ids, numbers, *flags[0], *flags[1], *flags[2], *places, strict=True))

    @cached_property
    def arrow(self) -> dict[str, pa.Table]:
        """Each table as Arrow."""
        return {
            name: pa.table(
                {
                    column: pa.array(values, INTEGERS.get(kind) or pa.binary(len(values[0])))
                    for (column, kind), values in zip(TABLES[name].items(), zip(*rows, strict=True), strict=True)
                }
            )
            for name, rows in self.tables.items()
        }

    @cached_property
    def pairs(self) -> peers.Pairs:
        """All rows packed, and the s_id of each number; sorted by key."""
        found = [
            (packed_key(name, row[: KEY_PARTS[name]]), VALUES[name].pack(*row[KEY_PARTS[name] :]))
            for name, rows in self.tables.items()
            for row in rows
        ]
        numbers = [(packed_number(row[1]), row[0].to_bytes(S_ID_BYTES, "big")) for row in self.tables["subscriber"]]
        return sorted(found + numbers)

    def operations(self, count: int) -> list[Operation]:
        """A stream of transactions."""
        rng = np.random.default_rng([SEED, 1])
        kinds = rng.choice(list(MIX), count, p=[share / 100 for share in MIX.values()]).tolist()
        chosen = uneven(self.count, count, rng).tolist()
        types = rng.choice(TYPES, count).tolist()
        starts = rng.choice(STARTS, count).tolist()
        ends = rng.integers(1, 25, count).tolist()
        bits = rng.integers(0, 2, count).tolist()
        data = rng.integers(0, 256, count).tolist()
        places = rng.integers(1, 1 << 32, count).tolist()
        numbers = words(count, NUMBER_DIGITS, 48, 57, rng)
        out: list[Operation] = []
        for at, kind in enumerate(kinds):
            s_id, sf_type, start = chosen[at], types[at], starts[at]
            given: dict[str, tuple[Any, ...]] = {
                "get_subscriber_data": (s_id,),
                "get_new_destination": (s_id, sf_type, start, ends[at]),
                "get_access_data": (s_id, sf_type),
                "update_subscriber_data": (s_id, bits[at], sf_type, data[at]),
                "update_location": (b"%015d" % s_id, places[at]),
                "insert_call_forwarding": (b"%015d" % s_id, sf_type, start, ends[at], numbers[at]),
                "delete_call_forwarding": (b"%015d" % s_id, sf_type, start),
            }
            out.append((kind, given[kind]))
        return out
