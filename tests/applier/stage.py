"""Pairs of sites of a scenario, as reference model and as stores, and random histories run on both."""

from __future__ import annotations

import random
from typing import Any

from tests.conformance.model import ModelSite, model_sites
from tests.conformance.random_scenarios import counts, shown
from tests.conformance.scenario import SiteCase, parse_scenario
from tests.conformance.store_site import StoreSite, store_sites
from tidemark.replication.applier.applier import ApplierOptions

INT = {"name": "a", "type": "int", "nullable": False}
TEXT = {"name": "b", "type": "varchar(30)", "nullable": True}
STAMP = {"name": "X", "type": "int unsigned", "nullable": False, "default": 0}
COLUMNS = [INT, TEXT, STAMP]
KEYS = 6
HEAD = [
    {"name": "NDB$server_id", "type": "int unsigned", "nullable": False},
    {"name": "NDB$master_server_id", "type": "int unsigned", "nullable": False},
    {"name": "NDB$master_epoch", "type": "bigint unsigned", "nullable": False},
    {"name": "NDB$count", "type": "int unsigned", "nullable": False},
    {
        "name": "NDB$OP_TYPE",
        "type": "enum('WRITE_ROW','UPDATE_ROW','DELETE_ROW','REFRESH_ROW','READ_ROW')",
        "nullable": False,
    },
    {
        "name": "NDB$CFT_CAUSE",
        "type": "enum('ROW_DOES_NOT_EXIST','ROW_ALREADY_EXISTS','DATA_IN_CONFLICT','TRANS_IN_CONFLICT')",
        "nullable": False,
    },
    {"name": "NDB$ORIG_TRANSID", "type": "bigint unsigned", "nullable": True},
    {"name": "a", "type": "int", "nullable": False},
    {"name": "b$OLD", "type": "varchar(30)", "nullable": True},
    {"name": "b$NEW", "type": "varchar(30)", "nullable": True},
    {"name": "X$OLD", "type": "int unsigned", "nullable": True},
    {"name": "X$NEW", "type": "int unsigned", "nullable": True},
]
# name of the function, whether both sites have it, whether the sites have roles, its binlog types
FUNCTIONS: list[tuple[str | None, bool, bool, tuple[int, ...]]] = [
    (None, False, False, (2, 3, 6, 7, 8, 9)),
    ("NDB$OLD(X)", True, False, (7,)),
    ("NDB$MAX(X)", True, False, (6, 7)),
    ("NDB$MAX_DELETE_WIN(X)", True, False, (2, 3, 6, 7)),
    ("NDB$MAX_INS(X)", True, False, (2, 7)),
    ("NDB$MAX_DEL_WIN_INS(X)", True, False, (2, 3, 7)),
    ("TM$GREATEST(X)", True, False, (7,)),
    ("NDB$EPOCH(31)", False, False, (2, 3, 6, 7)),
    ("NDB$EPOCH_TRANS(31)", False, False, (3, 6, 7)),
    ("NDB$EPOCH2(31)", True, True, (6, 7, 8)),
    ("NDB$EPOCH2_TRANS(31)", True, True, (6, 7)),
]


def cases(function: str | None, on_both: bool, roles: bool, binlog_type: int, rows: int = 4) -> dict[str, SiteCase]:
    """Return two sites with t1, which has the function, and t2, which has none; the initial rows are A's own."""
    initial = [[key, f"v{key}", key] for key in range(rows)]

    def settings(name: str | None) -> list[dict[str, Any]]:
        return [
            {"db": "test", "table_name": "t1", "server_id": 0, "binlog_type": binlog_type, "conflict_fn": name},
            {"db": "test", "table_name": "t2", "server_id": 0, "binlog_type": binlog_type, "conflict_fn": None},
        ]

    exceptions = [{"name": "t1$EX", "for": "t1", "columns": HEAD, "pk": [each["name"] for each in HEAD[:4]]}]
    case = {
        "sites": {"A": {"server_id": 1}, "B": {"server_id": 3}},
        "circular": True,
        "tables": [{"db": "test", "name": name, "columns": COLUMNS, "pk": ["a"]} for name in ("t1", "t2")],
        "ndb_replication": {"A": settings(function), "B": settings(function if on_both else None)},
        "exceptions_tables": {"A": exceptions, "B": exceptions if on_both else []},
        "initial_rows": {name: {"t1": initial, "t2": initial} for name in "AB"},
        "steps": [],
        "final": {},
    }
    if roles:
        for name, role in (("A", "PRIMARY"), ("B", "SECONDARY")):
            case["sites"][name]["conflict_role"] = role  # type: ignore[index]
    return parse_scenario(case).sites


