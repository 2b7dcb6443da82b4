"""What a power loss or a kill may leave of recorded runs: every state restarts to what was promised."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.crash.programs import growth_history, history
from tests.shares import share
from tidemark.engine.base.errors import RedoOverloaded
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Int64, VarChar
from tidemark.recovery.crash_harness.__main__ import main
from tidemark.recovery.crash_harness.crash_states import choices, crash_states, record
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.places import FAULTS, missing
from tidemark.recovery.crash_harness.program import (
    Ledger,
    OpenStore,
    Violation,
    Work,
    open_simulated,
    probe,
    probed,
    whole_state,
)


@pytest.mark.parametrize(
    "work",
    [history.work, history.epoch_work, history.single_work, history.durable_single_work],
    ids=["durable commits", "durable epochs", "calls of one row", "durable calls of one row"],
)
def test_crash_states_of_a_run_show_what_was_promised(work: Work) -> None:
    report = crash_states(work, whole_state, seed=7, per_point=6, share=share(0.07))
    assert report.points > 150
    assert report.distinct > 20
    assert report.kills > 6
    assert report.second_restarts > 6
    # Its log does not wrap; that of tests/store/test_power_loss.py does.
    assert missing(report.places, FAULTS) == {"F10": ["group over one of an earlier lap, not durable"]}


def test_crash_states_of_a_log_that_grows_show_what_was_promised() -> None:
    with growth_history.small_files():
        made = {event.name for event in record(growth_history.work, 7) if event.operation == "create"}
        report = crash_states(growth_history.work, whole_state, seed=7, per_point=3)
    assert len({name for name in made if name.startswith("redo/")}) >= growth_history.START_FILES + 3
    assert report.distinct > 20
    for name in ("REDO name kept", "REDO name lost", "sysfile write torn"):
        assert report.places[name], report.places


def test_store_whose_first_local_checkpoint_was_abandoned_opens_after_any_loss() -> None:
    """Story: a power loss that tore the control file of the first complete local checkpoint was met once in hundreds of
    runs of repeated losses. That checkpoint had number 2, because the first had been interrupted. The opening took the
    number for a sign that the log had been truncated: LcpDamaged, although the log was whole.
    """
    report = crash_states(history.abandoned_work, whole_state, seed=1, per_point=12)
    assert report.places["control file write torn"] >= 2


def test_reservation_before_the_commit_is_seen() -> None:
    def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
        history.History(open_store, seed, Hasty(ledger)).run(6)

    class Hasty(Ledger):
        """Promises a step that has only begun."""

        def __init__(self, ledger: Ledger) -> None:
            super().__init__()
            self.ledger = ledger

        def begin(self, text: str) -> None:
            self.ledger.acknowledge(text)

    with pytest.raises(Violation, match="point"):
        crash_states(work, whole_state, seed=1)


def test_log_that_was_full_at_the_crash_is_given_room_as_the_error_advises() -> None:
    """Story: the harness took a store without space in its log for one that accepts no work, and did not say where it
    was seen.

    Its own commit after a restart now makes the local checkpoints that the error asks for.
    """
    files = MemoryFiles()
    db = open_simulated(OrderMonitor(files))
    db.create_table("app.event", [Column("id", Int64), Column("text", VarChar(4000))], primary_key="id")
    with pytest.raises(RedoOverloaded):
        while True:
            db["app.event"].write((1, "x" * 4000))
    after = open_simulated(OrderMonitor(files.kill()))
    with pytest.raises(RedoOverloaded):
        after["app.event"].write((2, "x" * 4000))
    probe(after, 7)
    assert probed(after) == {7}


def test_damage_to_a_local_checkpoint_that_was_finished_is_seen() -> None:
    """Story: the harness accepted every damaged control file as one that the power loss might have torn, finished ones
    too.
    """

    def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
        run = history.History(open_store, seed, ledger, lcp_every=2)
        run.run(3)
        ledger.acknowledge("finished")
        run.db = run.open_store()
        run.commit()

    def verify(db: Any, ledger: Ledger) -> list[str]:
        if "finished" in ledger.acknowledged:
            raw = db.parts.files.raw
            while hasattr(raw, "inner"):  # past what watches and counts
                raw = raw.inner
            raw.pwrite(raw.open("lcp/control-1", True), bytes(512), 512)
        return []

    with pytest.raises(Violation, match="control-1 is damaged"):
        crash_states(work, verify, seed=1, per_point=3)


def test_choices_are_all_subsets_of_few_pieces_and_tears_of_many() -> None:
    files = MemoryFiles()
    file = files.create("a", 8_192)
    files.fdatasync(file)
    files.sync_directory("")
    for sector in range(3):
        files.pwrite(file, sector * 1_024, bytes([sector + 1]) * 512)
    pieces = files.pieces()
    assert {kept for kept, _ in choices(pieces, random.Random(1), 100)} == {
        frozenset(piece for number, piece in enumerate(pieces) if mask >> number & 1) for mask in range(8)
    }
    files.pwrite(file, 0, b"x" * 8_192)
    pieces = files.pieces()
    found = [kept for kept, _ in choices(pieces, random.Random(1), 10_000)]
    assert len(found) == len(set(found))
    everything = frozenset(pieces)
    assert {frozenset(), everything} <= set(found)
    assert all(everything - {piece} in found for piece in pieces)
    long_write = [piece for piece in pieces if piece.kind == "write" and piece.sectors == 16]
    assert everything - frozenset(long_write[8:]) in found


@pytest.mark.parametrize("given", ["0", "-0.5", "1.01", "nan", "half"])
def test_share_that_judges_nothing_is_refused(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit):
        main(["states", f"--share={given}"])
    assert f"{given} is invalid; give more than 0 and at most 1" in capsys.readouterr().err
