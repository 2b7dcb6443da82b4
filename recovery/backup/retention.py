"""Retention: removes old backups, and only those of their files that no kept backup needs (docs/backup.md, 5).

Order: sync the names of kept manifests; remove the manifests of old backups and sync their folders; remove levels
that no manifest names; remove archived log from before the oldest kept backup. So a crash may leave unneeded files, but
never a backup that lacks a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Damaged, Rejected, ValueOutOfRange
from tidemark.engine.log.spool_reader import referred
from tidemark.recovery.backup.manifest import Manifest, find_backups, folders, manifest_name
from tidemark.recovery.backup.rows_file import is_table_folder
from tidemark.recovery.backup.segments import FOLDER, groups_of, read_segment, segment_names
from tidemark.recovery.local_checkpoint.control import plain_number

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files


@dataclass
class PruneReport:
    """Result of a prune."""

    removed: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    files: int = 0
    segments: int = 0
    freed_bytes: int = 0


def prune(files: Files, keep: int) -> PruneReport:
    """Keep the `keep` newest backups and all files that they need. No other process may write to the place meanwhile.

    Raises: ValueOutOfRange for keep below 1; Rejected, with nothing removed, while a manifest is damaged.
    """
    if keep < 1:
        raise ValueOutOfRange(f"keep must be 1 or more, got {keep}")
    found = find_backups(files)
    if found.damaged:
        raise Rejected(
            f"backups {sorted(found.damaged)} have damaged manifests, so the files they need are not known; put intact"
            " copies of the manifests back and run it again (a damaged manifest may be removed only if its backup and"
            " those that need it are no longer wanted)"
        )
    kept, gone = found.manifests[:keep], found.manifests[keep:]
    report = PruneReport([each.number for each in gone], [each.number for each in kept])
    if gone:
        _make_durable(files, kept)
    for manifest in reversed(gone):
        files.unlink(manifest_name(manifest.number))
        files.sync_directory(str(manifest.number))
    if kept:
        _remove_rows(files, kept, report)
        _remove_log(files, kept, report)
    return report


def _make_durable(files: Files, kept: list[Manifest]) -> None:
    """Sync the names of kept backups before others are removed. If their writer was killed before its last sync, a
    manifest's name may be only in the page cache (F39). Durable on return: their names.
    """
    files.sync_directory("")
    for manifest in kept:
        files.sync_directory(str(manifest.number))


def _remove_rows(files: Files, kept: list[Manifest], report: PruneReport) -> None:
    """Remove unneeded levels. Folders newer than the newest backup stay: an unfinished backup may be resumed."""
    places = [level for manifest in kept for _, level in manifest.files()]
    needed = {name for place in places for name in (place.name, place.level_name)}
    # The level file goes last: what it names is then gone, or is not needed.
    tables = [name for name in files.list() if is_table_folder(name)]
    within = [f"{table}/{leaf}" for table in tables for leaf in files.list(table) if plain_number(leaf)]
    for folder in [*within, *map(str, folders(files))]:
        if int(folder.rpartition("/")[2]) > kept[0].number:
            continue
        for leaf in files.list(folder):
            name = f"{folder}/{leaf}"
            if leaf.endswith((".parquet", ".level")) and name not in needed:
                report.freed_bytes += files.size(name)
                files.unlink(name)
                report.files += 1
        files.sync_directory(folder)


def _remove_log(files: Files, kept: list[Manifest], report: PruneReport) -> None:
    """Remove segments of timelines before the oldest kept backup's, and those of its own that end before its log."""
    oldest = min(kept, key=lambda each: (each.timeline, each.log[0]))
    for name in segment_names(files):
        try:
            segment = read_segment(files, name)
            if (segment.timeline, segment.end_lsn) > (oldest.timeline, oldest.log[0]):
                continue
            parts = [what for group in groups_of(files, segment) if (what := referred(group)) is not None]
        except Damaged:
            continue  # its range is unknown, so it stays
        files.unlink(name)
        files.sync_directory(FOLDER)
        for records in [name for what in parts for name in what.names]:
            if files.exists(records):
                files.unlink(records)
                files.sync_directory(records.partition("/")[0])
        report.segments += 1
        report.freed_bytes += segment.size_bytes
