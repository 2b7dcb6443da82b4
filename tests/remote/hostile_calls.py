"""Calls of a malicious client, for the executor: valid calls with parts replaced, removed and added."""

from __future__ import annotations

import copy
import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

import tidemark as tm

TABLE = "test.account"
ROW = (1_000, "ann", 1.0, None)
SCAN = {"columns": ["id", "owner"], "limit": 5, "partitions": None, "where": tm.col("id") > 3}
BY_INDEX = {"index": "by_owner", "lower": "o1", "upper": "o3", "reverse": True}
ARROW = pa.table({"id": [1, 2], "owner": ["x", "y"], "balance": [0.5, 0.5]})
KEYS = pa.table({"id": [1, 2]})

VALID: list[list[Any]] = [
    ["where"],
    ["begin"],
    ["begin", True],
    ["commit"],
    ["rollback"],
    ["savepoint"],
    ["release", True],
    ["release", False],
    ["definition", TABLE],
    ["length", TABLE],
    ["next", 1],
    ["end", 1],
    ["scan", TABLE, False, SCAN],
    ["scan", TABLE, True, SCAN],
    ["scan", TABLE, False, BY_INDEX],
    ["of_scan", TABLE, False, SCAN, "sum", ["balance"], {}],
    ["of_scan", TABLE, True, SCAN, "aggregate", [], {"n": ("count",), "top": ("max", "id")}],
    ["of_scan", TABLE, False, BY_INDEX, "explain", [], {}],
    ["snapshot"],
    ["end_snapshot"],
    ["of_snapshot", TABLE, "get", [5], {}],
    ["of_snapshot", TABLE, "get_many", [[1, 2], ["id"]], {"index": None}],
    ["of_snapshot", TABLE, "definition", [], {}],
    ["scan", TABLE, "snapshot", SCAN],
    ["next", -1],
    ["of_scan", TABLE, "snapshot", SCAN, "sum", ["balance"], {}],
    ["store", "tables", [], {}],
    ["store", "status", [], {}],
    ["store", "outcome", [1], {}],
    ["store", "final_outcome", [1], {}],
    ["store", "sync", [], {}],
    ["store", "create_index", [TABLE, "by_two", ["owner", "id"]], {"unique": False}],
    ["store", "drop_index", [TABLE, "by_two"], {}],
    ["store", "add_column", [TABLE, tm.Column("more", tm.Int32, nullable=True)], {}],
    ["store", "drop_column", [TABLE, "more"], {}],
    ["store", "rename_column", [TABLE, "note", "note2"], {}],
    ["store", "rename_column", [TABLE, "note2", "note"], {}],
    ["store", "set_default", [TABLE, "note", None], {}],
    ["store", "add_partition", [TABLE, 1], {}],
]
for owner in (["txn"], ["table", TABLE]):
    for method, arguments, named in (
        ("get", [5], {}),
        ("get", ["o5"], {"index": "by_owner"}),
        ("get_many", [[1, 2, 3], ["id"]], {}),
        ("get_many", [KEYS], {}),
        ("insert", [ROW], {}),
        ("write", [{"id": 7, "owner": "w", "balance": 1.0}], {}),
        ("update", [5, {"balance": tm.col("balance") + 1}, tm.col("id") == 5], {}),
        ("delete", [7], {"where": tm.col("balance") > 0.5}),
        ("upsert", [{"id": 8, "owner": "u", "balance": 2.0}, {"balance": 3.0}], {}),
        ("insert_many", [[(2_000, "a", 1.0, None), (2_001, "b", 1.0, None)]], {}),
        ("write_many", [ARROW], {}),
        ("upsert_many", [ARROW], {"set": {"balance": tm.col("balance") * 2}}),
        ("update_many", [{"id": [3, 4], "balance": [9.0, 9.0]}], {}),
        ("delete_many", [[2_000, 2_001]], {}),
        ("update_where", [{"balance": 0.0}, tm.col("id") < 3], {}),
        ("delete_where", [tm.col("id") > 1_500], {}),
    ):
        shown = [TABLE, *arguments] if owner == ["txn"] else arguments
        VALID.append([*owner, method, shown, named])

ODD: list[Any] = [
    *(None, True, False, 0, -1, 3, 1 << 62, -(1 << 63), 1 << 64, 1 << 200, 1.5, float("nan"), float("inf")),
    *("", TABLE, "id", "by_owner", "exclusive", "x" * 10_000, "\0", "\ud7ff", b"", b"\xff" * 100, "where"),
    *(Decimal("1e999999999"), Decimal("NaN"), Decimal("-0.5"), datetime.date(1, 1, 1), datetime.time(1)),
    *(datetime.datetime(9999, 12, 31), datetime.timedelta.max, tm.DuplicateKey("x", key=1), tm.Int64),
    *(tm.col("id"), tm.col("none") == 1, ~(tm.col("id") > "x"), tm.col("owner") + 1 > 2, tm.Column("z", tm.Int32)),
    *([], {}, (), [[]], [None] * 3, {"id": []}, {"id": [1], "owner": [1, 2]}, [{"id": 1}, (1,)], [(), ()]),
    *(pa.table({}), KEYS, ARROW, pa.table({"id": pa.nulls(3)}), pa.record_batch({"id": pa.array([], pa.int8())})),
    *([1 << 62] * 3, (1, 2), [[1]], range(3).__len__(), "count", "$ROWID", ["id"] * 5_000),
]
NAMES = ["columns", "limit", "partitions", "where", "index", "lower", "prefix", "lock", "progress", "set", "none"]


def cases(rng: random.Random) -> list[Any]:
    """Return one call."""
    call = copy.copy(rng.choice(VALID))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _changed(rng, call, 3)
    return call


def _changed(rng: random.Random, part: Any, depth: int) -> None:
    """Change one item of a list or a dict that belongs to the caller alone."""
    if isinstance(part, dict):
        name = rng.choice([*part, *part, rng.choice(NAMES)])
        inner = part.get(name)
        part[name] = (
            _own(inner) if depth and isinstance(inner, (list, dict)) and rng.random() < 0.5 else rng.choice(ODD)
        )
        if part[name] is not inner and isinstance(part[name], (list, dict)) and depth:
            _changed(rng, part[name], depth - 1)
        return
    dice = rng.random()
    if not part or dice < 0.04:
        part.insert(rng.randrange(len(part) + 1), rng.choice(ODD))
    elif dice < 0.08:
        del part[rng.randrange(len(part))]
    else:
        place = max(rng.randrange(len(part)), rng.randrange(len(part)))  # favours the end: the callee comes first
        if depth and isinstance(part[place], (list, dict)) and dice < 0.8:
            part[place] = _own(part[place])
            _changed(rng, part[place], depth - 1)
        else:
            part[place] = rng.choice(ODD)


def _own(part: Any) -> Any:
    return dict(part) if isinstance(part, dict) else list(part)
