"""The plan of a restore: its files and its last epoch. It can be shown before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import BackupDamaged, Damaged, FileMissing, ForeignFile, Rejected, ValueOutOfRange
from tidemark.recovery.backup.archive import SEGMENT_BYTES
from tidemark.recovery.backup.later_changes import RestoredState
from tidemark.recovery.backup.manifest import find_backups, folders
from tidemark.recovery.backup.segments import Segment, Until, groups_of, read_segment, segment_names
from tidemark.recovery.system_restart.place import nothing_here

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.backup.later_changes import LaterChanges, LaterPlan
    from tidemark.recovery.backup.manifest import Manifest


LATEST = Until()


@dataclass
class Plan:
    """One restore, not yet carried out."""

    manifest: Manifest
    segments: list[Segment] = field(default_factory=list)
    epoch: int = 0  # last epoch taken from backup and archive
    reach: int = 0  # last epoch that could be restored
    notes: list[str] = field(default_factory=list)
    later: LaterPlan | None = None  # changes after that, from another log than the archive
    end_epoch: int = 0  # the restored state is that at the end of this epoch

    def to_dict(self) -> dict[str, Any]:
        return {
            "backup": self.manifest.summary(),
            "epoch": self.end_epoch,
            "reach": self.reach,
            "files": [
                {"file": level.name, "rows": level.entries, "bytes": level.size_bytes}
                for _, level in self.manifest.files()
            ],
            "segments": [
                {"file": each.name, "groups": each.groups, "bytes": each.size_bytes, "last_epoch": each.last_epoch}
                for each in self.segments
            ],
            "binlog": None if self.later is None else self.later.to_dict(),
            "bytes": self.manifest.size_bytes
            + sum(each.size_bytes for each in self.segments)
            + (0 if self.later is None else self.later.size_bytes),
            "notes": list(self.notes),
        }


def make_plan(
    files: Files, until: Until = LATEST, number: int | None = None, later: LaterChanges | None = None
) -> Plan:
    """Return the plan of a restore from a place of backups. number: the backup to use; None: the newest suitable one.
    later: a log that continues after the archive.

    Raises: FileMissing if there is no backup, BackupDamaged, ForeignFile, ValueOutOfRange if `until` is out of reach;
    the errors of `later`.
    """
    plan = _of_backup(files, until, number)
    _add_segments(files, plan, until, later is None)
    is_over = until.epoch is not None and until.epoch <= plan.epoch
    # If the archive continues after the end, no other log is needed.
    if later is not None and not is_over and plan.reach == plan.epoch:
        plan.later = later.plan(RestoredState(plan.manifest, files, plan.epoch, not plan.segments), until)
        plan.reach = max(plan.reach, plan.later.reach)
        plan.notes += plan.later.notes
    if until.epoch is not None and until.epoch > plan.reach:
        # A binlog has only epochs with logged changes.
        has = "backup and archive have" if later is None else "backup, archive and binlog have a change of"
        raise ValueOutOfRange(
            f"epoch {until.epoch} is after {plan.reach}, the last one that {has};"
            f" {plan.notes[-1] if plan.notes else 'restore to that or an earlier one'}",
            newest=plan.reach,
        )
    plan.end_epoch = plan.epoch if plan.later is None else max(plan.epoch, plan.later.epoch, until.epoch or 0)
    return plan


def chosen_backup(files: Files, number: int | None = None) -> Manifest:
    """Return the manifest of a backup in a place without a store; of the newest one if `number` is None. A damaged one
    is never skipped. Raises: FileMissing, BackupDamaged, ForeignFile.
    """
    if not folders(files):
        raise nothing_here(files, "store or backup", "sysfile or finished backup", "check the path")
    return _of_backup(files, LATEST, number).manifest


def no_backup(files: Files) -> FileMissing:
    """Return the error for a place without a backup; it says what the place has."""
    return nothing_here(files, "backup", "finished backup", "check the place")


def _of_backup(files: Files, until: Until, number: int | None) -> Plan:
    found = find_backups(files)
    if number is not None and number in found.damaged:
        raise BackupDamaged(found.damaged[number])
    if not found.manifests and found.damaged:
        damaged = "; ".join(found.damaged.values())
        raise FileMissing(f"there is no backup here that is intact ({damaged}); check the place")
    if not found.manifests:
        raise no_backup(files)
    if len({each.store for each in found.manifests}) > 1:
        raise ForeignFile("the place holds backups of several stores; move those of each store to a place of its own")
    usable = [each for each in found.manifests if number in (None, each.number)]
    if not usable:
        there = ", ".join(str(each.number) for each in found.manifests)
        raise FileMissing(f"there is no backup {number} here; there are: {there}", number=number)
    fitting = [each for each in usable if until.includes(each.epoch, each.wall_us)]
    if not fitting:
        oldest = usable[-1]
        made = _time_text(oldest.wall_us)
        wanted = f"epoch {until.epoch} is" if until.wall_us is None else f"{_time_text(until.wall_us)} is"
        raise ValueOutOfRange(
            f"{wanted} before the oldest backup{'' if number is None else f' of number {number}'}, of epoch"
            f" {oldest.epoch}, made {made}; restore to that or a later one",
            oldest=oldest.epoch,
            oldest_wall_us=oldest.wall_us,
        )
    newer = [each for each in found.damaged if each > fitting[0].number]
    if newer and number is None and until == LATEST:
        raise BackupDamaged(
            f"{found.damaged[max(newer)]} (or ask for an older state with until= or number=)",
            backup=max(newer),
        )
    plan = Plan(fitting[0], epoch=fitting[0].epoch, reach=fitting[0].epoch)
    for other, why in found.damaged.items():
        plan.notes.append(f"backup {other} is damaged and was left out: {why}")
    return plan


def _time_text(wall_us: int) -> str:
    """Return µs since 1970 in ISO 8601, UTC, rounded up to a second: at that time the backup is there."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=-(-wall_us // 1_000_000))).isoformat()


