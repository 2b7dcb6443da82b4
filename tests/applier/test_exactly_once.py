"""After any interruption an epoch transaction is in the store whole and once: rows, conflicts and position together."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.applier.logs import (
    COLUMNS,
    NAME,
    SOURCE,
    Log,
    applier_of,
    apply_all,
    make_store,
    positions_in,
    rows_in,
    status_of,
)
from tests.store.test_power_loss import POLICIES, HookFiles
from tidemark.engine.base.errors import Error, LockTimeout, NoSuchTable
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.one_pass import OnePass

SEED = 20_261_121
EXCEPTIONS = f"{NAME}$EX"
HEAD = (
    tm.Column("NDB$server_id", tm.UInt32),
    tm.Column("NDB$source_server_id", tm.UInt32),
    tm.Column("NDB$source_epoch", tm.UInt64),
    tm.Column("NDB$count", tm.UInt32),
)


def history(seed: int, epochs: int) -> Log:
    """Return epochs with conflicts under NDB$MAX, deletes, and rows of several transactions."""
    r = random.Random(seed)
    log = Log()
    stamp = 0
    for epoch in range(1, epochs + 1):
        log.begin(epoch)
        for _ in range(r.randrange(1, 4)):
            keys = r.sample(range(12), r.randrange(1, 6))
            stamp += 1
            rows = [(key, "x" * r.randrange(20), r.choice((stamp, r.randrange(stamp)))) for key in keys]
            marks = {"transaction_ids": [r.randrange(1, 9) for _ in keys]}
            kind = r.randrange(3)
            if kind == 0:
                log.insert(*rows, **marks)
            elif kind == 1:
                log.update(*((row, row) for row in rows), **marks)
            else:
                log.delete(*rows, **marks)
        log.commit()
    return log


def made(files: Any = None) -> tm.Database:
    db = make_store(files, function="NDB$MAX(stamp)", redo_log="2 MiB", data_memory="4 MiB")
    if EXCEPTIONS not in db:
        db.create_table(EXCEPTIONS, (*HEAD, COLUMNS[0]), [column.name for column in HEAD])
    return db


def seen(db: tm.Database) -> tuple[Any, ...]:
    """Return rows, exceptions rows without their running numbers, and positions."""
    exceptions = sorted((*tuple(row)[:3], row[4]) for row in db[EXCEPTIONS].scan())
    return rows_in(db), exceptions, positions_in(db)


def states_of(log: Log) -> list[tuple[Any, ...]]:
    """Return the state of a store after each epoch."""
    db = made()
    applier = applier_of(db)
    states = [seen(db)]
    for unit in log.units():
        applier.apply(unit)
        states.append(seen(db))
    db.close()
    assert len({repr(state) for state in states}) == len(states) and states[-1][1], "every epoch changes something"
    return states


class Breaking(OnePass):
    """A pass that raises at one step; a step is a batch changed, or one refreshed."""

    at = -1
    error: type[Error] = LockTimeout
    steps = 0

    def change(self, *arguments: Any) -> Any:
        kind = type(self)
        outcomes = super().change(*arguments)
        kind.steps += 1
        if kind.steps == kind.at:
            raise self.error("injected")
        return outcomes


@pytest.mark.parametrize("error", [LockTimeout, NoSuchTable])
def test_error_at_any_step_leaves_the_epoch_before_and_the_next_try_does_it_once(error: type[Error]) -> None:
    log = history(SEED, 4)
    states = states_of(log)

    class Here(Breaking):
        pass

    Here.error = error
    counters = None
    step = 0
    while True:
        step += 1
        Here.at, Here.steps = step, 0
        db = made()
        applier = applier_of(db, allow_batching=False)
        applier.pass_kind = Here
        for number, unit in enumerate(log.units()):
            try:
                applier.apply(unit)
            except error:
                assert not error.retryable, "a Retryable is tried again"
                assert seen(db) == states[number]
                assert applier.apply(unit).epoch == number + 1
            assert seen(db) == states[number + 1]
        status = status_of(applier)
        counters = counters or status
        assert {**status, "conflict_last_conflict_epoch": 0} == {**counters, "conflict_last_conflict_epoch": 0}
        db.close()
        if Here.steps < step:
            break
    assert step > 15


def test_power_loss_at_any_change_of_the_disk_leaves_whole_epochs_and_the_rest_follows() -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    log = history(SEED, 6)
    states = states_of(log)
    memory = MemoryFiles()
    calls = judged = 0
    committed = 0
    is_watching = False

    def before_change() -> None:
        nonlocal calls, judged, is_watching
        calls += 1
        if not is_watching:
            return
        is_watching = False
        left = made(memory.crash(rng, POLICIES[calls % len(POLICIES)]))
        found = seen(left)
        assert found in states[committed : committed + 2], f"call {calls}: not the state before or after epoch"
        done = apply_all(applier_of(left), log)
        assert [each.is_passed_over for each in done] == [n < states.index(found) for n in range(len(done))]
        assert seen(left) == states[-1], f"call {calls}"
        left.close()
        judged += 1
        is_watching = True

    db = made(HookFiles(memory, before_change))
    applier = applier_of(db)
    is_watching = True
    for unit in log.units():
        applier.apply(unit)
        committed += 1
        db.parts.clockwork.advance_epoch()
        if committed == 3:
            is_watching = False
            db.checkpoint()
            is_watching = True
    is_watching = False
    db.close()
    assert judged >= 12, judged
    assert positions_in(made(memory.crash(rng, "drop"))) == {SOURCE: 6}
