"""Runs files of cases: one line each, and a closing count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.case_types import NOT_RUN, CaseInvalid
from tests.conformance.model import model_sites
from tests.conformance.model_programs import program_sites
from tests.conformance.scenario import Adapter, parse_scenario, play
from tests.conformance.store_site import store_sites
from tests.conformance.vectors import run_vectors

# Kinds of sites that scenarios can be played on.
ADAPTERS: Mapping[str, Adapter] = {
    "model": model_sites,
    "model-programs": program_sites,
    "store": store_sites,
}
BOTH = ("model", "store")
FORMAT = 1


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Files as given, and all `*.json` below folders, sorted."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return found


def run_file(path: Path, *sites: str, on_purpose: list[str] | None = None) -> list[str]:
    """Return what is wrong, one line each; empty if the case passes. A file that is unreadable or does not run fails as
    well.

    A scenario is played on each kind of sites named, on `BOTH` if there is none. `on_purpose` takes a line for each
    case in which the store differs from NDB as its documents say; such a case does not fail.
    """
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
        if case.get("format", FORMAT) != FORMAT:
            return [f"format is {case.get('format')!r}, this runs {FORMAT}"]
        if case["kind"] == "scenario":
            return [wrong for name in sites or BOTH for wrong in _played(case, name)]
        if case["kind"] == "vectors":
            return run_vectors(case, on_purpose)
        return [f"kind {case['kind']!r} is not known"]
    except CaseInvalid as error:
        return [str(error)]
    except OSError as error:
        return [f"cannot be read: {error}"]
    except NOT_RUN as error:  # the case has failed; the next one is run
        return [f"{type(error).__name__}: {error}"]


def _played(case: Mapping[str, Any], name: str) -> list[str]:
    try:
        return [f"{name}: {wrong}" for wrong in play(parse_scenario(case), ADAPTERS[name])]
    except (CaseInvalid, *NOT_RUN) as error:
        return [f"{name}: {type(error).__name__}: {error}"]
