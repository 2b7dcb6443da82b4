"""Vectors: lists of independent cases for one rule. The field names of the cases say which rule it is; a field that no
rule knows is an error of its case.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tests.conformance.case_types import NOT_RUN, CaseInvalid, column_of, table_of
from tests.conformance.exceptions_row import Conflict, exceptions_row
from tests.conformance.images import Images
from tests.conformance.judgements import is_in_conflict, read_epoch
from tests.conformance.reset_site import mre_at_a_site
from tests.naive.extra_row_info import variable_header
from tidemark.engine.base.errors import PeerError, Rejected, SchemaInvalid
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.conflict.epochs import EpochVerifier, LastConflict, MaxReplicatedEpoch, starting_epoch
from tidemark.replication.settings.any_value import meaning_of
from tidemark.replication.settings.binlog_type import binlog_type
from tidemark.replication.settings.conflict_function import Role, change_role, compares_epochs, parse
from tidemark.replication.settings.exceptions_table import Cause, OperationType, plan_exceptions
from tidemark.replication.settings.match import ReplicationRow, find_row
from tidemark.replication.settings.setup import SiteSettings, set_up
from tidemark.replication.settings.system_tables import NDB_REPLICATION, NDB_REPLICATION_TABLE, verify

Case = Mapping[str, Any]
BINLOG_EVENTS = "tidemark.replication.binlog.events"


def _epoch(pair: Any) -> int:
    """[high, low] as one number."""
    return int(pair[0]) << 32 | int(pair[1])


class DiffersOnPurpose(Exception):
    """The store differs from NDB in this case, as docs/replication.md says; one line."""


# --- faults ---------------------------------------------------------------------------------------
_WORDS_SHORTEST = 4
_STEM = 5


def _without_remark(text: str) -> str:
    """A message of a case without its additions in brackets."""
    return text.partition(" (")[0]


def is_described(wanted: str, text: str) -> bool:
    """Whether a case means this message: it has the case's text, or, if that is a description, most words of it."""
    wanted, text = _without_remark(wanted).lower(), text.lower()
    words = [word for word in re.findall(r"[^\W_]+", wanted) if len(word) >= _WORDS_SHORTEST]
    has_names = all(name in text for name in re.findall(r"'[^']*'", wanted))
    return wanted in text or (has_names and 2 * sum(word[:_STEM] in text for word in words) > len(words))


# --- rules ----------------------------------------------------------------------------------------
def images(case: Case, file: Case) -> list[str]:
    """Row event images by binlog_type, for the operations the notes name."""
    columns, key = file["table"]["columns"], file["table"]["pk"]
    how, _ = binlog_type(case["binlog_type"])
    values = {"insert": (4, 4, 4), "update": (4, 4, 40), "delete": (2, 2, 2)}
    before = {"update": (4, 4, 4), "delete": (2, 2, 2)}
    made = Images(how)
    found = {
        "insert": made.insert(columns, key),
        "update": made.update(columns, key, ["lp"]),
        "delete": made.delete(columns, key),
    }

    def shown(names: Any, row: Any) -> Any:
        return None if names is None else {name: row[columns.index(name)] for name in names}

    wrong = []
    if not how.is_logged:
        said = [each for each in ("insert", "update", "delete", "update_event") if case.get(each) is not None]
        return [f"{each} is not logged" for each in said]
    for kind, image in found.items():
        event = [image.event, shown(image.before, before.get(kind)), shown(image.after, values[kind])]
        if kind in case and event != case[kind]:
            wrong.append(f"{kind} is {event}")
    event, old, new = found["update"].event, shown(found["update"].before, before["update"]), None
    new = shown(found["update"].after, values["update"]) or {}
    if event != case.get("update_event", event):
        wrong.append(f"update is {event}")
    if old != case.get("update_before", old):
        wrong.append(f"before-image is {old}")
    if not case.get("update_after_includes", {}).items() <= new.items():
        wrong.append(f"after-image is {new}")
    wrong += [f"after-image has {name}" for name in case.get("update_after_excludes", []) if name in new]
    return wrong


