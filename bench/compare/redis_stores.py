"""Redis: a server on loopback, started here. Packed records are strings; scans use a sorted set of their keys.

In TATP, the facilities of a subscriber and the forwardings of a facility are hashes. A transaction of several steps is
a Lua script, which the server runs atomically in one round trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import peers
from bench.compare.records import FIELD_BYTES, RECORD, Records, modified
from bench.compare.stores import Content, Durability
from bench.compare.subscribers import (
    ACCESS,
    BIT_1_OFFSET,
    DATA_A_OFFSET,
    FORWARDING,
    SUBSCRIBER,
    VLR_OFFSET,
    Population,
    unpacked,
)

IN_ORDER = b"keys"  # the sorted set: the keys of all records, in the order of their bytes
PER_COMMAND = 500
SCAN = """
local keys = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
if #keys == 0 then return keys end
return redis.call('MGET', unpack(keys))"""
DESTINATION = """
local facility = redis.call('HGET', KEYS[1], ARGV[1])
if not facility or string.byte(facility) ~= 1 then return {} end
local found, start, after = {}, string.byte(ARGV[2]), string.byte(ARGV[3])
local all = redis.call('HGETALL', KEYS[2])
for at = 1, #all, 2 do
    if string.byte(all[at]) <= start and after < string.byte(all[at + 1]) then
        found[#found + 1] = string.sub(all[at + 1], 2)
    end
end
return found"""
UPDATE_DATA = f"""
local facility = redis.call('HGET', KEYS[1], ARGV[1])
if not facility then return 0 end
facility = string.sub(facility, 1, {DATA_A_OFFSET}) .. ARGV[2] .. string.sub(facility, {DATA_A_OFFSET + 2})
redis.call('HSET', KEYS[1], ARGV[1], facility)
redis.call('SETRANGE', KEYS[2], {BIT_1_OFFSET}, ARGV[3])
return 1"""
UPDATE_LOCATION = f"""
redis.call('SETRANGE', 's' .. redis.call('GET', KEYS[1]), {VLR_OFFSET}, ARGV[1])
return 1"""
INSERT = """
local place = redis.call('GET', KEYS[1])
for _, facility in ipairs(redis.call('HKEYS', 'f' .. place)) do
    if facility == ARGV[1] then
        return redis.call('HSETNX', 'c' .. place .. ARGV[1], ARGV[2], ARGV[3])
    end
end
return 0"""
DELETE = """
return redis.call('HDEL', 'c' .. redis.call('GET', KEYS[1]) .. ARGV[1], ARGV[2])"""


def settings(durability: Durability) -> str:
    """What is printed beside the figure."""
    return f"{peers.redis_settings(durability.append_fsync)}; Lua scripts for transactions of several steps"


class _Server:
    """A server, its client, and scripts by name."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.server = peers.RedisServer(folder / "redis", durability.append_fsync)
        self.client = self.server.client
        self.ask = self.client.ask

    def script(self, text: str) -> bytes:
        """Its digest, for EVALSHA."""
        digest: bytes = self.ask(b"SCRIPT", b"LOAD", text.encode())
        return digest

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A block that loads: the load is synced at its end, and the server ends if it fails."""
        try:
            yield
            self.server.wait_until_zero(b"aof_pending_bio_fsync")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server."""
        self.server.stop()


class RedisRecords(_Server):
    """YCSB: key → packed record; its keys in a sorted set if records are scanned."""

    def __init__(self, folder: Path, durability: Durability, data: Records, is_scanned: bool) -> None:
        super().__init__(folder, durability)
        self.is_scanned = is_scanned
        with self.loading():
            peers.redis_load(self.client, data.pairs)
            if is_scanned:
                commands = []
                for first in range(0, len(data.pairs), PER_COMMAND):
                    words = [word for key, _ in data.pairs[first : first + PER_COMMAND] for word in (b"0", key)]
                    commands.append(peers.command(b"ZADD", IN_ORDER, *words))
                self.client.pipeline(b"".join(commands), len(commands))
            self.scans = self.script(SCAN)

    def read(self, key: int) -> Sequence[Any]:
        return RECORD.unpack(self.ask(b"GET", key.to_bytes(8, "big")))

    def update(self, key: int, field: int, value: bytes) -> None:
        self.ask(b"SETRANGE", key.to_bytes(8, "big"), b"%d" % (field * FIELD_BYTES), value)

    def insert(self, key: int, fields: tuple[bytes, ...]) -> None:
        place = key.to_bytes(8, "big")
        if self.is_scanned:
            set_it = (b"SET", place, RECORD.pack(*fields))
            self.client.ask_all((b"MULTI",), set_it, (b"ZADD", IN_ORDER, b"0", place), (b"EXEC",))
        else:
            self.ask(b"SET", place, RECORD.pack(*fields))

    def scan(self, key: int, count: int) -> list[Sequence[Any]]:
        first = b"[" + key.to_bytes(8, "big")
        found = self.ask(b"EVALSHA", self.scans, b"1", IN_ORDER, first, b"%d" % count)
        return [RECORD.unpack(image) for image in found]

    def modify(self, key: int, field: int, value: bytes) -> None:
        place, offset = key.to_bytes(8, "big"), b"%d" % (field * FIELD_BYTES)
        _, image = self.client.ask_all((b"WATCH", place), (b"GET", place))
        change = (b"SETRANGE", place, offset, modified(RECORD.unpack(image)[field], value))
        if self.client.ask_all((b"MULTI",), change, (b"EXEC",))[-1] is None:
            raise RuntimeError("another client changed the record")

    def content(self) -> Content:
        keys = [key for key in self.ask(b"KEYS", b"*") if key != IN_ORDER]
        return {int.from_bytes(key, "big"): RECORD.unpack(self.ask(b"GET", key)) for key in keys}


class RedisSubscribers(_Server):
    """TATP: subscribers, accesses and numbers are strings, facilities and forwardings hashes by what they belong to."""

    def __init__(self, folder: Path, durability: Durability, data: Population) -> None:
        super().__init__(folder, durability)
        with self.loading():
            peers.redis_load(self.client, [pair for pair in data.pairs if pair[0][:1] in b"san"])
            commands = [
                peers.command(b"HSET", key[:-1], key[-1:], value) for key, value in data.pairs if key[:1] in b"fc"
            ]
            self.client.pipeline(b"".join(commands), len(commands))
            texts = (DESTINATION, UPDATE_DATA, UPDATE_LOCATION, INSERT, DELETE)
            self.destinations, self.updates, self.locations, self.inserts, self.deletes = map(self.script, texts)

    def get_subscriber_data(self, s_id: int) -> Sequence[Any]:
        return SUBSCRIBER.unpack(self.ask(b"GET", b"s" + s_id.to_bytes(4, "big")))

    def get_new_destination(self, s_id: int, sf_type: int, start: int, end: int) -> list[bytes]:
        place, kind = s_id.to_bytes(4, "big"), bytes((sf_type,))
        given = (kind, bytes((start,)), bytes((end,)))
        found: list[bytes] = self.ask(b"EVALSHA", self.destinations, b"2", b"f" + place, b"c" + place + kind, *given)
        return found

    def get_access_data(self, s_id: int, ai_type: int) -> Sequence[Any] | None:
        value = self.ask(b"GET", b"a" + s_id.to_bytes(4, "big") + bytes((ai_type,)))
        return None if value is None else ACCESS.unpack(value)

    def update_subscriber_data(self, s_id: int, bit_1: int, sf_type: int, data_a: int) -> bool:
        place = s_id.to_bytes(4, "big")
        given = (bytes((sf_type,)), bytes((data_a,)), bytes((bit_1,)))
        return bool(self.ask(b"EVALSHA", self.updates, b"2", b"f" + place, b"s" + place, *given))

    def update_location(self, sub_nbr: bytes, vlr_location: int) -> bool:
        value = vlr_location.to_bytes(4, "little")
        return bool(self.ask(b"EVALSHA", self.locations, b"1", b"n" + sub_nbr, value))

    def insert_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int, end: int, numberx: bytes) -> bool:
        given = (bytes((sf_type,)), bytes((start,)), FORWARDING.pack(end, numberx))
        return bool(self.ask(b"EVALSHA", self.inserts, b"1", b"n" + sub_nbr, *given))

    def delete_call_forwarding(self, sub_nbr: bytes, sf_type: int, start: int) -> bool:
        given = (bytes((sf_type,)), bytes((start,)))
        return bool(self.ask(b"EVALSHA", self.deletes, b"1", b"n" + sub_nbr, *given))

    def content(self) -> Content:
        found = {}
        for key in self.ask(b"KEYS", b"*"):
            if key[:1] in b"fc":
                words = self.ask(b"HGETALL", key)
                rows = [unpacked(key + words[at], words[at + 1]) for at in range(0, len(words), 2)]
            else:
                rows = [unpacked(key, self.ask(b"GET", key))]
            found.update(dict(filter(None, rows)))
        return found
