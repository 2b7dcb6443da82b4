"""Every case passes; the runner notices what is wrong; the model plays rules that no case covers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main
from tests.conformance.model import model_sites
from tests.conformance.runner import run_file
from tests.conformance.scenario import parse_scenario, play
from tests.conformance.vectors import run_vectors

CASES = sorted((Path(__file__).parent / "cases").rglob("*.json"))


def loaded(name: str) -> dict[str, Any]:
    return json.loads(next(path for path in CASES if path.stem == name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_passes(path: Path) -> None:
    assert run_file(path, "model") == []


@pytest.mark.parametrize("path", [each for each in CASES if each.stem[:3] != "vec"], ids=lambda path: path.stem)
def test_scenario_passes_when_the_interpreted_programs_judge(path: Path) -> None:
    assert run_file(path, "model-programs") == []


@pytest.mark.parametrize("path", [each for each in CASES if each.stem[:3] != "vec"], ids=lambda path: path.stem)
def test_scenario_passes_on_real_stores(path: Path) -> None:
    assert run_file(path, "store") == []


def test_runner_prints_a_line_for_each_file_and_a_count(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "newer.json").write_text(json.dumps(loaded("old-01") | {"format": 2}), encoding="utf-8")
    (tmp_path / "step.json").write_text(json.dumps(loaded("old-01") | {"steps": [{"do": "wait"}]}), encoding="utf-8")
    (tmp_path / "rule.json").write_text(json.dumps(loaded("vec-02") | {"cases": [{"x": 1}]}), encoding="utf-8")
    good = next(path for path in CASES if path.stem == "old-01")
    assert main([str(tmp_path), str(good)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scenarios are played on: model, store"
    assert [line[:4] for line in lines[1:-1]] == ["FAIL"] * 4 + ["pass"]
    assert lines[-1] == "1 passed, 4 failed"
    assert main([str(good)]) == 0


FIELDS: dict[str, dict[str, Any]] = {
    "ok without warning": {"ndb_replication_missing": "conflict_fn", "ok": "accepted"},
    "ok beside warning": {
        "ndb_replication_missing": "conflict_fn",
        "ok": True,
        "warning": "Missing or wrong type for column 'conflict_fn'",
    },
    "warning beside ok": {
        "ndb_replication_missing": "binlog_type",
        "ok": False,
        "warning": "Missing or wrong type for column 'binlog_type'",
    },
    "start": {"action": "START REPLICA", "apply_status": [[2, 111], [3, 222]], "own": 2, "ignore": [3], "mre": 222},
    "reset without a function": {"action": "RESET REPLICA", "apply_status": [[3, 9]], "ignore": [3], "mre": 0},
    "skip": {
        "apply_status_epoch": 50,
        "option": "allow_skip_epoch",
        "sequence": [[60, "ok"], ["abort"], [61, "warn"]],
    },
    "no row": {"rows": [["other", "t1", 1, "f"]], "quality": -1},
    "described parse error": {"spec": "NDB$MAX()", "error": "an argument is missing"},
    "described set-up error": {"fn": "NDB$MAX(X)", "columns": [["a", "int"]], "error": "resolve column not found"},
    "described exceptions table": {
        "main": {"cols": ["a int"], "pk": ["a"]},
        "ex": [["server_id", "int"], ["s", "int unsigned"], ["e", "bigint unsigned"], ["c", "int unsigned"]],
        "ok": False,
        "error": "definition of the initial columns is wrong",
    },
    "situation": {
        "when": "secondary realigned and its position reflected back",
        "relations": ["last_stable_epoch = max_replicated_epoch", "max_replicated_epoch >= last_conflict_epoch"],
    },
}
FILE = {"id": "made", "kind": "vectors", "lookup": {"db": "test", "table_name": "t1", "server_id": 1}}


@pytest.mark.parametrize("name", FIELDS)
def test_field_of_other_files_is_known(name: str) -> None:
    """Story: files of this format had fields that the runner did not know. It stopped at the first one with KeyError,
    and no other case of the file was run.
    """
    assert run_vectors(FILE | {"cases": [FIELDS[name]]}) == []


def test_unknown_field_is_named_and_the_other_cases_run(tmp_path: Path, capsys: Any) -> None:
    """Story: an unknown field was ignored, so the case passed without it."""
    ends = {"apply_status_epoch": 50, "sequence": [[60, "stop"]]}
    cases = [FIELDS["no row"] | {"hint": 1}, FIELDS["skip"] | {"option": "x"}, {"frm": "NO", "to": "PASS"}, ends]
    path = tmp_path / "made.json"
    path.write_text(json.dumps(FILE | {"cases": cases}), encoding="utf-8")
    assert main([str(path)]) == 1
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("FAIL"))
    for said in (
        f"{path}  case 1 of made: field 'hint' is not known",
        "case 2 of made: option 'x' is not known",
        "case 3: KeyError: 'NO'",
        "case 4: epoch 60: ok",
    ):
        assert said in line


@pytest.mark.parametrize("name", ["described parse error", "described set-up error", "described exceptions table"])
def test_other_description_is_noticed(name: str) -> None:
    assert run_vectors(FILE | {"cases": [FIELDS[name] | {"error": "too many bits"}]}) != []


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("ok without warning", "ndb_replication_missing", "server_id"),
        ("ok beside warning", "ndb_replication_missing", "server_id"),
        ("start", "mre", 111),
        ("skip", "option", None),
        ("no row", "quality", 1),
    ],
)
def test_wrong_expectation_of_such_a_field_is_noticed(name: str, field: str, value: Any) -> None:
    assert run_vectors(FILE | {"cases": [FIELDS[name] | {field: value}]}) != []


def test_case_in_which_the_store_differs_on_purpose_says_so(tmp_path: Path, capsys: Any) -> None:
    case = {"action": "RESET REPLICA", "apply_status": [[2, 111]], "own": 2, "mre": 0}
    path = tmp_path / "made.json"
    path.write_text(json.dumps(FILE | {"functions": ["NDB$EPOCH"], "cases": [case]}), encoding="utf-8")
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "differs on purpose: case 1: Channel.reset keeps the max replicated epoch 111" in said
    path.write_text(json.dumps(FILE | {"functions": ["NDB$EPOCH"], "cases": [case | {"mre": 7}]}), encoding="utf-8")
    assert main([str(path)]) == 1


def edits(case: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of numbers and strings in the expectations of a case."""
    if isinstance(case, dict):
        return [found for key, value in case.items() for found in edits(value, (*where, key))]
    if isinstance(case, list):
        return [found for key, value in enumerate(case) for found in edits(value, (*where, key))]
    return [where] if isinstance(case, (int, str)) and not isinstance(case, bool) else []


