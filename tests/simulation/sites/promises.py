"""Promises that are checked when a run is at rest.

(P1) Journals: every committed transaction is once at every site that its changes reach. (P2) Each channel has applied
the epochs of its source's binlog: all, in order, each once; the binlog and its index have every epoch once. (P3)
`ndb_apply_status` names the last epoch and its end. (P4) Exceptions tables have one row for each counted conflict, and
no other. (P5) Rows are equal as far as the function promises. The EPOCH family has promises of its own:
`epoch_promises.py`. (P6) Transactions of a binlog with GTIDs have dense numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.replication.site import numbers_in, starts_in
from tests.simulation.sites.epoch_promises import check_epoch_promises
from tests.simulation.sites.plan import TWO_SOURCES
from tests.simulation.sites.tables import (
    JOURNAL,
    MAIN,
    exceptions_of,
    owner_of,
    rows_of,
)
from tests.simulation.sites.work import NUMBER_BITS
from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.found_epochs import FoundEpoch, epochs_between
from tidemark.replication.settings.conflict_function import FUNCTIONS
from tidemark.replication.settings.status import ROW_REJECTS
from tidemark.replication.settings.system_tables import NDB_BINLOG_INDEX

if TYPE_CHECKING:
    from tests.simulation.sites.site import SimulatedSite
    from tests.simulation.sites.world import World

COUNTERS = frozenset(each.counter for each in FUNCTIONS)
REJECTED = "TRANS_IN_CONFLICT"


def left_of(site: SimulatedSite) -> Any:
    """Return the rows of a site, and the epochs it has applied."""
    return rows_of(site.db, MAIN), rows_of(site.db, JOURNAL), site.applied


def check_promises(world: World) -> None:
    """Check all promises. Raises: Violation."""
    binlogs = {site.number: epochs_of(site) for site in world.sites}
    for site in world.sites:
        site.check_positions()
        _check_binlog(world, site, binlogs[site.number])
        for source in site.channels:
            _check_applied(world, site, source, binlogs[source])
        _check_journal(world, site)
        _check_exceptions(world, site)
    _check_owned_rows(world)
    _check_shared_rows(world)
    if world.plan.case.is_epoch:
        check_epoch_promises(world)


def epochs_of(site: SimulatedSite) -> list[FoundEpoch]:
    """Return the epoch transactions of a site's binlog."""
    writer = site.db.binlog.writer
    start = Position(writer.index.names[0], FIRST_POSITION)
    found = epochs_between(site.db.parts.files, "binlog", "binlog", start, writer.end, site.server_id)
    return [each for each in found if each.epoch]


def _check_binlog(world: World, site: SimulatedSite, epochs: list[FoundEpoch]) -> None:
    numbers = [each.epoch for each in epochs]
    if numbers != sorted(set(numbers)):
        world.break_promise(f"binlog of {site.name} has epochs {numbers}")
    if site.plan.options["log_binlog_index"]:
        there = {row.epoch for row in site.db[NDB_BINLOG_INDEX].scan()}
        if there != set(numbers):
            world.break_promise(f"ndb_binlog_index of {site.name} has {sorted(there)}, the binlog {numbers}")
    if site.plan.options["log_gtids"]:
        gtids = numbers_in(site.db.parts.files)  # each once, and none is missing
        if len(gtids) != len(starts_in(site.db.parts.files)):
            world.break_promise(f"binlog of {site.name} has transactions without a number")
    passed_on: dict[int, int] = {}
    for each in epochs:
        for server, number in each.counts.origins:
            if number <= passed_on.get(server, 0) and server in (source + 1 for source in site.channels):
                world.break_promise(f"binlog of {site.name} tells epoch {number} of server {server} again")
            passed_on[server] = number


def _check_applied(world: World, site: SimulatedSite, source: int, epochs: list[FoundEpoch]) -> None:
    applied = [each.epoch for each in site.applied.get(source, [])]
    if applied != [each.epoch for each in epochs]:
        world.break_promise(f"{site.name} applied {applied} of {source}, whose binlog has {[e.epoch for e in epochs]}")
    rows = {row.server_id: row for row in site.channels[source].positions.rows()}
    if epochs:
        row, last = rows[source + 1], epochs[-1]
        if (row.log_name, row.end_pos) != tuple(last.end):
            world.break_promise(f"ndb_apply_status of {site.name} says {tuple(row)}, the epoch ends at {last.end}")


