"""States of an enumeration are counted by the operation they interrupt, and the place.

Story: tests of the fault catalogue claimed states they had never reached. The power losses of one store never met a log
that wraps over its oldest groups, and those of tables on disk never a torn copy of the sysfile; this was not counted.
"""

from __future__ import annotations

from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.places import (
    CONTROL_PENDING,
    DATA_DURABLE,
    DATA_PENDING,
    FAULTS,
    GROUP_DURABLE,
    GROUP_PENDING,
    PUBLISHED,
    REMOVING,
    UNDER_WAY,
    Places,
    cuts,
    missing,
)


def test_write_is_called_by_the_sectors_that_were_kept() -> None:
    files = MemoryFiles()
    files.make_directory("redo")
    file = files.create("redo/0000.redo", 4_096)
    files.fdatasync(file)
    files.sync_directory("redo")
    files.sync_directory("")
    files.pwrite(file, 0, bytes(range(1, 4)) * 512)
    pieces = files.pieces()
    assert [piece.kind for piece in pieces] == ["write"] * 3
    for kept, name in [
        ([], "REDO write lost"),
        ([0], "REDO write: only a prefix kept"),
        ([0, 1], "REDO write: only a prefix kept"),
        ([1], "REDO write torn"),
        ([1, 2], "REDO write torn"),
        ([0, 2], "REDO write: hole in its middle"),
        ([0, 1, 2], "REDO write kept"),
    ]:
        whole = {0: "nothing kept", 3: "everything kept"}.get(len(kept), "some kept")
        torn = {"REDO write torn"} if 0 < len(kept) < 3 else set()
        assert cuts(pieces, frozenset(pieces[number] for number in kept)) == {name, whole, *torn}


def test_growth_and_data_are_distinguished() -> None:
    files = MemoryFiles()
    file = files.create("sysfile.0")
    files.sync_directory("")
    files.pwrite(file, 0, b"x" * 1_024)
    pieces = files.pieces()
    grow = frozenset(piece for piece in pieces if piece.kind == "grow")
    assert "sysfile grown without its data" in cuts(pieces, grow)
    assert "sysfile data without its growth" in cuts(pieces, frozenset(pieces) - grow)
    for kept in (frozenset[object](), frozenset(pieces)):
        assert not any("growth" in name or "grown" in name for name in cuts(pieces, kept))  # type: ignore[arg-type]


def test_places_follow_the_calls_of_a_local_checkpoint() -> None:
    files, places = MemoryFiles(), Places()
    files.make_directory("redo")
    log = files.create("redo/0000.redo", 4_096)
    files.fdatasync(log)
    files.pwrite(log, 0, b"group" * 100)

    def now() -> set[str]:
        pieces = [piece for piece in files.pieces() if piece.kind == "write"]
        return places.names(pieces, pieces, True) - cuts(pieces, frozenset(pieces))

    assert now() == {GROUP_PENDING}
    files.fdatasync(log)
    assert now() == {UNDER_WAY}
    places.step("fdatasync", log.name)
    assert now() == {UNDER_WAY, GROUP_DURABLE}
    places.step("fdatasync", "sysfile.1")
    assert now() == {UNDER_WAY}
    files.make_directory("lcp")
    data = files.create("lcp/3-1-0.data")
    places.step("create", data.name)
    files.pwrite(data, 0, b"rows")
    assert now() == {UNDER_WAY, DATA_PENDING}
    files.fdatasync(data)
    assert now() == {UNDER_WAY, DATA_DURABLE}
    for operation, name, place in [
        ("create", "lcp/control-3", CONTROL_PENDING),
        ("sync_directory", "redo", CONTROL_PENDING),
        ("sync_directory", "lcp", PUBLISHED),
        ("unlink", "lcp/control-1", REMOVING),
    ]:
        places.step(operation, name)
        assert now() == {UNDER_WAY, place}
    places.step("pwrite", log.name)
    assert now() == {UNDER_WAY}


def test_what_was_not_seen_is_named() -> None:
    assert missing({}, FAULTS) == {fault: list(names) for fault, names in FAULTS.items()}
    assert missing({"sysfile write torn": 1, "REDO write lost": 0}, ["F05", "F03"]) == {"F03": ["REDO write torn"]}
