"""`db.backup` and `db.archive`: an open store into a place of backups (docs/backup.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import Rejected
from recovery.backup.archive import Archive
from recovery.backup.storage import at_place, open_place
from recovery.backup.writer import BackupWriter

if TYPE_CHECKING:
    from engine.file_protocol import Files
    from recovery.system_restart.restart import Opened

Progress = Callable[[int, int, str], None]
Place = Any  # a path, a URI, or (pyarrow filesystem, path)


def backup(
    opened: Opened,
    place: Place,
    server_id: int,
    incremental: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """See `Database.backup`."""
    identity, timeline = opened.identity, opened.keeper.content.timeline
    with at_place(place, create=True, is_locked=True) as files:
        writer = BackupWriter(opened.store, files, identity, timeline, server_id, verify, progress)
        return writer.run(incremental).to_dict()


def begin_archive(opened: Opened, files: Files, place: Place) -> Archive:
    """See `Database.archive`."""
    if place is None:
        raise Rejected("nothing is archived yet; give archive() a place, a path or a URI, the first time")
    target = open_place(place, create=True)
    try:
        sysfile = opened.keeper.content
        archive = Archive(opened.store, files, sysfile.geometry, opened.identity, sysfile.timeline, target)
    except BaseException:
        target.close_all()
        raise
    archive.name = place
    return archive


def same_archive(archive: Archive, place: Place) -> None:
    """Raises: Rejected unless the store is archived to this place."""
    if archive.name != place:
        raise Rejected(f"the store is archived to {archive.name} until it is closed; leave the place out")
