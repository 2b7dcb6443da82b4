"""Messages and calls that no client sends: each is refused or carried out, and the store continues. The checks `judge`
of `hostile_values.py` and `hostile_calls.py` hold for any number of their `cases`, from any seed.
"""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

import tidemark as tm
from tests.remote import hostile_calls, hostile_values
from tests.seeds import fresh_seeds
from tests.shares import few
from tests.store.support import ACCOUNT
from tidemark.remote.executor import SAVEPOINTS_MAX, Executor
from tidemark.remote.serving import Alone
from tidemark.replication.calls.values import pack, unpack


@pytest.mark.parametrize("seed", fresh_seeds(3))
def test_altered_messages_are_measured_as_a_naive_twin_does_and_refused_or_built(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    reported = Counter(hostile_values.judge(hostile_values.cases(rng)) for _ in range(few(700, 20_000)))
    assert reported["taken"] > 50 and reported["FrameRejected"] > 200


@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_calls_with_parts_of_other_types_are_answered_or_refused_and_the_store_is_sound(
    seed: int, tmp_path: Any
) -> None:
    """Story: a call with arguments that raised an unexpected error ended the thread of its link."""
    print("seed", seed)
    rng = random.Random(seed)
    reported: Counter[str] = Counter()
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB", lock_timeout_ms=50) as db:
        db.create_table("test.account", ACCOUNT, "id")
        db["test.account"].insert_many([(number, f"o{number}", 1.0, None) for number in range(50)])
        db.create_index("test.account", "by_owner", ["owner"])
        executor = Executor(Alone(db))
        for _ in range(few(500, 20_000)):
            call = hostile_calls.cases(rng)
            try:
                came = unpack(pack(call), lambda name: db[name].definition)
                pack(executor.answer(came))
                reported["answered"] += 1
            except tm.Error as error:
                reported[type(error).__name__] += 1
        executor.close()
        assert db.status()["transactions"]["open"] == 0 and db.check()["is_sound"]
    assert reported["answered"] > 30 and reported["Rejected"] > 50, reported


def test_number_that_cannot_be_compared_is_refused(tmp_path: Any) -> None:
    """Story: `outcome(Decimal("NaN"))` raised an ArithmeticError, and the client's error was that the link broke."""
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB") as db:
        executor = Executor(Alone(db))
        for method in ("outcome", "final_outcome"):
            for txid in (Decimal("sNaN"), Decimal("NaN"), "x", None):
                with pytest.raises(tm.Rejected, match="invalid arguments|txid must be the id"):
                    executor.answer(["store", method, [txid], {}])


def test_savepoints_of_a_link_are_few(tmp_path: Any) -> None:
    with tm.open(tmp_path / "store", data_memory="16 MiB", redo_log="8 MiB") as db:
        executor = Executor(Alone(db))
        executor.answer(["begin"])
        for _ in range(SAVEPOINTS_MAX):
            executor.answer(["savepoint"])
        with pytest.raises(tm.Rejected, match="savepoints are open"):
            executor.answer(["savepoint"])
        for _ in range(SAVEPOINTS_MAX):
            executor.answer(["release", True])
        executor.answer(["commit"])