def match(case: Case, file: Case) -> list[str]:
    """Which row of ndb_replication is a table's; whatever the order of rows."""
    lookup = file["lookup"]
    rows = [ReplicationRow(row[0], row[1], row[2], None, row[3]) for row in case["rows"]]
    wrong = []
    for order in (rows, rows[::-1]):
        found = find_row(order, lookup["db"], lookup["table_name"], lookup["server_id"])
        chosen = found.row.conflict_fn if found.row else None
        warning = found.warning.rule if found.warning else None
        if (chosen, found.quality, warning) != (case.get("chosen"), case["quality"], case.get("warning")):
            wrong.append(f"found {chosen}, quality {found.quality}, warning {warning}")
    return wrong


def grammar(case: Case, file: Case) -> list[str]:
    """conflict_fn."""
    try:
        function = parse(case["spec"])
    except SchemaInvalid as error:
        if "error" in case:
            return [] if is_described(case["error"], error.message) else [error.message]
        wanted = f"{case['spec']}, {case.get('reason')} at '{case.get('at')}'"
        return [] if error.message == wanted else [error.message]
    found = {"fn": function.name, "arg": function.argument}
    return [] if found == case.get("ok") else [f"parsed as {found}"]


def suitable(case: Case, file: Case) -> list[str]:
    """Set-up of a parsed function on a table."""
    # A store has no MEDIUMINT; another type that no function compares replaces it.
    columns = [column_of(name, text.replace("mediumint", "smallint"), False) for name, text in case["columns"]]
    table = table_of("test", "t1", columns, [case["columns"][0][0]])
    row = ReplicationRow("test", "t1", 0, case.get("binlog_type", 7), case["fn"])
    site = SiteSettings(1, Role.PRIMARY, use_v1_row_events="v1" in str(case))
    setup = set_up(table, row, site, None, "no author bits" not in str(case))
    if case.get("ok"):
        return [] if setup.function is not None else [f"refused: {setup.faults[0]}"]
    wanted = case.get("message") or case["error"]
    reported = [f"{fault.rule} {fault.column} {fault.text}" for fault in setup.faults]
    if setup.function is None and any(is_described(wanted, text) for text in reported):
        return []
    return [f"set-up tells {reported}"]


def replication_table(case: Case, file: Case) -> list[str]:
    """mysql.ndb_replication as users make it, and tables that get no function."""
    columns, key = list(NDB_REPLICATION_TABLE.columns), NDB_REPLICATION_TABLE.primary_key
    if "row" in case:
        table = table_of("test", case["table"], [column_of("a", "int", False)], ["a"])
        row = ReplicationRow(*case["row"])
        found = find_row([row], "test", case["table"], row.server_id).row
        setup = set_up(table, found, SiteSettings(row.server_id))
        return [] if found == row and setup.function is None else ["a function was set up"]
    if case.get("ndb_replication_table_absent"):
        found_match = find_row([], "test", "t1", 1)
        return [] if found_match.row is None and found_match.warning is None else ["a warning is given"]
    if "ndb_replication_pk" in case:
        key = tuple(case["ndb_replication_pk"])
    missing = case.get("ndb_replication_missing")
    kept = tuple(
        replace(column, nullable=column.nullable and column.name not in key)
        for column in columns
        if column.name != missing
    )
    names = {column.name for column in kept}
    # A store has no table without primary key: the rest of the key, or any column, replaces a missing one.
    key = tuple(name for name in key if name in names) or (kept[0].name,)
    faults = verify(TableDefinition(0, 1, NDB_REPLICATION, kept, key))
    reported = [fault.rule for fault in faults]
    wanted = case.get("warning")
    if wanted is None:
        if not case.get("ok"):
            raise CaseInvalid("neither ok nor a warning is expected")
        return [f"told {reported}"] if reported else []
    if any(is_described(wanted, text) for text in reported):
        return []
    # The server warns of some tables and reads them; a store need not warn of what it reads.
    return [] if case.get("ok") and not reported else [f"told {reported}"]


def _exceptions_column(given: Any) -> Column:
    name, text, *rest = given
    return column_of(name, text, bool(rest and rest[0]), rest[1] if len(rest) > 1 else ABSENT)


