"""A node whose local checkpoints are of later epochs than X, and whose log has no group after X: it comes back from its
own files, whatever numbers the live node has given to epochs since.

Regression: such a node was copied whole after it had left in order, or had been at rest for two local checkpoints.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.node_group.support import (
    SourceGone,
    Wire,
    Writers,
    assert_equal,
    finish,
    joined_and_reopened,
    open_node,
    settings,
)
from tests.recovery.support import flipped, powered_off
from tests.seeds import fresh_seeds
from tests.shares import some
from tests.store.support import rows_of
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import LcpDamaged
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.local_checkpoint.control import read_controls
from tidemark.recovery.local_checkpoint.data_file import FOLDER, data_name
from tidemark.recovery.node_restart.messages import ROWID_SYNC, VARIANTS
from tidemark.recovery.node_restart.restart import rejoin
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.sysfile import read_sysfile
from tidemark.recovery.system_restart.through import Through

TABLES = ("test.wide", "test.hot", "test.named")
STRAY = 1_000_000  # from here on: values of rows that the group never had


def contents(db: Any) -> dict[str, Any]:
    """Return all rows of a store."""
    return {name: rows_of(db, name) for name in TABLES}


class Rest:
    """A live node with its writers, and the files of a node at rest after epoch X: it has local checkpoints of epochs
    without groups, and the live node has since given some of their numbers to groups.
    """

    def __init__(
        self, seed: int, has_disk: bool = False, rows: int = 500, steps: int = 15, strays: int = 0, late: int = 0
    ) -> None:
        """steps: of the live node's writers after X. strays: transactions of the node after X that the group never had;
        late: local checkpoints after those.
        """
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.db = open_node(self.files)
        self.writers = Writers(self.db, self.rng, has_disk=has_disk)
        self.writers.fill(rows)
        self.db.checkpoint()
        for _ in range(8):
            self.writers.step()
        self._go(strays, late)
        for _ in range(steps):
            self.writers.step()

    def again(self) -> None:
        """Let the node go away once more, from where the live one is now."""
        self._go(0, 0)

    def _go(self, strays: int, late: int) -> None:
        self.db["test.hot"].write((0, self.rng.randrange(99)))
        self.through = Through(self.db.sync(), self.db.parts.store.log.sequence - 1)
        self.rows = contents(self.db)
        node = MemoryFiles.from_snapshot(self.files.snapshot())
        other = open_node(node)
        for _ in range(2):
            other.parts.clockwork.advance_gci()
            other.checkpoint()
        other.parts.clockwork.advance_gci()
        self.epoch = other.parts.store.epochs.newest_closed
        for _ in range(strays):
            other["test.wide"].write(self.writers.row(self.rng.randrange(self.writers.keys)))
            other["test.hot"].write((5, STRAY))
            other.parts.clockwork.advance_epoch()
        for number in range(late):
            other["test.hot"].write((6, STRAY + number))
            other.checkpoint()
        other.sync()
        self.node = node.kill()
        assert self.through.epoch < self.db.parts.store.epochs.current < self.epoch, "the numbers are given twice"

    def wire(self, **given: Any) -> Wire:
        """Make a link to the live node."""
        return Wire(self.db, self.files, self.rng, **given)

    def back(self, wire: Wire, variant: str = ROWID_SYNC, files: Any = None) -> Any:
        """Bring the node back by whatever its files allow."""
        node = self.node if files is None else files
        place = (wire.source.welcome(), wire, self.through, variant)
        opened, caught_up = rejoin(node, settings(), ManualClock(), *place)
        assert caught_up.epoch < caught_up.next_epoch and caught_up.sequence == opened.store.log.sequence
        return opened

    def alone(self, files: MemoryFiles) -> None:
        """Check that the files without the live node give the state after X, and nothing else."""
        some = MemoryFiles.from_snapshot(files.snapshot())
        restart = Restart(some, settings(), ManualClock(), self.through)
        db = Database(some, settings(), ManualClock(), restart=restart.run)
        assert contents(db) == self.rows
        db.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("has_disk", [False, True])
@pytest.mark.parametrize("seed", [1, *fresh_seeds(1)])
def test_node_at_rest_is_sent_what_has_changed(seed: int, has_disk: bool, variant: str) -> None:
    it = Rest(seed, has_disk)
    it.alone(it.node)
    wire = it.wire(work=it.writers.step, work_max=30, slice_slots=it.rng.choice([50, 5_000]))
    opened = it.back(wire, variant)
    assert (wire.source.progress.variant, wire.source.progress.why) == (variant, "")
    joined_and_reopened(it.db, it.node, opened, f"seed {seed}")
    it.db.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_sent_if_nothing_has_changed(variant: str) -> None:
    it = Rest(2, steps=0)
    wire = it.wire()
    opened = it.back(wire, variant)
    assert (wire.source.progress.why, wire.source.progress.rows, wire.source.progress.groups) == ("", 0, 0)
    assert not opened.sysfile.seam_lsn, "no row came from elsewhere"
    joined_and_reopened(it.db, it.node, opened)
    it.db.close()


@pytest.mark.parametrize("has_disk", [False, True])
@pytest.mark.parametrize("seed", [3, *fresh_seeds(1)])
def test_groups_after_x_are_cut_though_local_checkpoints_before_them_are_of_later_epochs(
    seed: int, has_disk: bool
) -> None:
    it = Rest(seed, has_disk, strays=3)
    it.alone(it.node)
    wire = it.wire(work=it.writers.step, work_max=30)
    opened = it.back(wire)
    assert wire.source.progress.why == ""
    joined_and_reopened(it.db, it.node, opened, f"seed {seed}")
    it.db.close()


@pytest.mark.parametrize("late", [1, 2])
def test_local_checkpoints_with_a_group_after_x_are_not_used(late: int) -> None:
    """If one has such a group, the one before it serves; if two have, the node is copied whole."""
    it = Rest(4, late=late)
    wire = it.wire()
    opened = it.back(wire)
    assert ("before the oldest state" in wire.source.progress.why) == (late == 2)
    joined_and_reopened(it.db, it.node, opened)
    it.db.close()


@pytest.mark.parametrize("count", [1, 2])
def test_damaged_local_checkpoint_gives_way_to_the_one_before_and_two_to_a_full_copy(count: int) -> None:
    it = Rest(5)
    files = it.node.snapshot()
    store = it.db.parts.opened.identity[0]
    for control in read_controls(it.node, store)[:count]:
        name = data_name(control.lcp_id, *min(control.fragments))
        files[name] = flipped(files[name], 200)
    it.node = MemoryFiles.from_snapshot(files)
    wire = it.wire()
    opened = it.back(wire)
    assert ("own files do not lead" in wire.source.progress.why) == (count == 2)
    joined_and_reopened(it.db, it.node, opened)
    it.db.close()


def test_log_that_lacks_the_last_group_of_x_is_no_state_to_continue_from() -> None:
    """Story: the end of X was not recorded: a node that had lost groups of X claimed that it stood at the end of X."""
    it = Rest(6)
    it.through = Through(it.through.epoch, it.through.sequence + 1)
    wire = it.wire()
    opened = it.back(wire)
    assert "is missing" in wire.source.progress.why
    joined_and_reopened(it.db, it.node, opened)
    it.db.close()


def test_copy_that_is_interrupted_leaves_the_disk_columns_of_x() -> None:
    """Story: the node leaves out UNDO records of epochs up to a bound, and those of the copy were of such epochs. Pages
    that the copy had changed could not go back, and would reach the next live node with values of this one.
    """
    it = Rest(7, has_disk=True, steps=0)

    def filled(words: str) -> None:
        it.db["test.wide"].write_many([(key, 0, None, words * 75) for key in range(5_000)])

    filled("far ")
    it.again()
    filled("near")  # of the same length, so it is changed in place
    wire = it.wire(most=10, slice_slots=500)
    with pytest.raises(SourceGone):
        it.back(wire)
    assert wire.copied_bytes > 1 << 20, "the page buffer holds as much"
    it.alone(it.node.kill())
    it.db.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_node_at_rest_that_loses_power_anywhere_joins_again(variant: str) -> None:
    it = Rest(8, has_disk=True, rows=150)
    before = it.node.snapshot()

    def join(some: Any) -> None:
        wire = it.wire(slice_slots=500)
        try:
            finish(some, it.back(wire, variant, some))
        finally:
            wire.source.close()

    count = 0
    for nth in some([*range(1, 40, 6), *range(40, 400, 23)], 0.5):
        broken = MemoryFiles.from_snapshot(before)
        if not powered_off(broken, nth, join):
            break
        count += 1
        after = broken.crash(random.Random(nth))
        it.alone(after)
        wire = it.wire()
        assert_equal(it.db, it.back(wire, variant, after).store, f"write {nth}")
        assert wire.source.progress.why == "", f"write {nth}"
        wire.source.close()
    assert count > 4
    it.db.close()


def test_seam_is_seen_where_the_log_ends_at_the_local_checkpoint() -> None:
    """Story: nothing is between such a local checkpoint and the seam, so both have the same place in the log. A binlog
    that followed the log from there noticed no gap, and waited for the group before it.
    """
    it = Rest(9)
    opened = it.back(it.wire())
    sysfile, control = opened.sysfile, opened.controls[0]
    assert control.start_lsn == sysfile.seam_lsn == opened.store.log.head_lsn
    assert sysfile.is_before_seam(control.start_lsn, control.start_sequence)
    assert not sysfile.is_before_seam(sysfile.seam_lsn, opened.store.log.sequence)
    opened.store.schema.log({"drop": STRAY, "name": "test.none"}, lambda: None)  # a group after the seam
    died = it.node.kill()
    alone = open_node(died)  # groups after the seam do not count any more
    assert contents(alone) == it.rows and alone.check()["is_sound"]
    alone.close()
    it.db.close()


def test_local_checkpoint_of_a_lower_number_past_the_seam_is_missed_if_it_is_damaged() -> None:
    """Of the two that exist after a crash, the older one has the higher epoch, and both have the same place in the
    log.
    """
    it = Rest(11)
    opened = it.back(it.wire())
    before = {name: content for name, content in it.node.snapshot().items() if name.startswith(f"{FOLDER}/")}
    finish(it.node, opened)
    after = it.node.kill().snapshot()
    newest, older = read_controls(MemoryFiles.from_snapshot({**before, **after}), it.db.parts.opened.identity[0])[:2]
    assert newest.epoch < older.epoch and newest.start_lsn == older.start_lsn
    data = data_name(newest.lcp_id, *min(newest.fragments))
    with pytest.raises(LcpDamaged, match="join again"):
        open_node(MemoryFiles.from_snapshot({**before, **after, data: flipped(after[data], 200)}))
    it.db.close()


def test_sysfile_names_no_epoch_that_the_group_has_not_closed() -> None:
    """Story: a member that restarts follows from that epoch on. With a later epoch it took the primary's groups for
    groups of epochs that are over. With an earlier one, from a node that had long been away, its local checkpoint was
    of that epoch, and a node that joined by it missed slots that had been emptied since.
    """
    it = Rest(12)
    assert read_sysfile(it.node).closed_epoch > it.db.parts.store.epochs.current
    opened = it.back(it.wire())
    assert opened.sysfile.closed_epoch == it.through.epoch
    finish(it.node, opened)
    (epoch,) = (control.epoch for control in read_controls(it.node, it.db.parts.opened.identity[0]))
    assert epoch > it.through.epoch
    again = open_node(it.node.kill())
    assert again.parts.opened.sysfile.closed_epoch == epoch
    again.close()
    it.db.close()


def test_node_that_joined_from_rest_serves_the_next_one() -> None:
    """It describes its empty slots and pages as the live node would."""
    it = Rest(10, rows=1_500)
    third = MemoryFiles.from_snapshot(it.node.snapshot())
    it.db["test.wide"].write_many([it.writers.row(key) for key in range(4_000)])
    for key in sorted(it.rows["test.wide"])[10:]:
        if it.db["test.wide"].get(key) is not None:
            it.db["test.wide"].delete(key)
    finish(it.node, it.back(it.wire()))
    it.db.close()
    it.files = it.node.kill()
    it.db = open_node(it.files)
    wire = it.wire()
    opened = it.back(wire, files=third)
    assert wire.source.progress.why == ""
    joined_and_reopened(it.db, third, opened)
    it.db.close()
