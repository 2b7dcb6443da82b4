"""`tm.metrics`: the counters of `status()` in Prometheus' text format.

`METRICS` is the one table of names, kinds and places in `status()`; docs/metrics.md has the same. A metric whose place
is missing, as that of a binlog in a store without one, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.settings.conflict_function import FUNCTIONS
from tidemark.replication.settings.status import BY_NAME, shown_name

TABLES_MAX = 100  # with a label of their own: those with the most rows

Status = Mapping[str, Any]
Reader = Callable[[Status], Any]  # a value, or with a label a mapping of its values to values; None: no value


class HasStatus(Protocol):
    """A `Database`, or another store with a status."""

    def status(self) -> dict[str, Any]:
        """Return every counter, nested by room."""
        ...


class Metric(NamedTuple):
    """One name, with what it means and where its value is. label: the name of its label, "" for none."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    read: Reader
    label: str = ""


def _at(path: str) -> Reader:
    """Return a reader of one place in `status()`."""

    def read(status: Any) -> Any:
        for key in path.split("."):
            status = status.get(key) if isinstance(status, Mapping) else None
        return status

    return read


def _each(path: str, inner: str) -> Reader:
    """Return a reader of one place in each value of a mapping, by its key."""
    values, value = _at(path), _at(inner)
    return lambda status: {key: value(each) for key, each in (values(status) or {}).items()}


def _rows(status: Status) -> dict[str, int]:
    found = [(table["rows"], name) for name, table in status["tables"].items() if not is_system_table(name)]
    return {name: rows for rows, name in sorted(found, reverse=True)[:TABLES_MAX]}


def _conflicts(status: Status) -> dict[str, int] | None:
    variables = _at("replication.variables")(status)
    return variables and {each.name: variables[shown_name(BY_NAME[each.counter])] for each in FUNCTIONS}


METRICS = (
    Metric(
        "tidemark_open",
        "gauge",
        "1 while the store is open, 0 after it has failed or was closed",
        lambda status: int(_at("store.state")(status) == "open"),
    ),
    Metric("tidemark_incarnation", "gauge", "Openings of the store so far", _at("store.incarnation")),
    Metric("tidemark_epoch", "gauge", "Epoch of commits now", _at("epoch.current")),
    Metric("tidemark_epoch_closed", "gauge", "Newest closed epoch", _at("epoch.newest_closed")),
    Metric(
        "tidemark_commits_total",
        "counter",
        "Transactions with changes that are durable in the REDO log",
        _at("log.transactions_written"),
    ),
    Metric(
        "tidemark_commit_seconds",
        "histogram",
        "Time of commits that wait for the disk",
        _at("transactions.commit_seconds"),
    ),
    Metric("tidemark_transactions_open", "gauge", "Open transactions", _at("transactions.open")),
    Metric("tidemark_lock_waits_total", "counter", "Waits for row locks", _at("locks.waits")),
    Metric(
        "tidemark_lock_timeouts_total",
        "counter",
        "Waits for row locks that ended with LockTimeout",
        _at("locks.timeouts"),
    ),
    Metric("tidemark_deadlocks_total", "counter", "Transactions rolled back by a deadlock", _at("locks.deadlocks")),
    Metric("tidemark_lock_waiters", "gauge", "Transactions that wait for a row lock now", _at("locks.waiting")),
    Metric("tidemark_log_written_bytes_total", "counter", "Bytes written to the REDO log", _at("log.bytes_written")),
    Metric(
        "tidemark_log_writes_total", "counter", "Writes of the REDO log, each with a sync", _at("log.batches_written")
    ),
    Metric(
        "tidemark_log_sync_seconds",
        "histogram",
        "Time of a write of the REDO log with its sync",
        _at("log.sync_seconds"),
    ),
    Metric("tidemark_log_used_bytes", "gauge", "Bytes of the REDO log that are needed", _at("log.used_bytes")),
    Metric("tidemark_log_capacity_bytes", "gauge", "Size of the REDO log", _at("log.capacity_bytes")),
    Metric("tidemark_local_checkpoints_total", "counter", "Local checkpoints since the opening", _at("lcp.completed")),
    Metric(
        "tidemark_local_checkpoints_abandoned_total",
        "counter",
        "Local checkpoints abandoned since the opening",
        _at("lcp.abandoned"),
    ),
    Metric("tidemark_local_checkpoint_seconds", "histogram", "Time of a local checkpoint", _at("lcp.run_seconds")),
    Metric(
        "tidemark_data_memory_bytes",
        "gauge",
        "Memory for rows and indexes (`data_memory`)",
        _at("memory.data_memory_bytes"),
    ),
    Metric("tidemark_data_memory_used_bytes", "gauge", "Memory in use by rows and indexes", _at("memory.used_bytes")),
    Metric("tidemark_snapshots_open", "gauge", "Open snapshots", _at("snapshots.open")),
    Metric(
        "tidemark_snapshot_memory_used_bytes",
        "gauge",
        "Memory in use by old rows for snapshots",
        _at("snapshots.used_bytes"),
    ),
    Metric(
        "tidemark_snapshots_dropped_total",
        "counter",
        "Snapshots dropped because `snapshot_memory` was full",
        _at("snapshots.dropped"),
    ),
    Metric("tidemark_tables", "gauge", "Tables, those of the system included", lambda status: len(status["tables"])),
    Metric("tidemark_table_rows", "gauge", f"Rows, of the {TABLES_MAX} tables with the most rows", _rows, "table"),
    Metric(
        "tidemark_page_hits_total",
        "counter",
        "Disk pages found in memory, by page size",
        _each("disk.page_buffer", "hits"),
        "page_bytes",
    ),
    Metric(
        "tidemark_page_misses_total",
        "counter",
        "Disk pages not found in memory, by page size",
        _each("disk.page_buffer", "misses"),
        "page_bytes",
    ),
    Metric(
        "tidemark_page_writes_total",
        "counter",
        "Disk pages written, by page size",
        _each("disk.page_buffer", "pages_written"),
        "page_bytes",
    ),
    Metric(
        "tidemark_tablespace_extents", "gauge", "Extents of a tablespace", _each("tablespaces", "extents"), "tablespace"
    ),
    Metric(
        "tidemark_tablespace_free_extents",
        "gauge",
        "Free extents of a tablespace",
        _each("tablespaces", "free_extents"),
        "tablespace",
    ),
    Metric("tidemark_binlog_epochs_total", "counter", "Epochs written to the binlog", _at("binlog.epochs")),
    Metric("tidemark_binlog_rows_total", "counter", "Rows written to the binlog", _at("binlog.rows")),
    Metric(
        "tidemark_binlog_epoch",
        "gauge",
        "Newest epoch that the binlog has handled",
        _at("binlog.latest_handled_binlog_epoch"),
    ),
    Metric(
        "tidemark_archive_missing_bytes",
        "gauge",
        "Bytes of the log that the archive lacks",
        _at("archive.lag_bytes"),
    ),
    Metric("tidemark_archive_failures_total", "counter", "Failed steps of the archive", _at("archive.failures")),
    Metric(
        "tidemark_source_lag_seconds",
        "gauge",
        "At a source: age of its oldest epoch that is not confirmed",
        _each("replication.lag", "lag_seconds"),
        "target",
    ),
    Metric(
        "tidemark_source_lag_epochs",
        "gauge",
        "At a source: epochs that are not confirmed",
        _each("replication.lag", "lag_epochs"),
        "target",
    ),
    Metric(
        "tidemark_replication_lag_seconds",
        "histogram",
        "At a replica: time from the commit at the source until it was applied, by both clocks",
        _each("replication.channels", "applied_seconds"),
        "channel",
    ),
    Metric(
        "tidemark_channel_applied_total",
        "counter",
        "Transactions applied by a channel",
        _each("replication.channels", "applied"),
        "channel",
    ),
    Metric(
        "tidemark_channel_waiting_epochs",
        "gauge",
        "Epochs received and not applied",
        _each("replication.channels", "lag.epochs"),
        "channel",
    ),
    Metric("tidemark_conflicts_total", "counter", "Rows that a conflict function refused", _conflicts, "function"),
)


