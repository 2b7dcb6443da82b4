"""Names and bytes that only the cache of the system holds are synced before anything rests on them (F39)."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest

from tests.node_group.test_views_file import RECORD, STORE
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.errors import SyncFailed, TooManyFiles
from tidemark.engine.files.durable_files import PIECE_BYTES, make_folder, write_again
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.recovery.system_restart.sysfile import RESTORING
from tidemark.replication.node_group.fetch import write_file
from tidemark.replication.node_group.messages import FilePart
from tidemark.replication.node_group.view_file import ViewFile, read_record


def test_folder_that_is_there_already_is_durable_all_the_same() -> None:
    """Story: a folder was made, and its process killed before the sync of its name. The next process saw the folder,
    and synced the files it put there; power was lost, and with it the folder and all its files.
    """
    files = MemoryFiles()
    with pytest.raises(PowerOff):
        make_folder(FaultFiles(files, [Rule("sync_directory", "", stall=power_off)]), "space")
    killed = files.kill()
    make_folder(killed, "space")
    make_folder(killed, "space/below")
    file = killed.create("space/below/1.data", 512)
    killed.fdatasync(file)
    killed.sync_directory("space/below")
    assert killed.image(lambda piece: False).exists("space/below/1.data")


def test_bytes_whose_sync_failed_are_written_again() -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 256 + 1)
    files = MemoryFiles()
    file = files.create("a", len(content) + 512)
    files.fdatasync(file)
    files.sync_directory("")
    faulty = FaultFiles(files, [Rule("fdatasync", error=errno.EIO)])
    handle = faulty.open("a", writable=True)
    faulty.pwrite(handle, 0, content)
    with pytest.raises(SyncFailed):
        faulty.fdatasync(handle)
    killed = files.kill()
    again = killed.open("a", writable=True)
    write_again(killed, again, 300)
    assert killed.image(lambda piece: False).snapshot()["a"].rstrip(b"\0") == content[:300].rstrip(b"\0")
    write_again(killed, again)
    assert killed.image(lambda piece: False).snapshot()["a"] == content + bytes(512)


def test_copies_of_a_view_keep_their_names() -> None:
    """Story: an arbitrator was killed after its files had been made and before their names were synced. The next one
    voted. Power was lost and the files were gone: the arbitrator could have been set up as a new one, and have voted
    again.
    """
    files = MemoryFiles()
    with pytest.raises(PowerOff):
        ViewFile(FaultFiles(files, [Rule("sync_directory", "", stall=power_off)]), STORE)
    killed = files.kill()
    ViewFile(killed, STORE).write(RECORD)
    assert read_record(killed.image(lambda piece: False)) == RECORD


def test_file_of_a_group_whose_name_is_not_durable_is_asked_for_again() -> None:
    """Story: the sync of the folder found no descriptor. The file was there when the group came again, so the group was
    taken, and rested on a name that power could take."""

    class Parts:
        def receive(self) -> FilePart:
            return FilePart("spool/1", 0, 4, b"abcd", True)

    files = MemoryFiles()
    faulty = FaultFiles(files, [Rule("sync_directory", "spool", error=errno.EMFILE)])
    with pytest.raises(TooManyFiles):
        write_file(faulty, "spool/1", cast(Any, Parts()))
    assert not faulty.exists("spool/1")
    write_file(faulty, "spool/1", cast(Any, Parts()))
    assert files.image(lambda piece: False).snapshot()["spool/1"] == b"abcd"


def test_end_of_a_restore_is_durable_before_the_store_commits() -> None:
    """Story: a restore was killed when it had removed its mark, and not synced that. The store was opened and commits
    were acknowledged; power was lost, the mark came back, and the store refused to open: empty it and restore again."""
    files = MemoryFiles()
    db = open_memory(files)
    db.create_table("test.account", ACCOUNT, primary_key="id")
    files.close(files.create(RESTORING))
    files.sync_directory("")
    db.close()
    files = MemoryFiles(files.disk)
    files.unlink(RESTORING)  # as `Restore.run` ends
    killed = files.kill()
    again = open_memory(killed)
    again["test.account"].insert((1, "a", 1.0, None))
    assert set(rows_of(open_memory(killed.image(lambda piece: False)))) == {1}
