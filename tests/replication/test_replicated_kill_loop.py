"""SIGKILL of sites that replicate: short loops, and proofs that the judge finds what it must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kills.sites import judge as judging
from tests.kills.sites.audit import Change, Read, compare, read_binlog
from tests.kills.sites.judge import Judge, Ledger
from tests.kills.sites.modes import ACCOUNT, JOURNAL, MODES, SCRATCH, SEAT
from tests.kills.sites.writers import ACCOUNTS, START_BALANCE, Writer, prepare
from tests.replication.site import open_site
from tests.replication.stage import end_of
from tests.replication.test_channel_stores import make_table, put

ROOT = Path(__file__).parents[2]
SOURCE, REPLICA = 1, 2


def looped(folder: Path, mode: str, kills: int, seed: int) -> dict[str, Any]:
    """Return the figures of a loop in a process of its own, which forks the sites."""
    command = [sys.executable, "-m", "tests.kills.sites", str(folder), "--mode", mode, "--kills", str(kills)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*command, "--seed", str(seed), "--json"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("mode", ["one_way", "epoch_trans"])
def test_kills_of_two_sites_lose_and_double_nothing(tmp_path: Path, mode: str) -> None:
    found = looped(tmp_path, mode, kills=2, seed=7)
    assert found["kills"] >= 2
    assert found["acknowledged"] > 10 and found["epochs_applied"] > 3


@pytest.mark.parametrize("mode", MODES)
def test_writers_of_every_mode_move_values_of_a_unique_index(mode: str) -> None:
    """Story: no table of the kill loop had a unique index."""
    role = MODES[mode].sites[0]
    db = open_site(log_updated_only=False, log_update_as_write=False)
    prepare(db, role)
    (index,) = db[SEAT].definition.indexes
    assert index.is_unique
    paid: list[str] = []
    writer = Writer(db, role.server_id, 0, 1, MODES[mode].by_stamp, paid.append)
    seen = set()
    for _ in range(60):
        writer.step()
        seen.add(tuple(row.place for row in sorted(db[SEAT].scan())))
    db.close()
    assert len(paid) == 60 and len(seen) > 4


# --- what the judge finds ---------------------------------------------------------------------------
KEY = (SOURCE, ACCOUNT, (5,))


def read(*changes: Change, epochs: tuple[int, ...] = (), applied: tuple[int, ...] = ()) -> Read:
    found = Read(epochs=list(epochs), with_rows=set(epochs), applied={SOURCE: list(applied)})
    found.changes[KEY] = list(changes)
    return found


FIRST, SECOND = Change(10, False, (5, "a")), Change(11, True, (5, "b"))
LOGGED = read(FIRST, SECOND, epochs=(10, 11))


def test_audit_of_what_was_applied_once_is_silent() -> None:
    replica = read(FIRST._replace(epoch=90), SECOND._replace(epoch=90), applied=(10, 11))
    assert compare(LOGGED, SOURCE, replica, REPLICA, is_exact=True) == []


@pytest.mark.parametrize(
    ("applied", "changes", "said"),
    [
        ((10, 11, 11), (FIRST, SECOND, SECOND), "twice"),
        ((11, 10), (FIRST, SECOND), "out of order"),
        ((10,), (FIRST,), "never applied"),
        ((10, 11, 12), (FIRST, SECOND), "does not have them"),
        ((10, 11), (FIRST, SECOND, SECOND), "2 changes at the source, 3 applied"),
        ((10, 11), (SECOND, FIRST), "another one from 0 on"),
    ],
)
def test_audit_finds_lost_doubled_and_disordered_epochs(applied: Any, changes: Any, said: str) -> None:
    replica = read(*changes, applied=applied)
    assert any(said in each for each in compare(LOGGED, SOURCE, replica, REPLICA, is_exact=True))


def test_audit_takes_the_changes_of_one_epoch_together() -> None:
    source = read(FIRST, SECOND._replace(epoch=10), epochs=(10,))
    replica = read(Change(90, False, (5, "b")), applied=(10,))
    assert compare(source, SOURCE, replica, REPLICA, is_exact=True) == []


def test_audit_reads_a_real_binlog() -> None:
    db = open_site(log_updated_only=False, log_update_as_write=False)
    make_table(db)
    put(db, 1)
    db.sync()
    put(db, 2)
    db.sync()
    found = read_binlog(db.parts.files, 1, None, end_of(db.parts.files))
    db.close()
    assert len(found.with_rows) == 2 and found.epochs == sorted(found.epochs)
    assert len(found.statements) >= 1 and not found.incidents


def states_of(*paid: tuple[int, int, int], balance: int = START_BALANCE, back: Any = ()) -> dict[int, dict[str, Any]]:
    """Return two equal sites with everything in their binlogs read."""
    accounts = [(each, 4, balance, 0) for each in range(ACCOUNTS)]
    journal = [(*each, 1, 2, 3) for each in paid]
    exceptions = [(1, 2, 3, number, 0, 0, 0, *each) for number, each in enumerate(back)]
    rows = {ACCOUNT: accounts, JOURNAL: journal, SCRATCH: [], SEAT: [], f"{JOURNAL}$EX": exceptions}
    return {site: {"rows": rows, "applied": {"1": 10}, "end": ("", 0)} for site in (1, 2)}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that judges states of a mode without binlogs."""
    monkeypatch.setattr(Judge, "compare_binlogs", lambda self, states: [])

    def judge(mode: str, states: Any, *lines: str) -> list[str]:
        ledger = Ledger()
        for line in lines:
            ledger.take(line)
        return Judge(MODES[mode], {1: "", 2: ""}).judge(states, ledger)

    return judge


def test_judge_of_a_circuit_that_kept_everything_is_silent(judged: Any) -> None:
    assert judged("one_way", states_of((1, 0, 7)), "1 0 7 3:4") == []
    assert judged("epoch_trans", states_of((1, 0, 7), back=[(2, 0, 8)]), "1 0 7 3:4", "2 0 8 3:8") == []


def test_judge_reports_every_broken_promise(judged: Any) -> None:
    paid = "1 0 7 3:4"
    assert "acknowledged transactions are gone" in judged("one_way", states_of(), paid)[0]
    assert "balances" in judged("one_way", states_of((1, 0, 7), balance=7), paid)[0]
    assert "taken back and are there" in judged("epoch_trans", states_of((2, 0, 7), back=[(2, 0, 7)]))[0]
    assert "taken back twice" in judged("epoch_trans", states_of(back=[(2, 0, 7)] * 2))[0]
    assert "of the primary" in judged("epoch_trans", states_of(back=[(1, 0, 7)]))[0]
    assert "lesser stamps" in judged("max", states_of((1, 0, 7)), "1 0 7 3:9")[0]
    states = states_of((1, 0, 7))
    for state in states.values():
        state["rows"] |= {SEAT: [(1, 0, 0, 5), (1, 0, 1, 5), (1, 0, 2, None), (1, 0, 3, None)]}
    assert "places [5] of a unique index are taken twice" in judged("one_way", states, paid)[0]
    states = states_of((1, 0, 7))
    states[2] = {**states[2], "rows": {**states[2]["rows"], SCRATCH: [(1, 1)]}}
    assert f"{SCRATCH} differs" in judged("one_way", states, paid)[0]


def test_judge_reports_positions_that_go_back() -> None:
    judge = judging.Judge(MODES["one_way"], {1: "", 2: ""})
    assert judge.positions(2, {"1": 10}) == []
    assert judge.positions(2, {"1": 10}) == []
    assert "is back at 9" in judge.positions(2, {"1": 9})[0]
