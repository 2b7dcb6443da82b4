"""Metrics: every name once, with the values of `status()`; its page and its dashboard know the same names."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

import tidemark as tm
from tests.replication.test_channel_stores import make_table, put, site
from tests.store.support import ACCOUNT, open_memory
from tidemark.monitoring.metrics import METRICS, TABLES_MAX

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "examples" / "grafana.json"
NAMES = {metric.name for metric in METRICS}


def samples(db: Any) -> dict[tuple[str, str], float]:
    """Values by name and by the value of the label that is not `le`."""
    found = {}
    for family in text_string_to_metric_families(tm.metrics(db)):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "le"]
            found[sample.name + sample.labels.get("le", ""), "".join(labels)] = sample.value
    return found


def test_every_name_is_said_once_and_has_its_unit() -> None:
    assert len(NAMES) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("tidemark_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")


def test_page_has_the_table_of_the_code() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        assert f"| `{metric.name}` | {metric.kind} | {label} | {metric.meaning} |" in page
    assert set(re.findall(r"^\| `(tidemark_\w+)`", page, re.MULTILINE)) == NAMES


def test_values_are_those_of_the_status() -> None:
    with open_memory(durability="commit") as db:
        table = db.create_table("test.account", ACCOUNT, "id")
        before = samples(db)["tidemark_commits_total", ""]
        for number in range(5):
            table.insert((number, "ann", 1.0, None))
        db.checkpoint()
        found, status = samples(db), db.status()
        assert found["tidemark_commits_total", ""] == before + 5
        assert found["tidemark_commit_seconds_count", ""] == status["transactions"]["commit_seconds"]["count"] == 5
        assert found["tidemark_commit_seconds_bucket+Inf", ""] == 5
        assert (
            found["tidemark_local_checkpoints_total", ""] == found["tidemark_local_checkpoint_seconds_count", ""] == 1
        )
        assert found["tidemark_log_writes_total", ""] == found["tidemark_log_sync_seconds_count", ""]
        assert found["tidemark_table_rows", "test.account"] == 5
        assert found["tidemark_table_bytes", "test.account"] == status["tables"]["test.account"]["memory_bytes"] > 0
        assert found["tidemark_build_info", tm.__version__] == 1
        assert found["tidemark_process_resident_bytes", ""] > 2**20
        assert not any(name.startswith(("tidemark_binlog", "tidemark_page")) for name, _ in found)
    assert samples(db)["tidemark_open", ""] == 0


def test_number_of_tables_does_not_decide_how_many_series_there_are() -> None:
    with open_memory() as db:
        status = db.status()
        status["tables"] = {
            f"t.t{number}": {"id": number, "rows": number, "memory_bytes": 32_768} for number in range(TABLES_MAX + 50)
        }

        class Many:
            def status(self) -> dict[str, Any]:
                return status

        rows = [label for name, label in samples(Many()) if name == "tidemark_table_rows"]
        assert len(rows) == TABLES_MAX and "t.t149" in rows and "t.t49" not in rows


def test_replication_has_a_lag_and_counts_by_channel() -> None:
    with site(1) as a, site(2) as b, tm.Channel(a, b) as channel:
        make_table(a)
        put(a, 1, 2)
        channel.apply_all()
        found = samples(b)
        applied = found["tidemark_channel_applied_total", "main"]
        assert applied >= 2 and found["tidemark_replication_lag_seconds_count", "main"] == applied
        assert found["tidemark_conflicts_total", "NDB$EPOCH"] == 0
        assert ("tidemark_source_lag_seconds", "to server 2") in samples(a)


def test_disk_columns_have_pages_and_extents() -> None:
    with open_memory() as db:
        db.create_tablespace("archive", "4 MiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("scan", tm.Blob, storage="disk")]
        db.create_table("test.letter", columns, "id", tablespace="archive").insert((1, b"x"))
        found = samples(db)
        assert found["tidemark_tablespace_extents", "archive"] == 4
        assert ("tidemark_page_hits_total", "8192") in found


def test_view_of_a_store_says_what_it_counts(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", redo_log="4 MiB", data_memory="16 MiB") as db:
        db.create_table("test.account", ACCOUNT, "id").insert((1, "ann", 1.0, None))
        db.checkpoint()
    with tm.open(tmp_path / "store", read_only=True, data_memory="16 MiB") as view:
        found = samples(view)
        assert found["tidemark_table_rows", "test.account"] == 1
        assert ("tidemark_commits_total", "") not in found


def test_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with open_memory() as db, pytest.raises(tm.Unsupported, match=re.escape("pip install '.[metrics]'")):
        tm.metrics(db)


# --- the dashboard -------------------------------------------------------------------------------
def test_dashboard_names_metrics_that_there_are() -> None:
    named = set(re.findall(r"\btidemark_\w+", DASHBOARD.read_text(encoding="utf-8")))
    for name in named:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in NAMES or any(each.name == base and each.kind == "histogram" for each in METRICS), name
    assert len(named) > 20


def test_dashboard_is_one_of_grafana() -> None:
    """Read and written back by the types of Grafana's Foundation SDK, nothing is lost: it has every field."""
    plugins.register_default_plugins()
    given = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    read = Dashboard.from_json(given)
    written = json.loads(JSONEncoder(sort_keys=True).encode(read))
    _assert_kept(given, written, "dashboard")
    ids = [panel["id"] for panel in given["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in given["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def _assert_kept(given: Any, written: Any, path: str) -> None:
    if isinstance(given, dict):
        for key, value in given.items():
            assert key in written, f"{path}.{key}"
            _assert_kept(value, written[key], f"{path}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(written), path
        for number, value in enumerate(given):
            _assert_kept(value, written[number], f"{path}[{number}]")
    else:
        assert given == written, path
