"""The binlog of a store that is being opened: where the log is followed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.log.follower import FollowPoint, LogFollower
from replication.binlog.mark import leave_mark

if TYPE_CHECKING:
    from engine.file_protocol import Files
    from recovery.system_restart.restart import Opened
    from replication.binlog.attached import AttachedBinlog


def attach(files: Files, opened: Opened, values: Mapping[str, Any]) -> AttachedBinlog | None:
    """Bring the binlog of a restarted store up to its log, None without `log_bin`. Nothing has been committed yet.

    Durable on return: the epochs the binlog lacked, or the mark that the store goes on without it. Raises: Rejected,
    BinlogDamaged, FileMissing, StorageFull.
    """
    if values["log_bin"] is None:
        leave_mark(files)
        return None
    from replication.binlog.attached import AttachedBinlog  # most stores have none, and it is a tenth of the start

    point, epoch, newest_epoch = FollowPoint(), 0, opened.sysfile.closed_epoch
    if opened.controls:
        newest = opened.controls[0]
        point = FollowPoint(newest.start_lsn, newest.start_sequence, tuple(newest.tables))
        epoch = newest.epoch
        newest_epoch = max(epoch, newest_epoch)
    follower = LogFollower(files, opened.sysfile.geometry, opened.sysfile.store, point)
    return AttachedBinlog(opened.store, files, values, follower, epoch, newest_epoch, opened.report.is_new)
