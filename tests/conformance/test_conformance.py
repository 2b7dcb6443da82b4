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
