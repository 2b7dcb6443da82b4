"""Random scenarios in the format of the cases: the reference model gives the expected end, other sites play them.

`python -m tests.conformance.random_scenarios [--seed N] [--count N] [--sites NAME] [--keep FOLDER]` plays `count` of
them; one that ends differently is kept as a file and reported with its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.model import ModelSite, model_sites
from tests.conformance.scenario import Scenario, Site, parse_scenario, play
from tidemark.engine.schema.column import Column
from tidemark.replication.settings.status import COUNTERS

KEYS = 5
DATABASES = ("test", "shop")
# Name, types of the columns it compares, whether it is for one side of a pair only, whether sites have roles.
FUNCTIONS: tuple[tuple[str, bool, bool, bool], ...] = (
    ("NDB$OLD", True, False, False),
    ("NDB$MAX", True, False, False),
    ("NDB$MAX_DELETE_WIN", True, False, False),
    ("NDB$MAX_INS", True, False, False),
    ("NDB$MAX_DEL_WIN_INS", True, False, False),
    ("TM$GREATEST", True, False, False),
    ("NDB$EPOCH", False, True, False),
    ("NDB$EPOCH_TRANS", False, True, False),
    ("NDB$EPOCH2", False, False, True),
    ("NDB$EPOCH2_TRANS", False, False, True),
)
_PLAIN_TYPES = (
    ("int", lambda r: r.randrange(-9, 9)),
    ("bigint", lambda r: r.choice([-(1 << 63), -1, 0, (1 << 63) - 1])),
    ("smallint unsigned", lambda r: r.randrange(1 << 16)),
    ("varchar(30)", lambda r: r.choice(["", "x", "Straße", "y" * 30])),
    ("varchar(2000)", lambda r: r.choice(["", "long " * 20, "z"])),
    ("char(6)", lambda r: r.choice(["a", "abcdef", "ä"])),
    ("decimal(10,2)", lambda r: r.choice(["1.50", "-3.25", "0.00"])),
    ("double", lambda r: r.choice([0.5, -2.0, 1e30])),
    ("date", lambda r: f"20{r.randrange(10, 30)}-0{r.randrange(1, 9)}-11"),
    ("datetime", lambda r: f"2013-01-02 03:04:{r.randrange(10, 60)}"),
    ("timestamp", lambda r: f"2013-01-02 03:04:{r.randrange(10, 60)}"),
    ("time", lambda r: f"03:04:{r.randrange(10, 60)}"),
    ("varbinary(9)", lambda r: r.choice(["", "bytes", "b"])),
    ("enum('red','green','blue')", lambda r: r.choice(["red", "green", "blue"])),
    ("tinyint", lambda r: r.randrange(-128, 128)),
)
_LOB_TYPES = (("text", lambda r: r.choice(["", "t" * 500])), ("blob", lambda r: r.choice(["", "b" * 500])))
_HEADS = (
    ("NDB$server_id", "NDB$master_server_id", "NDB$master_epoch", "NDB$count"),
    ("NDB$SERVER_ID", "NDB$SOURCE_SERVER_ID", "NDB$SOURCE_EPOCH", "NDB$COUNT"),
    ("ndb$server_id", "ndb$master_server_id", "ndb$master_epoch", "ndb$count"),
)
_PLAIN_HEADS = (
    ("server_id", "master_server_id", "master_epoch", "count"),
    ("server_id", "source_server_id", "source_epoch", "count"),
)
_HEAD_TYPES = ("int unsigned", "int unsigned", "bigint unsigned", "int unsigned")
_KINDS = "enum('WRITE_ROW','UPDATE_ROW','DELETE_ROW','REFRESH_ROW','READ_ROW')"
_CAUSES = "enum('ROW_DOES_NOT_EXIST','ROW_ALREADY_EXISTS','DATA_IN_CONFLICT','TRANS_IN_CONFLICT')"


def _column(name: str, kind: str, nullable: bool = False, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, **more}


class _Table:
    """A table of a scenario, and how its values are made."""

    def __init__(self, r: random.Random, name: str, is_tame: bool) -> None:
        self.name = name
        self.database = r.choice(DATABASES)
        self.makers: dict[str, Any] = {}
        self.columns: list[dict[str, Any]] = []
        self.key = ["a"] if r.random() < 0.7 else r.choice([["a", "k"], ["k", "a"], ["k"]])
        for each in self.key:
            kind = "int" if each == "a" else r.choice(["varchar(20)", "int", "bigint unsigned"])
            self.add(each, kind, (lambda r: f"k{r.randrange(3)}") if "char" in kind else (lambda r: r.randrange(KEYS)))
        if r.random() < 0.85:
            kind = r.choice(["int unsigned", "bigint unsigned"])
            self.add("X", kind, lambda r: r.choice([0, 1, 2, 3, (1 << 32) - 1]), r.random() < 0.3)
        types = _PLAIN_TYPES if is_tame or r.random() < 0.8 else (*_PLAIN_TYPES, *_LOB_TYPES)
        for number in range(r.randrange(1, 4)):
            kind, maker = r.choice(types)
            self.add(f"c{number}", kind, maker, r.random() < 0.6)
        if r.random() < 0.3:
            r.shuffle(self.columns)

    def add(self, name: str, kind: str, maker: Any, nullable: bool = False) -> None:
        self.columns.append(_column(name, kind, nullable))
        self.makers[name] = (lambda r: None if r.random() < 0.2 else maker(r)) if nullable else maker

    @property
    def case(self) -> dict[str, Any]:
        return {"db": self.database, "name": self.name, "columns": self.columns, "pk": self.key}

    def row(self, r: random.Random) -> list[Any]:
        return [self.makers[column["name"]](r) for column in self.columns]

    def others(self) -> list[dict[str, Any]]:
        return [column for column in self.columns if column["name"] not in self.key]

    def exceptions(self, r: random.Random) -> dict[str, Any]:
        """An exceptions table: plain or extended, columns in any order, with columns of its own."""
        is_extended = r.random() < 0.7
        head = r.choice(_HEADS if is_extended else _PLAIN_HEADS)
        columns = [_column(name, kind) for name, kind in zip(head, _HEAD_TYPES, strict=True)]
        keys = [column for column in self.columns if column["name"] in self.key]
        more = [_column(column["name"], column["type"]) for column in keys]
        if not is_extended:
            more.sort(key=lambda column: self.key.index(column["name"]))
            if r.random() < 0.3:
                more.append(_column("remark", "varchar(20)", False, default="open"))
        else:
            more += self._extended(r)
            if r.random() < 0.3:
                del more[r.randrange(len(keys))]
            r.shuffle(more)
        suffix = r.choice(["$EX", "$EX", "$ex"])
        return {"for": self.name, "name": self.name + suffix, "columns": [*columns, *more], "pk": list(head)}

    def _extended(self, r: random.Random) -> list[dict[str, Any]]:
        found = []
        for name, kind, nullable in (
            ("NDB$OP_TYPE", _KINDS, False),
            ("NDB$CFT_CAUSE", _CAUSES, False),
            ("NDB$ORIG_TRANSID", "bigint unsigned", r.random() < 0.5),
        ):
            if r.random() < 0.8:
                found.append(_column(r.choice([name, name.lower()]), kind, nullable))
        for column in self.others():
            for suffix in r.choice([("$OLD",), ("$NEW",), ("$OLD", "$NEW"), ("$old", "$new"), ("",), ()]):
                found.append(_column(column["name"] + suffix, column["type"], True))
        if r.random() < 0.2:
            found.append(_column("remark", "varchar(20)", False, default="open"))
        return found


class Making:
    """A scenario that grows while the model plays it, so that what users do is possible."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.function = r.choice([None, *FUNCTIONS, *FUNCTIONS])
        is_tame = self.function is None or "_TRANS" in self.function[0]
        self.tables = {name: _Table(r, name, is_tame) for name in ("t1", "t2", "t3")[: r.randrange(1, 4)]}
        if self.function is not None and self.function[1]:
            self._has_column(next(iter(self.tables.values())))
        self.case = self._case(seed)
        self.scenario: Scenario = parse_scenario(self.case)
        self.model: Mapping[str, ModelSite] = model_sites(self.scenario.sites)
        self.transactions = 0

    def _has_column(self, table: _Table) -> None:
        if "X" not in table.makers:
            table.add("X", "int unsigned", lambda r: r.randrange(4))

    # --- settings --------------------------------------------------------------------------------
    def _case(self, seed: int) -> dict[str, Any]:
        r = self.r
        ids = r.sample([1, 2, 3, 7, 300, 65_535], 2)
        sites: dict[str, Any] = {name: {"server_id": each} for name, each in zip("AB", ids, strict=True)}
        if self.function is not None and self.function[3]:
            roles = r.choice(
                [("PRIMARY", "SECONDARY")] * 12 + [("NONE", "SECONDARY"), ("PASS", "PASS"), ("PRIMARY",) * 2]
            )
            for site, role in zip(sites.values(), roles, strict=True):
                site["conflict_role"] = role
        for site in sites.values():
            if r.random() < 0.07:
                site["log"] = {"transaction_ids": False}
        case = {
            "format": 1,
            "kind": "scenario",
            "id": f"random-{seed}",
            "sites": sites,
            "circular": r.random() < 0.8,
            "tables": [table.case for table in self.tables.values()],
            "ndb_replication": {name: self._settings(name, sites[name]["server_id"]) for name in "AB"},
            "exceptions_tables": {
                name: [table.exceptions(r) for table in self.tables.values() if r.random() < 0.7] for name in "AB"
            },
            "initial_rows": {},
            "steps": [],
            "final": {},
        }
        self._history(case)
        return case

    def _settings(self, site: str, server_id: int) -> list[dict[str, Any]]:
        r, rows = self.r, []
        for number, table in enumerate(self.tables.values()):
            function = self.function if number == 0 or r.random() < 0.5 else None
            if function is None and r.random() < 0.4:
                continue  # defaults
            spec = None
            if function is not None and (not function[2] or site == "A"):
                argument = "X" if function[1] else r.choice(["", "31", "31", "6", "0"])
                spec = r.choice(["{}({})", "{}({})", " {} ( {} ) "]).format(function[0], argument)
            types = [6, 7, 7, 7, 2, 3, 0, None, 8, 9, 4] if r.random() < 0.5 else [7]
            if r.random() < 0.03:
                types = [1]
            rows.append(
                {
                    "db": r.choice([table.database, table.database[:2] + "%"]),
                    "table_name": r.choice([table.name, table.name, "t_" if len(self.tables) == 1 else table.name]),
                    "server_id": r.choice([0, server_id]),
                    "binlog_type": r.choice(types),
                    "conflict_fn": spec,
                }
            )
        if r.random() < 0.2:  # whatever else matches is worse
            rows.append({"db": "%", "table_name": "%", "server_id": 0, "binlog_type": 7, "conflict_fn": None})
        return rows

    def _history(self, case: dict[str, Any]) -> None:
        r = self.r
        both: dict[str, list[Any]] = {}
        for table in self.tables.values():
            rows: dict[Any, list[Any]] = {}
            for _ in range(r.randrange(5)):
                row = table.row(r)
                rows[tuple(row[self._place(table, name)] for name in table.key)] = row
            both[table.name] = list(rows.values())
            if rows and r.random() < 0.3:
                made = [list(each) for each in r.sample(list(rows), r.randrange(1, len(rows) + 1))]
                case.setdefault("initial_origin_b", {})[table.name] = made
        case["initial_rows"] = {"A": both, "B": both}

    def _place(self, table: _Table, name: str) -> int:
        return [column["name"] for column in table.columns].index(name)

    # --- steps -----------------------------------------------------------------------------------
    def step(self) -> None:
        """Add a step and play it on the model."""
        r = self.r
        site, other = r.choice(["AB", "BA"])
        draw = r.random()
        if draw < 0.6:
            self.transactions += 1
            step = {"do": "commit", "site": site, "txn": f"{site}{self.transactions}", "ops": self._operations(site)}
            if not step["ops"]:
                return
        elif draw < 0.7:
            step = {"do": "epoch", "site": site}
        else:
            step = {"do": "replicate", "from": site, "to": other}
            if r.random() < 0.2:
                step["keep_target_epoch_open"] = True
        self.case["steps"].append(step)
        done = parse_scenario({**self.case, "steps": [step]})
        assert play(Scenario(done.sites, done.steps, {}), lambda _: self.model) == []

    def _operations(self, site: str) -> list[dict[str, Any]]:
        r = self.r
        rows = {name: {self._key_of(name, row): row for row in self._plain_rows(site, name)} for name in self.tables}
        operations: list[dict[str, Any]] = []
        for _ in range(r.choice([1, 1, 2, 3])):
            table = r.choice(list(self.tables.values()))
            operations += self._operation(table, rows[table.name])
        return operations

    def _plain_rows(self, site: str, name: str) -> list[list[Any]]:
        columns: tuple[Column, ...] = self.scenario.sites[site].tables[name].columns
        return [[plain(value) for value in row] for row in self.model[site].rows(name) if len(row) == len(columns)]

    def _key_of(self, name: str, row: list[Any]) -> tuple[Any, ...]:
        table = self.tables[name]
        return tuple(row[self._place(table, each)] for each in table.key)

    def _operation(self, table: _Table, rows: dict[Any, list[Any]]) -> list[dict[str, Any]]:
        r, place = self.r, {"table": table.name}
        row = table.row(r)
        key = self._key_of(table.name, row)
        if key not in rows or r.random() < 0.25:
            if key in rows:
                return []
            rows[key] = list(row)
            return [{"op": "insert", **place, "row": row}]
        of_key = dict(zip(table.key, key, strict=True))
        draw = r.random()
        if draw < 0.2:
            del rows[key]
            return [{"op": "delete", **place, "key": of_key}]
        if draw < 0.35:
            return [{"op": "read_exclusive", **place, "key": of_key, "tracked": r.random() < 0.7}]
        names = [column["name"] for column in table.others()]
        if draw < 0.42 or not names:
            return self._moved(table, rows, key, of_key)
        chosen = r.sample(names, r.randrange(1, len(names) + 1))
        changes = {name: table.makers[name](r) for name in chosen}
        for name, value in changes.items():
            rows[key][self._place(table, name)] = value
        return [{"op": "update", **place, "key": of_key, "set": changes}]

    def _moved(self, table: _Table, rows: dict[Any, list[Any]], key: Any, of_key: Any) -> list[dict[str, Any]]:
        changes = {name: table.makers[name](self.r) for name in table.key}
        moved = tuple(changes.values())
        if moved in rows:
            return []
        row = rows[moved] = rows.pop(key)
        for name, value in changes.items():
            row[self._place(table, name)] = value
        return [{"op": "update", "table": table.name, "key": of_key, "set": changes}]


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode()
    return str(value.replace(tzinfo=None) if hasattr(value, "tzinfo") and hasattr(value, "date") else value)


