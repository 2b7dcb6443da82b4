"""Defects planted in the capture of changes and in the binlog of an open store."""

from __future__ import annotations

from tests.crash.defects import Defect

_ATTACHED = "replication.binlog.attached"

BINLOG_DEFECTS: tuple[Defect, ...] = (
    # --- capture -------------------------------------------------------------------------------------
    Defect(
        "images-before-without-columns-left-alone",
        "replication.binlog.table_rules",
        "return CAPTURE_WHOLE if is_whole or self.has_function else CAPTURE_CHANGED",
        "return CAPTURE_CHANGED",
        "binlog-types",
    ),
    Defect(
        "second-change-of-a-row-not-joined",
        "engine.log.row_changes",
        "    if not rows[:, RW_IS_AGAIN].any():",
        "    if True:",
        "binlog-openings",
    ),
    Defect(
        "changes-of-one-key-in-any-order",
        "engine.log.row_changes",
        "    order: Words = np.lexsort((codes, rounds))",
        "    order: Words = np.argsort(codes, kind='stable')",
        "binlog-batches",
    ),
    Defect(
        "epoch-read-before-it-is-durable",
        "engine.log.follower",
        "        if lsn >= durable_lsn:",
        "        if lsn > durable_lsn:",
        "binlog-openings",
    ),
    # --- restarts ------------------------------------------------------------------------------------
    Defect(
        "epochs-behind-the-binlog-skipped-at-restart",
        _ATTACHED,
        "            self._written = self._handled = self.newest_epoch = tail.epoch",
        "            self._written = self._handled = self.newest_epoch = epochs.current - 1",
        "binlog-openings",
    ),
    Defect(
        "last-epoch-written-again-at-restart",
        "engine.log.follower",
        "            if first.epoch <= after:",
        "            if first.epoch < after:",
        "binlog-openings",
    ),
    Defect(
        "statements-a-crash-cut-off-forgotten",
        _ATTACHED,
        "            self._injector.passed_over = deque(tail.statements)",
        "            pass",
        "binlog-power",
    ),
    Defect(
        "torn-transaction-left-in-the-file",
        "replication.binlog.recovery",
        "                files.truncate(file, end)",
        "                pass",
        "binlog-power",
    ),
    Defect(
        "store-that-went-back-not-noticed",
        _ATTACHED,
        "is_ahead = tail.epoch >= epochs.current or tail.changed_epoch > self._store_epoch",
        "is_ahead = False",
        "binlog-back",
    ),
    Defect(
        "mark-stopped-not-left",
        "replication.binlog.mark",
        "        files.close(files.create(STOPPED))",
        "        pass",
        "binlog-gap",
    ),
    # --- order ---------------------------------------------------------------------------------------
    Defect(
        "local-checkpoint-does-not-wait-for-the-binlog",
        "recovery.local_checkpoint.writer",
        "                self._store.on_publish(control.epoch)",
        "                pass",
        "binlog-full",
    ),
    Defect(
        "binlog-not-synced-before-a-local-checkpoint",
        _ATTACHED,
        "                self._await_completion()\n        self.writer.sync()",
        "                self._await_completion()",
        "binlog-power-lazy",
    ),
    Defect(
        "index-row-forgotten",
        "replication.binlog.owed_rows",
        "                self._pending.append(written)",
        "                pass",
        "binlog-openings",
    ),
    Defect(
        "ended-file-without-its-end-read-over",
        "replication.binlog.reader",
        "                check_end(self._files, self._file, self.position.file, self._format)",
        "                pass",
        "binlog-bytes",
    ),
)
