"""Read-only opening of damaged stores, and of stores whose writer retires files that are being read."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import History, changes_during, flipped, make_history
from tests.recovery.test_local_checkpoint_damage import damage
from tests.store.read_only import (
    NAME,
    attach,
    attach_to,
    create_tables,
    history,
    one_checkpoint,
    second,
    states,
    writer,
)
from tests.store.support import ACCOUNT, SMALL, open_memory
from tests.store.test_trouble import outcome_of
from tests.store.trouble import dump
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import Replay, TraceFiles
from tidemark.recovery.system_restart.attach import ATTEMPTS

__all__ = ["history", "states", "writer"]


# --- damage ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "missing", "zeros"])
def test_newest_checkpoint_damaged_the_whole_one_before_is_shown(states: Any, how: str) -> None:
    contents, expected = states
    seed = 610
    print(f"seed {seed}")
    rng = random.Random(seed)
    for name in sorted(name for name in contents if name.startswith("lcp/3-") or name == "lcp/control-3"):
        damaged = dict(contents)
        damage(damaged, name, how, rng)
        with attach_to(damaged) as view:
            assert view.status()["lcp"]["id"] == 2, name
            assert view.status()["lcp"]["fallbacks"] == (0 if "control" in name else 1)
            assert dump(view) == expected[2], "a fragment of another local checkpoint is another point in time"


def test_damage_of_both_checkpoints_in_different_fragments_is_refused(history: History) -> None:
    # A restart takes each fragment from an intact checkpoint; a view cannot, it has no log to bring them to one epoch.
    contents = history.copy()
    older, newest = history.lcp_ids
    damage(contents, f"lcp/{newest}-1-0.data", "flip", random.Random(1))
    damage(contents, f"lcp/{older}-1-2.data", "flip", random.Random(1))
    with pytest.raises(tm.LcpDamaged, match="no local checkpoint is intact") as caught:
        attach_to(contents)
    assert "\n" not in str(caught.value)
    open_memory(MemoryFiles.from_snapshot(contents)).close()


def test_unreadable_newest_data_file_the_one_before_is_shown(history: History) -> None:
    rule = Rule("pread", f"lcp/{history.lcp_ids[1]}-1-3.data", once=False, error=errno.EIO)
    files = FaultFiles(MemoryFiles.from_snapshot(history.contents), [rule])
    with tm.ReadOnlyDatabase(files, Options(data_memory="16 MiB"), ManualClock()) as view:
        assert view.epoch == history.epochs[0]


@pytest.mark.parametrize("kind", ["control-{}", "{}-1-0.data", "{}-copies.data"])
def test_file_of_another_store_is_refused(history: History, kind: str) -> None:
    name = "lcp/" + kind.format(history.lcp_ids[1])
    with pytest.raises(tm.ForeignFile):
        attach_to({**history.contents, name: make_history(seed=99).contents[name]})


def test_another_store_in_the_place_of_the_one_attached_to_is_refused() -> None:
    files = one_checkpoint()
    with attach(second(files)) as view:
        files.disk.root = one_checkpoint(seed=99).disk.root
        with pytest.raises(tm.ForeignFile, match="another store is in the place"):
            view.refresh()
        assert len(view[NAME]) == 0


def test_directory_moved_away_or_replaced_ends_the_view_at_its_next_refresh(tmp_path: Path) -> None:
    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table(NAME, ACCOUNT, "id")
        db.checkpoint()
    for is_replaced in (False, True):
        with tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB") as view:
            (tmp_path / "shop").rename(tmp_path / "before")
            if is_replaced:
                shutil.copytree(tmp_path / "before", tmp_path / "shop")
            assert len(view[NAME]) == 0
            with pytest.raises(tm.IoFailed, match="open it again"):
                view.refresh()
            assert outcome_of(lambda: len(view[NAME]))[0] == "IoFailed"
            if not is_replaced:
                (tmp_path / "before").rename(tmp_path / "shop")
    tm.open(tmp_path / "shop", read_only=True, data_memory="16 MiB").close()


def test_sysfile_damaged_or_too_new_is_refused_as_by_a_restart(history: History) -> None:
    import numpy as np

    from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, header_of, seal
    from tidemark.recovery.system_restart.sysfile_layout import SYSFILE

    contents = history.copy()
    for name in ("sysfile.0", "sysfile.1"):
        contents[name] = flipped(contents[name], 200)
    with pytest.raises(tm.SysfileDamaged):
        attach_to(contents)
    for name in ("sysfile.0", "sysfile.1"):
        words = np.frombuffer(history.contents[name], dtype=np.int64).copy()
        header_of(words, SYSFILE)["version"] = FORMAT_VERSION + 1
        seal(words, words.size)
        contents[name] = words.tobytes()
    with pytest.raises(tm.VersionTooNew):
        attach_to(contents)


# --- retirement while reading ------------------------------------------------------------------------
class Racing:
    """A view's disk on which the writer works between two calls of the reader."""

    def __init__(self, db: Any, rules: list[tuple[str, str, int]], work: Callable[[], Any], once: bool = True) -> None:
        self.work = work
        self.plan = Plan(
            [Rule(operation, name, nth=nth, once=once, stall=self._stall) for operation, name, nth in rules]
        )
        self.files = FaultFiles(second(db.parts.files), self.plan)
        self.struck = 0

    def _stall(self) -> None:
        self.struck += 1
        self.work()

    def attach(self) -> tm.ReadOnlyDatabase:
        return tm.ReadOnlyDatabase(self.files, Options(data_memory="16 MiB"), ManualClock())


