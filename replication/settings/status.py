"""The status variables of replication: one table with the name, meaning and source of each variable, the counters, and
the registry of an open store.

Names are those of MySQL without the prefix `Ndb_`, which `shown_name` restores. Counters begin at 0 when the store is
opened. The counts of an epoch transaction are staged, and added to the totals when it commits. A rollback drops them,
unless the applier keeps them for its next pass over the same epoch transaction.

Rooms that count or know a variable register it with `ReplicationStatus`. A variable that no room has registered is 0,
as in a MySQL server that does not replicate. Reading takes no lock, so values are of about the same instant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from tidemark.replication.channel.lag import EpochTrail
from tidemark.replication.settings.conflict_function import FUNCTIONS


class Source(Enum):
    """Where a variable's value comes from."""

    APPLIER = "counted by the applier, merged at commit of an epoch transaction"
    RECEIVED = "counted by the applier for each operation received"
    MRE = "max replicated epoch"
    LAST_CONFLICT = "last conflict"
    BINLOG = "binlog writer"
    STORE = "store"
    API = "activity of the applier on the store"


@dataclass(frozen=True)
class Variable:
    """One status variable."""

    name: str
    meaning: str
    source: Source
    aliases: tuple[str, ...] = ()


def _applier(name: str, meaning: str, *aliases: str) -> Variable:
    return Variable(name, meaning, Source.APPLIER, aliases)


DELETE_DELETE: Final = "epoch_delete_delete_count"
REFLECTED_PREPARED: Final = "reflected_op_prepare_count"
REFLECTED_DISCARDED: Final = "reflected_op_discard_count"
REFRESHED: Final = "refresh_op_count"
ROW_CONFLICTS: Final = "trans_row_conflict_count"
ROW_REJECTS: Final = "trans_row_reject_count"
REJECTS: Final = "trans_reject_count"
DETECT_ITERATIONS: Final = "trans_detect_iter_count"
CONFLICT_COMMITS: Final = "trans_conflict_commit_count"

_API = (
    ("wait_exec_complete_count", "waits for operations"),
    ("wait_scan_result_count", "waits for scans"),
    ("wait_meta_request_count", "waits for definitions"),
    ("wait_nanos_count", "nanoseconds waited"),
    ("bytes_sent_count", "bytes given to the store"),
    ("bytes_received_count", "bytes taken from the store"),
    ("trans_start_count", "transactions begun"),
    ("trans_commit_count", "transactions committed"),
    ("trans_abort_count", "transactions rolled back"),
    ("trans_close_count", "transactions ended"),
    ("pk_op_count", "operations by primary key"),
    ("uk_op_count", "operations by unique key"),
    ("table_scan_count", "scans of tables"),
    ("range_scan_count", "scans of indexes"),
    ("pruned_scan_count", "scans of one partition"),
    ("scan_batch_count", "batches of scans"),
    ("read_row_count", "rows read"),
    ("trans_local_read_row_count", "rows read in this process"),
    ("adaptive_send_forced_count", "sends that did not wait for more data"),
    ("adaptive_send_unforced_count", "sends that waited for more data"),
    ("adaptive_send_deferred_count", "sends deferred"),
)

