"""What a call costs, counted: frames, bytecodes, functions in C and kernels. Nothing is timed.

A change that raises a number must change this table, and say why. Bytecodes are those of Python 3.11.
"""

from __future__ import annotations

import dataclasses
import decimal
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import pytest

import tidemark as tm
from tests.store.support import open_memory


class Budget(NamedTuple):
    """What one call does: frames of Python, their bytecodes, calls of C functions with kernels among them, kernels."""

    frames: int
    bytecodes: int
    c_calls: int
    kernels: tuple[str, ...]


BUDGETS = {
    "get": Budget(1, 34, 1, ("get_row",)),
    "get, text and NULL": Budget(1, 34, 1, ("get_row",)),
    "get, key of two columns": Budget(1, 34, 1, ("get_row",)),
    "get, Decimal": Budget(1, 34, 1, ("get_row",)),
    "get by unique index": Budget(2, 46, 1, ("get_row",)),
    "get of a transaction": Budget(1, 68, 3, ("get_seen",)),
    "get of a transaction, name without database": Budget(1, 68, 3, ("get_seen",)),
    "get of a transaction by unique index": Budget(2, 81, 3, ("get_seen",)),
    "get, typed": Budget(5, 82, 1, ("get_row",)),
    "next row of a scan": Budget(0, 0, 1, ()),
    "get of a transaction that has begun, with a lock": Budget(4, 127, 3, ("get_locked",)),
    "update": Budget(2, 129, 2, ("change_row",)),
    "update by unique index": Budget(3, 145, 3, ("change_row",)),
    "delete by unique index": Budget(3, 145, 4, ("change_row",)),
    "update of a text that a unique index has": Budget(2, 129, 2, ("change_row",)),
    "update beside an index": Budget(2, 129, 2, ("change_row",)),
    "insert": Budget(2, 119, 3, ("change_row",)),
    "write": Budget(2, 119, 2, ("change_row",)),
    "delete": Budget(2, 129, 3, ("change_row",)),
    "get of a transaction by unique index, with a lock": Budget(5, 143, 4, ("get_locked",)),
    "update of a transaction by unique index": Budget(4, 138, 4, ("change_seen",)),
    "update of a transaction": Budget(3, 122, 3, ("change_seen",)),
    "transaction without a call": Budget(5, 130, 4, ()),
    "transaction of one get": Budget(6, 198, 7, ("get_seen",)),
    "transaction of one update": Budget(11, 532, 14, ("begin_transaction", "change_seen", "commit_plain")),
    "update by an expression": Budget(2, 129, 2, ("change_row",)),
    "update where a condition holds": Budget(2, 129, 2, ("change_row",)),
    "delete where a condition holds": Budget(2, 127, 2, ("change_row",)),
    "update by a condition on the key": Budget(12, 354, 6, ("known_tree", "change_row")),
    "select by the key": Budget(12, 396, 4, ("known_tree", "get_row")),
    "select by a value of an index": Budget(12, 408, 4, ("known_tree", "select_rows")),
    "count by a value of an index": Budget(13, 426, 5, ("known_tree", "select_rows")),
    "select by keys": Budget(21, 599, 7, ("select_keys",)),
    "scan of a transaction, with a lock": Budget(55, 1482, 34, ("known_tree", "select_rows", "get_locked")),
    "update, durable": Budget(31, 1164, 31, ("change_row", "prepare_group", "xxh3_merge", "write_and_sync")),
    "update where none is accepted, durable": Budget(6, 196, 3, ("change_row",)),
    "transaction of one update, durable": Budget(
        40,
        1558,
        44,
        ("begin_transaction", "change_seen", "commit_plain", "prepare_group", "xxh3_merge", "write_and_sync"),
    ),
    "write, Decimal": Budget(2, 119, 2, ("change_row",)),
    "update of a Decimal": Budget(2, 129, 2, ("change_row",)),
}


