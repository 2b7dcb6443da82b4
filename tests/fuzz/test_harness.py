"""The harness sees what it is meant to see: a planted defect of each kind, with the input that causes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.harness import FINDINGS_MAX, Report, cuts
from tests.fuzz.keeper import Keeper
from tests.fuzz.readers.planted import SUM_BYTES, TRIGGER

SEED = 19_112
INPUTS = 2_000
FEW = 220  # one of them meets the defect


@pytest.fixture(scope="module")
def keeper() -> Iterator[Keeper]:
    with Keeper() as keeper:
        yield keeper


def run(keeper: Keeper, name: str, **limits: float) -> Report:
    report = keeper.run(f"planted: {name}", SEED, INPUTS, **limits)
    assert isinstance(report, Report) and report.inputs == INPUTS or len(report.findings) == FINDINGS_MAX
    return report


def test_sound_reader_has_no_finding_and_its_outcomes_are_counted(keeper: Keeper) -> None:
    report = run(keeper, "sound")
    assert not report.findings and sum(report.outcomes.values()) == INPUTS
    assert report.outcomes["accepted"] > 500 and report.outcomes["Refused: bad checksum"] > 500
    assert report.missing(("accepted", "only N bytes")) == []


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("crashes", "ends the process by SIGSEGV"),
        ("eats", "MemoryError"),
        ("raises", "IndexError"),
        ("recurses", "RecursionError"),
    ],
)
def test_defect_is_found_and_its_input_made_small(keeper: Keeper, name: str, what: str) -> None:
    report = run(keeper, name)
    (finding,) = report.findings
    assert finding.what.startswith(what) and TRIGGER in finding.data[:-SUM_BYTES]
    # The checksum is not made right again while an input is made smaller, so that it stays whole; nothing else does.
    assert keeper.judged(f"planted: {name}", finding.data)[0] == finding.what


def test_endless_computing_is_found_by_the_time_of_the_core(keeper: Keeper) -> None:
    report = keeper.run("planted: hangs", SEED, FEW, hang_seconds=1)
    (finding,) = report.findings
    assert finding.what == "computes for more than 1 s" and TRIGGER in finding.data


def test_waiting_for_ever_is_found(keeper: Keeper) -> None:
    # Looked at each second: one that is only starved by others is not asleep.
    report = keeper.run("planted: waits", SEED, FEW, blocked_seconds=1)
    (finding,) = report.findings
    assert finding.what == "waits for ever" and TRIGGER in finding.data


def test_slow_input_is_judged_again_alone(keeper: Keeper) -> None:
    report = keeper.run("planted: is_slow", SEED, FEW)
    assert report.slow and [each.what for each in report.findings] == ["slow"]


def test_reader_of_which_only_the_checksum_is_reached_is_seen(keeper: Keeper) -> None:
    report = run(keeper, "unmended")
    assert not report.findings and report.missing(("only N bytes",)) == ["only N bytes"]
    assert run(keeper, "never_accepts").missing(("only N bytes",)) == ["only N bytes"]


def test_run_gives_the_same_inputs_again(keeper: Keeper) -> None:
    assert run(keeper, "sound").outcomes == run(keeper, "sound").outcomes
    assert run(keeper, "sound").outcomes != keeper.run("planted: sound", SEED + 1, INPUTS).outcomes


def test_pieces_to_leave_out_are_all_of_an_input_and_end_with_single_bytes() -> None:
    found = list(cuts(8))
    assert found[:2] == [(0, 4), (4, 8)] and found[-8:] == [(at, at + 1) for at in range(8)]