def _check_journal(world: World, site: SimulatedSite) -> None:
    there = {row[0] for row in rows_of(site.db, JOURNAL)}
    may_lack = world.plan.case.is_transactional
    for writer in world.sites:
        found = {number for number in there if number >> NUMBER_BITS == writer.server_id}
        wanted = {done.number for done in writer.work.done}
        if site.number not in world.plan.reached(writer.number):
            wanted = set()
        elif may_lack and writer.number != 0:
            wanted &= {row[0] for row in rows_of(world.sites[0].db, JOURNAL)}  # without what the primary refused
        if found != wanted:
            lost, extra = sorted(wanted - found), sorted(found - wanted)
            world.break_promise(
                f"{site.name} lacks transactions {[f'{each:x}' for each in lost]} of {writer.name},"
                f" and has {[f'{each:x}' for each in extra]} that are none"
            )


def _check_exceptions(world: World, site: SimulatedSite) -> None:
    case = world.plan.case
    main, journal = exceptions_of(site.db, MAIN), exceptions_of(site.db, JOURNAL)
    for row in journal:
        if row["NDB$CFT_CAUSE"] != REJECTED:
            world.break_promise(f"{site.name}: a transaction was applied twice, or its rows in part: {row}")
    for row in main:
        # A refused transaction's rows conflict with changes that its site made before it learned of the refusal. And
        # with EPOCH2 a reflected insert may restore a row that the secondary has deleted since, until that returns too.
        is_promised = not case.is_transactional and not case.has_roles
        if is_promised and owner_of(row["id"]) is not None:
            world.break_promise(f"{site.name}: a conflict in a row that only one site changes: {row}")
    rows = Counter((row["NDB$source_server_id"], row["NDB$source_epoch"]) for row in (*main, *journal))
    refused = Counter(
        (row["NDB$source_server_id"], row["NDB$source_epoch"])
        for row in (*main, *journal)
        if row["NDB$CFT_CAUSE"] == REJECTED
    )
    for source, entries in site.applied.items():
        for entry in entries:
            place = (source + 1, entry.epoch)
            found, rejected = rows.pop(place, 0), refused.get(place, 0)
            world.tally.add("conflicts", found)
            if entry.conflicts is None:
                continue
            counted = sum(count for name, count in entry.conflicts.items() if name in COUNTERS)
            # A row in the way of the primary's is reported, and counted where the site has a function to count by.
            is_counted = not case.is_transactional and (site.plan.has_function or not world.plan.has_unique)
            if is_counted and found != counted:
                world.break_promise(f"{site.name}: {counted} conflicts counted in {place}, {found} exceptions rows")
            if rejected != entry.conflicts.get(ROW_REJECTS, 0):
                world.break_promise(f"{site.name}: {entry.conflicts} counted in {place}, {rejected} rows refused")
    if rows:
        world.break_promise(f"{site.name} has exceptions rows of epochs it has not applied: {dict(rows)}")


def _check_owned_rows(world: World) -> None:
    """Check rows that one site alone changes: every site that its changes reach has them as that site has them."""
    is_rejecting = world.plan.case.is_transactional
    all_rows = {site.number: rows_of(site.db, MAIN) for site in world.sites}
    for owner in world.sites:
        wanted = [row for row in all_rows[owner.number] if owner_of(row[0]) == owner.number]
        for site in world.sites:
            found = [row for row in all_rows[site.number] if owner_of(row[0]) == owner.number]
            is_heard = site.number in world.plan.reached(owner.number)
            if found != (wanted if is_heard else []):
                world.break_promise(f"rows of {owner.name} are {wanted} there and {found} at {site.name}")
    if is_rejecting and all_rows[0] != all_rows[1]:
        world.break_promise(f"A has {all_rows[0]}, B {all_rows[1]}")


def _check_shared_rows(world: World) -> None:
    plan = world.plan
    shared = {
        site.number: {row[0]: row for row in rows_of(site.db, MAIN) if owner_of(row[0]) is None} for site in world.sites
    }
    if plan.topology == TWO_SOURCES:
        best = dict(shared[0])
        for key, row in shared[1].items():
            best[key] = max(row, best.get(key, row), key=lambda each: each[2])
        if best != shared[2]:
            world.break_promise(f"the greatest rows of A and B are {best}, C has {shared[2]}")
        return
    for site in world.sites[1:] if plan.is_closed else ():
        differing = {
            key
            for key in shared[0].keys() | shared[site.number].keys()
            if shared[0].get(key) != shared[site.number].get(key)
        }
        if not plan.case.is_equal:
            # A difference is allowed if it was reported: some site has refused a change of the row.
            for other in world.sites:
                differing -= {row["id"] for row in exceptions_of(other.db, MAIN)}
        if differing:
            key = min(differing)
            world.break_promise(
                f"row {key} ends as {shared[0].get(key)} at A and {shared[site.number].get(key)} at {site.name}"
            )
