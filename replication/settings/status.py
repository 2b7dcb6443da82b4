"""The status variables of replication: one table with the name and meaning of each variable, the counters, and the
registry of an open store.

Names are those of MySQL without the prefix `Ndb_`, which `shown_name` restores. Counters begin at 0 when the store is
opened. The counts of an epoch transaction are staged, and added to the totals when it commits. A rollback drops them,
unless the applier keeps them for its next pass over the same epoch transaction.

Rooms that count or know a variable register it with `ReplicationStatus`. A variable that no room has registered is 0,
as in a MySQL server that does not replicate. Reading takes no lock, so values are of about the same instant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tidemark.replication.channel.lag import EpochTrail
from tidemark.replication.settings.conflict_function import FUNCTIONS


@dataclass(frozen=True)
class Variable:
    """One status variable. is_counter: appliers count it, merged at commit of an epoch transaction. is_prefixed: MySQL
    shows it with `conflict_` before its name.
    """

    name: str
    meaning: str
    is_counter: bool = False
    is_prefixed: bool = False

    @property
    def long_name(self) -> str:
        """The name with its prefix, if it has one."""
        return f"conflict_{self.name}" if self.is_prefixed else self.name


def _counter(name: str, meaning: str) -> Variable:
    return Variable(name, meaning, is_counter=True, is_prefixed=True)


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
    *(Variable(each.counter, f"rows found in conflict by {each.name}", is_counter=True) for each in FUNCTIONS),
    _counter(ROW_CONFLICTS, "rows found in conflict by transactional functions"),
    _counter(ROW_REJECTS, "rows not applied because their transaction was rejected"),
    _counter(REJECTS, "transactions rejected"),
    _counter(DETECT_ITERATIONS, "repeated passes over epoch transactions"),
    _counter(CONFLICT_COMMITS, "epoch transactions committed after transactional handling"),
    _counter(DELETE_DELETE, "deletes of rows already missing, EPOCH family"),
    _counter(REFLECTED_PREPARED, "reflected operations received"),
    _counter(REFLECTED_DISCARDED, "reflected operations not applied"),
    _counter(REFRESHED, "refresh operations received"),
    Variable("conflict_last_conflict_epoch", "own epoch of the last conflict"),
    Variable("conflict_last_stable_epoch", "own epoch up to which the peer is realigned"),
    Variable("replica_max_replicated_epoch", "highest own epoch known to be applied at the peer"),
    Variable("epoch", "newest epoch of the store"),
    Variable("latest_epoch", "newest epoch of the store, as the binlog writer knows it"),
    Variable("latest_trans_epoch", "newest epoch with transactions"),
    Variable("latest_received_binlog_epoch", "newest epoch taken from the event ring"),
    Variable("latest_handled_binlog_epoch", "newest epoch written"),
    Variable("latest_applied_binlog_epoch", "newest epoch applied from a source"),
    *(Variable(f"api_{name}_replica", text) for name, text in _API),
)
PREFIX: Final = "Ndb_"
BY_NAME: Final = {name: each for each in VARIABLES for name in (each.name, each.long_name)}
COUNTERS: Final = tuple(each.name for each in VARIABLES if each.is_counter)


def shown_name(variable: Variable) -> str:
    """Return the name that MySQL shows: with `Ndb_` and, for variables of conflicts, `conflict_`."""
    return PREFIX + variable.long_name


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
