"""Recorded input and output: golden text, and disks built again from it."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given

from tests.files.test_memory import play, steps
from tidemark.engine.base.errors import IoFailed, SyncFailed
from tidemark.recovery.crash_harness.disks import CRASH_POLICIES, FaultFiles, MemoryFiles, Rule, TraceFiles


def test_trace_renders_every_change_sync_and_mark_in_order() -> None:
    files = TraceFiles(MemoryFiles())
    files.make_directory("redo")
    files.sync_directory("")
    file = files.create("redo/0000.redo", 4096)
    files.pwrite(file, 512, b"group")
    files.pread(file, 512, 5)
    files.fdatasync(file)
    files.mark("ack", txid=7, lsn=512)
    files.truncate(file, 10)
    files.close(file)
    files.rename("redo/0000.redo", "redo/x")
    files.unlink("redo/x")
    assert files.render(digests=False).splitlines() == [
        "make_directory redo",
        "sync_directory .",
        "create redo/0000.redo",
        "pwrite redo/0000.redo 0+4096",
        "pwrite redo/0000.redo 512+5",
        "fdatasync redo/0000.redo",
        "mark ack txid=7 lsn=512",
        "truncate redo/0000.redo 10",
        "close redo/0000.redo",
        "rename redo/0000.redo redo/x",
        "unlink redo/x",
    ]
    assert any(event.render().startswith("pread redo/0000.redo 512+5 #") for event in files.events)
    writes = [event for event in files.events if event.operation == "pwrite"]
    reads = [event for event in files.events if event.operation == "pread"]
    assert writes[1].data == b"group"
    assert writes[1].digest == reads[0].digest != writes[0].digest


def test_trace_records_errors_and_short_transfers_as_they_reached_the_disk() -> None:
    plan = [
        Rule("pwrite", nth=1, short=3),
        Rule("pwrite", nth=3, error=errno.ENOSPC),
        Rule("fdatasync", error=errno.EIO),
    ]
    files = TraceFiles(FaultFiles(MemoryFiles(), plan))
    file = files.create("a")
    files.pwrite(file, 0, b"abcdef")
    with pytest.raises(Exception, match="ENOSPC"):
        files.pwrite(file, 6, b"x")
    with pytest.raises(SyncFailed):
        files.fdatasync(file)
    assert files.render(digests=False).splitlines() == [
        "create a",
        "pwrite a 0+3",
        "pwrite a 3+3",
        "pwrite a 6+1 !ENOSPC",
        "fdatasync a !EIO",
    ]
    assert [event.data for event in files.events if event.operation == "pwrite"] == [b"abc", b"def", b""]
    assert files.replay(2).snapshot() == {"a": b"abc"}
    assert files.replay(len(files.events)).snapshot() == {"a": b"abcdef"}


def test_wrapped_files_share_one_failure() -> None:
    inner = MemoryFiles()
    files = TraceFiles(FaultFiles(inner, [Rule("pwrite", error=errno.EIO)]))
    with pytest.raises(IoFailed):
        files.pwrite(files.create("a"), 0, b"x")
    with pytest.raises(IoFailed):
        inner.list()


@given(steps)
def test_replay_rebuilds_the_disk_with_all_its_crashes(script: list[tuple]) -> None:
    inner = MemoryFiles()
    files = TraceFiles(inner)
    play(files, script)  # type: ignore[arg-type]
    again = files.replay(len(files.events))
    assert again.snapshot() == inner.snapshot()
    assert again.pieces() == inner.pieces()
    for seed, policy in enumerate(CRASH_POLICIES):
        assert again.crash(random.Random(seed), policy).digest() == inner.crash(random.Random(seed), policy).digest()


def test_replay_of_a_prefix_starts_on_the_recorded_disk() -> None:
    start = MemoryFiles.from_snapshot({"a": b"old"})
    files = TraceFiles(start.kill())
    file = files.open("a", True)
    files.pwrite(file, 0, b"new")
    files.fdatasync(file)
    assert files.replay(1, start).snapshot() == {"a": b"old"}
    assert files.replay(2, start).image(lambda piece: False).snapshot() == {"a": b"old"}
    assert files.replay(3, start).image(lambda piece: False).snapshot() == {"a": b"new"}
    assert start.snapshot() == {"a": b"old"}
