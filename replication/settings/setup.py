"""The set-up of a table's conflict function: what the function requires of the table, the settings and the channel.

After a fault the table has no function: set-up warns and continues, as the server does. After a remark the function is
active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX, is_system_table
from tidemark.engine.types import UInt32, UInt64
from tidemark.replication.settings import binlog_type as b
from tidemark.replication.settings.conflict_function import COLUMN, ConflictFunction, Role, parse, sizing_warning
from tidemark.replication.settings.exceptions_table import ExceptionsPlan, plan_exceptions
from tidemark.replication.settings.finding import ER_CONFLICT_FN_PARSE, Finding
from tidemark.replication.settings.match import ReplicationRow, find_row

RESOLVE_TYPES = (UInt32, UInt64)
T = TypeVar("T")


@dataclass(frozen=True)
class SiteSettings:
    """The options of a site that set-up needs."""

    server_id: int
    role: Role = Role.NONE
    log_updated_only: bool = True
    log_update_as_write: bool = True
    log_update_as_minimal: bool = False
    use_v1_row_events: bool = False
    gcp_interval_ms: int = 2_000
    epoch_interval_ms: int = 100

    @classmethod
    def from_options(cls, values: Mapping[str, Any], gcp_interval_ms: int, epoch_interval_ms: int) -> SiteSettings:
        """Return the settings. values: those of `options.settings`. The intervals are those of the store."""
        return cls(
            values["server_id"],
            values["conflict_role"],
            values["log_updated_only"],
            values["log_update_as_write"],
            values["log_update_as_minimal"],
            values["log_bin_use_v1_row_events"],
            gcp_interval_ms,
            epoch_interval_ms,
        )


@dataclass(frozen=True)
class TableSetup:
    """How a table is logged, and how its conflicts are handled. function: None means that changes are applied
    idempotently, without detection of conflicts. resolve_position: that of the resolve column in the definition.
    exceptions: the plan of exceptions rows, None without a usable exceptions table. faults: why a requested function is
    not active.
    """

    binlog: b.BinlogType
    function: ConflictFunction | None = None
    resolve_position: int | None = None
    exceptions: ExceptionsPlan | None = None
    faults: tuple[Finding, ...] = ()
    remarks: tuple[Finding, ...] = ()

    @property
    def is_transactional(self) -> bool:
        """Whether one conflict rejects a whole transaction."""
        return self.function is not None and self.function.definition.is_transactional


def is_exceptions_name(table: str) -> bool:
    """Return whether a table of this name is an exceptions table, which never has a conflict function itself."""
    return table.lower().endswith(EXCEPTIONS_SUFFIX.lower()) and len(table) > len(EXCEPTIONS_SUFFIX)


def exceptions_of(name: str, tables: Mapping[str, T]) -> T | None:
    """Return the exceptions table of table `name`, None if there is none. Names are qualified by a database."""
    return tables.get(name + EXCEPTIONS_SUFFIX, tables.get(name + EXCEPTIONS_SUFFIX.lower()))


def check_exceptions(exceptions: TableDefinition, main: TableDefinition | None) -> list[Finding]:
    """Return the findings when an exceptions table is created: its faults, which would otherwise show at the first
    conflict, and a note that it takes effect at the next set-up of its main table. Empty if the main table does not
    exist yet.
    """
    if main is None:
        return []
    _, faults, notes = plan_exceptions(main, exceptions)
    text = (
        f"exceptions table {exceptions.name} takes effect at the next set-up of {main.name}, when the store is opened"
    )
    return [*faults, *notes, Finding("takes effect at the next set-up", text)]


def find_faults(
    function: ConflictFunction, table: TableDefinition, binlog: b.BinlogType, site: SiteSettings, has_author: bool
) -> list[Finding]:
    """Return why the function cannot be used with the table, in the order of the server's checks; empty if it can."""
    name = function.name
    faults = []
    if function.definition.argument == COLUMN:
        column = next((each for each in table.columns if each.name == function.column), None)
        if column is None:
            faults.append(
                Finding(
                    "could not find resolve column",
                    f"Could not find resolve column {function.column}.",
                    function.column,
                )
            )
        elif column.type not in RESOLVE_TYPES:
            faults.append(Finding("wrong datatype", f"Column '{column.name}' has wrong datatype", column.name))
        # An update sent as a write would bring back a row that was deleted in the meantime.
        if name == "TM$GREATEST" and not (binlog.is_full and binlog.is_update and not binlog.is_minimal):
            text = f"Table {table.name} is not logged as full updates. Not suitable for {name}; give binlog_type 7"
            faults.append(Finding("needs updates with full images", text))
        return faults
    if function.definition.has_roles and not binlog.is_update:
        text = f"Table {table.name} configured to log updates as writes.  Not suitable for {name}."
        faults.append(Finding("configured to log updates as writes", text))
    lob = next((each for each in table.columns if each.type.is_lob), None)
    if lob is not None:
        text = f"Table has Blob column(s), not suitable for {name}."
        faults.append(Finding("table has blob columns", text, lob.name))
    if not has_author:
        faults.append(Finding("no extra row author bits", "No extra row author bits in table."))
    if function.definition.is_transactional and site.use_v1_row_events:
        text = f"Row events of version 1 carry no transaction ids. Not suitable for {name}; turn the option off"
        faults.append(Finding("version 1 row events", text))
    return faults


