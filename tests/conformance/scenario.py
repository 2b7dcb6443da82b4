"""Scenarios: parsed and checked, then played on sites that an adapter makes; every expectation is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.conformance.case_types import CaseInvalid, table_of_case, value_of
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.settings.conflict_function import Role
from tidemark.replication.settings.match import ReplicationRow
from tidemark.replication.settings.status import BY_NAME, REFLECTED_DISCARDED, REFLECTED_PREPARED

Row = tuple[Any, ...]


@dataclass
class SiteCase:
    """One site of a scenario: its identity, its configuration, its initial rows."""

    name: str
    server_id: int
    role: Role
    log_transaction_ids: bool
    is_circular: bool
    tables: dict[str, TableDefinition]
    replication: list[ReplicationRow]
    exceptions: dict[str, TableDefinition]  # by name of the main table
    rows: dict[str, list[Row]] = field(default_factory=dict)
    # Keys of rows the other side wrote last, by table.
    from_peer: dict[str, set[Row]] = field(default_factory=dict)


@dataclass
class Scenario:
    """A checked case."""

    sites: dict[str, SiteCase]
    steps: list[dict[str, Any]]
    final: dict[str, dict[str, Any]]


class Site(Protocol):
    """What an adapter gives for one site; tables are called by their names without database."""

    def commit(self, transaction: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """One user transaction in the open epoch."""

    def epoch(self) -> None:
        """Close the open epoch."""

    def replicate(self, source: Any, keep_epoch_open: bool) -> None:
        """Apply every epoch of `source` not applied yet, each as one epoch transaction; close the own epoch after each
        one unless it is kept open. Does nothing when the applier has stopped.
        """

    def rows(self, table: str) -> list[Row]:
        """All rows, in any order; values in the order of columns."""

    def exceptions(self) -> list[tuple[str, dict[str, Any]]]:
        """(exceptions table, row by column name) of every row."""

    def counters(self) -> Mapping[str, int]:
        """Counts since the start, and the other status of the applier, by the names of
        `replication/settings/status.py`.
        """

    def applier_error(self) -> str | None:
        """Class of the error the applier has stopped with."""


Adapter = Callable[[Mapping[str, SiteCase]], Mapping[str, Site]]

_OPERATIONS = {
    "insert": {"row"},
    "update": {"key", "set"},
    "delete": {"key"},
    "read_exclusive": {"key"},
}
_STEPS = {"commit": {"site", "txn", "ops"}, "epoch": {"site"}, "replicate": {"from", "to"}, "expect": {"site"}}


def row_of(definition: TableDefinition, row: Any) -> Row:
    """A row of a case as a store gives it: a list in the order of columns, or a mapping, in which NULLs may lack."""
    values = [row.get(column.name) for column in definition.columns] if isinstance(row, Mapping) else row
    return tuple(value_of(column.type, value) for column, value in zip(definition.columns, values, strict=True))


def _columns(definition: TableDefinition, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Values by column name."""
    if values is None:
        return None
    kinds = {column.name.upper(): column.type for column in definition.columns}
    return {
        name: value_of(kinds[name.upper()], value) if name.upper() in kinds else value for name, value in values.items()
    }


