"""Nodes over loopback that come back by the variant they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import site_of
from tests.node_group.slots import different_slots
from tests.waiting import wait_until
from tidemark.recovery.node_restart.messages import VARIANTS
from tidemark.recovery.node_restart.source import Source

NAME = "test.t"


@pytest.mark.parametrize("variant", VARIANTS)
def test_node_that_was_away_comes_back_by_the_variant_it_wishes_for(
    variant: str, tmp_path: Path, monkeypatch: Any
) -> None:
    served: list[Source] = []
    real = Source.begin

    def begin(self: Source, ready: Any) -> Any:
        served.append(self)
        return real(self, ready)

    with site_of(tmp_path, 3, delete_log="1 MiB") as site:
        db = site.db(site.primary())
        db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id", tm.HashPartition(2))
        db[NAME].insert_many([(key, 0) for key in range(500)])
        away = next(number for number in (3, 2) if number != site.primary())
        life = site.nodes[away].parts.life
        wait_until(lambda: life.machine.journal.record.epoch > 0)  # otherwise it would come back with nothing
        site.close(away)
        site.wait_view(*sorted(site.nodes))
        db = site.db(site.primary())
        for key in range(0, 500, 3):
            db[NAME].delete(key)
        db[NAME].insert_many([(key, 1) for key in range(600, 650)])  # in reused slots
        db[NAME].update(1, {"n": 9})
        monkeypatch.setattr(Source, "begin", begin)
        site.start(away, variant=variant)
        progress = served[-1].progress
        assert (progress.variant, progress.why) == (variant, "")
        assert (progress.deletes > 0) == (variant == "delete_log")
        store = site.db(away).parts.store
        wait_until(lambda: store.log.sequence >= db.parts.store.log.sequence)
        assert different_slots(db.parts.store, store) == []
