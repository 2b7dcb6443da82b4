"""Stores whose files are damaged on purpose: one history, two local checkpoints, and the rows a restart must find."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tidemark as tm
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.rows.lcp_layout import CONTROL_HEADER_WORDS, LCP_BLOCK, LCP_CONTROL, UNIT_WORDS_MIN
from tidemark.engine.sealed.sealed_layout import (
    KIND_GROUP,
    KIND_LCP_BLOCK,
    KIND_LCP_CONTROL,
    KIND_SYSFILE,
    SEAL,
    header_of,
    seal,
)
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE

Contents = dict[str, bytes]
Rows = dict[Any, Any]


@dataclass(frozen=True)
class History:
    """The files of a closed store, and its rows."""

    contents: Mapping[str, bytes]
    rows: Rows
    lcp_ids: tuple[int, int]  # older, newest
    epochs: tuple[int, int]

    def copy(self) -> Contents:
        """The files, to be damaged."""
        return dict(self.contents)


def put(db: Any, first: int, count: int, balance: float) -> None:
    """Write some accounts, some with a long note."""
    rows = [(key, f"owner {key}", balance + key, "n" * (key % 7 * 90) or None) for key in range(first, first + count)]
    db["test.account"].write_many(rows)


def changes_during(db: Any, step: int) -> Callable[[int, int, str], None]:
    """A progress callback of a local checkpoint that changes rows of fragments not yet scanned: they are copied."""

    def change(done: int, total: int, unit: str) -> None:
        with db.transaction() as txn:
            for key in range(step, 200, 10):
                txn.update("test.account", key, {"balance": float(step)})
            txn.update("test.old", step, {"value": step})

    return change


def make_history(lcps: int = 3, seed: int = 0) -> History:
    """Local checkpoints with changes before, during and after each; one table is dropped between the last two.

    seed: another one makes another store of the same history.
    """
    files = MemoryFiles()
    db = open_memory(files, clock=ManualClock(seed=seed))
    db.create_table("test.account", ACCOUNT, "id")
    db.create_table("test.old", [tm.Column("id", tm.Int64), tm.Column("value", tm.Int64)], "id")
    db["test.old"].insert_many([(key, 0) for key in range(100)])
    put(db, 0, 200, 0.0)
    for number in range(1, lcps + 1):
        if number < lcps:
            db.checkpoint(changes_during(db, number))
        else:
            db.drop_table("test.old")
            db.create_table("test.young", [tm.Column("id", tm.Int64)], "id")
            db["test.young"].insert_many([(key,) for key in range(30)])
            db.checkpoint(lambda done, total, unit: put(db, 150 + done % 7, 20, 5.0))
        put(db, 100 * number, 60, float(number))
        db["test.account"].delete(number)
    rows = rows_of(db)
    db.close()
    contents = files.snapshot()
    ids = sorted(int(name.rpartition("-")[2]) for name in contents if "/control-" in name)
    epochs = tuple(control_epoch(contents[f"lcp/control-{number}"]) for number in ids)
    return History(contents, rows, (ids[-2], ids[-1]), (epochs[-2], epochs[-1]))


def control_epoch(content: bytes) -> int:
    """Epoch in the header of a control file."""
    from tidemark.engine.rows.lcp_layout import LCP_CONTROL

    assert LCP_CONTROL.fields is not None
    at = LCP_CONTROL.fields["epoch"][1]
    return int.from_bytes(content[at : at + 8], "little")


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    """The content with one bit inverted."""
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return bytes(changed)


def reopened(contents: Mapping[str, bytes]) -> tuple[Any, MemoryFiles]:
    """Open a store on these files; the database and its disk."""
    files = MemoryFiles.from_snapshot(contents)
    return open_memory(files), files


def refused(contents: Mapping[str, bytes], error: type[tm.Error]) -> tm.Error:
    """Opening must end in this error and leave every byte as it was; returns the error."""
    files = MemoryFiles.from_snapshot(contents)
    before = files.snapshot()
    try:
        open_memory(files).close()
    except error as raised:
        assert files.snapshot() == before, "an open that fails must not change the store"
        assert "\n" not in str(raised)
        return raised
    raise AssertionError(f"opened, although {error.__name__} was due")


def untouched(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files that no opening writes before all is verified; disk pages are brought back to the local checkpoint, by
    their log.
    """
    written = ("sysfile", "space/", "undo/", "double-write")
    return {name: content for name, content in contents.items() if not name.startswith(written)}


def survives(history: History, contents: Mapping[str, bytes], fallbacks: int | None = None) -> Any:
    """Opening must return every row, now and once more after another checkpoint and a kill; return the first report."""
    db, files = reopened(contents)
    report = db.restart_report
    assert rows_of(db) == history.rows
    if fallbacks is not None:
        assert (report["fallbacks"] > 0) == bool(fallbacks), report["fallbacks"]
    put(db, 1_000, 5, 1.0)
    db.checkpoint()
    put(db, 2_000, 5, 1.0)
    expected = rows_of(db)
    db.sync()
    again, _ = reopened(files.kill().snapshot())
    assert rows_of(again) == expected
    again.close()
    return report


def resealed(content: bytes, at: int = 0, **fields: int) -> bytes:
    """The content with fields of the sealed unit at an offset changed, and its checksum right again."""
    words = np.frombuffer(content, dtype=np.int64).copy()
    unit = words[at // 8 :]
    layout = {
        KIND_SYSFILE: SYSFILE,
        KIND_GROUP: GROUP,
        KIND_LCP_BLOCK: LCP_BLOCK,
        KIND_LCP_CONTROL: LCP_CONTROL,
    }[int(header_of(unit, SEAL)["kind"])]
    header = header_of(unit, layout)
    for name, value in fields.items():
        header[name] = value
    seal(unit, int(header_of(unit, SEAL)["words"]))
    return words.tobytes()


def units(content: bytes) -> list[tuple[int, int]]:
    """(offset, bytes) of every sealed unit of a file of a local checkpoint."""
    words = np.frombuffer(content, dtype=np.int64)
    found = []
    at = 0
    while at < words.size:
        size = int(header_of(words[at:].copy(), SEAL)["words"])
        found.append((at * 8, size * 8))
        at += size
    return found


def with_body(content: bytes, change: Callable[[dict[str, Any]], None] | bytes) -> bytes:
    """A control file with its JSON body changed, or replaced, and sealed again."""
    words = np.frombuffer(content, dtype=np.int64).copy()
    header = header_of(words, LCP_CONTROL)
    start = CONTROL_HEADER_WORDS * 8
    if callable(change):
        value = json.loads(content[start : start + int(header["body_bytes"])])
        change(value)
        body = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    else:
        body = change
    count = max(UNIT_WORDS_MIN, CONTROL_HEADER_WORDS + -(-len(body) // 8))
    made = np.zeros(count, dtype=np.int64)
    made[:CONTROL_HEADER_WORDS] = words[:CONTROL_HEADER_WORDS]
    made.data.cast("B")[start : start + len(body)] = body
    header = header_of(made, LCP_CONTROL)
    header["words"], header["body_bytes"] = count, len(body)
    seal(made, count)
    return made.tobytes()


def powered_off(memory: MemoryFiles, nth: int, work: Callable[[Any], object]) -> bool:
    """Run work(files) on a machine that loses power at the nth call. False if there are fewer calls."""
    files: Any = FaultFiles(memory, [Rule("*", nth=nth, once=False, stall=power_off)])
    try:
        work(files)
    except PowerOff:
        return True
    assert not files.fired, "the power loss was swallowed"
    return False