def exceptions(case: Case, file: Case) -> list[str]:
    """Definitions of exceptions tables, and the row written for a first conflict on a row of ones."""
    columns = [column_of(*text.split(" ", 1), False) for text in case["main"]["cols"]]
    main = table_of("test", "t1", columns, case["main"]["pk"])
    names = [each[0] for each in case["ex"]]
    # Cases do not name the key: it is the four required columns, at any position.
    first = next((at for at, name in enumerate(names) if name.upper().removeprefix("NDB$") == "SERVER_ID"), 0)
    table = table_of("test", "t1$EX", [_exceptions_column(each) for each in case["ex"]], names[first : first + 4])
    plan, faults, _ = plan_exceptions(main, table)
    if not case["ok"]:
        fault = faults[0] if faults else None
        wanted = case.get("message") or case["error"]
        if fault is None or not is_described(wanted, f"{fault.rule} {fault.column} {fault.text}"):
            return [f"first fault is {fault}"]
        return [] if case.get("column") in (None, fault.column) else [f"fault is of column {fault.column}"]
    if plan is None:
        return [f"refused: {faults[0]}"]
    ones = dict.fromkeys(range(len(columns)), 1)
    conflict = Conflict(1, 2, 3, 1, OperationType.WRITE_ROW, Cause.DATA_IN_CONFLICT, None, ones)
    row = dict(zip([column.name for column in table.columns], exceptions_row(plan, conflict), strict=True))
    return [f"{name} is {row[name]!r}" for name, value in case.get("writes", {}).items() if row[name] != value]


def row_epochs(case: Case, file: Case) -> list[str]:
    """Row epochs through few bits."""
    commit, bits = _epoch(case["commit"]), case["bits"]
    wrong = []
    if read_epoch(commit, bits) != _epoch(case["reads_as"]):
        wrong.append(f"reads as {read_epoch(commit, bits):#x}")
    found = is_in_conflict(0, commit, _epoch(case["mre"]), bits)
    if found != case["conflict_if_author_0"]:
        wrong.append(f"conflict is {found}")
    return wrong


def max_replicated(case: Case, file: Case) -> list[str]:
    """Where MRE starts, when it rises, and what an action makes of it; the own id is 2 if a case does not say."""
    if "action" in case:
        return _acted(case, file)
    if "start_mre" in case:
        found = starting_epoch([tuple(row) for row in case["apply_status"]], case["own"], case["ignore"])
        return [] if found == case["start_mre"] else [f"starts at {found}"]
    mre = MaxReplicatedEpoch(case.get("own", 2), frozenset(case.get("ignore", ())), case["mre_before"])
    transaction = case["epoch_transaction"]
    frozen = mre.begin()
    mre.see(transaction["source"], transaction["epoch"])
    for server_id, epoch in transaction["reflected"]:
        mre.see(server_id, epoch)
    wrong = [] if mre.frozen == frozen == case["mre_before"] else ["not frozen while the transaction runs"]
    if case["committed"]:
        mre.commit()
    else:
        mre.roll_back()
    return wrong if mre.value == case["mre_after"] else [*wrong, f"ends at {mre.value}"]


def _acted(case: Case, file: Case) -> list[str]:
    """What a reset or a start makes of the MRE of a real site. Rows of other servers are those of its source."""
    action = str(case["action"]).lower()
    does_reset = "reset" in action or "remov" in action
    if not does_reset and "start" not in action:
        raise CaseInvalid(f"action {case['action']!r} is not known")
    own = case.get("own", 2)
    rows = [tuple(row) for row in case.get("apply_status", [[own, case.get("mre_before", 100)]])]
    functions = [each for each in file.get("functions", ()) if compares_epochs(f"{each}()")]
    before, after = mre_at_a_site(rows, own, case.get("ignore", ()), functions[:1], does_reset)
    if after == case["mre"]:
        return []
    if does_reset and case["mre"] == 0 and before == after:
        reason = "while an epoch function is set" if functions else "since epochs of this site have come back"
        raise DiffersOnPurpose(f"Channel.reset keeps the max replicated epoch {after} {reason}")
    return [f"the max replicated epoch is {after}"]