VARIABLES: Final = (
    *(_applier(each.counter, f"rows found in conflict by {each.name}") for each in FUNCTIONS),
    _applier(ROW_CONFLICTS, "rows found in conflict by transactional functions", "conflict_" + ROW_CONFLICTS),
    _applier(ROW_REJECTS, "rows not applied because their transaction was rejected", "conflict_" + ROW_REJECTS),
    _applier(REJECTS, "transactions rejected", "conflict_" + REJECTS),
    _applier(DETECT_ITERATIONS, "repeated passes over epoch transactions", "conflict_" + DETECT_ITERATIONS),
    _applier(
        CONFLICT_COMMITS, "epoch transactions committed after transactional handling", "conflict_" + CONFLICT_COMMITS
    ),
    _applier(DELETE_DELETE, "deletes of rows already missing, EPOCH family", "conflict_" + DELETE_DELETE),
    Variable(
        REFLECTED_PREPARED,
        "reflected operations received",
        Source.RECEIVED,
        aliases=("conflict_" + REFLECTED_PREPARED,),
    ),
    _applier(REFLECTED_DISCARDED, "reflected operations not applied", "conflict_" + REFLECTED_DISCARDED),
    Variable(REFRESHED, "refresh operations received", Source.RECEIVED, aliases=("conflict_" + REFRESHED,)),
    Variable("conflict_last_conflict_epoch", "own epoch of the last conflict", Source.LAST_CONFLICT),
    Variable("conflict_last_stable_epoch", "own epoch up to which the peer is realigned", Source.LAST_CONFLICT),
    Variable("replica_max_replicated_epoch", "highest own epoch known to be applied at the peer", Source.MRE),
    Variable("epoch", "newest epoch of the store", Source.STORE),
    Variable("latest_epoch", "newest epoch of the store, as the binlog writer knows it", Source.BINLOG),
    Variable("latest_trans_epoch", "newest epoch with transactions", Source.BINLOG),
    Variable("latest_received_binlog_epoch", "newest epoch taken from the event ring", Source.BINLOG),
    Variable("latest_handled_binlog_epoch", "newest epoch written", Source.BINLOG),
    Variable("latest_applied_binlog_epoch", "newest epoch applied from a source", Source.BINLOG),
    *(Variable(f"api_{name}_replica", text, Source.API) for name, text in _API),
)
PREFIX: Final = "Ndb_"
BY_NAME: Final = {name: each for each in VARIABLES for name in (each.name, *each.aliases)}
COUNTERS: Final = tuple(each.name for each in VARIABLES if each.source in (Source.APPLIER, Source.RECEIVED))


def shown_name(variable: Variable) -> str:
    """Return the name that MySQL shows: with `Ndb_` and, for variables of conflicts, `conflict_`."""
    long = next((alias for alias in variable.aliases if alias.startswith("conflict_")), variable.name)
    return PREFIX + long


@dataclass
class Counters:
    """Counts of one applier; the status of a site shows the sums of `totals`."""

    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    staged: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int = 1) -> None:
        """Stage a count of the running epoch transaction. Raises: KeyError for a name that is no counter."""
        if name not in self.totals:
            raise KeyError(name)
        self.staged[name] = self.staged.get(name, 0) + count

    def commit(self) -> None:
        """Add the staged counts to the totals: the epoch transaction has committed."""
        for name, count in self.staged.items():
            self.totals[name] += count
        self.staged.clear()

    def drop(self) -> None:
        """Drop the staged counts: the epoch transaction was rolled back."""
        self.staged.clear()


class ReplicationStatus:
    """The status variables of a store: sums of `counters`, which belong to appliers, and gauges, which are read on
    request. `trails` have the epochs in flight, by name of their target, for instance "to server 2".
    """

    def __init__(self) -> None:
        self.counters: list[Counters] = []
        self.trails: dict[str, EpochTrail] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        """Show the result of `value` as a variable, given by any of its names, from now on.

        Raises: KeyError if there is no such variable.
        """
        self._gauges[BY_NAME[name].name] = value

    def new_counters(self) -> Counters:
        """Return the counters of one more applier; they stay in the sums after the applier has ended."""
        made = Counters()
        self.counters.append(made)
        return made

    def value(self, name: str) -> int:
        """Return a variable. Raises: KeyError if there is none."""
        gauge = self._gauges.get(BY_NAME[name].name)
        return gauge() if gauge is not None else sum(each.totals.get(BY_NAME[name].name, 0) for each in self.counters)

    def variables(self) -> dict[str, int]:
        """Return every variable by the name that MySQL shows."""
        return {shown_name(each): self.value(each.name) for each in VARIABLES}

    def to_dict(self, now_us: int) -> dict[str, Any]:
        """Return every variable, and the lag of every trail."""
        return {
            "variables": self.variables(),
            "lag": {name: trail.to_dict(now_us) for name, trail in list(self.trails.items())},
        }
