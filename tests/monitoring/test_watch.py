"""Slow operations in the log, and operations as spans: which there are, with which fields, and at no cost when off."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.store.support import ACCOUNT, open_memory
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.histogram import FRESH_MAX, Histogram
from tidemark.engine.base.watch import Watch

Span = tuple[str, int, int, dict[str, Any]]


def spans_of(**options: Any) -> tuple[tm.Database, list[Span]]:
    spans: list[Span] = []
    db = open_memory(tracer=lambda *span: spans.append(span), **options)
    db.create_table("test.account", ACCOUNT, "id").insert_many([(each, "ann", 1.0, None) for each in range(10)])
    spans.clear()
    return db, spans


def test_operations_are_spans_with_their_fields() -> None:
    db, spans = spans_of(durability="commit")
    with db:
        table = db["test.account"]
        table.insert((10, "bob", 2.0, None))
        assert len(list(table.scan(where=tm.col("id") > 5))) == 5
        assert table.scan(where=tm.col("id") > 5).sum("balance") == 6.0
        db.checkpoint()
        named = {name: attributes for name, _, _, attributes in spans}
        assert named["tidemark.commit"]["is_durable"] and named["tidemark.commit"]["txid"] > 0
        assert named["tidemark.scan"] == {"table": "test.account", "rows": 5, "has_condition": True}
        assert named["tidemark.aggregate"] == {"table": "test.account", "has_condition": True}
        assert named["tidemark.local_checkpoint"]["lcp_id"] == 1
        assert all(start <= end for _, start, end, _ in spans)


def test_scan_that_its_caller_leaves_is_a_span_with_the_rows_so_far() -> None:
    db, spans = spans_of()
    with db:
        batches = db["test.account"].scan().batches()
        first = next(batches)
        assert spans == []
        batches.close()
        assert [(name, attributes["rows"]) for name, _, _, attributes in spans] == [("tidemark.scan", first.num_rows)]


def test_snapshot_and_index_are_scans_too() -> None:
    db, spans = spans_of()
    with db:
        db.create_index("test.account", "by_owner", "owner")
        with db.snapshot() as snapshot:
            spans.clear()
            assert len(list(snapshot["test.account"].scan())) == 10
        assert len(list(db["test.account"].scan(index="by_owner"))) == 10
        scans = [attributes for name, _, _, attributes in spans if name == "tidemark.scan"]
        assert [each.get("index") for each in scans] == [None, "by_owner"]


def test_wait_for_a_lock_is_a_span_with_its_error() -> None:
    db, spans = spans_of(lock_timeout_ms=1)
    with db, db.transaction() as holder:
        holder.update("test.account", 1, {"balance": 0.0})
        with pytest.raises(tm.LockTimeout):
            elsewhere(lambda: db["test.account"].update(1, {"balance": 5.0}))
        (found,) = [attributes for name, _, _, attributes in spans if name == "tidemark.lock_wait"]
        assert found["table"] == "test.account" and found["error"] == "LockTimeout"


def test_slow_operations_are_logged_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.WARNING, "tidemark.slow"):
        watch = Watch(clock, 250, None)
        watch.note("commit", 0.249, txid=1)
        watch.note("commit", 0.25, txid=2)
        with watch.timed("lock wait", table="t.t"):
            clock.advance(0.5)
    first, second = caplog.records
    assert first.name == "tidemark.slow" and first.getMessage() == "commit took 250.0 ms, txid 2"
    assert vars(first)["operation"] == "commit" and vars(first)["txid"] == 2
    assert vars(second)["duration_ms"] == pytest.approx(500.0) and vars(second)["table"] == "t.t"


def test_store_is_watched_only_if_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with open_memory() as db:
        assert db.parts.store.resources.watch is None
    with open_memory(slow_operation_ms=60_000) as db, caplog.at_level(logging.WARNING, "tidemark.slow"):
        db.create_table("test.account", ACCOUNT, "id").insert((1, "ann", 1.0, None))
        assert db.parts.store.resources.watch is not None and caplog.records == []


def test_error_of_a_tracer_does_not_reach_the_operation(caplog: pytest.LogCaptureFixture) -> None:
    """The commit is durable then: its caller would run the transaction again."""

    def broken(*_: Any) -> None:
        raise ValueError("planted")

    with caplog.at_level(logging.WARNING, "tidemark"), open_memory(tracer=broken) as db:
        db.create_table("test.account", ACCOUNT, "id").insert((1, "ann", 1.0, None))
        assert len(db["test.account"]) == 1
    assert "the tracer failed: ValueError('planted')" in caplog.text


@pytest.mark.parametrize("kind", [ValueError, MemoryError])
def test_error_of_the_log_does_not_reach_the_operation(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """A filter of `tidemark.slow` raised out of a commit that was durable: its caller would run it again."""

    def broken(_: logging.LogRecord) -> bool:
        raise kind("planted")

    logger = logging.getLogger("tidemark.slow")
    logger.addFilter(broken)
    try:
        with caplog.at_level(logging.WARNING, "tidemark"):
            Watch(ManualClock(), 1, None).note("commit", 5.0, txid=1)
    finally:
        logger.removeFilter(broken)
    assert f"the log of slow operations or the tracer failed: {kind.__name__}('planted')" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "words"), [("tracer", 7, "give a function or None"), ("slow_operation_ms", -1, "give an integer")]
)
def test_wrong_option_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(tm.SchemaInvalid, match=words):
        tm.Options.from_keywords({name: value})


def test_spans_of_opentelemetry_are_children_of_the_caller_s() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    db = open_memory(tracer=tm.opentelemetry_tracer(provider))
    with db:
        table = db.create_table("test.account", ACCOUNT, "id")
        with provider.get_tracer("test").start_as_current_span("request") as request:
            table.insert((1, "ann", 1.0, None))
        watch = db.parts.store.resources.watch
        assert watch is not None
        with pytest.raises(tm.Deadlock), watch.timed("lock wait", table="test.account"):
            raise tm.Deadlock("planted")
    spans = {span.name: span for span in kept.get_finished_spans()}
    commit, wait = spans["tidemark.commit"], spans["tidemark.lock_wait"]
    assert commit.parent is not None and commit.parent.span_id == request.get_span_context().span_id
    assert dict(commit.attributes or {})["tidemark.is_durable"] is True
    assert wait.status.status_code is StatusCode.ERROR and wait.status.description == "Deadlock"


def test_missing_opentelemetry_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(tm.Unsupported, match=r"pip install '\.\[tracing\]'"):
        tm.opentelemetry_tracer()


# --- histograms ----------------------------------------------------------------------------------
def test_durations_fall_into_the_bucket_of_their_upper_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(seconds)
    assert histogram.to_dict() == {"count": 5, "sum_seconds": pytest.approx(8.65), "buckets": [[0.1, 2], [1.0, 4]]}


def test_threads_lose_no_duration() -> None:
    histogram, each = Histogram((0.1,)), 3 * FRESH_MAX
    threads = [threading.Thread(target=lambda: [histogram.observe(0.5) for _ in range(each)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: histogram.to_dict()["count"] == 4 * each)
    for thread in threads:
        thread.join()
    assert histogram.to_dict() == {"count": 4 * each, "sum_seconds": 2.0 * each, "buckets": [[0.1, 0]]}
