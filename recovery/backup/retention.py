"""Retention: which backups may go, and of the files only what no backup that stays needs (docs/backup.md, 5).

Order: names of the manifests that stay, made sure of; then those of the backups that go, their folders synced; then
rows files that no manifest names; then archived log of before the oldest that stays. So a crash leaves files that
nobody needs, never a backup that lacks one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Damaged, Rejected, ValueOutOfRange
from tidemark.engine.log.spool_reader import referred
from tidemark.recovery.backup.manifest import Manifest, find_backups, folders, manifest_name
from tidemark.recovery.backup.segments import FOLDER, groups_of, read_segment, segment_names

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files


@dataclass
class PruneReport:
    """What was removed."""

    removed: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    files: int = 0
    segments: int = 0
    freed_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return dict(self.__dict__)


def prune(files: Files, keep: int) -> PruneReport:
    """Keep the `keep` newest backups and all they need. Nobody else may write here meanwhile.

    Raises: ValueOutOfRange for keep below 1; Rejected, and nothing is removed, while a manifest cannot be read.
    """
    if keep < 1:
        raise ValueOutOfRange(f"at least one backup is kept, got keep={keep}")
    found = find_backups(files)
    if found.damaged:
        raise Rejected(
            f"backups {sorted(found.damaged)} have damaged manifests, and nobody knows which files they need; remove"
            " their manifests, or put intact ones back, and run it again"
        )
    kept, gone = found.manifests[:keep], found.manifests[keep:]
    report = PruneReport([each.number for each in gone], [each.number for each in kept])
    if gone:
        _firm_up(files, kept)
    for manifest in reversed(gone):
        files.unlink(manifest_name(manifest.number))
        files.sync_directory(str(manifest.number))
    if kept:
        _remove_rows(files, kept, report)
        _remove_log(files, kept, report)
    return report


def _firm_up(files: Files, kept: list[Manifest]) -> None:
    """The backups that stay stand in for those that go: one whose manifest has its name in the cache of the system
    alone, because what made it was killed before its last sync, does not (F39). Durable on return: their names.
    """
    files.sync_directory("")
    for manifest in kept:
        files.sync_directory(str(manifest.number))


def _remove_rows(files: Files, kept: list[Manifest], report: PruneReport) -> None:
    """Of folders above the newest backup nothing: one that is not finished yet may be gone on with."""
    needed = {level.place.name for manifest in kept for _, level in manifest.files()}
    for number in folders(files):
        if number > kept[0].number:
            continue
        for leaf in files.list(str(number)):
            name = f"{number}/{leaf}"
            if leaf.endswith(".rows") and name not in needed:
                report.freed_bytes += files.size(name)
                files.unlink(name)
                report.files += 1
        files.sync_directory(str(number))


def _remove_log(files: Files, kept: list[Manifest], report: PruneReport) -> None:
    """Segments that end before the oldest backup's log begins, of its timeline or an older one."""
    oldest = min(kept, key=lambda each: (each.timeline, each.log[0]))
    for name in segment_names(files):
        try:
            segment = read_segment(files, name)
            if (segment.timeline, segment.end_lsn) > (oldest.timeline, oldest.log[0]):
                continue
            parts = [what for group in groups_of(files, segment) if (what := referred(group)) is not None]
        except Damaged:
            continue  # what it is cannot be told: it stays
        files.unlink(name)
        files.sync_directory(FOLDER)
        for records in [name for what in parts for name in what.names]:
            if files.exists(records):
                files.unlink(records)
                files.sync_directory(records.partition("/")[0])
        report.segments += 1
        report.freed_bytes += segment.size_bytes
