"""Damaged, stale, foreign and impossible copies of the sysfile (F05, F22, F30, F65, F73, F112)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import tidemark as tm
from tests.crash.programs.disk_history import DiskHistory
from tests.recovery.support import Contents, History, flipped, make_history, put, refused, reopened, resealed, survives
from tests.storage import memory_only
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.disk.undo_ring import undo_geometry
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import Ledger, digest_of, open_simulated, state_of
from tidemark.recovery.system_restart.sysfile import NAMES, open_copies, read_copy, read_sysfile, write_sysfile
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE, SYSFILE_BYTES

pytestmark = pytest.mark.usefixtures("storage")

Damage = Callable[[bytes, random.Random], bytes | None]

DAMAGES: dict[str, Damage] = {
    "flip": lambda content, rng: flipped(content, rng.randrange(len(content)), rng.randrange(8)),
    "torn": lambda content, rng: content[: 512 * rng.randrange(1, 8)].ljust(len(content), b"\xa5"),
    "cut": lambda content, rng: content[: rng.randrange(len(content))],
    "empty": lambda content, rng: b"",
    "zeros": lambda content, rng: bytes(len(content)),
    "missing": lambda content, rng: None,
}


@pytest.fixture(scope="module")
def log_only(storage: str) -> History:
    """A store that never made a local checkpoint."""
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, "id")
    put(db, 0, 50, 0.0)
    rows = rows_of(db)
    db.close()
    return History(files.snapshot(), rows, (0, 0), (0, 0))


def damaged(contents: Contents, names: tuple[str, ...], how: str, seed: int) -> Contents:
    rng = random.Random(seed)
    for name in names:
        content = DAMAGES[how](contents[name], rng)
        if content is None:
            del contents[name]
        else:
            contents[name] = content
    return contents


def generation(content: bytes) -> int:
    assert SYSFILE.fields is not None
    at = SYSFILE.fields["generation"][1]
    return int.from_bytes(content[at : at + 8], "little")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_one_copy_damaged_the_other_serves_and_both_are_whole_again(history: History, name: str, how: str) -> None:
    for seed in range(2):
        contents = damaged(history.copy(), (name,), how, seed)
        survives(history, contents)
        db, files = reopened(contents)
        db.close()
        after = files.snapshot()
        assert len(after[name]) == SYSFILE_BYTES
        for other in NAMES:  # whichever is lost next, the other one serves
            again = dict(after)
            del again[other]
            survives(history, again)
        assert abs(generation(after[NAMES[0]]) - generation(after[NAMES[1]])) == 1


def without_newest(contents: Contents) -> Contents:
    """The copy written last is lost."""
    return {**contents, max(NAMES, key=lambda name: generation(contents[name])): bytes(SYSFILE_BYTES)}


class Watched(DiskHistory):
    """After every promise, restart the store from its files without the newest copy of the sysfile."""

    def __init__(self, seed: int) -> None:
        super().__init__(self.opened, seed, Ledger())
        self.files = MemoryFiles()
        self.restarts = 0
        self.with_first_tablespace = 0

    def opened(self, **options: Any) -> Any:
        self.files = self.files.kill()
        return open_simulated(self.files, **options)

    def promised(self) -> None:
        super().promised()
        given = 0
        with suppress(tm.StoreClosed), self.db.transaction() as txn:
            given = txn.txid
        db = open_simulated(MemoryFiles.from_snapshot(without_newest(self.files.snapshot())))
        assert digest_of(state_of(db)) == digest_of({name: rows.values() for name, rows in self.model.items()})
        assert db.transaction().txid > given
        self.with_first_tablespace += len(db.tablespaces()) == 1
        self.restarts += 1


@memory_only  # the program has tables over both
def test_newest_copy_lost_after_any_promise_takes_nothing_back() -> None:
    """Story: the newest copy alone recorded the UNDO log that is made with the first tablespace. Without it, the log
    had a tablespace and the sysfile no UNDO log. It alone recorded the incarnation of an opening, too: the next opening
    used its ids of transactions again.
    """
    watched = Watched(3)
    watched.run(40)
    assert watched.restarts > 40 and watched.with_first_tablespace > 1


def test_what_follows_from_a_change_follows_from_both_copies() -> None:
    files = MemoryFiles()
    db = open_memory(files)
    db.parts.opened.keeper.write(incarnation=9)
    assert [read.incarnation for name in NAMES if (read := read_copy(files, name)) is not None] == [9, 9]


@memory_only  # a store without UNDO log to begin with
def test_log_with_tablespaces_and_copies_that_know_no_undo_log_are_refused() -> None:
    files = MemoryFiles()
    open_memory(files).close()
    old = {name: files.snapshot()[name] for name in NAMES}
    files = files.kill()
    db = open_memory(files)
    db.create_tablespace("main")
    db.close()
    refused({**files.snapshot(), **old}, tm.SysfileDamaged)


@pytest.mark.parametrize("how", DAMAGES)
def test_both_copies_damaged_refused_with_checkpoints_and_with_a_log_alone(
    history: History, log_only: History, how: str
) -> None:
    for store in (history, log_only):
        error = refused(damaged(store.copy(), NAMES, how, 5), tm.SysfileDamaged)
        assert "sysfile" in str(error)


def test_both_copies_damaged_with_only_data_files_or_a_late_group_next_to_them_refused(history: History) -> None:
    # Story: only control files, and groups at the very start of a file, were looked for. A store without them was made
    # anew over its own data files and log.
    contents = damaged(history.copy(), NAMES, "missing", 1)
    for name in [name for name in contents if "/control-" in name or name.startswith("redo/")]:
        del contents[name]
    refused(contents, tm.SysfileDamaged)
    contents = damaged(history.copy(), NAMES, "missing", 1)
    for name in [name for name in contents if name.startswith("lcp/")]:
        del contents[name]
    log = contents["redo/0000.redo"]
    contents["redo/0000.redo"] = bytes(8_192) + log[8_192:]
    refused(contents, tm.SysfileDamaged)


@pytest.mark.parametrize("how", ["flip", "zeros", "empty", "missing"])
def test_both_copies_damaged_and_nothing_was_ever_written_a_store_is_made(how: str) -> None:
    files = MemoryFiles()
    open_memory(files).close()
    contents = {name: bytes(len(content)) if "redo/" in name else content for name, content in files.snapshot().items()}
    contents = damaged(contents, NAMES, how, 3)
    unmade = MemoryFiles.from_snapshot(contents)
    with pytest.raises(tm.FileMissing):
        open_memory(unmade, create=False)
    assert unmade.snapshot() == contents
    db, again = reopened(contents)
    db.create_table("test.account", ACCOUNT, "id")
    put(db, 0, 5, 1.0)
    expected = rows_of(db)
    assert rows_of(open_memory(again.kill())) == expected


def test_both_copies_of_another_store_are_foreign(history: History) -> None:
    other = make_history(seed=99).contents
    refused({**history.contents, **{name: other[name] for name in NAMES}}, tm.ForeignFile)


def test_copies_of_an_earlier_day_open_with_all_rows(history: History) -> None:
    # The sysfile is a floor, never the definition of the end (D5).
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, "id")
    old = {name: files.snapshot()[name] for name in NAMES}
    put(db, 0, 50, 0.0)
    db.checkpoint()
    put(db, 20, 50, 0.0)
    rows = rows_of(db)
    db.close()
    survives(History(files.snapshot(), rows, (0, 1), (0, 0)), {**files.snapshot(), **old})


def test_log_that_ends_before_the_floor_is_damage(log_only: History) -> None:
    # Only the sysfile distinguishes a lost end of the log from a tail.
    contents = log_only.copy()
    log = contents["redo/0000.redo"]
    last = max(at for at in range(0, len(log), 4_096) if log[at + 8 : at + 10] == b"GT")
    contents["redo/0000.redo"] = log[:last] + bytes(len(log) - last)
    error = refused(contents, tm.RedoDamaged)
    assert (error.file, error.offset) == ("redo/0000.redo", last)


@pytest.mark.parametrize(
    "fields",
    [
        {"file_bytes": 0},
        {"file_bytes": 4_097},
        {"file_count": 0},
        {"file_count": 1 << 60},
        {"file_bytes": 1 << 63},
        {"undo_file_count": 3, "undo_file_bytes": 0},
        {"undo_file_count": 1 << 60, "undo_file_bytes": 4_096},
        {"undo_file_count": 3, "undo_file_bytes": 4_097},
        {"undo_void_lsn": (1 << 63) - 1},
        {"reach_lsn": 1 << 62},
    ],
    ids=str,
)
def test_intact_copies_with_an_impossible_log_are_damage(history: History, fields: dict[str, int]) -> None:
    # Story: this ended in ZeroDivisionError, in a list of 2**60 names, or, an LSN after the void, in OverflowError.
    contents = history.copy()
    for name in NAMES:
        contents[name] = resealed(contents[name], **fields)
    refused(contents, tm.Damaged)
    contents[NAMES[0]] = history.contents[NAMES[0]]
    survives(history, contents)


@memory_only  # a store without UNDO log to begin with
def test_undo_log_and_filtered_epoch_come_back_and_copies_without_them_have_none(history: History) -> None:
    files = MemoryFiles.from_snapshot(history.contents)
    old = read_sysfile(files)
    assert old is not None and (old.filtered_epoch, old.undo_geometry) == (0, None)
    copies = open_copies(files)
    ring = undo_geometry(5 << 20)
    written = write_sysfile(copies, replace(old, filtered_epoch=77, undo_geometry=ring))
    assert read_sysfile(files) == replace(written, filtered_epoch=0), (
        "one copy says so: the filter does not go there yet"
    )
    written = write_sysfile(copies, written)
    assert read_sysfile(files) == written
    assert (written.filtered_epoch, written.undo_geometry) == (77, ring)
    again = write_sysfile(copies, replace(written, gci=9))
    assert read_sysfile(files) == again and again.undo_geometry == ring