def verification(case: Case, file: Case) -> list[str]:
    """Incoming epochs."""
    option = case.get("option")
    if option not in (None, "allow_skip_epoch"):
        raise CaseInvalid(f"option {option!r} is not known")
    verifier = EpochVerifier(case["apply_status_epoch"], allow_skip=option is not None)
    for step in case["sequence"]:
        if step == ["commit"]:
            verifier.commit()
        elif step == ["abort"]:
            verifier.roll_back()
        else:
            try:
                found = "ok" if verifier.begin(step[0]) else "warn"
            except PeerError:
                found = "stop"
            if found != step[1]:
                return [f"epoch {step[0]}: {found}"]
    return []


def roles(case: Case, file: Case) -> list[str]:
    """Changes of the conflict role."""
    try:
        change_role(Role[case["frm"]], Role[case["to"]], case["running"])
    except Rejected as error:
        return [] if not case["ok"] and case["error"] in error.message else [error.message]
    return [] if case["ok"] else ["the change is allowed"]


def _states_of_last_conflict(when: str) -> list[dict[str, int]]:
    """Status as it is in the situations the cases name; A's own conflicting change has epoch 10."""
    status = LastConflict()
    epochs = {"max_replicated_epoch": 5, "local commit epoch": 12}
    if when.startswith("conflict handled"):
        status.commit(12, 5, conflicts=1, reflected_applied=0, refreshed=0)
    elif when.startswith("a later clean"):
        status.commit(12, 5, conflicts=1, reflected_applied=0, refreshed=0)
        status.commit(13, 11, 0, 0, 0)  # not confirmed yet: nothing is stable
        if status.last_stable:
            return [{"last_stable_epoch": status.last_stable, "max_replicated_epoch": -1}]
        epochs["max_replicated_epoch"] = 12
        status.commit(14, 12, 0, 0, 0)
    elif when.startswith("secondary realigned"):
        status.commit(12, 5, conflicts=1, reflected_applied=0, refreshed=0)
        status.commit(14, 12, 0, 0, 0)  # brings back the position up to which the secondary has the refreshed rows
        epochs["max_replicated_epoch"] = 12
    elif when.startswith("secondary applies"):
        states = []
        for reflected, refreshed in ((1, 0), (0, 1)):
            one = LastConflict()
            one.commit(12, 5, 0, reflected, refreshed)
            states.append(epochs | {"last_conflict_epoch": one.last_conflict, "last_stable_epoch": one.last_stable})
        return states
    elif not when.startswith("before any"):
        raise CaseInvalid(f"situation {when!r} is not known")
    return [epochs | {"last_conflict_epoch": status.last_conflict, "last_stable_epoch": status.last_stable}]


def last_conflict(case: Case, file: Case) -> list[str]:
    """Relations between status variables in a situation."""
    tests: dict[str, Callable[[int, int], bool]] = {
        " != ": lambda a, b: a != b,
        " >= ": lambda a, b: a >= b,
        " > ": lambda a, b: a > b,
        " = ": lambda a, b: a == b,
    }
    wrong = []
    for status in _states_of_last_conflict(case["when"]):
        if status["last_conflict_epoch"] != case.get("last_conflict_epoch", status["last_conflict_epoch"]):
            wrong.append(f"last_conflict_epoch is {status['last_conflict_epoch']}")
        for relation in case.get("relations", []):
            sign = next(each for each in tests if each in relation)
            left, right = relation.split(sign)
            values = [status[each] if each in status else int(each) for each in (left, right)]
            if not tests[sign](*values):
                wrong.append(f"{relation} is not so: {values}")
    return wrong


def _header(transaction_id: int | None, flags: int | None) -> list[bytes]:
    """The variable header as it should be, and as the binlog writes it."""
    made = [variable_header(transaction_id, flags)]
    try:
        events: Any = importlib.import_module(BINLOG_EVENTS)
    except ModuleNotFoundError:
        return made
    head = events.Rows(0, 1, 1, None, b"\1", b"", 0, transaction_id, flags or 0).parts()[0]
    return [*made, bytes(head[8:-1])]  # after table and flags, before the number of columns


