"""The binlog of a store: where it continues when the store is opened, and the check that it agrees with the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import Rejected
from tidemark.engine.log.follower import FollowPoint, LogFollower
from tidemark.replication.injector.mark import leave_mark

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.system_restart.restart import Opened
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.attached import AttachedBinlog


def attach(
    files: Files, opened: Opened, values: Mapping[str, Any], completed: Callable[[], int] | None = None
) -> AttachedBinlog | None:
    """Bring the binlog of a restarted store up to its log, before anything is committed; None without `log_bin`.
    completed: at a node of a group, the newest epoch that all its members have.

    Durable on return: the epochs that the binlog lacked, or the mark that the store continues without it. Raises:
    Rejected, BinlogDamaged, FileMissing, StorageFull.
    """
    if values["log_bin"] is None:
        leave_mark(files)
        return None
    # Most stores have no binlog, and the import takes a tenth of the start.
    from tidemark.replication.injector.attached import AttachedBinlog

    store, sysfile = opened.store, opened.sysfile
    point, epoch, newest_epoch, seam_epoch = FollowPoint(), 0, sysfile.closed_epoch, 0
    start = (opened.controls[0].start_lsn, opened.controls[0].start_sequence) if opened.controls else (0, 1)
    is_copy = store.log.head_lsn == 0 and store.log.sequence > 1  # no gap: the log of a copy begins later
    if sysfile.is_before_seam(*start) or is_copy:
        # Copied rows came without groups, in epochs up to the one that is open until the local checkpoint of the copy.
        tables = tuple(table.definition for table in list(store.tables.by_name.values()))
        point, seam_epoch = FollowPoint(store.log.head_lsn, store.log.sequence, tables), store.epochs.current
    elif opened.controls:
        newest = opened.controls[0]
        point = FollowPoint(newest.start_lsn, newest.start_sequence, tuple(newest.tables))
        epoch = newest.epoch
        newest_epoch = max(epoch, newest_epoch)
    follower = LogFollower(files, sysfile.geometry, sysfile.store, point)
    place = (follower, epoch, newest_epoch, opened.report.is_new)
    binlog = AttachedBinlog(store, files, values, *place, completed, seam_epoch)

    def hold() -> None:
        with store.latch:
            store.log.hold_tail(follower, "the binlog", follower.lsn)

    binlog.on_written.append(hold)
    hold()
    return binlog


def check_binlog(endpoint: Endpoint, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """See `Database.check_binlog`."""
    from tidemark.recovery.verification.binlog_check import BinlogCheck
    from tidemark.replication.injector.binlog_pieces import KeptBinlog

    store = endpoint.store
    began = store.clock.monotonic()
    binlog = endpoint.log()
    snapshot = store.snapshots.begin(Snapshot)
    try:
        if binlog.write_closed_epochs() < snapshot.epoch:
            raise Rejected("the binlog has not reached the newest epoch; try again")
        kept = KeptBinlog(endpoint, snapshot.epoch)
        with kept.kept():
            report = BinlogCheck(snapshot, kept.pieces, kept.is_whole(), kept.logs_empty, progress).run()
    finally:
        snapshot.close()
    report.seconds = store.clock.monotonic() - began
    return report.to_dict()