def make(seed: int, steps: int = 25) -> dict[str, Any]:
    """A scenario; everything the model says about both sites is its expected end."""
    making = Making(seed)
    for _ in range(steps):
        making.step()
    for site, other in ("AB", "BA", "AB"):
        step = {"do": "replicate", "from": site, "to": other}
        making.case["steps"].append(step)
        making.model[site].epoch()
        making.model[other].replicate(making.model[site], False)
    making.case["final"] = {name: _expected(making, name) for name in "AB"}
    return making.case


def _expected(making: Making, name: str) -> dict[str, Any]:
    site = making.model[name]
    found: dict[str, Any] = {
        "rows": {table: [[plain(value) for value in row] for row in site.rows(table)] for table in making.tables},
        "counters": {each: count for each, count in site.counters().items() if each in COUNTERS},
        "exceptions": [{"table": table} for table, _ in site.exceptions()],
    }
    if site.applier_error() is not None:
        found["applier_error"] = site.applier_error()
    return found


# --- comparing ------------------------------------------------------------------------------------
_OF_A_SITE = {"MASTER_EPOCH", "SOURCE_EPOCH", "ORIG_TRANSID", "COUNT"}


def shown(rows: list[tuple[str, dict[str, Any]]]) -> Counter[Any]:
    """Exceptions rows. Each site numbers its own epochs and transactions, but rows of one transaction stay together.
    Rows of one epoch come in any order, so their counts are compared by themselves.
    """
    kept: Counter[Any] = Counter()
    by_transaction: dict[Any, Counter[Any]] = {}
    for table, row in rows:
        own = {name.upper().removeprefix("NDB$"): value for name, value in row.items()}
        kept[table, list(row.values())[3]] += 1
        values = (table, tuple((name, value) for name, value in own.items() if name not in _OF_A_SITE))
        by_transaction.setdefault(own.get("ORIG_TRANSID"), Counter())[values] += 1
        kept[values] += 1
    kept.update(frozenset(each.items()) for transaction, each in by_transaction.items() if transaction is not None)
    return kept


