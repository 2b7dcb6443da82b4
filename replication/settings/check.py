"""Check a site's replication before it starts: system tables, settings of tables, exceptions tables, ids.

Only the given definitions and rows are read, and nothing is changed. A problem keeps something from working as
configured: a conflict function is not active, conflicts are not recorded, a system table or a server id is wrong. A
note does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX, SYSTEM_DATABASE
from tidemark.replication.settings.binlog_type import BinlogType
from tidemark.replication.settings.exceptions_table import plan_exceptions
from tidemark.replication.settings.finding import Finding
from tidemark.replication.settings.match import ALL_SERVERS, NO_QUALITY, ReplicationRow, find_row, quality_of, row_of
from tidemark.replication.settings.options import SERVER_ID_MAX, settings
from tidemark.replication.settings.setup import (
    SiteSettings,
    TableSetup,
    check_channels,
    check_pair,
    exceptions_of,
    is_exceptions_name,
    set_up,
)
from tidemark.replication.settings.system_tables import (
    MADE_BY_NAME,
    NDB_REPLICATION,
    SYSTEM_TABLES,
    replication_rows,
    verify,
)

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store


@dataclass(frozen=True)
class Peer:
    """The site at the other end, as far as it is known: its id, and its rows of `mysql.ndb_replication`."""

    server_id: int
    rows: Sequence[ReplicationRow] = ()


@dataclass
class ReplicationReport:
    """The findings of `check`. tables: how each user table is set up."""

    server_id: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"is_sound": not self.problems, **asdict(self)}


def check_definitions(tables: Mapping[str, TableDefinition]) -> tuple[list[str], list[str]]:
    """Check the system tables; return (problems, notes)."""
    problems, notes = [], []
    for name in SYSTEM_TABLES:
        if name in tables:
            problems += [fault.text for fault in verify(tables[name])]
        elif name in MADE_BY_NAME:
            notes.append(f"table {name} does not exist yet; it is made when it is first used")
        else:
            notes.append(
                f"there is no table {name}: tables are logged as the options say, and no conflict is decided; make it"
                " with create_replication_table()"
            )
    return problems, notes


def check(
    tables: Mapping[str, TableDefinition],
    rows: Sequence[ReplicationRow],
    site: SiteSettings,
    channels: Sequence[str] = (),
    peer: Peer | None = None,
) -> ReplicationReport:
    """Check a site. tables: all definitions, by name. rows: those of `mysql.ndb_replication`. channels: names of the
    channels that apply here. peer: the other site of a pair.
    """
    report = ReplicationReport(site.server_id)
    problems, notes = check_definitions(tables)
    report.problems += problems
    report.notes += notes
    _check_ids(report, site, rows, peer)
    users = [name for name in sorted(tables) if not name.startswith(SYSTEM_DATABASE + ".")]
    for name in users:
        if is_exceptions_name(name.partition(".")[2]):
            _check_exceptions(report, name, tables)
        else:
            _check_table(report, tables, name, rows, site, channels, peer)
    for row in rows:
        named = (name.partition(".")[::2] for name in users)
        ids = (site.server_id, row.server_id)
        if not any(quality_of(row, *pair, server_id) > NO_QUALITY for pair in named for server_id in ids):
            report.notes.append(f"row {row.key} of {NDB_REPLICATION} matches no table")
    return report


def _check_ids(
    report: ReplicationReport, site: SiteSettings, rows: Iterable[ReplicationRow], peer: Peer | None
) -> None:
    if site.server_id == 0:
        report.notes.append(
            "server_id is 0: this site does not replicate, and only rows for any server id count; give its server_id"
            " (`tidemark check --replication -o server_id=N`, `tm.open(..., server_id=N)`)"
        )
    if peer is not None and peer.server_id == site.server_id:
        report.problems.append(f"both sites have server_id {site.server_id}; give one of them another")
    for row in rows:
        if row.server_id != ALL_SERVERS and row.server_id > SERVER_ID_MAX:
            report.problems.append(
                f"row {row.key} of {NDB_REPLICATION} is for server id {row.server_id}, which is invalid; ids are 1 to"
                f" {SERVER_ID_MAX}"
            )


def _check_exceptions(report: ReplicationReport, name: str, tables: Mapping[str, TableDefinition]) -> None:
    main = tables.get(name[: -len(EXCEPTIONS_SUFFIX)])
    if main is None:
        report.notes.append(f"exceptions table {name} has no table to record conflicts of")
        return
    _, faults, notes = plan_exceptions(main, tables[name])
    report.problems += [f"{name}: {fault.text}" for fault in faults]
    report.notes += [f"{name}: {note.text}" for note in notes]


def _check_table(
    report: ReplicationReport,
    tables: Mapping[str, TableDefinition],
    name: str,
    rows: Sequence[ReplicationRow],
    site: SiteSettings,
    channels: Sequence[str],
    peer: Peer | None,
) -> None:
    definition, exceptions = tables[name], exceptions_of(name, tables)
    match = find_row(rows, *name.partition(".")[::2], site.server_id)
    setup = set_up(definition, match.row, site, exceptions)
    reported: set[Finding] = set()
    if exceptions is not None:
        # `_check_exceptions` reports these findings.
        _, faults, notes = plan_exceptions(definition, exceptions)
        reported.update([*faults, *notes])
    remarks = [each for each in setup.remarks if each not in reported]
    problems = list(setup.faults)
    problems += [found for found in (check_channels(name, setup, channels),) if found is not None]
    if peer is not None and setup.function is not None:
        found = check_pair(name, list(rows), site.server_id, list(peer.rows), peer.server_id)
        problems += [found] if found is not None else []
    if match.warning is not None:
        remarks.insert(0, match.warning)
    report.problems += [_of(name, each) for each in problems]
    report.notes += [_of(name, each) for each in remarks]
    report.tables.append(_shown(name, setup, match.row))


def _of(table: str, finding: Finding) -> str:
    return finding.text if table in finding.text else f"{table}: {finding.text}"


def _shown(name: str, setup: TableSetup, row: ReplicationRow | None) -> dict[str, Any]:
    function = setup.function
    return {
        "table": name,
        "row": None if row is None else row.key,
        "logged": _logged(setup.binlog),
        "function": None if function is None else row.conflict_fn if row is not None else function.name,
        "exceptions": None if setup.exceptions is None else setup.exceptions.exceptions.name,
    }


def _logged(binlog: BinlogType) -> str:
    if not binlog.is_logged:
        return "not logged"
    images = "minimal images" if binlog.is_minimal else "full images" if binlog.is_full else "changed columns"
    return f"updates as {'updates' if binlog.is_update else 'writes'}, {images}"


def check_replication(
    store: Store, given: Mapping[str, object], channels: Sequence[str], peer: Peer | None
) -> dict[str, Any]:
    """See `Database.check_replication`."""
    options = store.options
    site = SiteSettings.from_options(settings(given), options.gcp_interval_ms, options.epoch_interval_ms)
    definitions = {name: table.definition for name, table in list(store.tables.by_name.items())}
    rows = [row_of(row) for row in replication_rows(store)]
    return check(definitions, rows, site, channels, peer).to_dict()
