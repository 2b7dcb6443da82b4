"""The catalog damaged, foreign, unreadable, unwritable: it is a cache, never trusted, and stops no
opening (F45, F66).
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

import tidemark as tm
from tests.elsewhere import at_once, in_child
from tests.store.support import ACCOUNT, SMALL, rows_of
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.schema.catalog import DATA_NAME, FOLDER, SEAL_NAME, Catalog
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule

BIT_STEP = 211  # a prime, so that every bit of a byte and every place in a page has its turn
OPEN_EVERY = 40


def expected(db: Any) -> list[TableDefinition]:
    """The truth: what the restart found in checkpoints and log."""
    return sorted((db[name].definition for name in db.status()["tables"]), key=lambda each: each.table_id)


def served(directory: Path, identity: tuple[bytes, int]) -> list[TableDefinition] | None:
    """The content of the catalog, None if it reports damage."""
    files = PosixFiles(directory)
    files.read_errors_latch = False
    try:
        return Catalog(files, str(directory), *identity).read()[1]
    except tm.CatalogDamaged:
        return None
    finally:
        files.close_all()


class Check:
    """One store whose catalog is damaged again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damages = self.openings = 0
        with tm.open(directory, **SMALL) as db:
            self.truth = expected(db)
            self.identity = db.parts.opened.identity
        assert served(directory, self.identity) == self.truth

    def damaged(self) -> None:
        """A damaged catalog must be detected."""
        self.damages += 1
        found = served(self.directory, self.identity)
        assert found is None, f"a damaged catalog was served: {found}"

    def reopen(self) -> None:
        """Opening must return the right tables, and repair the catalog."""
        self.openings += 1
        with tm.open(self.directory, **SMALL) as db:
            assert expected(db) == self.truth
            self.identity = db.parts.opened.identity
            assert db["test.account"].get(7) is not None
        assert served(self.directory, self.identity) == self.truth

    def file(self, name: str, rng: random.Random) -> None:
        """Every BIT_STEP-th bit of one file, and the file cut, lengthened, filled, replaced, gone."""
        path = self.directory / name
        for number in range(0, path.stat().st_size * 8, BIT_STEP if name == DATA_NAME else 5):
            content = path.read_bytes()
            changed = bytearray(content)
            changed[number // 8] ^= 1 << number % 8
            path.write_bytes(changed)
            self.damaged()
            if self.damages % OPEN_EVERY == 0 and name == DATA_NAME:
                self.reopen()
            else:
                path.write_bytes(content)
        content = path.read_bytes()
        others = [
            content[:at] for at in (0, 1, 8, 100, 255, 4_095, 4_096, 8_192, len(content) - 1) if at < len(content)
        ]
        others += [content + b"\0", content + bytes(4_096), bytes(len(content)), b"\xff" * len(content)]
        others += [rng.randbytes(len(content)), b"not a database"]
        for other in others:
            path.write_bytes(other)
            self.damaged()
            self.reopen()
        path.unlink()
        self.damaged()
        self.reopen()
        path.unlink()
        path.mkdir()
        self.damaged()
        with tm.open(self.directory, **SMALL) as db:  # it cannot be made anew, which only costs the cache
            assert expected(db) == self.truth
        path.rmdir()
        self.reopen()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    with tm.open(place, **SMALL) as db:
        db.create_table("test.account", ACCOUNT, "id")
        db.create_table("test.other", [tm.Column("id", tm.Int32), tm.Column("text", tm.Text)], "id")
        db["test.account"].insert_many([(key, "o", float(key), None) for key in range(20)])
    return place


def catalog_of(directory: Path, db: Any) -> Any:
    return served(directory, db.parts.opened.identity)


def test_any_damage_of_the_catalog_is_found_and_repaired_and_kills_no_process(directory: Path) -> None:
    def damage() -> Any:
        """LMDB on a broken file can end in a signal: the child does not report anything then."""
        check = Check(directory)
        rng = random.Random(66)
        for name in (DATA_NAME, SEAL_NAME):
            check.file(name, rng)
        return [check.damages, check.openings]

    found = in_child(damage)
    assert isinstance(found, list), found
    assert found[0] > 500 and found[1] > 40


def test_lmdb_itself_would_serve_the_flipped_bit(directory: Path) -> None:
    # Why the digest precedes LMDB: without it this table would have another name.
    path = directory / DATA_NAME
    path.write_bytes(path.read_bytes().replace(b"test.other", b"test.othes"))
    with lmdb.open(str(directory / FOLDER), readonly=True, lock=False) as environment, environment.begin() as view:
        assert any(b"test.othes" in value for _, value in view.cursor())
    with tm.open(directory, **SMALL) as db:
        assert db.tables() == ["test.account", "test.other"]
        assert catalog_of(directory, db) == expected(db)


def test_catalog_of_another_store_is_not_believed(directory: Path, tmp_path: Path) -> None:
    with tm.open(tmp_path / "other", **SMALL) as db:
        db.create_table("wrong.table", ACCOUNT, "id")
    shutil.rmtree(directory / FOLDER)
    shutil.copytree(tmp_path / "other" / FOLDER, directory / FOLDER)
    shutil.copy(tmp_path / "other" / SEAL_NAME, directory / SEAL_NAME)
    with tm.open(directory, **SMALL) as db:
        assert db.tables() == ["test.account", "test.other"]
        assert catalog_of(directory, db) == expected(db)


def test_catalog_of_an_earlier_day_is_brought_up_to_date(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory / FOLDER, tmp_path / "old")
    shutil.copy(directory / SEAL_NAME, tmp_path / "old.seal")
    with tm.open(directory, **SMALL) as db:
        db.drop_table("test.other")
        db.create_table("test.third", ACCOUNT, "id")
    shutil.rmtree(directory / FOLDER)
    shutil.copytree(tmp_path / "old", directory / FOLDER)
    shutil.copy(tmp_path / "old.seal", directory / SEAL_NAME)
    with tm.open(directory, **SMALL) as db:
        assert db.tables() == ["test.account", "test.third"]
        assert catalog_of(directory, db) == expected(db)


def test_lock_file_of_lmdb_left_over_is_ignored(directory: Path) -> None:
    for content in (b"", b"\xff" * 8_192):
        (directory / FOLDER / "lock.mdb").write_bytes(content)
        with tm.open(directory, **SMALL) as db:
            assert catalog_of(directory, db) == expected(db)
            db.create_table("test.third", ACCOUNT, "id")
            assert catalog_of(directory, db) == expected(db)
            db.drop_table("test.third")


@pytest.mark.parametrize("what", ["a file", "a link", "nothing"])
def test_folder_of_the_catalog_replaced_the_store_opens(directory: Path, tmp_path: Path, what: str) -> None:
    # Story: a file in its place ended the opening with Rejected, and with the store still locked.
    shutil.rmtree(directory / FOLDER)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if what == "a file":
        (directory / FOLDER).write_bytes(b"mine")
    if what == "a link":
        (directory / FOLDER).symlink_to(elsewhere)
    with tm.open(directory, **SMALL) as db:
        assert len(rows_of(db)) == 20
        db.create_table("test.third", ACCOUNT, "id")
        assert (catalog_of(directory, db) == expected(db)) == (what == "nothing")
    assert list(elsewhere.iterdir()) == []
    with tm.open(directory, **SMALL) as db:
        assert "test.third" in db


def faulty(directory: Path, *rules: Rule) -> Database:
    files: Any = FaultFiles(PosixFiles(directory), list(rules))
    return Database(files, Options.from_keywords(SMALL), ManualClock(seed=5), str(directory))


@pytest.mark.parametrize("name", [DATA_NAME, SEAL_NAME])
def test_unreadable_catalog_does_not_stop_the_opening(directory: Path, name: str) -> None:
    # Story: one bad sector under the cache latched at every opening: the store could never be opened again.
    db = faulty(directory, Rule("pread", name, error=errno.EIO))
    assert len(rows_of(db)) == 20
    db["test.account"].delete(3)
    assert catalog_of(directory, db) == expected(db)
    db.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_no_room_for_the_catalog_leaves_the_table_made(directory: Path, code: int) -> None:
    db = faulty(directory, Rule("create", SEAL_NAME, error=code))
    db.create_table("test.third", ACCOUNT, "id")
    db["test.third"].insert((1, "o", 1.0, None))
    assert catalog_of(directory, db) is None
    db.close()
    with tm.open(directory, **SMALL) as again:
        assert again["test.third"].get(1) is not None
        assert catalog_of(directory, again) == expected(again)


@pytest.mark.parametrize("error", [lmdb.DiskError, lmdb.MapFullError, lmdb.MemoryError])
def test_lmdb_that_cannot_write_leaves_the_table_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: type[lmdb.Error]
) -> None:
    # Story: an error of LMDB came out of create_table, of a class unknown to the user, for a table that was made.
    def full(*arguments: Any, **keywords: Any) -> Any:
        raise error("injected")

    with tm.open(directory, **SMALL) as db:
        with monkeypatch.context() as patched:
            patched.setattr(lmdb, "open", full)
            db.create_table("test.third", ACCOUNT, "id")
        db["test.third"].insert((1, "o", 1.0, None))
    with tm.open(directory, **SMALL) as again:
        assert again["test.third"].get(1) is not None
        assert catalog_of(directory, again) == expected(again)


def test_threads_that_make_tables_at_once_leave_a_catalog_with_all(directory: Path) -> None:
    # LMDB refuses a second opening of one file in a process. Story: the threads ran into each other's opening.
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait(timeout=200)
        for step in range(6):
            db.create_table(f"test.t{number}_{step}", ACCOUNT, "id")
            if step % 2:
                db.drop_table(f"test.t{number}_{step - 1}")

    with tm.open(directory, **SMALL) as db:
        at_once(work, range(4))
        assert len(db.tables()) == 2 + 4 * 3
        assert catalog_of(directory, db) == expected(db)


def test_opening_that_fails_after_the_restart_releases_the_store(directory: Path) -> None:
    with pytest.raises(tm.StoreFailed):
        faulty(directory, Rule("pwrite", SEAL_NAME, error=errno.EIO), Rule("pread", SEAL_NAME, flip=100))
    with tm.open(directory, **SMALL) as db:
        assert len(rows_of(db)) == 20
