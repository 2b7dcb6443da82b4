"""Commands for a whole store: init, info, tables, partitions, status, checkpoint, check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.output import (
    attach,
    example,
    finding_lines,
    memory_of,
    open_files,
    open_for_reading,
    open_store,
    opens_store,
    options_given,
    options_of,
    print_result,
    print_verdict,
    prints,
    reads_store,
    reported,
    store_argument,
    table_argument,
    table_lines,
    time_text,
    tree_lines,
    verdict_of,
)
from tidemark.cli.verify_commands import binlog_lines, check_binlog
from tidemark.engine.base.ids import gci_of
from tidemark.engine.base.options import format_size
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.recovery.verification.log_listing import StoreListing


def ask_owner(store: Path, command: str, locked: tm.Locked, **arguments: Any) -> Any:
    """Return the answer of the process that has the store open. Raises: Locked if it does not answer."""
    from tidemark.control_socket import ask

    try:
        return ask(store, command, 30.0 if command in ("status", "report") else None, **arguments)
    except tm.PeerError as error:
        raise tm.Locked(
            f"{locked.message}, or open it there with background=True, so that it answers commands ({error.message})"
        ) from error


@click.command(epilog=example("tidemark init shop", "tidemark init shop -o redo_log='64 MiB' -o undo_log='64 MiB'"))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@options_given("An option of the store.")
@prints
def init(directory: Path, given: tuple[str, ...], as_json: bool) -> None:
    """Make a store in DIR, which is missing or empty.

    The store keeps its options: the size of the REDO log for good, the others until an opening names another value.
    Options that hold only while a process has the store open are refused.
    """
    from tidemark.recovery.system_restart.kept_options import check_lasting
    from tidemark.replication.settings.options import split_keywords

    options = options_of(given)[0]
    split_keywords(options)
    check_lasting(options, ("redo_log",))
    if directory.is_dir():
        from tidemark.engine.files.directory import PosixFiles
        from tidemark.recovery.system_restart.place import has_store

        with PosixFiles(directory) as files:
            if has_store(files):
                raise tm.Rejected(f"{directory} has a store already; give a new directory, or open this one")
    with tm.open(directory, background=False, **options) as db:
        made = {"directory": str(directory.absolute()), "id": db.status()["store"]["uuid"]}
    print_result(made, as_json, lambda: [f"store {made['id']} made in {directory}"])


@click.command(epilog=example("tidemark info shop"))
@store_argument
@prints
def info(store: Path, as_json: bool) -> None:
    """Show how a store was created and what its files hold. Reads only, also while the store is open."""
    from tidemark.engine.files.directory import PosixFiles

    with PosixFiles(store) as files:
        found = _info(files)
    print_result(found, as_json, lambda: tree_lines(found))


def _info(files: PosixFiles) -> dict[str, Any]:
    from tidemark.engine.sealed import FORMAT_FINGERPRINT
    from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
    from tidemark.recovery.system_restart.kept_options import kept_options
    from tidemark.recovery.verification.log_listing import StoreListing

    listing = StoreListing(files)
    sysfile = listing.sysfile
    geometry, undo = sysfile.geometry, sysfile.undo_geometry
    tables = listing.tables()
    return {
        "store": {
            "directory": files.directory,
            "id": sysfile.store.hex(),
            "created": time_text(sysfile.created_us, "seconds"),
            "format": FORMAT_VERSION,
            "fingerprint": FORMAT_FINGERPRINT,
            "incarnation": sysfile.incarnation,
            "open_in_process": files.holder(),
        },
        "options": {
            **kept_options(files),
            "redo_log": format_size(geometry.capacity_bytes),
            **({} if undo is None else {"undo_log": format_size(undo.capacity_bytes)}),
        },
        "redo": {
            "files": geometry.file_count,
            "files_made": geometry.made_count,
            "file_bytes": geometry.file_bytes,
            "durable_lsn": sysfile.durable_lsn,
        },
        "epochs": {
            "gci": sysfile.gci,
            "closed_epoch": sysfile.closed_epoch,
            "closed_gci": int(gci_of(sysfile.closed_epoch)),
        },
        "local_checkpoints": [
            {
                "id": control.lcp_id,
                "epoch": control.epoch,
                "start_lsn": control.start_lsn,
                "rows": sum(entries for entries, _, _ in control.fragments.values()) + control.copies[0],
                "bytes": sum(size for _, _, size in control.fragments.values()) + control.copies[2],
            }
            for control in listing.controls
        ],
        "sizes_bytes": listing.sizes_bytes(),
        "tables": [
            {
                "id": each.table_id,
                "name": each.name,
                "columns": len(each.columns),
                "primary_key": ", ".join(each.primary_key),
                "fragments": each.partition.fragments,
                "partition": each.partition.describe(),
                "indexes": "; ".join(map(_index_text, each.indexes)),
                **_storage_of(each),
            }
            for each in tables
        ],
        **({} if undo is None else {"tablespaces": _tablespaces_of(listing)}),
    }


def _index_text(index: IndexDefinition) -> str:
    """Return an index in one line: "by_name (name)", and whether it is unique, or unique and ordered."""
    kind = "" if not index.is_unique else " unique, ordered" if index.is_ordered else " unique"
    return f"{index.name} ({', '.join(index.columns)}){kind}"


def _storage_of(definition: TableDefinition) -> dict[str, str]:
    """Return which columns are on disk, and where; empty for a table in memory."""
    from tidemark.engine.disk.tablespaces import DEFAULT_NAME

    on_disk = [column.name for column in definition.columns if column.is_disk]
    tablespace = (definition.tablespace or DEFAULT_NAME) if on_disk else ""
    return {"on_disk": ", ".join(on_disk), "tablespace": tablespace}


def _tablespaces_of(listing: StoreListing) -> dict[str, Any]:
    return {
        each.name: {
            "id": each.tablespace_id,
            "page_bytes": each.page_bytes,
            "extent_bytes": each.extent_bytes,
            "autoextend": each.is_autoextending,
            "limit_bytes": each.limit_bytes,
            "data_files": listing.data_files(each),
        }
        for each in listing.tablespaces()
    }


# --- tables ---------------------------------------------------------------------------------------
def _table_rows(tables: Mapping[str, Mapping[str, Any]], system: bool) -> list[dict[str, Any]]:
    """Return the columns and words of `ndb_show_tables`, plus rows; the indexes of a table, not logged, follow it."""
    from tidemark.engine.schema.names import is_system_table

    found = []
    for name, table in sorted(tables.items(), key=lambda item: int(item[1]["id"])):
        if not system and is_system_table(name):
            continue
        database, _, plain_name = name.partition(".")
        kind = "SystemTable" if is_system_table(name) else "UserTable"
        lines = [(kind, "Yes", plain_name, table["rows"])]
        for index, counters in table.get("indexes", {}).items():
            which = "OrderedIndex" if "height" in counters else "UniqueHashIndex"  # one that is both has an order
            lines.append((which, "No", f"{plain_name}/{index}", counters["entries"]))
        found += [
            {
                "id": table["id"],
                "type": kind,
                "state": "Online",
                "logging": logging,
                "database": database,
                "name": shown_name,
                "rows": rows,
            }
            for kind, logging, shown_name, rows in lines
        ]
    return found


@click.command(epilog=example("tidemark tables shop --system"))
@store_argument
@click.option("--system", is_flag=True, help="Include system tables.")
@reads_store
def tables(store: Path, system: bool, checkpoint: bool, data_memory: str | None, as_json: bool) -> None:
    """List the tables: id, type, state, logging, database, name, rows.

    If another process has the store open, it is asked. If it does not answer, they are those of its last local
    checkpoint. The store is not changed.
    """
    found = _table_rows(_tables_of(store, data_memory, checkpoint), system)
    header = ["id", "type", "state", "logging", "database", "name", "rows"]
    print_result(found, as_json, lambda: table_lines([list(row.values()) for row in found], header))


def _tables_of(store: Path, data_memory: str | None, checkpoint: bool) -> dict[str, Any]:
    """Return the tables of a store, with their counters."""
    from tidemark.control_socket import NAME, ask

    if checkpoint:
        with attach(store, data_memory, "--checkpoint") as view:
            return dict(view.status()["tables"])
    if (store / NAME).exists():
        with suppress(tm.PeerError):
            return dict(ask(store, "status")["tables"])
    with open_files(store, data_memory) as view:
        return dict(view.status()["tables"])


@click.command(epilog=example("tidemark partitions shop test.item"))
@store_argument
@table_argument()
@reads_store
def partitions(store: Path, table: str, checkpoint: bool, data_memory: str | None, as_json: bool) -> None:
    """List the partitions of TABLE: name, fragment number, bound or values, rows.

    If another process has the store open, it is asked. If it does not answer, they are those of its last local
    checkpoint. The store is not changed.
    """
    with open_for_reading(store, data_memory, checkpoint) as (db, _):
        found = [{name: _shown_bound(value) for name, value in each.items()} for each in db.partitions(table)]
    print_result(found, as_json, lambda: table_lines([list(each.values()) for each in found], list(found[0])))


def _shown_bound(value: Any) -> Any:
    """Return a bound, or values of a list, with MAXVALUE as text."""
    if isinstance(value, (tuple, list)):
        return [_shown_bound(each) for each in value]
    return "MAXVALUE" if value is tm.MAXVALUE else value


# --- status and local checkpoints -----------------------------------------------------------------
@click.command(epilog=example("tidemark status shop --json"))
@store_argument
@opens_store
def status(store: Path, data_memory: str | None, as_json: bool) -> None:
    """Print the counters of the process that has the store open, or after restarting the store. Parts that are not in
    use, such as replication, are left out; --json prints every counter. A running node of a group first shows the group
    as it knows it: view, members, primary, lag, copies, channel.
    """
    found = _status_of_node(store)
    if found is None:
        try:
            with open_store(store, data_memory) as db:
                found = {**db.status(), "restart": db.restart_report}
        except tm.Locked as locked:
            found = ask_owner(store, "status", locked)
    print_result(found, as_json, lambda: tree_lines(_in_use(_without_buckets(found))))


# Parts of a status that a store may never use.
_OPTIONAL = ("disk", "disk_full", "delete_log", "tablespaces", "spool", "binlog", "archive", "expiry", "replication")


def _in_use(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status for display, without what is zero or empty in the parts that a store may never use."""
    optional = {name: _used(status[name]) for name in _OPTIONAL if name in status}
    replication = optional.get("replication")
    if replication and not optional.get("binlog") and set(replication) <= {"variables"}:
        optional["replication"] = None  # without binlog and channels only the clock of epochs moves
    return {name: optional.get(name, value) for name, value in status.items() if optional.get(name, True)}


