"""What must hold, after any kills, when the sites are at rest and every change has reached every site.

- No acknowledged commit is lost: its row of the journal is at every site. Where the primary may refuse transactions of
  the other site, the row is there or, once, in the exceptions table, never both.
- No epoch is lost and none is applied twice: shown by binlogs (`audit.py`), and by positions that never go back.
- The sites are equal, and as the conflict function promises: the sum of money stays, or every account has the change
  with the greatest stamp.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.kills.sites.audit import Read, compare, read_binlog
from tests.kills.sites.modes import ACCOUNT, JOURNAL, SCRATCH, SEAT, Mode
from tests.kills.sites.writers import ACCOUNTS, START_BALANCE
from tidemark.engine.files.directory import PosixFiles
from tidemark.replication.binlog.position import Position

Paid = tuple[int, int, int]  # site, writer, sequence


@dataclass
class Ledger:
    """What was acknowledged: transactions, and the greatest stamp written to each account."""

    paid: list[Paid] = field(default_factory=list)
    stamps: dict[int, int] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Take a line from a writer."""
        site, writer, sequence, *stamps = line.split()
        self.paid.append((int(site), int(writer), int(sequence)))
        for each in stamps:
            account, _, stamp = each.partition(":")
            self.stamps[int(account)] = max(self.stamps.get(int(account), 0), int(stamp))


class Judge:
    """Checks a circuit again and again; remembers how far it has read."""

    def __init__(self, mode: Mode, directories: dict[int, str]) -> None:
        self.mode = mode
        self._directories = directories
        self._read_to: dict[int, Position | None] = dict.fromkeys(directories)
        self._gtids: dict[int, list[tuple[bytes, int]]] = {}
        self._positions: dict[tuple[int, int], int] = {}
        self.epochs = 0
        self.applied = 0
        self.rolled_back_count = 0

    def positions(self, site: int, applied: dict[str, int]) -> list[str]:
        """Check the epochs that a site has applied, at any time: they never go back."""
        problems = []
        for server, epoch in applied.items():
            before = self._positions.get((site, int(server)), 0)
            if epoch < before:
                problems.append(f"site {site} had applied epoch {before} of server {server}, and is back at {epoch}")
            self._positions[site, int(server)] = max(before, epoch)
        return problems

    def judge(self, states: dict[int, dict[str, Any]], ledger: Ledger) -> list[str]:
        """Return all violations as texts."""
        problems = []
        for site, state in states.items():
            problems += self.positions(site, state["applied"])
        first, *others = states
        for site in others:
            problems += _differences(first, states[first]["rows"], site, states[site]["rows"])
        if problems:
            return problems
        return self.contents(states[first]["rows"], ledger) + self.compare_binlogs(states)

    def contents(self, rows: dict[str, Any], ledger: Ledger) -> list[str]:
        """Check the rows that all sites have, by table."""
        problems = self._journal(rows, ledger) + self._accounts(rows, ledger)
        places = Counter(row[3] for row in rows[SEAT] if row[3] is not None)
        if twice := [place for place, count in places.items() if count > 1]:
            problems.append(f"places {twice} of a unique index are taken twice")
        return problems

    def _journal(self, rows: dict[str, Any], ledger: Ledger) -> list[str]:
        there = Counter((row[0], row[1], row[2]) for row in rows[JOURNAL])
        back = Counter(tuple(row[7:10]) for row in rows.get(f"{JOURNAL}$EX", ()))
        self.rolled_back_count = len(back)
        lost = [each for each in ledger.paid if not there[each] and not (self.mode.rejects and back[each])]
        problems = [f"{len(lost)} acknowledged transactions are gone, the first is {lost[0]}"] if lost else []
        both = sorted(set(there) & set(back))
        if both:
            problems.append(f"{len(both)} transactions were taken back and are there, the first is {both[0]}")
        twice = [each for each, count in back.items() if count > 1]
        if twice:
            problems.append(f"{len(twice)} transactions were taken back twice, the first is {twice[0]}")
        of_primary = [each for each in back if each[0] == 1]
        if of_primary:
            problems.append(f"transactions of the primary were taken back: {of_primary[:3]}")
        return problems

    def _accounts(self, rows: dict[str, Any], ledger: Ledger) -> list[str]:
        accounts = rows[ACCOUNT]
        total = sum(row[2] for row in accounts)
        problems = []
        if len(accounts) != ACCOUNTS:
            problems.append(f"there are {len(accounts)} accounts of {ACCOUNTS}")
        if self.mode.keeps_sum and total != ACCOUNTS * START_BALANCE:
            problems.append(f"the balances are {total} together, {ACCOUNTS * START_BALANCE} at the start")
        if self.mode.by_stamp:
            stale = [row[0] for row in accounts if row[1] < ledger.stamps.get(row[0], 0)]
            if stale:
                problems.append(f"accounts {stale} have lesser stamps than acknowledged changes gave them")
        return problems

    def compare_binlogs(self, states: dict[int, dict[str, Any]]) -> list[str]:
        """Compare what was added to the binlogs since the last call: all sites are at rest, so the parts are equal."""
        found: dict[int, Read] = {}
        for site, state in states.items():
            files, end = PosixFiles(self._directories[site]), Position(*state["end"])
            try:
                found[site] = read_binlog(files, site, self._read_to[site], end)
            finally:
                files.close_all()
            self._read_to[site] = end
        self.epochs += sum(len(each.epochs) for each in found.values())
        problems = []
        for site, read in found.items():
            if any(a >= b for a, b in pairwise(read.epochs)):
                problems.append(f"epochs of site {site} do not rise in its binlog")
            numbers = self._gtids.setdefault(site, [])
            numbers += read.gtids
            if [number for _, number in numbers] != list(range(1, len(numbers) + 1)) or len(dict(numbers)) > 1:
                problems.append(f"transactions of site {site} have numbers {numbers[-len(read.gtids) :]}")
            for source in self.mode.site(site).sources:
                self.applied += len(read.applied.get(source, ()))
                problems += [
                    f"site {site}: {each}" for each in compare(found[source], source, read, site, self.mode.is_exact)
                ]
        return problems


def _differences(one: int, rows: dict[str, Any], other: int, theirs: dict[str, Any]) -> list[str]:
    """Return user tables that differ at two sites. Exceptions belong to the site that found them."""
    problems = []
    for name in (ACCOUNT, JOURNAL, SCRATCH, SEAT):
        here, there = {tuple(row) for row in rows[name]}, {tuple(row) for row in theirs[name]}
        if here != there:
            problems.append(
                f"{name} differs: {len(here)} rows at site {one}, {len(there)} at site {other},"
                f" {sorted(here - there)[:3]} and {sorted(there - here)[:3]}"
            )
    return problems