def _add_segments(files: Files, plan: Plan, until: Until, is_last: bool) -> None:
    """Add the consecutive segments that continue from the backup, as far as needed. is_last: no other log follows.

    The end of a damaged segment is unknown. The damage does no harm if a later sound segment starts at or before the
    LSN that is needed next. Otherwise the archive ends there, and only a restore to an earlier state may ignore that.
    """
    manifest = plan.manifest
    at = manifest.log
    doubt: Damaged | None = None
    for name in segment_names(files):
        if not name.rpartition("/")[2].startswith(f"{manifest.timeline}-"):
            continue
        try:
            segment = read_segment(files, name)
        except (BackupDamaged, FileMissing) as error:
            doubt = error
            continue
        if segment.store != manifest.store:
            raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
        if segment.start_lsn <= at[0]:
            doubt = None
        if segment.end_lsn <= at[0]:
            continue
        if segment.start_lsn > at[0]:
            if doubt is None:
                plan.notes.append(f"the archive has a gap between LSN {at[0]} and {segment.start_lsn}")
            break
        if plan.segments and segment.start_sequence != at[1]:
            plan.notes.append(f"{name} does not follow the segment before")
            break
        plan.reach = max(plan.reach, segment.last_epoch)
        if not until.includes(segment.first_epoch, segment.first_wall_us) and segment.first_epoch > plan.epoch:
            return
        plan.segments.append(segment)
        plan.epoch = max(plan.epoch, _last_epoch(files, segment, until))
        at = segment.next
    if not is_last:
        _end_whole(plan)
    if doubt is not None:
        if until == LATEST and is_last:
            raise doubt
        plan.notes.append(f"the archive ends at LSN {at[0]}: {doubt.message}")


def _end_whole(plan: Plan) -> None:
    """End at an epoch that is certainly complete: the other log continues after it. A segment that reaches its size may
    end in the middle of an epoch, and the next segment may never have been written.
    """
    last = plan.segments[-1] if plan.segments else None
    if last is not None and plan.epoch == last.last_epoch and last.end_lsn - last.start_lsn >= SEGMENT_BYTES // 2:
        plan.epoch = plan.reach = max(plan.manifest.epoch, last.last_epoch - 1)


def _last_epoch(files: Files, segment: Segment, until: Until) -> int:
    """Return the last epoch of a segment that the restore takes completely."""
    if until.includes(segment.last_epoch, segment.last_wall_us):
        return segment.last_epoch
    if until.epoch is not None:
        return until.epoch
    found = [(group.epoch, until.includes(group.epoch, group.wall_us)) for group in groups_of(files, segment)]
    first_late = min(epoch for epoch, is_taken in found if not is_taken)
    return max((epoch for epoch, _ in found if epoch < first_late), default=0)


def check_number(value: object) -> int:
    """Return the caller's `until` if it is a valid epoch. Raises: Rejected."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Rejected(f"until must be an epoch, a whole number from 0, or a time, got {value!r}")
    return value
