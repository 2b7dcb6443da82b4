"""Small state machines of a channel: verified epochs, MRE, last conflict, passes, roles, any-values, counters."""

from __future__ import annotations

import random

import pytest

from tidemark.engine.base.errors import PeerError, Rejected
from tidemark.replication.conflict.epochs import (
    PASSES_MAX,
    Ending,
    EpochVerifier,
    LastConflict,
    MaxReplicatedEpoch,
    Pass,
    Passes,
    starting_epoch,
)
from tidemark.replication.settings.any_value import NO_LOGGING, READ, REFLECT, REFRESH, meaning_of
from tidemark.replication.settings.conflict_function import FUNCTIONS, Role, change_role
from tidemark.replication.settings.status import BY_NAME, COUNTERS, VARIABLES, Counters, shown_name


def test_first_epoch_may_be_old_and_those_after_it_are_taken_again() -> None:
    verifier = EpochVerifier(50)
    assert not verifier.begin(40)
    verifier.commit()
    for epoch in (41, 50, 51):
        assert verifier.begin(epoch)
        verifier.commit()
    with pytest.raises(PeerError, match="applied already"):
        verifier.begin(51)
    with pytest.raises(PeerError, match="older"):
        verifier.begin(50)
    assert verifier.begin(52), "a refusal changes nothing"


def test_epoch_that_was_not_committed_must_come_again() -> None:
    verifier = EpochVerifier()
    verifier.begin(60)
    verifier.roll_back()
    assert verifier.begin(60)
    for wrong in (59, 61):
        with pytest.raises(PeerError):
            verifier.begin(wrong)
    skipping = EpochVerifier(allow_skip=True)
    skipping.begin(60)
    assert not skipping.begin(61)
    with pytest.raises(PeerError):
        skipping.begin(60)


def test_max_replicated_epoch_is_frozen_while_a_transaction_runs_and_never_falls() -> None:
    r = random.Random(7)
    mre = MaxReplicatedEpoch(1, frozenset({4}))
    model = 0
    for _ in range(500):
        frozen = mre.begin()
        assert frozen == model
        pending = 0
        for _ in range(r.randint(0, 3)):
            server_id, epoch = r.choice([1, 2, 3, 4]), r.randint(0, 10_000)
            mre.see(server_id, epoch)
            pending = max(pending, epoch if server_id in (1, 4) else 0)
            assert mre.frozen == mre.value == model
        if r.random() < 0.7:
            mre.commit()
            model = max(model, pending)
        else:
            mre.roll_back()
        assert mre.value == model
    mre.reset()
    assert mre.begin() == 0


def test_starting_epochs_come_from_the_rows_of_apply_status() -> None:
    rows = [(2, 111), (3, 222), (4, 444)]
    assert [starting_epoch(rows, 2), starting_epoch(rows, 2, [3]), starting_epoch([], 2)] == [111, 222, 0]


def test_last_conflict_is_stable_when_its_epoch_has_come_back() -> None:
    status = LastConflict()
    status.commit(20, 10, conflicts=1, reflected_applied=0, refreshed=0)
    assert (status.last_conflict, status.last_stable) == (20, 0)
    status.commit(21, 19, 0, 0, 0)
    assert status.last_stable == 0
    status.commit(22, 20, 0, 0, 0)
    assert (status.last_conflict, status.last_stable) == (20, 20)
    status.commit(23, 21, 0, 1, 0)
    status.commit(24, 21, 0, 0, 1)
    assert (status.last_conflict, status.last_stable) == (24, 20)


def test_first_conflict_takes_three_passes_and_the_next_ones_two() -> None:
    passes = Passes()
    for expected in (3, 2, 2):
        passes.begin()
        endings = []
        while not endings or endings[-1] is not Ending.COMMIT:
            endings.append(passes.end(has_new_conflict=passes.state is not Pass.APPLY))
        assert len(endings) == expected
        assert (passes.detect_iterations, passes.conflict_commits, passes.state) == (1, 1, Pass.TRACK)
    assert endings == [Ending.AGAIN_KEEP_COUNTERS, Ending.COMMIT]
    passes.begin()
    assert passes.end(False) is Ending.COMMIT and passes.state is Pass.NORMAL
    assert passes.conflict_commits == 0


def test_new_conflict_in_apply_goes_back_to_track_and_drops_counters() -> None:
    passes = Passes(Pass.APPLY)
    assert passes.end(True) is Ending.AGAIN_DROP_COUNTERS and passes.state is Pass.TRACK
    passes = Passes()
    with pytest.raises(PeerError, match="passes"):
        for _ in range(PASSES_MAX + 1):
            passes.end(True)


@pytest.mark.parametrize("current", Role)
@pytest.mark.parametrize("wanted", Role)
def test_role_changes_only_while_stopped_and_never_between_pass_and_a_side(current: Role, wanted: Role) -> None:
    """Story: while the applier ran, a change from PRIMARY to PASS asked to stop it, after which it was invalid."""
    sides = {Role.PRIMARY, Role.SECONDARY}
    is_fine = current == wanted or not ({current, wanted} & sides and Role.PASS in (current, wanted))
    if is_fine:
        assert change_role(current, wanted, is_running=False) is wanted
    else:
        with pytest.raises(Rejected, match="Invalid role change"):
            change_role(current, wanted, is_running=False)
    if not is_fine:
        with pytest.raises(Rejected, match="Invalid role change"):
            change_role(current, wanted, is_running=True)
    elif current != wanted:
        with pytest.raises(Rejected, match="running"):
            change_role(current, wanted, is_running=True)
    else:
        assert change_role(current, wanted, is_running=True) is wanted


def test_any_values_decide_which_change_is_logged_and_with_which_flag() -> None:
    assert meaning_of(0, 7) == ("local", 7, 0, True, False)
    assert meaning_of(3, 7) == ("replicated", 3, 0, False, True)
    assert meaning_of(3, 7, log_replica_updates=True).is_logged
    assert [meaning_of(each, 7).conflict_flag for each in (REFLECT, REFRESH, READ, NO_LOGGING)] == [1, 2, 4, 0]
    assert [meaning_of(each, 7).is_logged for each in (REFLECT, NO_LOGGING, 0x8000_0001)] == [True, False, False]
    assert not meaning_of(REFRESH, 7).is_replicated and meaning_of(REFRESH, 7).server_id == 7


def test_variables_have_their_names_and_are_shown_by_the_servers() -> None:
    assert BY_NAME["conflict_fn_max"].name == "conflict_fn_max"
    for name in ("trans_row_reject_count", "epoch_delete_delete_count"):
        assert BY_NAME[name] is BY_NAME["conflict_" + name] and BY_NAME[name].name == name
    shown = [shown_name(variable) for variable in VARIABLES]
    assert len(set(shown)) == len(shown) and "Ndb_conflict_reflected_op_discard_count" in shown
    assert {function.counter for function in FUNCTIONS} <= set(COUNTERS)


def test_counts_are_merged_at_commit_and_gone_with_a_rollback() -> None:
    counters = Counters()
    counters.add("conflict_fn_max", 2)
    assert counters.totals["conflict_fn_max"] == 0
    counters.commit()
    before = dict(counters.totals)
    counters.add("conflict_fn_max")
    counters.drop()
    counters.commit()
    assert counters.totals["conflict_fn_max"] == 2 and counters.totals == before
    with pytest.raises(KeyError):
        counters.add("conflict_last_stable_epoch")