def _remarks(
    function: ConflictFunction, binlog: b.BinlogType, site: SiteSettings, plan: ExceptionsPlan | None
) -> list[Finding]:
    definition = function.definition
    remarks = []
    if definition.is_epoch:
        sizing = sizing_warning(function.bits, site.gcp_interval_ms, site.epoch_interval_ms)
        remarks += [sizing] if sizing else []
    if definition.has_roles and site.role == Role.NONE:
        text = f"conflict role is NONE: the applier stops at the first change that {function.name} decides; set a role"
        remarks.append(Finding("no conflict role", text))
    if binlog.is_minimal and binlog.is_update and not definition.has_roles:
        text = f"binlog_type 8 or 9 leaves columns out that {function.name} needs in before-images; give 7"
        remarks.append(Finding("minimal images", text))
    if definition.argument == COLUMN and not binlog.is_update and not definition.decides_inserts:
        text = (
            f"updates are logged as writes, which {function.name} at another site refuses as inserts of rows that"
            " exist; give binlog_type 7"
        )
        remarks.append(Finding("updates logged as writes", text))
    elif definition.argument == COLUMN and not (binlog.is_full or binlog.is_minimal or definition.ignores_old_value):
        text = (
            f"deletes are logged with their keys alone, so {function.name} at another site cannot compare"
            f" {function.column}; give binlog_type 7"
        )
        remarks.append(Finding("deletes without images", text))
    if definition.wants_exceptions_table and plan is None:
        text = f"no usable exceptions table: {function.name} rejects rows without recording them"
        remarks.append(Finding("no exceptions table", text))
    return remarks