def encodings(case: Case, file: Case) -> list[str]:
    """Any-values and the extra data of row events."""
    if "any_value" in case:
        found = meaning_of(int(case["any_value"], 16), 1).name
        return [] if found == case["meaning"] else [f"means {found}"]
    given = case["transaction_id"]
    headers = _header(int(given, 16) if given else None, case["conflict_flags"])
    return [f"header is {header.hex()}" for header in headers if header.hex() != case["var_header_hex"]]


class Rule(NamedTuple):
    """The function of a rule, and the fields of its cases."""

    run: Callable[[Case, Case], list[str]]
    fields: frozenset[str]


def _rule(run: Callable[[Case, Case], list[str]], fields: str) -> Rule:
    return Rule(run, frozenset(fields.split()))


# Fields of cases of any rule, which say where a case comes from.
REMARKS = frozenset(("recorded", "note", "basis", "basis_notes"))
_IMAGES = _rule(
    images, "binlog_type insert update delete update_event update_before update_after_includes update_after_excludes"
)
_TABLE = _rule(
    replication_table,
    "ndb_replication_pk ndb_replication_missing ndb_replication_table_absent row table ok warning",
)
_EPOCHS = _rule(
    max_replicated, "apply_status own ignore start_mre mre_before epoch_transaction committed mre_after action mre"
)
_CODES = _rule(encodings, "transaction_id conflict_flags var_header_hex any_value meaning")
# By a field that only cases of this rule have.
RULES: dict[str, Rule] = {
    "binlog_type_table": _IMAGES,
    **dict.fromkeys(("chosen", "quality"), _rule(match, "rows chosen quality warning")),
    "spec": _rule(grammar, "spec reason at error ok"),
    "fn": _rule(suitable, "fn columns binlog_type table_property ok message error"),
    **dict.fromkeys(("ndb_replication_pk", "ndb_replication_missing", "ndb_replication_table_absent", "row"), _TABLE),
    "ex": _rule(exceptions, "main ex ok writes message error column"),
    "bits": _rule(row_epochs, "bits commit reads_as mre conflict_if_author_0"),
    **dict.fromkeys(("start_mre", "mre_before", "action"), _EPOCHS),
    "sequence": _rule(verification, "apply_status_epoch sequence option"),
    "frm": _rule(roles, "frm to running ok error"),
    "when": _rule(last_conflict, "when last_conflict_epoch relations"),
    **dict.fromkeys(("var_header_hex", "any_value"), _CODES),
}


def run_vectors(case: Case, on_purpose: list[str] | None = None) -> list[str]:
    """Return what is wrong with the cases of a file, each with its number. A case that cannot be run is wrong, and the
    next one is run. `on_purpose` takes the cases in which the store differs from NDB as its documents say.

    Raises: CaseInvalid for a file without cases.
    """
    wrong = []
    name = case.get("id", "this file")
    if not case["cases"]:
        raise CaseInvalid("there is no case")
    for number, each in enumerate(case["cases"], 1):
        try:
            wrong += [f"case {number}: {reported}" for reported in _run(each, case)]
        except DiffersOnPurpose as found:
            if on_purpose is not None:
                on_purpose.append(f"case {number}: {found}")
        except CaseInvalid as error:
            wrong.append(f"case {number} of {name}: {error}")
        except NOT_RUN as error:
            wrong.append(f"case {number}: {type(error).__name__}: {error}")
    return wrong


def _run(case: Case, file: Case) -> list[str]:
    """Run one case. Raises: CaseInvalid for an unknown rule or field."""
    names = [*case, *(["binlog_type_table"] if "binlog_type" in case and "fn" not in case else [])]
    rule = next((RULES[name] for name in names if name in RULES), None)
    if rule is None:
        raise CaseInvalid(f"no field tells its rule: {', '.join(sorted(case))}")
    unknown = sorted(set(case) - rule.fields - REMARKS)
    if unknown:
        raise CaseInvalid(f"field {unknown[0]!r} is not known")
    return rule.run(case, file)
