"""Rules no case covers, and promises of convergence over random histories, on the reference model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conformance.model import ModelSite, model_sites
from tests.conformance.model_applier import Judge, judge_in_words
from tests.conformance.model_programs import judge_by_program
from tests.conformance.random_scenarios import counts
from tests.conformance.scenario import parse_scenario
from tidemark.replication.settings.conflict_function import FUNCTIONS, FunctionDefinition

INT = {"name": "a", "type": "int", "nullable": False}
TEXT = {"name": "b", "type": "varchar(30)", "nullable": True}
STAMP = {"name": "X", "type": "int unsigned", "nullable": False}


def sites(
    function: str | None,
    on_both: bool = False,
    roles: bool = False,
    binlog_type: int | None = 7,
    columns: tuple[Any, ...] = (INT, TEXT),
    rows: tuple[Any, ...] = (),
    judge: Judge = judge_in_words,
    **more: Any,
) -> dict[str, ModelSite]:
    def settings(is_active: bool) -> list[dict[str, Any]]:
        name = function if is_active else None
        return [{"db": "%", "table_name": "t1", "server_id": 0, "binlog_type": binlog_type, "conflict_fn": name}]

    case = {
        "sites": {"A": {"server_id": 1}, "B": {"server_id": 3}},
        "circular": True,
        "tables": [{"db": "test", "name": "t1", "columns": list(columns), "pk": ["a"]}],
        "ndb_replication": {"A": settings(True), "B": settings(on_both)},
        "initial_rows": {name: {"t1": list(rows)} for name in "AB"},
        "steps": [],
        "final": {},
    }
    case.update(more)
    if roles:
        case["sites"]["A"]["conflict_role"], case["sites"]["B"]["conflict_role"] = "PRIMARY", "SECONDARY"
    return dict(model_sites(parse_scenario(case).sites, judge))


def update(key: int, **values: Any) -> dict[str, Any]:
    return {"op": "update", "table": "t1", "key": {"a": key}, "set": values}


def delete(key: int) -> dict[str, Any]:
    return {"op": "delete", "table": "t1", "key": {"a": key}}


def insert(*row: Any) -> dict[str, Any]:
    return {"op": "insert", "table": "t1", "row": list(row)}


def send(source: ModelSite, target: ModelSite, keep_epoch_open: bool = False) -> None:
    source.epoch()
    target.replicate(source, keep_epoch_open)


def test_change_in_the_epoch_that_reflects_is_a_false_conflict_and_in_the_next_it_is_none() -> None:
    for keep, conflicts in ((True, 1), (False, 0)):
        pair = sites("NDB$EPOCH()", rows=((1, "v"),))
        a, b = pair["A"], pair["B"]
        a.commit("A1", [update(1, b="a")])
        send(a, b, keep_epoch_open=keep)
        b.commit("B1", [update(1, b="b")])
        send(b, a)
        assert a.counters()["conflict_fn_epoch"] == conflicts
        send(a, b)
        assert a.rows("t1") == b.rows("t1") == [(1, "a" if conflicts else "b")]


def test_few_epoch_bits_keep_a_row_in_conflict_until_the_gci_is_confirmed() -> None:
    for bits, conflicts in ((0, 1), (6, 0)):
        pair = sites(f"NDB$EPOCH({bits})", rows=((1, "v"),))
        a, b = pair["A"], pair["B"]
        a.commit("A1", [update(1, b="a")])
        send(a, b)
        send(b, a)
        b.commit("B1", [update(1, b="b")])
        send(b, a)
        assert a.counters()["conflict_fn_epoch"] == conflicts


def test_events_without_transaction_ids_stop_a_transactional_function() -> None:
    pair = sites(
        "NDB$EPOCH_TRANS()", sites={"A": {"server_id": 1}, "B": {"server_id": 3, "log": {"transaction_ids": False}}}
    )
    pair["B"].commit("B1", [insert(1, "b")])
    send(pair["B"], pair["A"])
    assert pair["A"].applier_error() == "REPLICA_CORRUPT_EVENT"
    assert pair["A"].rows("t1") == []
    pair["B"].commit("B2", [insert(2, "b")])
    send(pair["B"], pair["A"])
    assert pair["A"].rows("t1") == [], "it stays stopped"


def test_rejected_transaction_on_a_table_with_text_stops_and_leaves_no_trace() -> None:
    tables = [
        {"db": "test", "name": "t1", "columns": [INT, TEXT], "pk": ["a"]},
        {"db": "test", "name": "notes", "columns": [INT, TEXT | {"type": "text"}], "pk": ["a"]},
    ]
    pair = sites("NDB$EPOCH_TRANS()", tables=tables, rows=((1, "v"),))
    a, b = pair["A"], pair["B"]
    a.commit("A1", [update(1, b="a")])
    b.commit("B1", [update(1, b="b"), {"op": "insert", "table": "notes", "row": [1, "x"]}])
    send(b, a)
    assert a.applier_error() == "EXCEPTIONS_WRITE_ERROR"
    assert a.rows("notes") == [] and a.rows("t1") == [(1, "a")] and not any(counts(a).values())
    assert a.applier.mre.value == a.applier.mre.frozen


@pytest.mark.parametrize(("binlog_type", "found"), [(None, "b"), (2, "b"), (3, "v"), (6, "b"), (7, "v")])
def test_partial_images_leave_what_the_other_site_changed(binlog_type: int | None, found: str) -> None:
    columns = (INT, TEXT, TEXT | {"name": "c"})
    pair = sites(None, binlog_type=binlog_type, columns=columns, rows=((1, "v", "v"),))
    a, b = pair["A"], pair["B"]
    b.commit("B1", [update(1, b="b")])
    a.commit("A1", [update(1, c="a")])
    send(a, b)
    assert b.rows("t1") == [(1, found, "a")]


def test_transaction_is_logged_as_what_it_did_to_each_row() -> None:
    pair = sites(None, rows=((1, "v"), (2, "v")))
    a, b = pair["A"], pair["B"]
    a.commit("A1", [insert(3, "x"), delete(3), update(1, b="w"), update(1, b="u"), update(2, a=4), update(4, b="k")])
    assert [(event.kind, event.key) for event in a.open.events] == [
        ("UPDATE_ROW", (1,)),
        ("DELETE_ROW", (2,)),
        ("WRITE_ROW", (4,)),
    ]
    send(a, b)
    assert sorted(b.rows("t1")) == [(1, "u"), (4, "k")]


def test_tracked_reads_of_both_sites_conflict() -> None:
    pair = sites("NDB$EPOCH_TRANS()", rows=((1, "v"),))
    read = {"op": "read_exclusive", "table": "t1", "key": {"a": 1}, "tracked": True}
    for site in (pair["A"], pair["B"]):
        site.commit("R", [read, insert(site.server_id + 10, "r")])
    send(pair["B"], pair["A"])
    assert pair["A"].counters()["trans_reject_count"] == 1
    send(pair["A"], pair["B"])
    assert sorted(pair["A"].rows("t1")) == sorted(pair["B"].rows("t1")) == [(1, "v"), (11, "r")]


def test_two_idle_sites_fall_silent() -> None:
    pair = sites("NDB$EPOCH2()", on_both=True, roles=True, rows=((1, "v"),))
    pair["A"].commit("A1", [update(1, b="a")])
    pair["B"].commit("B1", [update(1, b="b")])
    for _ in range(6):
        send(pair["A"], pair["B"])
        send(pair["B"], pair["A"])
    sent = [len(site.epochs) for site in pair.values()]
    send(pair["A"], pair["B"])
    send(pair["B"], pair["A"])
    assert [len(site.epochs) for site in pair.values()] == sent


def history(pair: dict[str, ModelSite], r: random.Random, length: int, deletes: bool, stamps: bool) -> None:
    """Random transactions and deliveries, then quiet; with `deletes` False rows are only made and changed."""
    number = 0
    for _ in range(length):
        name = r.choice("AB")
        site, other = pair[name], pair["B" if name == "A" else "A"]
        step = r.random()
        if step < 0.25:
            send(site, other, keep_epoch_open=r.random() < 0.2)
        elif step < 0.4:
            site.epoch()
        else:
            operations = []
            for key in r.sample(range(6), r.randint(1, 3)):
                number += 1
                values = {"b": f"{name}{number}"} | ({"X": r.randint(0, 4)} if stamps else {})
                if (key,) not in site.tables["t1"]:
                    operations.append(insert(key, *values.values()))
                elif deletes and r.random() < 0.4:
                    operations.append(delete(key))
                else:
                    operations.append(update(key, **values))
            site.commit(f"T{number}", operations)
    for _ in range(8):
        send(pair["A"], pair["B"])
        send(pair["B"], pair["A"])
    assert [site.applier_error() for site in pair.values()] == [None, None]


@pytest.mark.parametrize(
    ("function", "deletes"),
    [("NDB$EPOCH()", False), ("NDB$EPOCH_TRANS()", False), ("NDB$EPOCH2()", True), ("NDB$EPOCH2_TRANS()", True)],
)
def test_sites_are_equal_after_quiet(function: str, deletes: bool) -> None:
    """EPOCH and EPOCH_TRANS diverge by design after deletes of one row on both sides; the others do not."""
    for seed in range(60):
        pair = sites(function, on_both="2" in function, roles="2" in function, rows=((0, "v"), (1, "v")))
        history(pair, random.Random(seed), 60, deletes, stamps=False)
        assert sorted(pair["A"].rows("t1")) == sorted(pair["B"].rows("t1")), f"seed {seed}"


def test_greatest_column_makes_sites_equal_though_stamps_are() -> None:
    """With NDB$MAX_INS equal stamps leave the sites different for ever: each refuses the other's row."""
    different = 0
    for seed in range(60):
        found = []
        for function in ("TM$GREATEST(X)", "NDB$MAX_INS(X)"):
            pair = sites(function, on_both=True, columns=(INT, TEXT, STAMP))
            r = random.Random(seed)
            for key in range(6):
                for name, site in pair.items():
                    site.commit("T", [insert(key, f"{name}{r.randint(0, 1)}", r.randint(0, 2))])
                    if r.random() < 0.5:
                        site.epoch()
            for _ in range(3):
                send(pair["A"], pair["B"])
                send(pair["B"], pair["A"])
            found.append(sorted(pair["A"].rows("t1")) == sorted(pair["B"].rows("t1")))
        assert found[0], f"seed {seed}"
        different += not found[1]
    assert different > 30


