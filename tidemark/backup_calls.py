"""`db.backup` and `db.archive`: copy an open store and its log to a place of backups (docs/backup.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Error, ForeignFile, Rejected
from tidemark.recovery.backup.archive import Archiver
from tidemark.recovery.backup.writer import BackupWriter
from tidemark.recovery.places.names import canonical_place, shown_place
from tidemark.recovery.places.storage import at_place, open_place

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.system_restart.restart import Opened

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
        return asdict(writer.run(incremental))


def begin_archive(opened: Opened, files: Files, place: Place, is_required: bool) -> Archiver:
    """Return the archive of an open store. is_required: fail if the place cannot be reached now, instead of trying
    again later. Raises: Rejected without a place, ForeignFile, FileMissing, IoFailed, …
    """
    if place is None:
        raise Rejected("nothing is archived yet; give archive() a place, a path or a URI, the first time")
    place = canonical_place(place)  # absolute: a later opening finds it from any working directory

    sysfile = opened.keeper.content
    archiver = Archiver(
        opened.store,
        files,
        sysfile.geometry,
        opened.identity,
        sysfile.timeline,
        _name(place),
        lambda: open_place(place, create=True),
    )
    try:
        archiver.attach()
    except Error as error:
        if is_required or isinstance(error, (ForeignFile, Rejected)):
            archiver.close()
            raise
        archiver.failed(error)
    return archiver


def same_archive(archiver: Archiver, place: Place) -> None:
    """Raises: Rejected unless the store is archived to this place."""
    if archiver.name != _name(canonical_place(place)):
        raise Rejected(f"the store is archived to {archiver.name} until it is closed; leave the place out")


def _name(place: Place) -> Place:
    return place if isinstance(place, tuple) else shown_place(place)
