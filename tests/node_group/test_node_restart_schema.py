"""Definitions change while a node comes back, or have changed while it was away."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.node_group.support import Wire, away, joined_and_reopened, restarted
from tests.seeds import fresh_seeds
from tidemark.recovery.node_restart.messages import VARIANTS


class SchemaWriters:
    """Schema changes that alternate with the transactions of other writers."""

    def __init__(self, db: Any, writers: Any, rng: Any) -> None:
        self.db = db
        self.writers = writers
        self.rng = rng
        self.number = 0
        self.changes = 0
        db.create_table(
            "test.ranges",
            [tm.Column("id", tm.Int64), tm.Column("text", tm.Text, nullable=True)],
            "id",
            partition=tm.RangePartition("id", [("p0", 100), ("p1", 200)]),
        )
        db["test.ranges"].insert_many([(key, "r" * (key % 50)) for key in range(180)])

    def step(self) -> None:
        """Run a transaction, or a schema change."""
        if self.rng.random() < 0.7 or self.changes > 25:
            self.writers.step()
            self._ranges()
            return
        self.changes += 1
        self.rng.choice(
            [
                self._tablespace,
                self._create,
                self._drop,
                self._column,
                self._index,
                self._unique,
                self._partition,
                self._rename,
            ]
        )()

    def _ranges(self) -> None:
        names = self.db["test.ranges"].definition.partition.partitions
        top = names[-1][1][0]
        with self.db.transaction() as txn:
            key = self.rng.randrange(top)
            txn.delete("test.ranges", key) if txn.get("test.ranges", key) else txn.insert("test.ranges", {"id": key})

    def _create(self) -> None:
        self.number += 1
        name = f"test.made{self.number}"
        self.db.create_table(name, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
        self.db[name].insert_many([(key, key) for key in range(self.rng.randrange(50))])

    def _made(self) -> list[str]:
        return [name for name in self.db.parts.store.tables.by_name if name.startswith("test.made")]

    def _drop(self) -> None:
        if self._made():
            self.db.drop_table(self.rng.choice(self._made()))

    def _column(self) -> None:
        self.number += 1
        if self.number < 12:
            self.db.add_column("test.ranges", tm.Column(f"c{self.number}", tm.Int32, nullable=True))

    def _index(self) -> None:
        self.number += 1
        self.db.create_index("test.hot", f"i{self.number}", "n") if self.number % 2 else self._create()

    def _unique(self) -> None:
        table = self.db.parts.store.tables.by_name["test.hot"]
        for index in table.definition.indexes:
            self.db.drop_index("test.hot", index.name)
            return

    def _partition(self) -> None:
        partition = self.db["test.ranges"].definition.partition
        if len(partition.partitions) > 2 and self.rng.random() < 0.5:
            self.db.drop_partition("test.ranges", partition.partitions[0][0])
        elif partition.next_number < 12:
            self.db.add_partition("test.ranges", f"p{partition.next_number}", partition.partitions[-1][1][0] + 100)

    def _tablespace(self) -> None:
        spaces = [each for each in self.db.parts.store.space.by_name if each != "main"]
        if not spaces:
            self.number += 1
            self.db.create_tablespace(f"space{self.number}", "1 MiB")
        else:
            self.number += 1
            columns = [tm.Column("id", tm.Int64), tm.Column("far", tm.VarChar(50), storage="disk")]
            self.db.add_datafile(spaces[0], "1 MiB") if self.number % 3 == 0 else None
            self.db.create_table(f"test.made{self.number}d", columns, "id", tablespace=spaces[0])
            self.db[f"test.made{self.number}d"].insert_many([(key, "f" * 40) for key in range(30)])

    def _rename(self) -> None:
        if self._made():
            self.number += 1
            self.db.rename(self.rng.choice(self._made()), f"test.made{self.number}x")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(1)])
def test_schema_changes_before_and_during_a_join(seed: int, variant: str) -> None:
    """Story of the test: a seed may draw no change before the join, and few steps in it, none of them a schema
    change.
    """
    db, files, writers, node, through, rng = away(seed, rows=200, steps=3)
    schema = SchemaWriters(db, writers, rng)
    for _ in range(rng.randrange(20)):
        schema.step()
    before = schema.changes

    def step() -> None:
        schema.step()
        while schema.changes == before:
            schema.step()

    wire = Wire(db, files, rng, step, slice_slots=rng.choice([5, 200]))
    opened = restarted(node, wire, through, variant)
    assert schema.changes > before
    joined_and_reopened(db, node, opened, f"seed {seed}")
    db.close()


@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(20))
def test_many_schema_changes(seed: int, variant: str) -> None:
    test_schema_changes_before_and_during_a_join(seed + 500, variant)
