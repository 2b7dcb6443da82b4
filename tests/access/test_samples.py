"""Rows chosen at random: how many, from where, the same ones by a seed, and each with the same chance."""

from __future__ import annotations

import numpy as np
import pytest

import tidemark as tm
from tests.seeds import fresh_seeds

pytestmark = pytest.mark.usefixtures("storage")

ROWS = 20_000  # in more than one batch
GROUPS = 8


@pytest.fixture
def table(db: tm.Database) -> tm.TableHandle:
    columns = [tm.Column("id", tm.Int32), tm.Column("text", tm.Text, nullable=True)]
    table = db.create_table("t", columns, "id")
    table.insert_many([(key, None if key % 3 == 0 else f"row {key}" * 5) for key in range(ROWS)])
    assert len(list(table.scan().batches())) > 1
    return table


@pytest.mark.parametrize("count", [0, 1, 7, 500, ROWS - 1, ROWS, ROWS + 5])
def test_a_sample_has_as_many_rows_as_asked_for_or_all_none_twice(table: tm.TableHandle, count: int) -> None:
    found = table.sample(count)
    assert found.schema == table.scan().schema()
    rows = found.to_pylist()
    assert len({row["id"] for row in rows}) == len(rows) == min(count, ROWS)
    assert rows == [table[row["id"]]._asdict() for row in rows]


def test_a_sample_is_in_the_order_of_its_scan(table: tm.TableHandle) -> None:
    place = {key: number for number, key in enumerate(table.to_arrow(["id"])["id"].to_pylist())}
    places = [place[key] for key in table.sample(300)["id"].to_pylist()]
    assert places == sorted(places)


@pytest.mark.parametrize("seed", [0, *fresh_seeds(2)])
def test_the_same_seed_chooses_the_same_rows_whatever_columns_are_asked_for(table: tm.TableHandle, seed: int) -> None:
    found = table.sample(50, seed=seed)
    assert table.sample(50, seed=seed).equals(found)
    assert table.sample(50, ["id"], seed=seed)["id"].equals(found["id"])
    assert not table.sample(50, seed=seed + 1).equals(found)


def test_without_a_seed_each_sample_is_another(table: tm.TableHandle) -> None:
    assert not table.sample(50).equals(table.sample(50))


def test_each_part_of_a_table_has_the_same_chance(table: tm.TableHandle) -> None:
    place = {key: number for number, key in enumerate(table.to_arrow(["id"])["id"].to_pylist())}
    for count, times in ((1, 400), (100, 40), (ROWS // 2, 4)):
        chosen = [
            place[key] for seed in range(times) for key in table.sample(count, ["id"], seed=seed)["id"].to_pylist()
        ]
        counts = np.bincount(np.array(chosen) * GROUPS // ROWS, minlength=GROUPS)
        right = count * times / GROUPS
        assert np.abs(counts - right).max() < 5 * right**0.5, (count, counts)


def test_a_sample_is_of_the_rows_of_its_scan(table: tm.TableHandle) -> None:
    assert set(table.sample(5, ["id"], tm.col("id") >= ROWS - 4)["id"].to_pylist()) == set(range(ROWS - 4, ROWS))
    assert max(table.sample(5, ["id"], tm.col("id") < 100)["id"].to_pylist()) < 100
    first = table.to_arrow(["id"], limit=10)["id"].to_pylist()
    assert set(table.sample(5, ["id"], limit=10)["id"].to_pylist()) < set(first)


def test_a_transaction_samples_its_own_rows_and_a_snapshot_those_before(db: tm.Database, table: tm.TableHandle) -> None:
    with db.snapshot() as before, db.transaction() as txn:
        txn.delete_where("t", tm.col("id") > 2)
        txn.insert("t", {"id": -1})
        assert sorted(txn.sample("t", 10, ["id"])["id"].to_pylist()) == [-1, 0, 1, 2]
        assert before["t"].sample(ROWS + 1).num_rows == ROWS
        with pytest.raises(tm.SchemaInvalid, match="a sample cannot lock its rows"):
            txn.scan("t", lock="exclusive").sample(1)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3", None])
def test_a_sample_of_no_number_of_rows_is_refused(table: tm.TableHandle, wrong: object) -> None:
    with pytest.raises(tm.SchemaInvalid, match="n must be a number of 0 or more"):
        table.sample(wrong)  # type: ignore[arg-type]
