"""The records and the operations of YCSB, seeded: ten fields of 100 bytes, scattered keys, workloads A to F.

As YCSB does it, the key of record number n is a hash of n, so that inserts and popular records are spread over all
keys. Reads take all fields, updates change one. Popular records are drawn by Zipf's law with constant 0.99.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from bench import peers
from bench.compare.stores import Operation
from bench.workload import zipf_ranks

SEED = 20_261_126
FIELDS = 10
FIELD_BYTES = 100
RECORD_BYTES = FIELDS * FIELD_BYTES
RECORD = struct.Struct(f"{FIELD_BYTES}s" * FIELDS)
NAMES = [f"field{number}" for number in range(FIELDS)]
SCAN_MAX = 100
HALF = FIELD_BYTES // 2
FNV_START = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(1_099_511_628_211)


@dataclass(frozen=True)
class Mix:
    """A workload: shares of its operations, and whether the newest records are the popular ones."""

    what: str
    shares: dict[str, float]
    is_latest: bool = False


MIXES = {
    "A": Mix("50 % reads, 50 % updates", {"read": 0.5, "update": 0.5}),
    "B": Mix("95 % reads, 5 % updates", {"read": 0.95, "update": 0.05}),
    "C": Mix("reads", {"read": 1.0}),
    "D": Mix("95 % reads of the newest, 5 % inserts", {"read": 0.95, "insert": 0.05}, is_latest=True),
    "E": Mix("95 % scans of 1 to 100 records, 5 % inserts", {"scan": 0.95, "insert": 0.05}),
    "F": Mix("50 % reads, 50 % read-modify-writes", {"read": 0.5, "modify": 0.5}),
}


def modified(old: bytes, value: bytes) -> bytes:
    """What a read-modify-write makes of a field: half of it is the old one, so that a skipped read shows."""
    return value[:HALF] + old[:HALF]


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Keys of records: FNV-1a of the number's eight bytes, without sign, as YCSB has it."""
    rest = numbers.astype(np.uint64)
    hashed = np.full(len(rest), FNV_START)
    for _ in range(8):
        hashed = (hashed ^ (rest & np.uint64(0xFF))) * FNV_PRIME
        rest >>= np.uint64(8)
    return np.abs(hashed.view(np.int64))


def letters(size_bytes: int, seed: list[int]) -> bytes:
    """Printable characters, as YCSB's values are."""
    return np.random.default_rng(seed).integers(32, 127, size_bytes, dtype=np.uint8).tobytes()


class Records:
    """The records numbered 0 … count - 1, as each store wants to load them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys = keys_of(np.arange(count))
        self.images = letters(count * RECORD_BYTES, [SEED, count])
        self.size_bytes = len(self.images)

    @cached_property
    def pairs(self) -> peers.Pairs:
        """(key, packed record), sorted."""
        images = (self.images[at : at + RECORD_BYTES] for at in range(0, self.size_bytes, RECORD_BYTES))
        return sorted(zip(map(peers.key_bytes, self.keys.tolist()), images, strict=True))

    @cached_property
    def table(self) -> pa.Table:
        """All records as Arrow."""
        columns: dict[str, pa.Array] = {"key": pa.array(self.keys)}
        fields = np.frombuffer(self.images, dtype=f"V{FIELD_BYTES}").reshape(self.count, FIELDS)
        for number, name in enumerate(NAMES):
            data = pa.py_buffer(fields[:, number].tobytes())
            columns[name] = pa.FixedSizeBinaryArray.from_buffers(pa.binary(FIELD_BYTES), self.count, [None, data])
        return pa.table(columns)

    def operations(self, letter: str, count: int) -> list[Operation]:
        """A stream of operations of one workload."""
        mix = MIXES[letter]
        rng = np.random.default_rng([SEED, ord(letter)])
        kinds = rng.choice(list(mix.shares), count, p=list(mix.shares.values())).tolist()
        ranks = zipf_ranks(self.count, count, rng).tolist()
        fields = rng.integers(0, FIELDS, count).tolist()
        lengths = rng.integers(1, SCAN_MAX + 1, count).tolist()
        popular = np.random.default_rng(SEED).permutation(self.count).tolist()
        keys = keys_of(np.arange(self.count + kinds.count("insert"))).tolist()
        values = letters(count * FIELD_BYTES, [SEED, ord(letter)])
        fresh = letters(kinds.count("insert") * RECORD_BYTES, [SEED, ord(letter), 1])
        known, out = self.count, list[Operation]()
        for number, kind in enumerate(kinds):
            key = keys[known - 1 - ranks[number] if mix.is_latest else popular[ranks[number]]]
            if kind == "insert":
                at = (known - self.count) * RECORD_BYTES
                out.append((kind, (keys[known], RECORD.unpack_from(fresh, at))))
                known += 1
            elif kind == "read":
                out.append((kind, (key,)))
            elif kind == "scan":
                out.append((kind, (key, lengths[number])))
            else:
                value = values[number * FIELD_BYTES : (number + 1) * FIELD_BYTES]
                out.append((kind, (key, fields[number], value)))
        return out
