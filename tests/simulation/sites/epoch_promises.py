"""Promises of the EPOCH family: the primary's rows win, the secondary is realigned, transactions are refused whole.

A change of the secondary is *concurrent* with one of the primary if the primary's was committed before the secondary's
arrived, and the secondary had not applied it when it made its own. A concurrent change must be refused, with a row in
the exceptions table. A refusal without concurrency is a false conflict; the functions allow those.

A primary with a role sends accepted changes of the secondary back to it. Such a *reflected* change must leave a row
alone that the secondary has changed again. The end of a run does not show it: the newer change comes back as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.sites.tables import JOURNAL, MAIN, exceptions_of, rows_of
from tidemark.engine.access.batch_operations import scan

if TYPE_CHECKING:
    from tests.simulation.sites.site import SimulatedSite
    from tests.simulation.sites.work import Change, Done
    from tests.simulation.sites.world import World

PRIMARY, SECONDARY = 0, 1
# A delete of a row that is gone already is reported and refuses nothing (except in EPOCH2_TRANS).
GONE = "ROW_DOES_NOT_EXIST"


@dataclass(frozen=True)
class Judged:
    """A change of the secondary, compared with what the primary did to the same row."""

    done: Done
    change: Change
    is_concurrent: bool
    is_refused: bool


def judged_changes(world: World) -> Iterable[Judged]:
    """Yield all changes of the secondary that have reached the primary."""
    primary, secondary = world.sites[PRIMARY], world.sites[SECONDARY]
    arrived = {entry.epoch: entry for entry in primary.applied.get(SECONDARY, [])}
    written: dict[int, list[tuple[Done, str]]] = defaultdict(list)
    for done in primary.work.done:
        for change in done.changes:
            written[change.key].append((done, change.kind))
    refused = _refused(primary)
    for done in secondary.work.done:
        entry = arrived.get(done.epoch)
        if entry is None:
            continue
        seen = done.seen.get(PRIMARY, 0)
        for change in done.changes:
            before = [each for each in written.get(change.key, ()) if each[0].moment < entry.moment]
            # After a delete there is nothing to compare with: an insert of the secondary is taken, and what follows it.
            is_concurrent = bool(before) and before[-1][0].epoch > seen and before[-1][1] != "delete"
            yield Judged(done, change, is_concurrent, (done.epoch, change.key) in refused)


def _refused(site: SimulatedSite) -> set[tuple[int, int]]:
    return {(row["NDB$source_epoch"], row["id"]) for row in exceptions_of(site.db, MAIN)}


def check_epoch_promises(world: World) -> None:
    """Check all promises of the family. Raises: Violation."""
    for each in judged_changes(world):
        if each.is_concurrent and each.change.kind != "insert" and not each.is_refused:
            world.break_promise(f"the primary lost a row to a change it had not told of: {each}")
        world.tally.add(
            ("refused " if each.is_refused else "taken ") + ("concurrent" if each.is_concurrent else "in order")
        )
    _check_nothing_in_doubt(world)
    _check_replaced(world)
    if world.plan.case.is_transactional:
        _check_whole(world)


def _check_nothing_in_doubt(world: World) -> None:
    """When everything has reached the secondary and is confirmed, no row of the primary may refuse the secondary's next
    change: every change that moves the epoch of a row is reported to the secondary.
    """
    primary = world.sites[PRIMARY]
    confirmed = primary.channels[SECONDARY].applier.inner.applier.mre.value
    for batch in scan(primary.db.parts.store.tables.named(MAIN), None):
        for epoch, author in zip(batch.epochs().tolist(), batch.authors().tolist(), strict=True):
            if author == 0 and epoch > confirmed:
                world.break_promise(
                    f"a row of epoch {epoch} at the primary is in doubt for good, {confirmed} is reported"
                )


def _check_replaced(world: World) -> None:
    """Check that each own row of the secondary that an epoch of the primary changed was changed by the primary itself,
    was refused by it, or had a unique key of one of its rows.
    """
    primary, secondary = world.sites[PRIMARY], world.sites[SECONDARY]
    written = {(done.epoch, change.key) for done in primary.work.done for change in done.changes}
    refused = _refused(primary)
    refreshed = {
        (entry.own_epoch, key)
        for entry in primary.applied.get(SECONDARY, [])
        for epoch, key in refused
        if epoch == entry.epoch
    }
    reported = _refused(secondary)
    for epoch, key in sorted(secondary.replaced - written - primary.work.rewritten - refreshed - reported):
        # Own epoch 0: the primary died before it could say in which epoch it applied the change.
        if (0, key) not in refreshed:
            world.break_promise(f"row {key}, changed by the secondary, was replaced by a reflection in epoch {epoch}")


def _check_whole(world: World) -> None:
    """A transaction is refused with all its rows or none; one that depends on it in its epoch is refused too."""
    primary, secondary = world.sites[PRIMARY], world.sites[SECONDARY]
    taken = {row[0] for row in rows_of(primary.db, JOURNAL)}
    reported: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for name in (MAIN, JOURNAL):
        for row in exceptions_of(primary.db, name):
            reported[row["NDB$ORIG_TRANSID"]].append(row)
    tags = {row[1] for row in rows_of(primary.db, MAIN)}
    refused_keys: dict[int, set[int]] = defaultdict(set)  # by epoch, keys of rows in refused transactions
    arrived = {entry.epoch for entry in primary.applied.get(SECONDARY, [])}
    for done in secondary.work.done:
        if done.epoch not in arrived:
            continue
        keys = {change.key for change in done.changes}
        rows = reported.get(done.txid, [])
        if done.number in taken:
            wrong = [row for row in rows if row["NDB$CFT_CAUSE"] != GONE]
            if wrong:
                world.break_promise(f"transaction {done.number:x} is there, and {wrong} was refused of it")
            if keys & refused_keys[done.epoch]:
                world.break_promise(f"{done} follows a refused transaction of its epoch, and was applied")
            continue
        refused_keys[done.epoch] |= keys
        if len(rows) != len(keys) + 1:
            world.break_promise(f"{done} was refused, {len(rows)} of its {len(keys) + 1} rows were: {rows}")
        mine = {change.tag for change in done.changes} & tags
        if mine:
            world.break_promise(f"{done} was refused, and its changes {mine} are at the primary")
