"""Keys of look-ups: batches are encoded like single keys, and like rows, whatever form they come in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.index.unique_keys import KeyEncoder, one_key
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("text", tm.VarChar(50), nullable=True),
    tm.Column("fixed", tm.Char(9)),
    tm.Column("small", tm.Int8, nullable=True),
    tm.Column("large", tm.UInt64),
    tm.Column("real", tm.Float64, nullable=True),
    tm.Column("day", tm.Date),
    tm.Column("octets", tm.VarBinary(20)),
]


def value_of(name: str, rng: random.Random) -> Any:
    import datetime

    made = {
        "text": lambda: rng.choice([None, "", "a", "a\0b", "ä" * rng.randrange(20)]),
        "fixed": lambda: rng.choice(["", "x", "yy"]),
        "small": lambda: rng.choice([None, -128, 0, 127]),
        "large": lambda: rng.choice([0, 2**64 - 1, rng.randrange(2**64)]),
        "real": lambda: rng.choice([None, 0.0, -0.0, float("nan"), float("-inf"), rng.random()]),
        "day": lambda: datetime.date(2000, 1, 1) + datetime.timedelta(rng.randrange(9_000)),
        "octets": lambda: bytes(rng.randrange(3) for _ in range(rng.randrange(20))),
    }
    return made[name]()


@pytest.mark.parametrize("seed", range(30))
def test_keys_looked_for_have_the_words_of_the_encoder_for_single_ones(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    definition = TableDefinition(1, 1, "test.t", tuple(COLUMNS), ("id",), tm.HashPartition())
    names = rng.sample([column.name for column in COLUMNS[1:]], rng.randint(1, 4))
    shape = KeyShape(definition, RowFormat(definition).layout, names)
    keys = [tuple(value_of(name, rng) for name in names) for _ in range(40)]
    keys = [key if len(names) > 1 else key[0] for key in keys]
    batch = KeyEncoder(definition, names).encode(keys)
    assert batch.count == len(keys)
    for row, key in enumerate(keys):
        one = one_key(shape, "test.t", key)
        wanted = one.words[: one.lengths[0]]
        assert batch.words[row * batch.stride :][: batch.lengths[row]].tolist() == wanted.tolist(), key


def test_batches_of_keys_come_as_lists_arrays_arrow_and_frames() -> None:
    definition = TableDefinition(1, 1, "test.t", tuple(COLUMNS), ("id",), tm.HashPartition())
    single = KeyEncoder(definition, ["large"])
    wanted = single.encode([1, 5, 9]).words.tolist()
    for form in (
        np.array([1, 5, 9], dtype=np.uint64),
        pa.array([1, 5, 9], pa.uint64()),
        {"large": [1, 5, 9]},
        pa.table({"large": pa.array([1, 5, 9], pa.uint64()), "more": [1, 2, 3]}),
        pa.table({"large": pa.array([1, 5, 9], pa.uint64())}).to_pandas(),
        (1, 5, 9),
    ):
        assert single.encode(form).words.tolist() == wanted
    double = KeyEncoder(definition, ["large", "small"])
    wanted = double.encode([(1, 2), (3, None)]).words.tolist()
    assert double.encode({"small": [2, None], "large": [1, 3]}).words.tolist() == wanted
    for bad in ("text", 7, [(1,)], [1], {"large": [1]}):
        with pytest.raises(tm.Rejected):
            double.encode(bad)
    assert single.encode([]).count == 0