@dataclasses.dataclass
class Item:
    id: int
    nbr: Annotated[str, tm.VarChar(20)]
    v: int | None


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[], Any]]]:
    durable = tm.open(tmp_path_factory.mktemp("budgets") / "store", data_memory="16 MiB", background=False)
    safe = durable.create_table("main.safe", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    safe.insert((1, 1))
    db = open_memory(durability="epoch")
    columns = [tm.Column("id", tm.Int64), tm.Column("b", tm.Float64), tm.Column("name", tm.Binary(20))]
    plain = db.create_table("test.plain", columns, "id")
    plain.insert_many([(number, 1.0 * number, b"x") for number in range(1000)])
    item = db.create_table("test.item", Item, "id")
    item.insert_many([Item(number, f"n{number}", None) for number in range(100)])
    db.create_index("test.item", "u", "nbr", unique=True)
    pair = db.create_table("main.pair", [tm.Column("a", tm.Int64), tm.Column("b", tm.VarChar(9))], ["a", "b"])
    pair.insert((1, "one"))
    db.create_index("main.pair", "by_b", "b")
    counter, gone = itertools.count(1_000), itertools.count(100)
    other = db.create_table("main.other", [tm.Column("a", tm.Int64), tm.Column("n", tm.Int64)], "a")
    other.insert((1, 1))
    db.create_index("main.other", "by_n", "n")
    held = db.create_table("main.held", [tm.Column("a", tm.Int64), tm.Column("n", tm.Int64)], "a")
    held.insert((1, 2))
    db.create_index("held", "by_n", "n")
    money = db.create_table("main.money", [tm.Column("id", tm.Int64), tm.Column("d", tm.Decimal(12, 2))], "id")
    price = decimal.Decimal("1.50")
    money.insert((1, price))
    rows, txn, begun, alone = iter(plain), db.transaction(), db.transaction(), db.transaction()
    begun.get("main.pair", (1, "one"), lock="exclusive")
    change, both, cheaper = {"b": 2.0}, {"n": 2}, {"d": decimal.Decimal("1.25")}
    by_one, some, none = {"n": tm.col("n") + 1}, tm.col("n") >= 0, tm.col("n") < 0
    first, two, ones = tm.col("a") == 1, tm.col("n") == 2, tm.col("a").isin([1, 2])
    one, text, taken = {"v": 1}, {"nbr": "n8"}, itertools.count(50)

    def no_call() -> None:
        with db.transaction():
            pass

    def one_get() -> None:
        with db.transaction() as each:
            each.get("test.plain", 5)

    def one_update() -> None:
        with db.transaction() as each:
            each.update("test.plain", 5, change)

    def durable_update() -> None:
        with durable.transaction() as each:
            each.update("main.safe", 1, both)

    yield {
        "update, durable": lambda: safe.update(1, both),
        "update where none is accepted, durable": lambda: safe.update(1, both, none),
        "transaction of one update, durable": durable_update,
        "get of a transaction that has begun, with a lock": lambda: begun.get(
            "main.pair", (1, "one"), lock="exclusive"
        ),
        "update": lambda: plain.update(5, change),
        "update by unique index": lambda: item.handle.update("n5", one, index="u"),
        "delete by unique index": lambda: item.handle.delete(f"n{next(taken)}", index="u"),
        "get of a transaction by unique index, with a lock": lambda: begun.get(
            "test.item", "n7", lock="exclusive", index="u"
        ),
        "update of a transaction by unique index": lambda: begun.update("test.item", "n7", one, index="u"),
        "update of a text that a unique index has": lambda: item.handle.update(8, text),
        "update beside an index": lambda: other.update(1, both),
        "update by an expression": lambda: other.update(1, by_one),
        "update where a condition holds": lambda: other.update(1, by_one, some),
        "update by a condition on the key": lambda: other.update_where(both, first),
        "select by the key": lambda: list(other.scan(where=first)),
        "select by a value of an index": lambda: list(other.scan(where=two)),
        "count by a value of an index": lambda: other.scan(where=two).count(),
        "select by keys": lambda: list(other.scan(where=ones)),
        "scan of a transaction, with a lock": lambda: list(alone.scan("held", where=two, lock="exclusive")),
        "delete where a condition holds": lambda: other.delete(1, none),
        "insert": lambda: plain.insert((next(counter), 1.0, b"x")),
        "write": lambda: plain.write((7, 1.0, b"x")),
        "delete": lambda: plain.delete(next(gone)),
        "update of a transaction": lambda: begun.update("test.plain", 900, change),
        "transaction without a call": no_call,
        "transaction of one get": one_get,
        "transaction of one update": one_update,
        "get": lambda: plain.get(5),
        "get, text and NULL": lambda: item.handle.get(5),
        "get, key of two columns": lambda: pair.get((1, "one")),
        "get, Decimal": lambda: money.get(1),
        "write, Decimal": lambda: money.write((1, price)),
        "update of a Decimal": lambda: money.update(1, cheaper),
        "get by unique index": lambda: item.handle.get("n5", index="u"),
        "get of a transaction": lambda: txn.get("test.plain", 5),
        "get of a transaction, name without database": lambda: txn.get("pair", (1, "one")),
        "get of a transaction by unique index": lambda: txn.get("test.item", "n5", index="u"),
        "get, typed": lambda: item.get(5),
        "next row of a scan": lambda: next(rows),
    }
    txn.rollback()
    begun.rollback()
    alone.rollback()
    db.close()
    durable.close()


def counted(call: Callable[[], Any]) -> Budget:
    """Count what a call does, without the lambda that makes it."""
    for _ in range(20):
        call()
    opcodes = frames = c_calls = 0
    kernels: list[str] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal opcodes, frames
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        frames += event == "call"
        opcodes += event == "opcode" and frame.f_code is not call.__code__
        return trace

    def profile(_: Any, event: str, function: Any) -> None:
        nonlocal c_calls
        if event == "c_call" and function is not sys.setprofile:
            c_calls += 1
            if (getattr(function, "__module__", None) or "").endswith("_kernels"):
                kernels.append(function.__name__)

    was_on = gc.isenabled()
    gc.disable()
    before = sys.gettrace()
    try:
        sys.settrace(trace)
        call()
        sys.settrace(before)
        sys.setprofile(profile)
        call()
        sys.setprofile(None)
    finally:
        sys.settrace(before)
        sys.setprofile(None)
        if was_on:
            gc.enable()
    return Budget(frames - 1, opcodes, c_calls, tuple(kernels))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecodes are those of Python 3.11")
@pytest.mark.parametrize("name", BUDGETS)
def test_a_call_costs_its_budget(name: str, calls: dict[str, Callable[[], Any]]) -> None:
    assert counted(calls[name]) == BUDGETS[name]
