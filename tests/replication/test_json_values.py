"""JSON in MySQL's binary form. The oracle of whole documents is another reader, of mysql-replication; that of single
values is what the server shows.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

import tidemark as tm
from tests.shares import few
from tidemark.replication.binlog.json_values import document_of

TEXTS = ["", "a", "é", "x" * 127, "y" * 128, "z" * 20_000]


def length_of(size: int) -> bytes:
    found = bytearray()
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size])


def scalar(value: Any) -> tuple[int, bytes]:
    """The type and the bytes of a value without parts."""
    if value is None or isinstance(value, bool):
        return 4, bytes([0 if value is None else 1 if value else 2])
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        octets = value.encode()
        return 12, length_of(len(octets)) + octets
    for kind, code, least, most in (
        (5, "h", -(2**15), 2**15 - 1),
        (6, "H", 0, 2**16 - 1),
        (7, "i", -(2**31), 2**31 - 1),
        (8, "I", 0, 2**32 - 1),
        (9, "q", -(2**63), 2**63 - 1),
    ):
        if least <= value <= most:
            return kind, struct.pack("<" + code, value)
    return 10, struct.pack("<Q", value)


def binary(value: Any, word: int) -> tuple[int, bytes]:
    """The type and the bytes of a value; containers with offsets of `word` bytes."""
    if not isinstance(value, (dict, list)):
        return scalar(value)
    code = "H" if word == 2 else "I"
    names = [name.encode() for name in value] if isinstance(value, dict) else []
    inner = [binary(each, word) for each in (value.values() if isinstance(value, dict) else value)]
    at = 2 * word + len(names) * (word + 2) + len(inner) * (word + 1)
    table, tail = b"", b""
    for name in names:
        table += struct.pack(f"<{code}H", at + len(tail), len(name))
        tail += name
    for kind, octets in inner:
        if kind in (4, 5, 6) or (word == 4 and kind in (7, 8)):
            table += bytes([kind]) + octets.ljust(word, b"\0")
        else:
            table += bytes([kind]) + struct.pack(f"<{code}", at + len(tail))
            tail += octets
    whole = struct.pack(f"<2{code}", len(inner), at + len(tail)) + table + tail
    return (0 if isinstance(value, dict) else 2) + (word == 4), whole


def octets_of(value: Any, word: int) -> bytes:
    kind, octets = binary(value, word)
    return bytes([kind]) + octets


def drawn(r: random.Random, level: int = 0) -> Any:
    shape = r.randrange(8 if level < 4 else 6)
    if shape == 6:
        return [drawn(r, level + 1) for _ in range(r.randrange(5))]
    if shape == 7:
        names = r.sample(["", "a", "b", "é", "long name " * 9], r.randrange(5))
        return {name: drawn(r, level + 1) for name in names}
    bits = r.choice([7, 15, 16, 31, 32, 63])
    return [
        *(None, r.random() < 0.5, r.random() * 10.0 ** r.randint(-300, 300), r.choice(TEXTS[:-1])),
        *(r.randrange(-(1 << bits), 1 << bits), r.getrandbits(64)),
    ][shape]


def test_documents_are_those_of_another_reader() -> None:
    other = pytest.importorskip("pymysqlreplication.json_binary", reason="mysql-replication is not installed")
    for seed in range(few(100, 400)):
        document = drawn(random.Random(seed))
        for word in (2, 4):
            octets = octets_of(document, word)
            if word == 2 and len(octets) > 60_000:
                continue
            assert document_of(octets) == document, f"seed {seed}"
            assert plain(other.parse_json(octets[0], octets[1:])) == document, f"seed {seed}"


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def opaque(code: int, octets: bytes) -> bytes:
    return bytes([15, code]) + length_of(len(octets)) + octets


def moment(packed: int, microsecond: int) -> bytes:
    return struct.pack("<q", (packed << 24) + microsecond)


def day(year: int, month: int, number: int) -> int:
    return ((year * 13 + month) << 5 | number) << 17


@pytest.mark.parametrize(
    ("octets", "right"),
    [
        (b"", None),
        (octets_of("z" * 20_000, 2), "z" * 20_000),
        (opaque(246, bytes([4, 2, 0x8C, 0x22])), 12.34),
        (opaque(246, bytes([4, 2, 0x73, 0xDD])), -12.34),
        (opaque(246, bytes([20, 0]) + b"\x8c" + (345_678_901).to_bytes(4, "big") + (234_567_890).to_bytes(4, "big")),
         12_345_678_901_234_567_890),
        (opaque(10, moment(day(2026, 11, 30), 0)), "2026-11-30"),
        (opaque(12, moment(day(2026, 11, 30) | 23 << 12 | 59 << 6 | 58, 7)), "2026-11-30 23:59:58.000007"),
        (opaque(7, moment(day(1, 2, 3), 0)), "0001-02-03 00:00:00.000000"),
        (opaque(11, moment(838 << 12 | 59 << 6 | 59, 0)), "838:59:59.000000"),
        (opaque(11, struct.pack("<q", -((1 << 12 | 2 << 6 | 3) << 24 | 500_000))), "-01:02:03.500000"),
        (opaque(252, b"\xff\0"), "base64:type252:/wA="),
    ],
    ids=range(11),
)  # fmt: skip
def test_what_json_has_not_is_as_the_server_shows_it(octets: bytes, right: Any) -> None:
    found = document_of(octets)
    assert found == right
    assert type(found) is type(right)


def test_bytes_that_are_no_document_are_refused_and_nothing_else_happens() -> None:
    """Bytes of a binlog file may be anything: each is changed in turn, and each end is tried."""
    whole = octets_of({"a": [1, 70_000, {"b": "text"}], "é": [1.5, None, 2**40]}, 2)
    tried = [whole[:end] for end in range(1, len(whole))]
    r = random.Random(3)
    for place in range(len(whole)):
        for value in {0, 0xFF, 0x7F, 0x80, r.randrange(256)}:
            tried.append(whole[:place] + bytes([value]) + whole[place + 1 :])
    tried += [r.randbytes(r.randrange(1, 40)) for _ in range(few(500, 3_000))]
    refused = 0
    for octets in tried:
        try:
            document_of(octets)
        except (ValueError, tm.ValueOutOfRange):
            refused += 1
    assert refused > len(tried) // 3


def test_a_document_that_contains_itself_ends() -> None:
    # An array whose only value is the array: its offset is 0.
    with pytest.raises(ValueError, match="at most 100 levels"):
        document_of(bytes([2]) + struct.pack("<2H", 1, 7) + bytes([2]) + struct.pack("<H", 0))