def counts(site: Site) -> dict[str, int]:
    """Its counters; epochs are each site's own."""
    return {name: value for name, value in site.counters().items() if name in COUNTERS}


def differences(case: dict[str, Any], adapter: Any) -> list[str]:
    """Play a scenario step by step on the model and on other sites; return the first difference, and the
    final state.
    """
    scenario = parse_scenario(case)
    model, others = model_sites(scenario.sites), adapter(scenario.sites)
    try:
        for number, step in enumerate(scenario.steps, 1):
            for sites in (model, others):
                play(Scenario(scenario.sites, [step], {}), lambda _, sites=sites: sites)
            for name in scenario.sites:
                wrong = _difference(scenario, name, model[name], others[name])
                if wrong:
                    return [f"step {number} {step}: {name}: {wrong}"]
        return play(Scenario(scenario.sites, [], scenario.final), lambda _: others)
    finally:
        for site in others.values():
            getattr(site, "close", lambda: None)()


def _difference(scenario: Scenario, name: str, model: Site, other: Site) -> str:
    if model.applier_error() != other.applier_error():
        text = f"error {other.applier_error()}, not {model.applier_error()}"
        return f"{text}: {getattr(other, 'stopped_by', '')}"
    for table in scenario.sites[name].tables:
        if Counter(model.rows(table)) != Counter(other.rows(table)):
            return f"{table} has {sorted(map(repr, other.rows(table)))}, not {sorted(map(repr, model.rows(table)))}"
    found, wanted = shown(other.exceptions()), shown(model.exceptions())
    if found != wanted:
        return f"exceptions: {found - wanted}, not {wanted - found}"
    if counts(model) != counts(other):
        both = {each: (counts(other)[each], value) for each, value in counts(model).items()}
        return f"counters { ({each: pair for each, pair in both.items() if pair[0] != pair[1]}) }"
    return ""


def main(arguments: list[str] | None = None) -> int:
    from tests.conformance.runner import ADAPTERS, NOT_RUN

    parser = argparse.ArgumentParser(prog="python -m tests.conformance.random_scenarios", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--sites", choices=sorted(ADAPTERS), default="store")
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args(arguments)
    failed = conflicts = errors = rows = 0
    for seed in range(given.seed, given.seed + given.count):
        case = json.loads(json.dumps(make(seed)))
        final = case["final"].values()
        conflicts += any(any(each["counters"].values()) for each in final)
        errors += any("applier_error" in each for each in final)
        rows += sum(len(each["exceptions"]) for each in final)
        try:
            wrong = differences(case, ADAPTERS[given.sites])
        except NOT_RUN as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            failed += 1
            print(f"seed {seed}: {wrong[0][:2_000]}")
            if given.keep is not None:
                (given.keep / f"random-{seed}.json").write_text(json.dumps(case, indent=1), encoding="utf-8")
    print(f"{given.count} scenarios, {conflicts} with conflicts, {errors} that stop, {rows} exceptions rows")
    print(f"{given.count - failed} equal, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