def _used(value: Any) -> Any:
    """Return a counter or a part without its zeros; None if nothing is left."""
    if not isinstance(value, dict):
        return value or None
    found = {name: _used(inner) for name, inner in value.items()}
    return {name: inner for name, inner in found.items() if inner} or None


def _without_buckets(value: Any) -> Any:
    """Return counters for display: of a histogram, count and mean."""
    if not isinstance(value, dict):
        return value
    if "buckets" in value:
        count = value["count"]
        return {"count": count, "mean_ms": value["sum_seconds"] * 1_000 / count if count else None}
    return {name: _without_buckets(inner) for name, inner in value.items()}


def _commands_of(store: Path) -> Path:
    """Return the directory whose socket takes the commands for a store: that of a node, if one runs there."""
    from tidemark.control_socket import NAME
    from tidemark.nodes import FOLDER

    return store / FOLDER if (store / FOLDER / NAME).exists() else store


def _status_of_node(store: Path) -> Any:
    """Return the status of the node of a group that runs in this directory, None if none does."""
    from tidemark.control_socket import NAME, ask
    from tidemark.nodes import FOLDER

    if not (store / FOLDER / NAME).exists():
        return None
    try:
        return ask(store / FOLDER, "status")
    except tm.PeerError as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return None  # the file was left by a process that was killed
        raise