def advance(db: Any, times: int = 1) -> Callable[[], None]:
    """The writer changes a row and makes local checkpoints."""

    def work() -> None:
        for _ in range(times):
            db[NAME].update(7, {"balance": db[NAME][7].balance + 1.0})
            db.checkpoint()

    return work


@pytest.mark.parametrize(
    ("operation", "name", "nth"),
    [
        ("list", "lcp", 1),
        ("open", "lcp/control-*", 1),
        ("pread", "lcp/control-*", 1),
        ("open", "lcp/*.data", 1),
        ("open", "lcp/*.data", 3),
        ("open", "lcp/*-copies.data", 1),
        ("pread", "lcp/*.data", 2),
    ],
)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_writer_retires_the_checkpoint_while_it_is_read(
    writer: Any, operation: str, name: str, nth: int, times: int
) -> None:
    racing = Racing(writer, [(operation, name, nth)], advance(writer, times))
    with racing.attach() as view:
        assert racing.struck == 1
        assert view.status()["lcp"]["fallbacks"] == 0, "retired is not damaged"
        balance = view[NAME][7].balance
        assert balance in (7.0, writer[NAME][7].balance)
        if operation == "open" and nth == 1 and times == 3:
            assert balance == writer[NAME][7].balance, "what was to be opened is gone: the newest is shown"
        view.refresh()
        assert dump(view) == dump(writer)


def test_writer_that_always_is_ahead_ends_the_attempt_in_one_line(writer: Any) -> None:
    racing = Racing(writer, [("open", "lcp/*-1-1.data", 1)], advance(writer, 3), once=False)
    with pytest.raises(tm.SnapshotTooOld, match="retired before they were loaded; try again"):
        racing.attach()
    assert racing.struck == ATTEMPTS


def test_refresh_overtaken_by_the_writer_shows_the_newest(writer: Any) -> None:
    racing = Racing(writer, [("open", "lcp/2-1-1.data", 1)], advance(writer, 3))
    with racing.attach() as view:
        writer.checkpoint()
        assert view.refresh() == view.epoch
        assert racing.struck == 1 and dump(view) == dump(writer)


def test_damaged_newest_and_the_one_before_retired_meanwhile_the_next_is_shown(writer: Any) -> None:
    writer.checkpoint()
    disk: Any = writer.parts.files.disk
    disk.root.live["lcp"].live["2-1-0.data"].live[100] ^= 1
    racing = Racing(writer, [("open", "lcp/1-1-0.data", 1)], advance(writer, 2))
    with racing.attach() as view:
        assert racing.struck == 1
        assert dump(view) == dump(writer)


def test_control_file_half_written_is_no_checkpoint_yet(states: Any) -> None:
    contents, expected = states
    for size in (0, 8, len(contents["lcp/control-3"]) // 2):
        with attach_to({**contents, "lcp/control-4": contents["lcp/control-3"][:size]}) as view:
            assert dump(view) == expected[3]


# --- crashes of the writer ---------------------------------------------------------------------------
def test_disk_after_any_crash_shows_a_checkpoint_that_was_made_and_none_older_than_the_last_acknowledged() -> None:
    """Story: the places at which a crash was examined were drawn, so a seed could miss a local checkpoint, above all
    the last one. Now each is examined where it was acknowledged: from there on it is visible, and no other one.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    trace = TraceFiles(MemoryFiles())
    db = Database(trace, Options.from_keywords(SMALL), ManualClock())
    create_tables(db)
    expected: dict[int, Any] = {}
    acknowledged: list[tuple[int, int]] = []
    began = len(trace.events)
    for number in range(1, 6):
        before = dump(db)
        lcp_id = db.checkpoint(changes_during(db, number))["lcp_id"]
        expected[lcp_id] = before
        acknowledged.append((len(trace.events), lcp_id))
    events = trace.events
    db.close()
    seen = set()
    replay = Replay()
    for at, event in enumerate(events, 1):
        replay.step(event)
        is_acknowledgement = any(at == number for number, _ in acknowledged)
        if not is_acknowledgement and (at < began or rng.random() < 0.4):
            continue
        disk = replay.files.kill() if rng.random() < 0.3 else replay.files.crash(rng, rng.choice(CRASH_POLICIES))
        least = max((lcp_id for number, lcp_id in acknowledged if number <= at), default=0)
        try:
            view = attach(disk)
        except tm.FileMissing:
            assert least == 0, f"seed {seed}, event {at}: an acknowledged local checkpoint is not shown"
            continue
        shown = view.status()["lcp"]["id"]
        assert shown >= least, f"seed {seed}, event {at}"
        if not shown:  # before the first one, the log: all that a restart would recover
            found = dump(view)
            view.close()
            with open_memory(MemoryFiles.from_snapshot(disk.snapshot())) as restarted:
                assert found == dump(restarted), f"seed {seed}, event {at}"
            continue
        assert dump(view) == expected[shown], f"seed {seed}, event {at}: local checkpoint {shown}"
        view.close()
        seen.add(shown)
    assert seen == set(expected)