@pytest.mark.parametrize("name", ["old-07", "ep-09a", "et-01", "et-13", "e2-12", "mdwi-05", "max-09"])
def test_any_wrong_expectation_of_a_scenario_is_noticed(name: str) -> None:
    """The cases alone cannot expose a runner that accepts anything, so each number and string of an expectation is
    changed.
    """
    case = loaded(name)
    for where in edits(case["final"]):
        bad = copy.deepcopy(case)
        place = bad["final"]
        for key in where[:-1]:
            place = place[key]
        value = place[where[-1]]
        place[where[-1]] = value + 1 if isinstance(value, int) else value + "?"
        assert play(parse_scenario(bad), model_sites) != [], where


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("vec-01", "update", ["WRITE_ROW", None, {}]),
        ("vec-02", "quality", 9),
        ("vec-03", "at", "?"),
        ("vec-04", "error", "?"),
        ("vec-05", "warning", "?"),
        ("vec-06", "writes", {"a": 2}),
        ("vec-07", "conflict_if_author_0", None),
        ("vec-08", "start_mre", 7),
        ("vec-09", "sequence", [[1, "stop"]]),
        ("vec-10", "ok", None),
        ("vec-11", "relations", ["last_conflict_epoch > 1000"]),
        ("vec-12", "var_header_hex", "00"),
    ],
)
def test_wrong_expectation_of_a_vector_is_noticed(name: str, field: str, value: Any) -> None:
    case = loaded(name)
    changed = [each | {field: not each["ok"] if field == "ok" else value} for each in case["cases"] if field in each]
    assert changed
    for each in changed:
        assert run_vectors(case | {"cases": [each]}) != []