def library() -> Any:
    """Return `prometheus_client`. Raises: Unsupported if it is not installed."""
    try:
        import prometheus_client
        import prometheus_client.core
    except ModuleNotFoundError as error:
        raise Unsupported('metrics need prometheus-client; pip install "tidemark[metrics]"') from error
    return prometheus_client


def metrics(db: HasStatus) -> str:
    """Return the metrics of a store in Prometheus' text format.

    Args:
        db: A `Database`, a `ReadOnlyDatabase` or a `RemoteDatabase`; what it does not count is left out.

    Raises:
        Unsupported: prometheus-client is not installed.

    Examples:
        >>> lines = tm.metrics(db).splitlines()
        >>> [line for line in lines if line.startswith("tidemark_table_rows")]
        ['tidemark_table_rows{table="main.item"} 3.0']
    """
    client = library()
    registry = client.CollectorRegistry()
    registry.register(_Collector(client.core, db))
    return str(client.generate_latest(registry).decode())


class _Collector:
    """One reading of the status, as families of prometheus_client."""

    def __init__(self, core: Any, db: HasStatus) -> None:
        self._core = core
        self._db = db

    def describe(self) -> list[Any]:
        """Return no names at registration: they would need a second reading of the status."""
        return []

    def collect(self) -> Iterator[Any]:
        status = self._db.status()
        kinds = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        # A node of a group has no store at times; then only the first metric, `tidemark_open`, is shown.
        for metric in METRICS if "store" in status else METRICS[:1]:
            found = metric.read(status)
            labelled = found if metric.label else {"": found}
            values = {label: value for label, value in (labelled or {}).items() if value is not None}
            if not values:
                continue
            family = kinds[metric.kind](metric.name, metric.meaning, labels=[metric.label] if metric.label else [])
            for label, value in values.items():
                labels = [str(label)] if metric.label else []
                if metric.kind == "histogram":
                    family.add_metric(labels, _buckets(value), value["sum_seconds"])
                else:
                    family.add_metric(labels, value)
            yield family


def _buckets(histogram: Mapping[str, Any]) -> list[tuple[str, int]]:
    up_to = [(f"{bound:g}", count) for bound, count in histogram["buckets"]]
    return [*up_to, ("+Inf", histogram["count"])]
