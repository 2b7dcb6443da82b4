"""Random histories of schema changes and rows against a model, with restarts, local checkpoints, walks of memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.programs import schema_history
from tests.engine.arena_check import check_arena
from tests.seeds import fresh_seeds
from tidemark.engine.schema.column import Column
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import Ledger, open_simulated

SEEDS = [*range(6), *fresh_seeds(1)]
PROGRAMS = [schema_history.SchemaHistory, schema_history.DiskSchemaHistory]


def history(kind: Any, seed: int, steps: int, sees: list[str]) -> None:
    disk, ledger = MemoryFiles(), Ledger()

    class Watched(kind):  # type: ignore[misc]
        def done(self, after: Any, line: str, is_durable: bool) -> None:
            super().done(after, line, is_durable)
            sees.extend(schema_history.verify(self.db, self.ledger))

    Watched(lambda **options: open_simulated(MemoryFiles(disk.disk), **options), seed, ledger).run(steps)
    db = open_simulated(disk.kill())
    sees.extend(schema_history.verify(db, ledger))
    if not sees:
        check_arena(db)
        assert db.check()["is_sound"]


@pytest.mark.parametrize("kind", PROGRAMS, ids=["memory", "disk"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_of_a_random_history_leaves_the_rows_of_the_model(kind: Any, seed: int) -> None:
    print("seed", seed)
    sees: list[str] = []
    history(kind, seed, 60, sees)
    assert sees == []


def test_default_that_changes_for_rows_that_are_there_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: rows from before a column was added read the current default."""
    monkeypatch.setattr(Column, "when_absent", property(lambda column: column.missing))
    sees: list[str] = []
    for seed in range(4):
        history(schema_history.SchemaHistory, seed, 40, sees)
    assert sees


def test_dropped_column_whose_place_is_given_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the definition forgets where the bytes of dropped columns lie."""
    from tidemark.engine.schema.definition import TableDefinition

    monkeypatch.setattr(TableDefinition, "physical", property(lambda table: tuple(enumerate(table.columns))))
    with pytest.raises(Exception, match=r".*"):  # the first error that the garbage causes
        sees: list[str] = []
        for seed in range(4):
            history(schema_history.SchemaHistory, seed, 40, sees)
        assert not sees
