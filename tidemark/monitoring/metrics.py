"""`tm.metrics`: the counters of `status()` in Prometheus' text format.

`METRICS` is the one table of names, kinds and places in `status()`; docs/metrics.md has the same. A metric whose place
is missing, as that of a binlog in a store without one, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from tidemark.engine.base.extras import needed
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
    """Return a reader of one place in `status()`. Past a `*` it is a place in each value of a mapping, by its key."""
    outer, star, inner = path.partition(".*.")
    if star:
        values, value = _at(outer), _at(inner)
        return lambda status: {key: value(each) for key, each in (values(status) or {}).items()}

    def read(status: Any) -> Any:
        for key in path.split("."):
            status = status.get(key) if isinstance(status, Mapping) else None
        return status

    return read


def _of_tables(counter: str) -> Reader:
    """Return a reader of a counter of the tables with the most rows."""

    def read(status: Status) -> dict[str, int]:
        tables = status["tables"]
        found = sorted(((tables[name]["rows"], name) for name in tables if not is_system_table(name)), reverse=True)
        return {name: tables[name][counter] for _, name in found[:TABLES_MAX]}

    return read


def _build(status: Status) -> dict[str, int] | None:
    version = _at("process.version")(status)
    return version and {version: 1}


def _conflicts(status: Status) -> dict[str, int] | None:
    variables = _at("replication.variables")(status)
    return variables and {each.name: variables[shown_name(BY_NAME[each.counter])] for each in FUNCTIONS}


def _expiry_seconds(status: Status) -> float | None:
    found = _at("expiry.last_run_us")(status)
    return None if found is None else found / 1e6


def _metric(
    kind: Literal["counter", "gauge", "histogram"], name: str, meaning: str, read: str | Reader, label: str = ""
) -> Metric:
    """Return a metric. name: without `tidemark_`. read: the place of its value in `status()`, or its reader."""
    return Metric(f"tidemark_{name}", kind, meaning, _at(read) if isinstance(read, str) else read, label)


_counter, _gauge, _histogram = partial(_metric, "counter"), partial(_metric, "gauge"), partial(_metric, "histogram")

METRICS = (
    _gauge(
        "open",
        "1 while the store is open, 0 after it has failed or was closed",
        lambda status: int(_at("store.state")(status) == "open"),
    ),
    _gauge("build_info", "1; the label is the version of Tidemark in the process of the store", _build, "version"),
    _gauge("process_resident_bytes", "Memory of the process that is in RAM", "process.resident_bytes"),
    _gauge("incarnation", "Openings of the store so far", "store.incarnation"),
    _gauge("epoch", "Epoch of commits now", "epoch.current"),
    _gauge("epoch_closed", "Newest closed epoch", "epoch.newest_closed"),
    _counter("commits_total", "Transactions with changes that are durable in the REDO log", "log.transactions_written"),
    _histogram("commit_seconds", "Time of commits that wait for the disk", "transactions.commit_seconds"),
    _gauge("transactions_open", "Open transactions", "transactions.open"),
    _counter("lock_waits_total", "Waits for row locks", "locks.waits"),
    _counter("lock_timeouts_total", "Waits for row locks that ended with LockTimeout", "locks.timeouts"),
    _counter("deadlocks_total", "Transactions rolled back by a deadlock", "locks.deadlocks"),
    _gauge("lock_waiters", "Transactions that wait for a row lock now", "locks.waiting"),
    _counter("log_written_bytes_total", "Bytes written to the REDO log", "log.bytes_written"),
    _counter("log_writes_total", "Writes of the REDO log, each with a sync", "log.batches_written"),
    _histogram("log_sync_seconds", "Time of a write of the REDO log with its sync", "log.sync_seconds"),
    _gauge("log_used_bytes", "Bytes of the REDO log that are needed", "log.used_bytes"),
    _gauge("log_capacity_bytes", "Size of the REDO log", "log.capacity_bytes"),
    _counter("local_checkpoints_total", "Local checkpoints since the opening", "lcp.completed"),
    _counter("local_checkpoints_abandoned_total", "Local checkpoints abandoned since the opening", "lcp.abandoned"),
    _histogram("local_checkpoint_seconds", "Time of a local checkpoint", "lcp.run_seconds"),
    _gauge("data_memory_bytes", "Memory for rows and indexes (`data_memory`)", "memory.data_memory_bytes"),
    _gauge("data_memory_used_bytes", "Memory in use by rows and indexes", "memory.used_bytes"),
    _gauge("snapshots_open", "Open snapshots", "snapshots.open"),
    _gauge("snapshot_memory_used_bytes", "Memory in use by old rows for snapshots", "snapshots.used_bytes"),
    _counter("snapshots_dropped_total", "Snapshots dropped because `snapshot_memory` was full", "snapshots.dropped"),
    _gauge("tables", "Tables, those of the system included", lambda status: len(status["tables"])),
    _gauge("table_rows", f"Rows, of the {TABLES_MAX} tables with the most rows", _of_tables("rows"), "table"),
    _gauge("table_bytes", "Memory of the same tables: rows and primary index", _of_tables("memory_bytes"), "table"),
    _counter("page_hits_total", "Disk pages found in memory, by page size", "disk.page_buffer.*.hits", "page_bytes"),
    _counter(
        "page_misses_total", "Disk pages not found in memory, by page size", "disk.page_buffer.*.misses", "page_bytes"
    ),
    _counter("page_writes_total", "Disk pages written, by page size", "disk.page_buffer.*.pages_written", "page_bytes"),
    _gauge("tablespace_extents", "Extents of a tablespace", "tablespaces.*.extents", "tablespace"),
    _gauge("tablespace_free_extents", "Free extents of a tablespace", "tablespaces.*.free_extents", "tablespace"),
    _counter("binlog_epochs_total", "Epochs written to the binlog", "binlog.epochs"),
    _counter("binlog_rows_total", "Rows written to the binlog", "binlog.rows"),
    _gauge("binlog_epoch", "Newest epoch that the binlog has handled", "binlog.latest_handled_binlog_epoch"),
    _counter("expired_rows_total", "Rows deleted because they had expired, since the opening", "expiry.rows"),
    _counter("expiry_failures_total", "Tables that a deletion of expired rows failed in", "expiry.failures"),
    _gauge("expiry_last_run_seconds", "When the last deletion of expired rows began, since 1970", _expiry_seconds),
    _gauge("archive_missing_bytes", "Bytes of the log that the archive lacks", "archive.lag_bytes"),
    _counter("archive_failures_total", "Failed steps of the archive", "archive.failures"),
    _gauge(
        "source_lag_seconds",
        "At a source: age of its oldest epoch that is not confirmed",
        "replication.lag.*.lag_seconds",
        "target",
    ),
    _gauge("source_lag_epochs", "At a source: epochs that are not confirmed", "replication.lag.*.lag_epochs", "target"),
    _histogram(
        "replication_lag_seconds",
        "At a replica: time from the commit at the source until it was applied, by both clocks",
        "replication.channels.*.applied_seconds",
        "channel",
    ),
    _counter("channel_applied_total", "Transactions applied by a channel", "replication.channels.*.applied", "channel"),
    _gauge("channel_waiting_epochs", "Epochs received and not applied", "replication.channels.*.lag.epochs", "channel"),
    _counter("conflicts_total", "Rows that a conflict function refused", _conflicts, "function"),
)


def library() -> Any:
    """Return `prometheus_client`. Raises: Unsupported if it is not installed."""
    with needed("metrics need prometheus-client", "metrics"):
        import prometheus_client
        import prometheus_client.core
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
