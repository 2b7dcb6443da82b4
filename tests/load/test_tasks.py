"""What tasks write and refuse, and how a load is decided."""

from __future__ import annotations

import pickle
import random
import struct
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.load.support import NAME, batch, by_key, found, leaves, new_store, own_place, row, rows, written
from tidemark.recovery import load
from tidemark.recovery.load.job import FragmentReport, LoadJob
from tidemark.recovery.load.native import write_natively

PARTITIONS = {
    "hash": tm.HashPartition(5),
    "ranges": tm.RangePartition("id", [("low", 100), ("middle", 500), ("rest", tm.MAXVALUE)]),
    "lists": tm.ListPartition("id", [("few", list(range(200))), ("more", list(range(200, 1_000)))]),
}


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_file_read_by_struct_alone_has_every_row_once_and_in_order(on_disk: bool) -> None:
    db = new_store(on_disk=on_disk, partition=tm.HashPartition(1))
    made = rows(0, 700)
    job = db.plan_load(NAME)
    (report,) = load.write_parts(job, 3, [batch(made[:200], on_disk), batch(made[200:], on_disk)], 4, own_place(db))
    file = report.file
    assert file is not None and (file.part, file.attempt, file.rows) == (4, 3, 700)
    handle = db.parts.files.open(file.name)
    content = db.parts.files.pread(handle, 0, db.parts.files.size(handle))
    assert len(content) == file.size_bytes and file.leaf in leaves(db)
    offset, number, start, place, images = 0, 0, 20, 0, []
    slots = job.shape.slots
    while offset < len(content):
        fields = struct.unpack_from("<QHHIQQQQQQQ", content, offset)
        _, kind, version, words, low, high, _, owner, own_number, start_word, used = fields
        assert (kind, version, owner, own_number, start_word) == (0x5053, 1, job.number, number, start)
        assert low.to_bytes(8, "little") + high.to_bytes(8, "little") == job.store
        at = offset // 8 + 16
        stop = at + used
        block = np.frombuffer(content, dtype=np.int64)
        while at < stop:
            size, count, rowid = int(block[at]) >> 16, int(block[at + 2]) >> 48, int(block[at + 2]) & ((1 << 48) - 1)
            assert int(block[at]) & 0xFFFF == 2 and 1 <= count <= 32 and int(block[at + 3]) == 0
            assert int(block[at + 1]) & 0xFFFFFFFF == job.definition.table_id
            assert rowid == place // slots << 16 | place % slots and place % slots + count <= slots
            place += count
            images.append(block[at + 4 : at + size])
            at += size
        assert not any(content[(stop * 8) : offset + words * 8])
        number, start, offset = number + 1, start + used, offset + words * 8
    encoded = [job.shape.format.encode_row(each) for each in made]
    assert np.array_equal(np.concatenate(images), np.concatenate(encoded))
    assert (file.blocks, file.records_words, file.pages) == (number, start - 20, -(-700 // slots))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_fragments_of_a_batch_are_those_of_the_store(kind: str) -> None:
    db = new_store(partition=PARTITIONS[kind])
    job = LoadJob.from_json(db.plan_load(NAME).to_json())
    keys = [*range(0, 1_000, 7), 5, 999]
    want = db[NAME].table.fragments_of(keys)
    assert np.array_equal(load.fragments_of(job, batch([row(key) for key in keys])), want)
    assert np.array_equal(load.fragments_of(job, {"id": pa.array(keys)}), want)
    assert set(load.fragments_of(job, {"id": pa.array([None, 1 << 62, None])})[[0, 2]]) == {-1}


def test_job_and_report_come_back_from_text_and_from_pickle() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    assert LoadJob.from_json(job.to_json()) == job == pickle.loads(pickle.dumps(job))
    (first, *_) = written(db, job, [*rows(0, 10)])
    assert FragmentReport.from_json(first.to_json()) == first == pickle.loads(pickle.dumps(first))
    for wrong in ("", "[]", "{}", '{"job": -1}', "null", "[" * 100_000):
        with pytest.raises(tm.Rejected):
            LoadJob.from_json(wrong)
        with pytest.raises(tm.Rejected):
            FragmentReport.from_json(wrong)


def test_bad_rows_are_counted_and_shown_and_the_load_cannot_be_published() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    good = batch(rows(0, 1_000))
    ids = pa.array([None if place in (17, 500) else place for place in range(1_000)], pa.int64())
    numbers = pa.array([1 << 40 if place == 900 else 1 for place in range(1_000)], pa.int64())
    bad = good.set_column(0, "id", ids).set_column(2, "n", numbers)
    reports = load.write_parts(job, 0, [good.slice(0, 0), batch(rows(2_000, 50)), bad], 0, own_place(db))
    assert sum(report.refused for report in reports) == 3 and sum(report.rows for report in reports) == 1_047
    examples = [example for report in reports for example in report.examples]
    assert sorted((each["row"], each["column"], each["error"]) for each in examples) == [
        (67, "id", "NotNullViolation"),
        (550, "id", "NotNullViolation"),
        (950, "n", "ValueOutOfRange"),
    ]
    assert next(each["values"]["n"] for each in examples if each["column"] == "n") == str(1 << 40)
    with pytest.raises(tm.LoadRefused) as refused:
        load.publish(job, reports, own_place(db))
    assert (refused.value.refused, len(refused.value.examples)) == (3, 3)
    assert not any(leaf.endswith((".manifest", ".published")) for leaf in leaves(db))
    assert load.abort(job, place=own_place(db)) and leaves(db) == []


def test_only_bad_rows_are_counted_in_bounded_time() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    none = batch(rows(0, 5_000)).set_column(0, "id", pa.nulls(5_000, pa.int64()))
    reports = load.write_parts(job, 0, [none], 0, own_place(db))
    refused = sum(report.refused for report in reports)
    assert 1_000 <= refused <= 5_000 and reports[0].is_at_least


def test_rows_of_another_fragment_are_refused() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    made = rows(0, 60)
    numbers = load.fragments_of(job, batch(made))
    report = load.write_fragment(job, 1, 0, [batch(made)], place=own_place(db))
    assert (report.rows, report.refused) == (int((numbers == 1).sum()), int((numbers == 0).sum()))
    assert "belongs to fragment 0" in report.examples[0]["text"]
    with pytest.raises(tm.Rejected, match="no fragment 9"):
        load.write_fragment(job, 9, 0, [], place=own_place(db))


def test_input_that_is_none_of_the_table_raises_and_leaves_no_file() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    before = leaves(db)
    with pytest.raises(tm.NoSuchColumn):
        load.write_parts(job, 0, [pa.record_batch({"id": [1], "nope": [2]})], 0, own_place(db))
    with pytest.raises(tm.NotNullViolation):
        load.write_parts(job, 0, [pa.record_batch({"n": [1]})], 0, own_place(db))

    def broken() -> Any:
        yield batch(rows(0, 30_000))
        raise RuntimeError("the lake is gone")

    with pytest.raises(RuntimeError):
        load.write_parts(job, 0, broken(), 0, own_place(db))
    assert leaves(db) == before


def test_two_attempts_of_one_task_are_one_load() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    made = rows(0, 90)
    first, second = written(db, job, made, attempt=0), written(db, job, made, attempt=1)
    with pytest.raises(tm.Rejected, match="named twice"):
        load.publish(job, first + second, own_place(db))
    load.publish(job, [first[0], second[1]], own_place(db))
    db.adopt(job)
    assert found(db) == by_key(made)
    kept = {file.file.leaf for file in (first[0], second[1]) if file.file is not None}
    assert set(leaves(db)) == kept, "the attempts that were not named are gone"


def test_publication_is_decided_once() -> None:
    db = new_store()
    job = db.plan_load(NAME)
    first, second = written(db, job, rows(0, 20), 0), written(db, job, rows(0, 20), 1)
    manifest = load.publish(job, first, own_place(db))
    assert load.publish(job, second, own_place(db)) == manifest == load.read_manifest(job, own_place(db))
    assert not load.abort(job, place=own_place(db))
    with pytest.raises(tm.LoadEnded):
        written(db, job, rows(100, 5))
    other = db.plan_load(NAME)
    reports = written(db, other, rows(0, 20))
    assert load.abort(other, place=own_place(db))
    with pytest.raises(tm.LoadEnded):
        load.publish(other, reports, own_place(db))
    with pytest.raises(tm.LoadEnded):
        written(db, other, rows(100, 5))
    with pytest.raises(tm.Rejected, match="another load"):
        load.publish(db.plan_load(NAME), reports, own_place(db))


@pytest.mark.parametrize("seed", range(6))
def test_abort_racing_publishers_and_stragglers_leaves_all_or_nothing(seed: int, tmp_path: Any) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with tm.open(tmp_path / "s", background=False, data_memory="32 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(2))
        job = db.plan_load("t", tmp_path / "jobs")
        some = pa.record_batch({"id": pa.array(range(500))})
        reports = load.write_parts(job, 0, [some])
        outcomes: list[Any] = []
        barrier = threading.Barrier(4)

        def run(call: Any) -> None:
            barrier.wait()
            try:
                outcomes.append(call())
            except tm.LoadEnded:
                outcomes.append("ended")

        def straggle() -> str:
            for attempt in range(1, 4):
                load.write_parts(job, attempt, [some])
            return "written"

        calls = [lambda: load.publish(job, reports).rows, lambda: load.abort(job), straggle]
        calls.append(rng.choice(calls[:2]))
        rng.shuffle(calls)
        at_once(run, calls)
        assert len(outcomes) == 4
        left = [path.name for path in (tmp_path / "jobs").iterdir()]
        if True in outcomes:
            assert left == [] and 500 not in outcomes
        else:
            assert 500 in outcomes
            assert db.adopt(job).rows == 500
            assert list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_write_every_row_once_and_return_its_number(workers: int) -> None:
    db = new_store()
    job = db.plan_load(NAME)
    made = [row(key) for key in range(3_000)]
    batches = [(first, batch(made[first : first + 100])) for first in range(0, 3_000, 100)]
    bad = batches[20][1].set_column(0, "id", pa.nulls(100, pa.int64()))
    with pytest.raises(tm.LoadRefused) as refused:
        load.publish(job, write_natively(job, [*batches[:20], (2_000, bad)], workers, own_place(db)), own_place(db))
    assert {each["row"] for each in refused.value.examples} <= set(range(2_000, 2_100))
    assert load.abort(job, place=own_place(db))
    job = db.plan_load(NAME)
    load.publish(job, write_natively(job, batches, workers, own_place(db)), own_place(db))
    db.adopt(job)
    assert found(db) == by_key(made)


def test_failure_of_one_thread_ends_all_and_leaves_no_file() -> None:
    db = new_store()
    job = db.plan_load(NAME)

    def broken() -> Any:
        for first in range(0, 5_000, 100):
            yield first, batch(rows(first, 100))
        yield 5_000, pa.record_batch({"nope": [1]})
        while True:
            yield 0, batch(rows(0, 100))

    before = set(threading.enumerate())
    with pytest.raises(tm.NoSuchColumn):
        write_natively(job, broken(), 3, own_place(db))
    assert not set(threading.enumerate()) - before
    assert leaves(db) == [job.name + ".open"]


def test_directory_of_a_job_is_a_uri_too(tmp_path: Any) -> None:
    with tm.open(tmp_path / "s", background=False, data_memory="32 MiB") as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id", tm.HashPartition(2))
        for number, where in enumerate([f"file://{tmp_path}/a", str(tmp_path / "b"), tmp_path / "c"]):
            job = db.plan_load("t", where)
            some = pa.record_batch({"id": pa.array(range(number * 100, number * 100 + 100))})
            load.publish(job, load.write_parts(job, 0, [some]))
            db.adopt(job)
        assert len(db["t"]) == 300
