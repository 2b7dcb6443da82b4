"""Where a restart that must not read to the end of the log ends: which local checkpoints it may begin with."""

from __future__ import annotations

from tidemark.recovery.local_checkpoint.control import Control
from tidemark.recovery.system_restart.through import Through


def test_checkpoint_counts_for_a_restart_that_ends_at_its_very_group() -> None:
    """Story: a mutant excluded the local checkpoint that has all groups up to the end and none after it; no test saw
    it.
    """
    found = [Control(number, 90, 0, first, 1, []) for number, first in ((1, 10), (2, 11), (3, 12))]
    assert [each.lcp_id for each in Through(80, 10).controls(found)] == [1, 2]
    assert {each.epoch for each in Through(80, 10).controls(found)} == {80}
