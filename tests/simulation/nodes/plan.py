"""The plan of a seed: the number of nodes, their clocks, and faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Faults:
    """Shares of messages that a link damages in this way; mean seconds between events of the site. 0: never."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    crash_every: float = 0.0  # of a process; its disk keeps what was synced, and any part of the rest
    refused: float = 0.0  # share of crashes that other nodes notice at once, because connections are refused
    site_every: float = 0.0  # everything loses power
    arbitrator_every: float = 0.0
    split_every: float = 0.0  # links between two parts fail, in both directions or one
    flap_every: float = 0.0  # one link fails, for moments
    stall_every: float = 0.0  # syncs of one disk stall
    pause_every: float = 0.0  # a process is paused, its clock continues
    leave_every: float = 0.0
    full_every: float = 0.0  # one disk is full for a while: its node commits nothing, and makes no local checkpoint
    disk_lost: bool = False  # of one node, once
    arbitrator_disk_lost: bool = False


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    seed: int
    nodes: int
    has_arbitrator: bool
    faults: Faults
    work_seconds: float
    delay: tuple[float, float]
    sync: tuple[float, float]
    commit_every: float
    read_every: float
    epoch_every: float
    rates: tuple[float, float]
    stall_ms: int
    is_sharing: bool  # commits wait for the memory of all members, not for their disks
    firsts: int  # nodes that try to make the group: more than one is an operator's mistake


def plan_of(seed: int, **changed: Any) -> Plan:
    """Return the plan of a seed. changed: fields that are not drawn."""
    r = random.Random(f"views {seed}")

    def some(share: float, low: float, high: float) -> float:
        return r.uniform(low, high) if r.random() < share else 0.0

    nodes = r.choice((2, 2, 3, 3, 4))
    has_arbitrator = r.random() < (0.8 if nodes == 2 else 0.5)
    faults = Faults(
        lost=some(0.4, 0.01, 0.2),
        doubled=some(0.4, 0.01, 0.2),
        late=some(0.4, 0.01, 0.1),
        crash_every=some(0.7, 0.2, 1.0),
        refused=r.choice((0.0, 0.5, 1.0)),
        site_every=some(0.3, 0.5, 1.5),
        arbitrator_every=some(0.4, 0.2, 1.0),
        split_every=some(0.5, 0.2, 1.0),
        flap_every=some(0.3, 0.05, 0.5),
        stall_every=some(0.3, 0.2, 1.0),
        pause_every=some(0.4, 0.2, 1.0),
        leave_every=some(0.3, 0.3, 1.0),
        disk_lost=r.random() < 0.15,
        arbitrator_disk_lost=has_arbitrator and r.random() < 0.1,
    )
    low = r.choice((0.0002, 0.001, 0.005))
    error = r.choice((0.0, 0.25, 0.25))
    plan = Plan(
        seed=seed,
        nodes=nodes,
        has_arbitrator=has_arbitrator,
        faults=faults,
        work_seconds=r.choice((0.8, 2.0)),
        delay=(low, low * r.choice((2, 10))),
        sync=(low, low * r.choice((2, 10))),
        commit_every=r.choice((0.03, 0.1)),
        read_every=r.choice((0.02, 0.05)),
        epoch_every=r.choice((0.1, 0.4)),
        rates=(1 - error, 1 + error),
        stall_ms=r.choice((600, 5_000)),
        firsts=2 if has_arbitrator and r.random() < 0.2 else 1,
        is_sharing=r.random() < 0.4,
    )
    plan = replace(plan, faults=replace(faults, full_every=some(0.25, 0.2, 1.0)))
    return replace(plan, **changed)
