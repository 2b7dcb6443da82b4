"""What a seed draws: a conflict function, a topology, options of sites, faults.

A function's entry in `CASES` says what its promise requires of the work: which rows several sites may change, and which
sites may insert and delete them. Other work ends in differences that the function does not promise to repair
(docs/internals/replication.md, *Work that is left out*).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.replication.settings.conflict_function import Role

NONE, OWNER, ANY_SITE = "none", "owner", "any site"


@dataclass(frozen=True)
class Case:
    """A conflict function, and the work under which it promises equal sites.

    `types`: its binlog types. `inserts`, `deletes`: sites that may do so to shared rows. `again`: a deleted row may be
    inserted again. `is_equal`: sites end with equal shared rows too.
    """

    name: str
    spec: str | None
    types: tuple[int, ...]
    is_shared: bool = True
    inserts: str = OWNER
    deletes: str = NONE
    again: bool = False
    is_equal: bool = True
    is_epoch: bool = False
    has_roles: bool = False
    is_transactional: bool = False
    primary_types: tuple[int, ...] = ()


CASES: tuple[Case, ...] = (
    Case("NONE", None, (2, 3, 6, 7, 8, 9), is_shared=False),
    Case("NDB$OLD", "NDB$OLD(stamp)", (7,), inserts=ANY_SITE, deletes=ANY_SITE, again=True, is_equal=False),
    Case("NDB$MAX", "NDB$MAX(stamp)", (7,)),  # a delete is judged by its before-image
    Case("NDB$MAX_DELETE_WIN", "NDB$MAX_DELETE_WIN(stamp)", (6, 7), deletes=ANY_SITE),
    Case("NDB$MAX_INS", "NDB$MAX_INS(stamp)", (3, 7), inserts=ANY_SITE),
    Case("NDB$MAX_DEL_WIN_INS", "NDB$MAX_DEL_WIN_INS(stamp)", (6, 7), deletes=ANY_SITE),
    Case("TM$GREATEST", "TM$GREATEST(stamp)", (7,), deletes=ANY_SITE),
    Case("NDB$EPOCH", "NDB$EPOCH({bits})", (6, 7), deletes=ANY_SITE, is_epoch=True, primary_types=(2, 3, 6, 7)),
    Case(
        "NDB$EPOCH_TRANS",
        "NDB$EPOCH_TRANS({bits})",
        (6, 7),
        deletes=ANY_SITE,
        is_epoch=True,
        is_transactional=True,
        primary_types=(2, 3, 6, 7),
    ),
    Case(
        "NDB$EPOCH2",
        "NDB$EPOCH2({bits})",
        (6, 7),
        inserts=ANY_SITE,
        deletes=ANY_SITE,
        again=True,
        is_epoch=True,
        has_roles=True,
    ),
    Case(
        "NDB$EPOCH2_TRANS",
        "NDB$EPOCH2_TRANS({bits})",
        (6, 7),
        inserts=ANY_SITE,
        deletes=ANY_SITE,
        again=True,
        is_epoch=True,
        has_roles=True,
        is_transactional=True,
    ),
)
BY_NAME = {case.name: case for case in CASES}
PAIR, CHAIN, CIRCLE, TWO_SOURCES = "pair", "chain", "circle", "two sources"


@dataclass(frozen=True)
class Faults:
    """Shares of frames that a link damages in this way, or mean seconds between events; 0: never."""

    lost: float = 0.0
    doubled: float = 0.0
    exchanged: float = 0.0
    altered: float = 0.0
    cut_every: float = 0.0
    reset_every: float = 0.0
    crash_every: float = 0.0
    crash_calls: int = 0  # power is lost within this many calls of the disk, 0: between calls only
    disk_every: float = 0.0
    channel_reset_every: float = 0.0


@dataclass(frozen=True)
class SitePlan:
    """Options of one site."""

    options: dict[str, Any]
    binlog_type: int
    role: Role
    has_function: bool
    allow_batching: bool
    batch_bytes: int


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    seed: int
    case: Case
    topology: str
    channels: tuple[tuple[int, int], ...]
    sites: tuple[SitePlan, ...]
    faults: Faults
    bits: int
    work_seconds: float
    commit_every: float
    epoch_every: float
    gcp_every: float
    lcp_every: float
    delay: tuple[float, float]
    chunk_bytes: int
    heartbeat_ms: int
    relay_file_bytes: int
    has_unique: bool

    @property
    def is_closed(self) -> bool:
        """Whether the changes of every site reach every other one."""
        return self.topology in (PAIR, CIRCLE)

    def reached(self, site: int) -> frozenset[int]:
        """Return the sites that a site's changes reach, itself included."""
        found = {site}
        while more := {replica for source, replica in self.channels if source in found} - found:
            found |= more
        return frozenset(found)