def test_greatest_column_makes_sites_equal_when_updates_raise_it_and_deletes_are_final() -> None:
    for seed in range(60):
        r = random.Random(seed)
        pair = sites(
            "TM$GREATEST(X)",
            on_both=True,
            columns=(INT, TEXT, STAMP),
            rows=tuple((key, "v", 0) for key in range(6)),
        )
        for number in range(50):
            name = r.choice("AB")
            site, other = pair[name], pair["B" if name == "A" else "A"]
            keys = [key for (key,) in site.tables["t1"]]
            if r.random() < 0.3 or not keys:
                send(site, other)
                continue
            key = r.choice(keys)
            stamp = site.tables["t1"][key,].values["X"] + r.randint(1, 2)
            change = delete(key) if r.random() < 0.1 else update(key, b=f"{name}{r.randint(0, 3)}", X=stamp)
            site.commit(f"T{number}", [change])
        for _ in range(3):
            send(pair["A"], pair["B"])
            send(pair["B"], pair["A"])
        assert sorted(pair["A"].rows("t1")) == sorted(pair["B"].rows("t1")), f"seed {seed}"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.name)
def test_words_and_programs_judge_random_histories_alike(function: FunctionDefinition) -> None:
    argument = "X" if function.argument == "column" else "2"
    is_sided = function.is_epoch and not function.has_roles
    for seed in range(12):
        found = []
        for judge in (judge_in_words, judge_by_program):
            pair = sites(
                f"{function.name}({argument})",
                on_both=not is_sided,
                roles=function.has_roles,
                columns=(INT, TEXT, STAMP),
                rows=((0, "v", 1), (1, "v", 2)),
                judge=judge,
            )
            history(pair, random.Random(seed), 50, deletes=True, stamps=True)
            found.append([(sorted(site.rows("t1")), counts(site)) for site in pair.values()])
        assert found[0] == found[1], f"seed {seed}"


def test_wide_tables_of_a_case_fit_the_limits_of_a_row() -> None:
    """An exceptions table with old and new values of two VARCHAR(2000) columns was refused: 32,032 bytes a row."""
    wide = [TEXT | {"name": f"c{number}", "type": "varchar(2000)"} for number in range(6)]
    pair = sites(None, columns=(INT, TEXT | {"type": "varchar(65000)"}, *wide))
    pair["A"].commit("A1", [insert(1, *"bcdefgh")])
    send(pair["A"], pair["B"])
    assert pair["B"].rows("t1") == [(1, *"bcdefgh")]