@click.command(epilog=example("tidemark checkpoint shop"))
@store_argument
@opens_store
def checkpoint(store: Path, data_memory: str | None, as_json: bool) -> None:
    """Make a local checkpoint. If another process has the store open, that process makes it."""
    try:
        with open_store(store, data_memory) as db, reported("local checkpoint") as progress:
            report = db.checkpoint(progress)
    except tm.Locked as locked:
        report = ask_owner(store, "checkpoint", locked)
    print_result(report, as_json, lambda: tree_lines(report))


@click.command(epilog=example("tidemark kill shop 0x10000000003", "tidemark kill shop 127.0.0.1:51958"))
@store_argument
@click.argument("target", metavar="TXID|HOST:PORT")
@prints
def kill(store: Path, target: str, as_json: bool) -> None:
    """Roll back an open transaction of the process that has the store open, or end the link of a client.

    "tidemark status" lists transactions that hold locks, with their clients, under transactions, holders; a LockTimeout
    names one. At a node group, name the directory of the primary.
    """
    from tidemark.control_socket import ask

    try:
        wanted: int | str = int(target, 0)
    except ValueError:
        wanted = target
    is_ended = ask(_commands_of(store), "kill", None, target=wanted)
    text = (
        "ended" if is_ended else "still in a call; it is rolled back when that call ends, or at its thread's next one"
    )
    print_result({"target": wanted, "is_ended": is_ended}, as_json, lambda: [f"{target}: {text}"])