class _Parser:
    """Gives values of steps and expectations the types their columns have."""

    def __init__(self, sites: Mapping[str, SiteCase]) -> None:
        self.tables = next(iter(sites.values())).tables
        self.main = {
            table.name.partition(".")[2]: name for site in sites.values() for name, table in site.exceptions.items()
        }

    def operation(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        definition = self.tables[operation["table"]]
        made = dict(operation)
        if "row" in made:
            made["row"] = list(row_of(definition, made["row"]))
        for name in ("key", "set"):
            if name in made:
                made[name] = _columns(definition, made[name])
        return made

    def checks(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(expected)
        if "rows" in made:
            made["rows"] = {
                table: [row_of(self.tables[table], row) for row in rows] for table, rows in made["rows"].items()
            }
        if made.get("exceptions"):
            made["exceptions"] = [self._exception(each) for each in made["exceptions"]]
        return made

    def _exception(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        main = self.main.get(wanted["table"])
        if main is None:
            return dict(wanted)
        images = {name: _columns(self.tables[main], wanted[name]) for name in ("key", "old", "new") if name in wanted}
        return {**wanted, **images}

    def step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        made = self.checks(step) if step["do"] == "expect" else dict(step)
        if "ops" in made:
            made["ops"] = [self.operation(each) for each in made["ops"]]
        return made


def _site(case: Mapping[str, Any], name: str, has_initial: Mapping[str, Any]) -> SiteCase:
    given = case["sites"][name]
    tables = {each["name"]: table_of_case(each.get("db", "test"), each) for each in case["tables"]}
    databases = {each["name"]: each.get("db", "test") for each in case["tables"]}
    exceptions = {
        each["for"]: table_of_case(databases[each["for"]], each)
        for each in case.get("exceptions_tables", {}).get(name, [])
    }
    replication = [
        ReplicationRow(row["db"], row["table_name"], row["server_id"], row.get("binlog_type"), row.get("conflict_fn"))
        for row in case.get("ndb_replication", {}).get(name, [])
    ]
    rows = {table: [row_of(tables[table], row) for row in has_initial.get(table, [])] for table in tables}
    site = SiteCase(
        name,
        given["server_id"],
        Role[given.get("conflict_role", "NONE")],
        given.get("log", {}).get("transaction_ids", True),
        bool(case.get("circular", False)),
        tables,
        replication,
        exceptions,
        rows,
    )
    made_on_b: dict[str, set[Row]] = {table: set() for table in tables}
    for table, keys in case.get("initial_origin_b", {}).items():
        key_columns = [tables[table].columns[at] for at in tables[table].key_positions]
        made_on_b[table] = {
            tuple(
                value_of(column.type, value)
                for column, value in zip(key_columns, key if isinstance(key, list) else [key], strict=True)
            )
            for key in keys
        }
    for table, definition in tables.items():
        keys = {tuple(row[at] for at in definition.key_positions) for row in rows[table]}
        site.from_peer[table] = keys - made_on_b[table] if name == "B" else keys & made_on_b[table]
    return site


def parse_scenario(case: Mapping[str, Any]) -> Scenario:
    """Raises: CaseInvalid, KeyError for missing fields."""
    sites = {name: _site(case, name, case.get("initial_rows", {}).get(name, {})) for name in case["sites"]}
    tables = {each["name"] for each in case["tables"]}
    for number, step in enumerate(case["steps"], 1):
        do = step["do"]
        if do not in _STEPS or not _STEPS[do] <= set(step):
            raise CaseInvalid(f"step {number} is not understood: {step}")
        for name in (step[each] for each in ("site", "from", "to") if each in step):
            if name not in sites:
                raise CaseInvalid(f"step {number} names site {name!r}")
        for operation in step.get("ops", []):
            kind = operation["op"]
            if kind not in _OPERATIONS or not _OPERATIONS[kind] <= set(operation) or operation["table"] not in tables:
                raise CaseInvalid(f"step {number} has an operation that is not understood: {operation}")
    parser = _Parser(sites)
    final = {name: parser.checks(expected) for name, expected in case.get("final", {}).items()}
    return Scenario(sites, [parser.step(step) for step in case["steps"]], final)


def play(scenario: Scenario, adapter: Adapter) -> list[str]:
    """Run the steps; return what differs from the expectations, empty if nothing does."""
    sites = adapter(scenario.sites)
    wrong: list[str] = []
    for number, step in enumerate(scenario.steps, 1):
        do = step["do"]
        if do == "commit":
            sites[step["site"]].commit(step["txn"], step["ops"])
        elif do == "epoch":
            sites[step["site"]].epoch()
        elif do == "replicate":
            source = sites[step["from"]]
            source.epoch()
            sites[step["to"]].replicate(source, bool(step.get("keep_target_epoch_open", False)))
        else:
            wrong += [f"step {number}: {each}" for each in check(scenario, sites, step["site"], step)]
    for name, expected in scenario.final.items():
        wrong += [f"final: {each}" for each in check(scenario, sites, name, expected)]
    return wrong


def check(scenario: Scenario, sites: Mapping[str, Site], name: str, expected: Mapping[str, Any]) -> list[str]:
    """Compare a site with its expected state."""
    site = sites[name]
    wrong = []
    for table, rows in expected.get("rows", {}).items():
        found, wanted = Counter(site.rows(table)), Counter(tuple(row) for row in rows)
        if found != wanted:
            wrong.append(
                f"{name}.{table} lacks {sorted((wanted - found), key=repr)}, has {sorted((found - wanted), key=repr)}"
            )
    if "exceptions" in expected:
        wrong += [f"{name}: {each}" for each in _check_exceptions(site, expected["exceptions"])]
    if expected.get("counters"):
        wrong += [f"{name}: {each}" for each in _check_counters(site.counters(), expected["counters"])]
    if site.applier_error() != expected.get("applier_error"):
        wrong.append(f"{name}: applier error is {site.applier_error()}, not {expected.get('applier_error')}")
    return wrong


def _check_counters(found: Mapping[str, int], expected: Mapping[str, Any]) -> list[str]:
    wrong = []
    for name, wanted in expected.items():
        variable = BY_NAME.get(name.lower().removeprefix("ndb_"))
        if name == "reflected_ops_applied":
            value = found[REFLECTED_PREPARED] - found[REFLECTED_DISCARDED]
        elif variable is None or variable.name not in found:
            wrong.append(f"there is no counter {name}")
            continue
        else:
            value = found[variable.name]
        if not (value > 0 if wanted == ">0" else value == wanted):
            wrong.append(f"counter {name} is {value}, not {wanted}")
    return wrong


def _check_exceptions(site: Site, expected: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every expected row has a match of its own, and no other row is left."""
    left = site.exceptions()
    wrong = []
    # Expected rows with more detail choose first.
    for wanted in sorted(expected, key=lambda each: -len(str(each))):
        found = next((each for each in left if _is_row(each, wanted)), None)
        if found is None:
            wrong.append(f"no exceptions row is {dict(wanted)}")
        else:
            left.remove(found)
    return wrong + [f"unexpected exceptions row {each}" for each in left]


def _is_row(found: tuple[str, dict[str, Any]], wanted: Mapping[str, Any]) -> bool:
    table, row = found
    values = {name.upper(): value for name, value in row.items()}
    count = list(row.values())[3]
    if table != wanted["table"] or count != wanted.get("count", count):
        return False
    # A plain table has no columns for operation and cause.
    for column, key in (("NDB$OP_TYPE", "op"), ("NDB$CFT_CAUSE", "cause")):
        if key in wanted and values.get(column, wanted[key]) != wanted[key]:
            return False
    if any(values.get(name.upper(), value) != value for name, value in wanted.get("key", {}).items()):
        return False
    for key, suffix in (("old", "$OLD"), ("new", "$NEW")):
        if key not in wanted:
            continue
        image = wanted[key]
        if image is None:
            if any(value is not None for name, value in values.items() if name.endswith(suffix)):
                return False
        elif any(_shown(values, name.upper(), suffix) != value for name, value in image.items()):
            return False
    return True


def _shown(values: Mapping[str, Any], name: str, suffix: str) -> Any:
    """The value of a reference column, or of the plain one where there is none."""
    return values.get(name + suffix, values.get(name))
