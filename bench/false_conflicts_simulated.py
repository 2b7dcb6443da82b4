"""`python -m bench.false_conflicts_simulated [--quick] [--seconds S] [--out FILE] [--picture FILE]`: conflicts
under NDB$EPOCH.

Two simulated sites (tests/simulation/sites: real stores, virtual time, no faults) update the same rows, each row alike.
Counted is what becomes of the changes of the secondary at the primary, by length of an epoch, delay of the link, rate
of updates and number of extra epoch bits. Nothing is timed; the counts repeat.

A change of the secondary is
- *real* if it is refused, and the primary's clients changed the row after what the secondary had applied;
- *following* if it is refused, that is not so, but the primary had refused an earlier change of the row, and the
  secondary had not applied the refresh of it yet: it was made of a state that never was at the primary;
- *false* if it is refused, and the secondary had applied the newest change, and the newest refresh, of the row.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tidemark.replication.conflict.programs as programs
from tests.simulation.sites.epoch_promises import PRIMARY, SECONDARY, judged_changes
from tests.simulation.sites.plan import BY_NAME, PAIR, Faults, Plan, SitePlan, plan_of
from tests.simulation.sites.promises import check_promises
from tests.simulation.sites.tables import SHARED_FROM
from tests.simulation.sites.work import Change, Row, Work
from tests.simulation.sites.world import World
from tidemark.replication.settings.conflict_function import saturated_from

SEED = 20_261
ROWS = 50
GCP_MS = 1_000
EPOCHS_MS = (10, 50, 250)
DELAYS_MS = (2, 50)
RATES = (10, 50)
ROOM = {"max_binlog_size": "64 MiB", "redo_log": "64 MiB"}  # no local checkpoint is made
WHOLE = 64
BITS = (0, 6, 31, WHOLE)
SECONDS = 5.0


@dataclass
class Cell:
    """Settings, and counts of the secondary's changes by outcome. `primary`: rows changed by the primary's clients."""

    epoch_ms: int
    delay_ms: int
    rate: int
    bits: int
    primary: int = 0
    changes: int = 0
    real: int = 0
    following: int = 0
    false: int = 0

    @property
    def false_share(self) -> float:
        """Of all refused changes."""
        return self.false / max(1, self.real + self.following + self.false)


class Updates(Work):
    """Transactions of one row; every row is equally likely."""

    def _drawn(self, rows: dict[int, Row]) -> list[Change]:
        key = SHARED_FROM + 1 + self.world.rng.randrange(ROWS)
        return [self._made(key, "update", rows[key])] if key in rows else []

    def prepare(self) -> None:
        """All rows, by the primary."""
        self._commit([self._made(SHARED_FROM + 1 + number, "insert", None) for number in range(ROWS)])


def plan_for(cell: Cell) -> Plan:
    """A pair without faults."""

    def site(number: int, drawn: SitePlan) -> SitePlan:
        options = {**drawn.options, "durability": "epoch", "sync_binlog": 1, **ROOM}
        return replace(drawn, options=options, has_function=number == PRIMARY, allow_batching=True, batch_bytes=2 << 20)

    drawn = plan_of(SEED, ["NDB$EPOCH"])
    delay = cell.delay_ms / 1_000
    return replace(
        drawn,
        case=BY_NAME["NDB$EPOCH"],
        topology=PAIR,
        sites=tuple(site(number, each) for number, each in enumerate(drawn.sites)),
        faults=Faults(),
        bits=min(cell.bits, 31),
        commit_every=1 / cell.rate,
        epoch_every=cell.epoch_ms / 1_000,
        gcp_every=GCP_MS / 1_000,
        lcp_every=0.0,
        delay=(0.9 * delay, 1.1 * delay),
        chunk_bytes=1 << 18,
        heartbeat_ms=1_000,
    )


def run_cell(cell: Cell, seconds: float) -> Cell:
    """Run one cell, and count."""
    from_there = (lambda bits: 1 << 32) if cell.bits == WHOLE else saturated_from
    programs.saturated_from = from_there  # type: ignore[assignment]
    world = World(plan_for(cell))
    for site in world.sites:
        site.work = Updates(world, site)
        site.first_open()
    for link in world.links:
        link.tick()
    world.begin()
    world.sites[PRIMARY].act(world.sites[PRIMARY].work.prepare)
    world.settle()
    world.is_working = True
    world.run_until(world.timeline.now + seconds)
    world.is_working = False
    world.settle()
    check_promises(world)
    _count(world, cell)
    return cell


def _count(world: World, cell: Cell) -> None:
    cell.primary = len(world.sites[PRIMARY].work.done) - 1
    arrived = {entry.epoch: entry for entry in world.sites[PRIMARY].applied[SECONDARY]}
    refreshed: dict[int, list[int]] = defaultdict(list)  # by row: own epochs of the primary
    for each in judged_changes(world):
        cell.changes += 1
        if not each.is_refused:
            continue
        seen = each.done.seen.get(PRIMARY, 0)
        if each.is_concurrent:
            cell.real += 1
        elif any(epoch > seen for epoch in refreshed[each.change.key]):
            cell.following += 1
        else:
            cell.false += 1
        refreshed[each.change.key].append(arrived[each.done.epoch].own_epoch)


def cells(is_quick: bool) -> Iterator[Cell]:
    """Yield all cells of the grid, or a few of them."""
    for rate in RATES[1:] if is_quick else RATES:
        for epoch_ms in EPOCHS_MS[1:2] if is_quick else EPOCHS_MS:
            for delay_ms in DELAYS_MS:
                for bits in BITS:
                    yield Cell(epoch_ms, delay_ms, rate, bits)


def line_of(cell: Cell) -> str:
    """A row of the table."""
    refused = cell.real + cell.following + cell.false
    bits = "all 64" if cell.bits == WHOLE else str(cell.bits)
    shares = [f"{100 * count / max(1, cell.changes):.1f} %" for count in (cell.real, cell.following, cell.false)]
    head = [cell.rate, cell.epoch_ms, cell.delay_ms, bits, cell.changes, refused]
    return "| " + " | ".join(map(str, [*head, *shares, f"{100 * cell.false_share:.0f} %"])) + " |"


HEAD = (
    "| updates/s | epoch ms | delay ms | bits | changes | refused | real | following | false | false of refused |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def draw(found: Sequence[Cell], path: Path) -> None:
    """Draw the share of falsely refused changes by length of an epoch; a panel for each rate and delay."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    panels = sorted({(cell.rate, cell.delay_ms) for cell in found})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.2), sharey=True, squeeze=False)
    for (rate, delay_ms), axis in zip(panels, axes[0], strict=True):
        for bits in BITS:
            mine = [cell for cell in found if (cell.rate, cell.delay_ms, cell.bits) == (rate, delay_ms, bits)]
            shares = [100 * cell.false / max(1, cell.changes) for cell in mine]
            label = "all 64 bits" if bits == WHOLE else f"{bits} bits"
            axis.plot([cell.epoch_ms for cell in mine], shares, marker="o", label=label)
        axis.set(xscale="log", xlabel="epoch [ms]", title=f"{rate} updates/s, delay {delay_ms} ms")
    axes[0][0].set_ylabel("refused falsely [% of changes]")
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser(prog="python -m bench.false_conflicts_simulated", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of work in a cell")
    parser.add_argument("--out", type=Path, help="file for the counts, as lines of JSON")
    parser.add_argument("--picture", type=Path, help="file for the picture")
    asked = parser.parse_args(arguments)
    logging.getLogger("tidemark").setLevel(logging.CRITICAL)
    found: list[Cell] = []
    sys.stdout.write(HEAD + "\n")
    for cell in cells(asked.quick):
        found.append(run_cell(cell, asked.seconds))
        sys.stdout.write(line_of(cell) + "\n")
        sys.stdout.flush()
        if asked.out is not None:
            lines: list[dict[str, Any]] = [asdict(each) for each in found]
            asked.out.write_text("".join(json.dumps(each) + "\n" for each in lines))
    if asked.picture is not None:
        draw(found, asked.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