# --- verification ---------------------------------------------------------------------------------
@click.command(epilog=example("tidemark check shop", "tidemark check shop --binlog"))
@store_argument
@click.option("--replication", is_flag=True, help="Check the settings of replication instead.")
@click.option("--binlog", is_flag=True, help="Compare the binlog with the rows instead.")
@options_given("With --replication or --binlog: an option of the site.")
@click.option(
    "--peer",
    type=(click.Path(path_type=Path, exists=True, file_okay=False), int),
    metavar="STORE SERVER_ID",
    help="With --replication: the other side of a pair.",
)
@opens_store
def check(
    store: Path,
    replication: bool,
    binlog: bool,
    given: tuple[str, ...],
    peer: tuple[Path, int] | None,
    data_memory: str | None,
    as_json: bool,
) -> None:
    """Verify every file, and every row in memory. If another process has the store open, that process does it.

    Nothing is changed. With --replication: check system tables, exceptions tables and the rows of
    mysql.ndb_replication; of a store that another process has open, as its last local checkpoint has them. With
    --binlog: check that the binlog's last change of each key agrees with the store; a store that no process has open is
    opened for that. Exit code 1 if anything is damaged or set up wrong.
    """
    if replication and binlog:
        raise click.UsageError("--replication and --binlog exclude each other; give one")
    if binlog:
        if peer:
            raise click.UsageError("--peer is about replication; use it with --replication")
        try:
            report = check_binlog(store, given, data_memory)
        except tm.Locked as locked:
            report = ask_owner(store, "check_binlog", locked)
        lines = binlog_lines
    elif replication:
        report = _check_replication(store, given, peer, data_memory)
        lines = _replication_lines
    elif given or peer:
        raise click.UsageError("--option and --peer are about replication; use them with --replication or --binlog")
    else:
        from tidemark.database import check_store

        try:
            with reported("check") as progress:
                report = check_store(store, progress, **memory_of(data_memory))
        except tm.Locked as locked:
            report = ask_owner(store, "check", locked)
        lines = _check_lines
    print_verdict(report, as_json, lambda: lines(report))


def _check_replication(
    store: Path, given: tuple[str, ...], peer: tuple[Path, int] | None, data_memory: str | None
) -> dict[str, Any]:
    from tidemark.replication.settings.check import Peer

    options = options_of(given)[0]
    other = None
    if peer is not None:
        with open_files(peer[0], data_memory) as db:
            other = Peer(peer[1], db.replication_rows())
    with open_files(store, data_memory) as db:
        return db.check_replication(peer=other, **options)


def _replication_lines(report: dict[str, Any]) -> Iterator[str]:
    yield from finding_lines(report, "problem")
    if report["tables"]:
        yield from table_lines([list(each.values()) for each in report["tables"]], list(report["tables"][0]))
    yield verdict_of(report)


def _check_lines(report: dict[str, Any]) -> Iterator[str]:
    yield from finding_lines(report)
    counts = [counted(report[f"{what}s"], what) for what in ("file", "byte", "group", "row")]
    yield f"{verdict_of(report)}: {', '.join(counts)} in {report['seconds']:.1f} s"
