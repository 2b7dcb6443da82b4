"""Random tables with random partitions of every kind, and random keys for them."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import tidemark as tm
from tests.naive.partitions import comparable
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition


def text(rng: random.Random, most: int) -> str:
    """Values that share prefixes, lengths around whole words, and a NUL inside."""
    return "".join(rng.choice("ab\0ä") for _ in range(rng.choice([0, 1, 2, 7, 8, 9, most]))).rstrip("\0")[:most]


TYPES: list[tuple[Any, Callable[[random.Random], Any]]] = [
    (tm.Int8, lambda rng: rng.randint(-128, 127)),
    (tm.Int64, lambda rng: rng.choice([-(2**63), -1, 0, 1, 2**63 - 1, rng.randint(-50, 50)])),
    (tm.UInt32, lambda rng: rng.choice([0, 2**32 - 1, 2**31, rng.randint(0, 50)])),
    (tm.UInt64, lambda rng: rng.choice([0, 2**64 - 1, 2**63, 2**63 - 1, rng.randint(0, 50)])),
    (tm.Float64, lambda rng: rng.choice([0.0, -0.0, -1.5, 1.5, 1e300, -1e-300, float("inf"), -float("inf")])),
    (tm.Float32, lambda rng: rng.choice([0.0, -0.0, -1.5, 1.5, 2.0**100, -(2.0**-130), float("inf"), -float("inf")])),
    (tm.Bool, lambda rng: rng.random() < 0.5),
    (tm.Date, lambda rng: datetime.date(1969, 12, 25) + datetime.timedelta(rng.randint(0, 20))),
    (tm.Decimal(9, 2), lambda rng: Decimal(rng.randint(-300, 300)).scaleb(-2)),
    (tm.Decimal(30, 2), lambda rng: Decimal(rng.choice([-(10**29), -1, 0, 1, 2**64, -(2**64), 2**63])).scaleb(-2)),
    (tm.Char(9), lambda rng: text(rng, 9)),
    (tm.UUID, lambda rng: uuid.UUID(int=rng.choice([0, 1, 1 << 64, rng.getrandbits(128)]))),
    (tm.Binary(9), lambda rng: rng.randbytes(1).ljust(8, b"\x7f") + rng.choice([b"\0", b"\x80"])),
    (tm.VarChar(20), lambda rng: text(rng, 20)),
    (tm.VarBinary(20), lambda rng: rng.choice([b"", b"\0", b"\0" * 8, b"\xff", b"a" * 8, b"a" * 8 + b"\0"])),
]


def table(rng: random.Random) -> tuple[TableDefinition, Callable[[], tuple[Any, ...]]]:
    """A definition of 1 to 4 key columns with a random partition, and what draws keys for it."""
    chosen = [rng.choice(TYPES) for _ in range(rng.randint(1, 4))]
    columns = [Column(f"c{number}", kind) for number, (kind, _) in enumerate(chosen)]
    key = [column.name for column in columns]
    rng.shuffle(key)
    draws = {column.name: draw for column, (_, draw) in zip(columns, chosen, strict=True)}

    def draw() -> tuple[Any, ...]:
        return tuple(draws[name](rng) for name in key)

    while True:
        try:
            partition = _partition(rng, key, draws, columns)
            return TableDefinition(1, 1, "t", (*columns, Column("v", tm.Int64)), tuple(key), partition), draw
        except tm.SchemaInvalid:
            continue  # drawn twice, or not ascending by a hair (-0.0)


def _partition(rng: random.Random, key: list[str], draws: dict[str, Any], columns: list[Column]) -> Any:
    some = rng.sample(key, rng.randint(1, len(key)))
    count = rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 100])
    integers = [column.name for column in columns if column.type in (tm.Int8, tm.Int64, tm.UInt32, tm.UInt64)]
    if integers and rng.random() < 0.2:
        return rng.choice([tm.HashPartition, tm.LinearHash])(count, modulo=rng.choice(integers))
    draw = rng.randrange(5)
    if draw == 0:
        return tm.HashPartition(count, rng.choice([None, some]))
    if draw == 1:
        return tm.LinearHash(count, rng.choice([None, some]))
    if draw == 2:
        return tm.KeyPartition(count, rng.choice([None, some]), linear=rng.random() < 0.5)
    rows = {tuple(draws[name](rng) for name in some) for _ in range(rng.choice([1, 2, 5, 60]))}
    ascending = sorted(rows, key=lambda row: tuple(comparable(value) for value in row))
    if draw == 3:
        bounds = [(f"p{number}", row) for number, row in enumerate(ascending)]
        if rng.random() < 0.3:
            cut = rng.randrange(len(some))
            bounds.append(("last", (*ascending[-1][:cut], *[tm.MAXVALUE] * (len(some) - cut))))
        return tm.RangePartition(some, bounds)
    lists: dict[str, list[Any]] = {}
    for row in rows:
        lists.setdefault(f"p{rng.randrange(4)}", []).append(row)
    return tm.ListPartition(some, lists)
