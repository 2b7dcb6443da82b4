"""Verification of a place of backups: every byte of every file, every row's form, every chain. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.errors import Damaged, Incompatible
from engine.log.spool_reader import SpoolReader, referred
from recovery.backup.manifest import Level, Manifest, find_backups
from recovery.backup.rows_file import RowsReader
from recovery.backup.segments import groups_of, read_segment, segment_names
from recovery.backup.writer import layout_at

if TYPE_CHECKING:
    from engine.file_protocol import Files

Progress = Callable[[int, int, str], None]
PROBLEMS_MAX = 100


@dataclass
class VerifyReport:
    """What was looked at, and what is wrong."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    backups: int = 0
    files: int = 0
    rows: int = 0
    segments: int = 0
    groups: int = 0
    size_bytes: int = 0

    def note(self, error: Exception, name: str) -> None:
        """One more problem, while there are not too many."""
        if len(self.problems) < PROBLEMS_MAX:
            said = str(error)
            self.problems.append(said if name in said else f"{name}: {said}")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {**self.__dict__, "is_sound": not self.problems}


def verify(files: Files, number: int | None = None, progress: Progress | None = None) -> VerifyReport:
    """Read everything the backups (or one of them) need, and the archive. Raises: StoreFailed if the disk fails."""
    report = VerifyReport()
    found = find_backups(files)
    for other, why in found.damaged.items():
        if number in (None, other):
            report.problems.append(why)
    chosen = [each for each in found.manifests if number in (None, each.number)]
    if number is not None and not chosen and number not in found.damaged:
        report.problems.append(f"there is no backup {number} here")
    report.notes += [f"backup {each} was not finished" for each in found.unfinished]
    _verify_rows(files, chosen, report, progress)
    if number is None:
        _verify_archive(files, report)
    return report


def _verify_rows(files: Files, manifests: Iterable[Manifest], report: VerifyReport, progress: Progress | None) -> None:
    """Each rows file once, by what the newest manifest says of it; others must say the same."""
    levels: dict[str, tuple[Level, Manifest]] = {}
    for manifest in manifests:
        report.backups += 1
        for _, level in manifest.files():
            known = levels.setdefault(level.place.name, (level, manifest))
            if known[0] != level:
                report.note(ValueError(f"manifests {known[1].number} and {manifest.number} differ"), level.place.name)
    total = sum(level.sizes.size_bytes for level, _ in levels.values())
    for name, (level, manifest) in sorted(levels.items()):
        layout = layout_at(manifest.definition(level.place.table_id), level.place.table_version)
        try:
            RowsReader(files, manifest.store, name).verify(level.place, layout, level.sizes)
        except (Damaged, Incompatible) as error:
            report.note(error, name)
        report.files += 1
        report.rows += level.sizes.entries
        report.size_bytes += level.sizes.size_bytes
        if progress is not None:
            progress(report.size_bytes, total, "bytes")


def _verify_archive(files: Files, report: VerifyReport) -> None:
    """Every segment with the spool files it refers to; a gap is none here, for a plan says what it can reach."""
    at: tuple[int, int, int] | None = None
    for name in segment_names(files):
        try:
            segment = read_segment(files, name)
            if at is not None and at[0] == segment.timeline and at[1:] != (segment.start_lsn, segment.start_sequence):
                report.notes.append(f"the archive has a gap before {name}")
            at = (segment.timeline, *segment.next)
            for group in groups_of(files, segment):
                report.groups += 1
                what = referred(group)
                if what is not None:
                    report.size_bytes += SpoolReader(files, segment.store, what).verify()
            report.segments += 1
            report.size_bytes += segment.size_bytes
        except (Damaged, Incompatible) as error:
            report.note(error, name)