def _topology(r: random.Random, case: Case) -> tuple[str, tuple[tuple[int, int], ...], int]:
    kinds = [PAIR] * 4 + ([] if case.is_epoch else [CHAIN, CIRCLE, CIRCLE, TWO_SOURCES])
    kind = r.choice(kinds)
    if kind == PAIR:
        return kind, ((0, 1), (1, 0)), 2
    if kind == CHAIN:
        count = r.choice((3, 3, 4))
        return kind, tuple((site, site + 1) for site in range(count - 1)), count
    if kind == CIRCLE:
        count = r.choice((3, 3, 3, 4, 5))
        return kind, tuple((site, (site + 1) % count) for site in range(count)), count
    return kind, ((0, 2), (1, 2)), 3


def _faults(r: random.Random) -> Faults:
    """Draw faults; some seeds have none of a kind, so that each kind also occurs alone."""

    def some(share: float, low: float, high: float) -> float:
        return r.uniform(low, high) if r.random() < share else 0.0

    return Faults(
        lost=some(0.5, 0.005, 0.05),
        doubled=some(0.4, 0.005, 0.05),
        exchanged=some(0.4, 0.005, 0.05),
        altered=some(0.3, 0.005, 0.03),
        cut_every=some(0.5, 0.3, 1.5),
        reset_every=some(0.5, 0.3, 1.5),
        crash_every=some(0.7, 0.3, 1.2),
        crash_calls=r.choice((0, 30, 200)),
        disk_every=some(0.4, 0.2, 1.0),
        channel_reset_every=some(0.4, 0.1, 0.5),
    )


def _site(r: random.Random, number: int, case: Case, topology: str) -> SitePlan:
    is_primary = number == 0
    has_function = case.spec is not None and (not case.is_epoch or case.has_roles or is_primary)
    role = Role.NONE if not case.has_roles else Role.PRIMARY if is_primary else Role.SECONDARY
    types = case.primary_types if case.primary_types and is_primary else case.types
    options: dict[str, Any] = {
        "server_id": number + 1,
        "log_bin": "binlog",
        "durability": r.choice(("commit", "epoch")),
        "sync_binlog": r.choice((1, 1, 0, 3)),
        "max_binlog_size": r.choice(("4 KiB", "16 KiB", "1 MiB")),
        "binlog_cache_size": r.choice(("4 KiB", "1 MiB")),
        "log_apply_status": case.is_epoch or r.random() < 0.5,
        "log_orig": r.random() < 0.3,
        "log_binlog_index": r.random() < 0.8,
        "log_transaction_id": case.is_epoch or r.random() < 0.5,
        "log_replica_updates": topology != PAIR,
        "conflict_role": role,
        "log_gtids": number % 2 == 0,
        "extra_logging": 0,
    }
    batching = r.random() < 0.8, r.choice((200, 2 << 20))
    return SitePlan(options, r.choice(types), role, has_function, *batching)


def plan_of(seed: int, names: Sequence[str] = (), **changed: Any) -> Plan:
    """Return the plan of a seed. names: functions to choose from, all by default. changed: fields that are not
    drawn.
    """
    r = random.Random(f"plan {seed}")
    case = BY_NAME[r.choice(list(names) or [each.name for each in CASES])]
    topology, channels, count = _topology(r, case)
    low = r.choice((0.001, 0.005, 0.02))
    high = low * r.choice((2, 10))
    made = Plan(
        seed=seed,
        case=case,
        topology=topology,
        channels=channels,
        sites=tuple(_site(r, number, case, topology) for number in range(count)),
        faults=_faults(r),
        bits=r.choice((0, 1, 6, 31)),
        work_seconds=r.uniform(0.3, 1.0) if count < 3 else 0.4,
        commit_every=r.choice((0.03, 0.06)),
        epoch_every=r.choice((0.08, 0.15, 0.2)),
        gcp_every=r.choice((0.4, 1.0)),
        lcp_every=r.choice((0.5, 2.0)),
        delay=(low, high),
        chunk_bytes=r.choice((200, 1_000, 1 << 18)),
        heartbeat_ms=max(r.choice((60, 200)), int(1_000 * high)),
        relay_file_bytes=r.choice((1_000, 4_000, 1 << 20)),
        has_unique=r.random() < 0.7,
    )
    return replace(made, **changed)


@dataclass
class Tally:
    """Counts of what happened in a run."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        """Count it."""
        self.counts[name] = self.counts.get(name, 0) + count
