"""Mixed work does not increase memory and descriptors: a few rounds of the work that `make soak` does for a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak import steady
from tests.soak.steady import WARM_ROUNDS, Held, grown
from tests.soak.turns import TURNS

SEED = 20_261_124


def test_rounds_of_mixed_work_need_no_more_than_the_first_ones(tmp_path: Path) -> None:
    """Story: in the process of the tests the collector closed descriptors of earlier tests in the middle of the
    rounds.
    """
    print("seed", SEED)
    command = [sys.executable, "-m", "tests.soak.steady", str(tmp_path), "--rounds", str(WARM_ROUNDS + 4)]
    done = subprocess.run([*command, "--seed", str(SEED)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reported = json.loads(done.stdout)
    assert reported["grown"] == []
    assert reported["rounds"] == WARM_ROUNDS + 4 and reported["changes"] > 5_000
    assert (reported["snapshots"], reported["locks"], reported["spools"]) == (0, 0, 0)


@pytest.mark.parametrize("name", ["arena_bytes", "descriptors", "snapshots", "locks", "spools"])
def test_whatever_grows_is_named(name: str) -> None:
    calm = [Held(1_000, 20, 0, 0, 0, 1 << 27)] * (WARM_ROUNDS + 2)
    assert grown(calm, True) == []
    (found,) = grown([*calm, replace(calm[0], **{name: 5 << 20})], True)
    assert found.startswith(name)
    assert grown([*calm, replace(calm[0], rss_bytes=1 << 29)], True) == [
        f"memory of the process: {1 << 27} bytes, then {1 << 29}"
    ]


def test_turn_of_the_soak_prints_what_it_counts_and_fails_on_growth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (turn,) = (turn for turn in TURNS if turn.name == "steady work")
    module, *_ = turn.arguments(3)[1:]
    assert module == "tests.soak.steady" and turn.arguments(3)[-1] == "3"
    calm = Held(1_000, 20, 0, 0, 0, 1 << 27)
    for last, left, code in ((calm, 0, 0), (replace(calm, descriptors=21), 0, 1), (calm, 1, 1)):
        listed = iter([{"0", "1"}, {"0", "1", "9"} if left else {"0"}])
        monkeypatch.setattr(steady, "run", lambda *_, last=last: ([calm] * WARM_ROUNDS + [last], 77))
        monkeypatch.setattr(steady, "descriptors", lambda listed=listed: next(listed))
        assert steady.main([str(tmp_path), *turn.arguments(3)[3:]]) == code
        reported = json.loads(capsys.readouterr().out)
        assert [reported[name] for name in turn.counted] == [WARM_ROUNDS + 1, 77] and len(reported["grown"]) == code