class Pair:
    """The same two sites twice: `model` and `stores`."""

    def __init__(self, sites: dict[str, SiteCase], options: ApplierOptions | None = None) -> None:
        self.model: dict[str, ModelSite] = dict(model_sites(sites))
        self.stores: dict[str, StoreSite] = dict(store_sites(sites, options))
        self.stamp = 100

    def commit(self, site: str, operations: list[dict[str, Any]]) -> None:
        self.model[site].commit("", operations)
        self.stores[site].commit("", operations)

    def epoch(self, site: str) -> None:
        self.model[site].epoch()
        self.stores[site].epoch()

    def send(self, source: str, target: str, keeps_open: bool = False) -> None:
        for sites in (self.model, self.stores):
            sites[source].epoch()
            sites[target].replicate(sites[source], keeps_open)

    def random_operations(self, r: random.Random, site: str) -> list[dict[str, Any]]:
        """Return a transaction that the site's rows allow; it touches each key once, like the events of an epoch."""
        operations = []
        for table in r.choice([["t1"], ["t1"], ["t2"], ["t1", "t2"]]):
            rows = self.model[site].tables[table]
            for key in r.sample(range(KEYS), r.randrange(1, 3)):
                place = {"table": table, "key": {"a": key}}
                self.stamp += 1
                stamp = self.stamp if r.random() < 0.7 else r.randrange(self.stamp)
                text = r.choice([None, "x", "y", f"{site}{self.stamp}"])
                if (key,) not in rows:
                    operations.append({"op": "insert", "table": table, "row": [key, text, stamp]})
                elif (draw := r.random()) < 0.25:
                    operations.append({"op": "delete", **place})
                elif draw < 0.35:
                    operations.append({"op": "read_exclusive", "tracked": True, **place})
                else:
                    changes = {"b": text, "X": stamp} if r.random() < 0.8 else {"b": text}
                    operations.append({"op": "update", "set": changes, **place})
        return operations

    def step(self, r: random.Random) -> None:
        site = r.choice("AB")
        draw = r.random()
        if draw < 0.6:
            self.commit(site, self.random_operations(r, site))
        elif draw < 0.7:
            self.epoch(site)
        else:
            source, target = r.choice(["AB", "BA"])
            self.send(source, target, r.random() < 0.2)

    def compare(self, where: str) -> None:
        for name in "AB":
            model, store = self.model[name], self.stores[name]
            assert store.applier_error() == model.applier_error(), (
                f"{where}, {name}: {getattr(store, 'stopped_by', '')}"
            )
            for table in ("t1", "t2"):
                assert sorted(store.rows(table)) == sorted(model.rows(table)), f"{where}, {name}.{table}"
            assert shown(store.exceptions()) == shown(model.exceptions()), f"{where}, {name}"
            assert counts(store) == counts(model), f"{where}, {name}"

    def close(self) -> None:
        for site in self.stores.values():
            site.close()


def play(pair: Pair, seed: int, steps: int) -> int:
    """Run a random history; both must agree after every step. Return the number of conflicts."""
    r = random.Random(seed)
    try:
        for step in range(steps):
            pair.step(r)
            pair.compare(f"seed {seed}, step {step}")
            if any(site.applier_error() for site in pair.model.values()):
                break
        return sum(sum(counts(site).values()) for site in pair.model.values())
    finally:
        pair.close()