def set_up(
    table: TableDefinition,
    row: ReplicationRow | None,
    site: SiteSettings,
    exceptions: TableDefinition | None = None,
    has_author: bool = True,
) -> TableSetup:
    """Return the set-up of a table by its row of `mysql.ndb_replication`; None stands for the defaults."""
    options = (site.log_updated_only, site.log_update_as_write, site.log_update_as_minimal)
    binlog, unknown = b.binlog_type(row.binlog_type if row else None, *options)
    remarks = [unknown] if unknown else []
    plain = TableSetup(binlog, remarks=tuple(remarks))
    database, _, name = table.name.partition(".")
    if is_exceptions_name(name):
        if row is not None and row.conflict_fn is not None:
            text = f"Table {table.name} is exceptions table: not using conflict function {row.conflict_fn}"
            remarks.append(Finding("exceptions table", text))
        return TableSetup(binlog, remarks=tuple(remarks))
    plan = None
    if exceptions is not None:
        plan, faults, notes = plan_exceptions(table, exceptions)
        remarks += [*faults, *notes]
    if row is None or row.conflict_fn is None:
        return TableSetup(binlog, exceptions=plan, remarks=tuple(remarks))
    try:
        function = parse(row.conflict_fn)
    except SchemaInvalid as error:
        text = f"Error in parsing conflict function. Message: {error.message}"
        fault = Finding(str(error.evidence["reason"]), text, "conflict_fn", ER_CONFLICT_FN_PARSE)
        return TableSetup(binlog, exceptions=plan, faults=(fault,), remarks=plain.remarks)
    faults = find_faults(function, table, binlog, site, has_author)
    if faults:
        return TableSetup(binlog, exceptions=plan, faults=tuple(faults), remarks=tuple(remarks))
    position = table.position(function.column) if function.definition.argument == COLUMN else None
    remarks += _remarks(function, binlog, site, plan)
    return TableSetup(binlog, function, position, plan, (), tuple(remarks))


def check_pair(
    table: str, own_rows: list[ReplicationRow], own_id: int, peer_rows: list[ReplicationRow], peer_id: int
) -> Finding | None:
    """Return why the functions of two sites cannot both be active for `database.table`, None if they can. EPOCH and
    EPOCH_TRANS make their site the primary, so only one of the two may have such a function; the finding names both
    rows. EPOCH2 works with roles, and belongs on both sites.
    """
    database, _, name = table.partition(".")
    found = []
    for rows, server_id in ((own_rows, own_id), (peer_rows, peer_id)):
        row = find_row(rows, database, name, server_id).row
        function = parse(row.conflict_fn) if row is not None and row.conflict_fn is not None else None
        found.append((row, function.definition if function else None))
    (own, ours), (peer, theirs) = found
    if own is None or peer is None or ours is None or theirs is None:
        return None
    one_sided = [each for each in (ours, theirs) if each.is_epoch and not each.has_roles]
    if not one_sided or not (ours.is_epoch and theirs.is_epoch):
        return None
    text = (
        f"{ours.name} of row {own.key} here and {theirs.name} of row {peer.key} at server {peer_id} both make"
        f" their site the primary of {table}; keep one of them"
    )
    return Finding("both sides detect", text)


def check_channels(table: str, setup: TableSetup, channels: Sequence[str]) -> Finding | None:
    """Return why a table's function cannot be active with these channels, None if it can. A function that compares
    epochs needs a single channel, because it compares with the epochs of one peer.
    """
    if setup.function is None or not setup.function.definition.is_epoch or len(channels) <= 1:
        return None
    text = (
        f"{setup.function.name} of {table} compares epochs with one peer, but channels {', '.join(sorted(channels))}"
        " apply it; keep one of them"
    )
    return Finding("several channels", text)


def check_functions(
    tables: Mapping[str, TableDefinition],
    rows: Sequence[ReplicationRow],
    site: SiteSettings,
    channels: Sequence[str],
    peer: tuple[Sequence[ReplicationRow], int] | None = None,
) -> None:
    """Refuse channels that the conflict functions of a site's tables do not allow. `rows` are those of
    `mysql.ndb_replication`, `channels` the names of all channels that will apply here, `peer` the rows and the server
    id of the other side of a pair, if known. Raises: SchemaInvalid, naming the rows, or the channels, and the table.
    """
    if not any(row.conflict_fn is not None for row in rows):
        return
    for name, definition in tables.items():
        if is_system_table(name):
            continue
        row = find_row(rows, *name.partition(".")[::2], site.server_id).row
        if row is None or row.conflict_fn is None:
            continue
        setup = set_up(definition, row, site, exceptions_of(name, tables))
        if setup.function is None:
            continue
        finding = check_channels(name, setup, channels)
        if finding is None and peer is not None:
            finding = check_pair(name, list(rows), site.server_id, list(peer[0]), peer[1])
        if finding is not None:
            raise SchemaInvalid(finding.text, table=name, rule=finding.rule)
