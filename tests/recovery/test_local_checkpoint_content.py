"""Files of local checkpoints with right checksums and wrong content: counts, bodies, versions; and the log's tail after
a fallback (F58, F59, F83, F85, F112)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.recovery.support import History, make_history, put, refused, reopened, resealed, survives, units, with_body
from tests.storage import memory_only
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, FORMAT_VERSION_OLDEST
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")


def emptied(content: bytes) -> bytes:
    """A data file with the entries of its last block taken out, sealed as if they never were."""
    at, _ = units(content)[-1]
    header = content[:at] + content[at : at + 256].ljust(256, b"\0")
    return resealed(header, at, words=32, entries=0, entry_words=0, total_entries=0)


@pytest.mark.parametrize("name", ["{newest}-1-0.data", "{newest}-1-3.data", "{newest}-copies.data"])
def test_entries_missing_from_an_intact_file_of_the_newest_are_counted(history: History, name: str) -> None:
    full = "lcp/" + name.format(newest=history.lcp_ids[1])
    changed = emptied(history.contents[full])
    assert len(changed) < len(history.contents[full]), "nothing was taken out"
    survives(history, {**history.contents, full: changed}, fallbacks=1)


@memory_only  # long values in memory, few of which fit a block
def test_copies_file_without_its_first_block_is_counted() -> None:
    files = MemoryFiles()
    db = open_memory(files, checkpoint_memory="8 MiB", redo_log="16 MiB", transaction_memory="8 MiB")
    db.create_table("test.account", ACCOUNT, "id", tm.HashPartition(2))
    db["test.account"].insert_many([(key, "o", 0.0, "n" * 4_000) for key in range(900)])
    db.checkpoint()

    def change(done: int, total: int, unit: str) -> None:
        for first in range(0, 900, 100):
            with db.transaction() as txn:
                for key in range(first, first + 100):
                    txn.update("test.account", key, {"note": None})

    db.checkpoint(change)
    rows = rows_of(db)
    db.close()
    history = History(files.snapshot(), rows, (1, 2), (0, 0))
    content = history.contents["lcp/2-copies.data"]
    blocks = units(content)
    assert len(blocks) > 1, "one block only: nothing to cut out"
    first, last = blocks[0], blocks[-1]
    for kept in ([last], [first]):
        short = b"".join(content[at : at + size] for at, size in kept)
        changed = resealed(short, number=0, is_last=1)
        db = open_memory(MemoryFiles.from_snapshot({**history.contents, "lcp/2-copies.data": changed}))
        assert rows_of(db) == rows
        assert db.restart_report["fallbacks"] > 0


@pytest.mark.parametrize("field", range(3))
@pytest.mark.parametrize("wrong", [-1, 1, 1 << 40], ids=str)
@pytest.mark.parametrize("file", ["data", "copies"])
def test_counts_of_the_control_file_that_disagree_are_damage(
    history: History, file: str, field: int, wrong: int
) -> None:
    def change(body: dict[str, Any]) -> None:
        target = body["copies"] if file == "copies" else body["fragments"][2]
        target[field + (0 if file == "copies" else 2)] += wrong

    newest = f"lcp/control-{history.lcp_ids[1]}"
    report = survives(history, {**history.contents, newest: with_body(history.contents[newest], change)})
    assert report["fallbacks"] > 0 or report["lcp_id"] == history.lcp_ids[0]


BODIES: dict[str, Callable[[dict[str, Any]], None] | bytes] = {
    "no-json": b"{",
    "no-text": b"\xff\xfe\xff\xfe",
    "a-list": b"[]",
    "a-number": b"7",
    "empty-object": b"{}",
    "nested": b"[" * 200_000,
    "no-tables": lambda body: body.pop("tables"),
    "no-copies": lambda body: body.update(copies=[]),
    "copies-of-text": lambda body: body.update(copies=["a", "b", "c"]),
    "short-fragment": lambda body: body["fragments"][0].pop(),
    "fragment-of-text": lambda body: body["fragments"][0].__setitem__(0, "one"),
    "negative-entries": lambda body: body["fragments"][0].__setitem__(2, -5),
    "fragment-left-out": lambda body: body["fragments"].pop(1),
    "fragment-out-of-range": lambda body: body["fragments"].append([1, 70_000, 0, 1, 256]),
    "two-tables-of-one-number": lambda body: body["tables"].append(dict(body["tables"][0], name="other")),
    "two-tables-of-one-name": lambda body: body["tables"].append(dict(body["tables"][0], table_id=77)),
    "table-of-nothing": lambda body: body["tables"].append({}),
    "table-is-text": lambda body: body["tables"].append("text"),
}


@pytest.mark.parametrize("name", BODIES)
def test_intact_control_file_with_an_impossible_body_is_a_damaged_one(history: History, name: str) -> None:
    # Story: each ended the opening with an error of Python's own.
    newest = f"lcp/control-{history.lcp_ids[1]}"
    changed = with_body(history.contents[newest], BODIES[name])
    assert changed != history.contents[newest]
    report = survives(history, {**history.contents, newest: changed})
    assert report["lcp_id"] == history.lcp_ids[0] or report["fallbacks"] > 0


# --- the tail of the log after a fallback --------------------------------------------------------
@memory_only  # of REDO alone: the UNDO log of that size is full before it
def test_log_before_both_checkpoints_is_kept_once_a_restart_has_needed_it() -> None:
    # Both checkpoints damaged, the log whole: restart replays it from its start. The next lap must not overwrite what
    # the next restart needs again, although the older checkpoint would let it.
    history = make_history(lcps=2)
    contents = history.copy()
    for lcp_id in (1, 2):
        name = f"lcp/{lcp_id}-1-0.data"
        contents[name] = bytes(len(contents[name]))
    db, files = reopened(contents)
    assert rows_of(db) == history.rows
    assert db.status()["log"]["tail_lsn"] == 0
    number = 0
    with pytest.raises(tm.RedoOverloaded):
        while number < 10_000:
            number += 1
            db["test.account"].write((5_000, "filler", float(number), "f" * 3_000))
    expected = rows_of(db)
    again, files = reopened(files.kill().snapshot())
    assert rows_of(again) == expected
    again.checkpoint()
    again.checkpoint()
    again["test.account"].write((5_001, "room again", 1.0, None))
    expected = rows_of(again)
    last, _ = reopened(files.kill().snapshot())
    assert rows_of(last) == expected
    assert last.restart_report["fallbacks"] == 0


# --- versions ------------------------------------------------------------------------------------
def redo_groups(history: History) -> list[int]:
    """Offsets of the groups in the first file that the newest checkpoint needs replayed."""
    log = history.contents["redo/0000.redo"]
    found = [at for at in range(0, len(log), 4_096) if log[at + 8 : at + 10] == b"GT"]
    return found[-2:]


def place_of(history: History, kind: str) -> tuple[str, int]:
    newest = history.lcp_ids[1]
    if kind == "needed group":
        return "redo/0000.redo", redo_groups(history)[0]
    if kind == "last group":
        return "redo/0000.redo", redo_groups(history)[1]
    names = {
        "sysfile": "sysfile.0",
        "control": f"lcp/control-{newest}",
        "data": f"lcp/{newest}-1-1.data",
        "copies": f"lcp/{newest}-copies.data",
    }
    return names.get(kind, kind), 0


KINDS = ["sysfile", "sysfile.1", "control", "data", "copies", "needed group", "last group"]


VERSIONS = [
    (tm.VersionTooNew, FORMAT_VERSION + 1, FORMAT_VERSION),
    (tm.VersionTooOld, FORMAT_VERSION_OLDEST - 1, FORMAT_VERSION_OLDEST),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("refusal", "found", "supported"), VERSIONS, ids=["newer", "older"])
def test_unit_of_another_format_is_refused_with_both_versions(
    history: History, kind: str, refusal: type[tm.Error], found: int, supported: int
) -> None:
    # Story: only the sysfile's format was verified: every other kind was read as if its format were the current one.
    name, at = place_of(history, kind)
    error = refused({**history.contents, name: resealed(history.contents[name], at, version=found)}, refusal)
    assert (error.found, error.supported) == (found, supported)
    if refusal is tm.VersionTooNew:
        assert error.file == name
    else:
        assert "release" in str(error)


def test_store_used_by_its_own_version_again_after_a_refusal(history: History) -> None:
    contents = history.copy()
    contents["sysfile.0"] = resealed(contents["sysfile.0"], version=FORMAT_VERSION + 1)
    refused(contents, tm.VersionTooNew)
    contents["sysfile.0"] = history.contents["sysfile.0"]
    db, _ = reopened(contents)
    put(db, 0, 1, 1.0)
    db.close()
