"""Defects planted in the capture of changes and in the binlog of an open store."""

from __future__ import annotations

from tests.crash.defects import Defect

_ATTACHED = "tidemark.replication.injector.attached"

BINLOG_DEFECTS: tuple[Defect, ...] = (
    # --- capture -------------------------------------------------------------------------------------
    Defect(
        "images-before-without-columns-left-alone",
        "tidemark.replication.injector.table_rules",
        "return CAPTURE_WHOLE if is_whole or self.has_function else CAPTURE_CHANGED",
        "return CAPTURE_CHANGED",
        "binlog-types",
    ),
    Defect(
        "second-change-of-a-row-not-joined",
        "tidemark.engine.log.row_changes",
        "    if not rows[:, RW_IS_AGAIN].any():",
        "    if True:",
        "binlog-openings",
    ),
    Defect(
        "changes-of-one-key-in-any-order",
        "tidemark.engine.log.row_changes",
        "    order: Words = np.lexsort((codes, rounds))",
        "    order: Words = np.argsort(codes, kind='stable')",
        "binlog-batches",
    ),
    Defect(
        "epoch-read-before-it-is-durable",
        "tidemark.engine.log.follower",
        "        if lsn >= durable_lsn:",
        "        if lsn > durable_lsn:",
        "binlog-openings",
    ),
    # --- numbers of transactions -----------------------------------------------------------------------
    Defect(
        "number-of-a-torn-transaction-counted",
        "tidemark.replication.binlog.recovery",
        "                begun = walked.event",
        "                begun = last = walked.event",
        "binlog-power",
    ),
    Defect(
        "number-taken-at-the-begin-of-a-transaction",
        "tidemark.replication.binlog.writer",
        "        self._is_numbered = self.history is not None",
        "        self.number += self.history is not None",
        "binlog-numbers-full",
    ),
    Defect(
        "history-kept-after-a-time-without-numbers",
        "tidemark.replication.binlog.writer",
        "        if kept is None or bool(kept.first) != has_gtids or (has_gtids and found.has_unnumbered):",
        "        if kept is None or (has_gtids and not kept.first):",
        "binlog-numbers-off",
    ),
    Defect(
        "history-kept-by-a-store-that-went-back",
        _ATTACHED,
        "        self._begin_timeline()  # after the incident, which is of the earlier one",
        "        pass",
        "binlog-numbers-back",
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
        "tidemark.engine.log.follower",
        "            if first.epoch <= after:",
        "            if first.epoch < after:",
        "binlog-openings",
    ),
    Defect(
        "statements-a-crash-cut-off-forgotten",
        _ATTACHED,
        "            self._injector.already_written_statements = deque(tail.statements)",
        "            pass",
        "binlog-power",
    ),
    Defect(
        "torn-transaction-left-in-the-file",
        "tidemark.replication.binlog.recovery",
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
        "tidemark.replication.injector.mark",
        "        files.close(files.create(STOPPED))",
        "        pass",
        "binlog-gap",
    ),
    # --- order ---------------------------------------------------------------------------------------
    Defect(
        "local-checkpoint-does-not-wait-for-the-binlog",
        "tidemark.recovery.local_checkpoint.writer",
        "                self._store.room.await_followers(control.epoch)",
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
        "tidemark.replication.injector.pending_system_rows",
        "                self._pending.append(written)",
        "                pass",
        "binlog-openings",
    ),
    Defect(
        "ended-file-without-its-end-read-over",
        "tidemark.replication.binlog.reader",
        "                check_end(self._files, self._file, self.position.file, self._format)",
        "                pass",
        "binlog-bytes",
    ),
    # --- what a killed process or a failed sync left is not believed --------------------------------------
    Defect(
        "relay-log-only-synced",
        "tidemark.replication.channel.relay_log",
        "            write_again(self.files, self._file, run.offset_of(self._whole))",
        "            self.files.fdatasync(self._file)",
        "binlog-shown-relay",
    ),
    Defect(
        "names-of-an-index-believed",
        "tidemark.replication.binlog.index",
        "            self.exists = True\n        self.files.sync_directory(self.folder)",
        "            self.files.sync_directory(self.folder)\n            self.exists = True",
        "binlog-shown-index",
    ),
    Defect(
        "first-index-not-written-again",
        "tidemark.replication.binlog.index",
        "                write_again(self.files, file)\n",
        "                pass\n",
        "binlog-shown-index",
    ),
    Defect(
        "mark-that-is-there-believed",
        "tidemark.replication.injector.mark",
        "        if not files.exists(STOPPED):\n            files.close(files.create(STOPPED))\n",
        "        if not files.exists(STOPPED):\n            files.close(files.create(STOPPED))\n        else:\n"
        "            return\n",
        "binlog-shown-mark",
    ),
    # --- a channel that continues with another server -------------------------------------------------------
    Defect(
        "old-peer-confirms-for-the-new-one",
        "tidemark.replication.channel.channel",
        "        if new_id not in (0, left):",
        "        if False:",
        "binlog-moves",
    ),
    Defect(
        "server-at-an-address-confirms-for-another-one",
        "tidemark.replication.channel.channel",
        "        if self.left_source not in (0, source.server_id):",
        "        if False:",
        "binlog-moves",
    ),
    Defect(
        "failover-source-confirms-for-the-one-before",
        "tidemark.replication.channel.channel",
        "        self._positions.unconfirm()\n        relay.reset()",
        "        relay.reset()",
        "binlog-moves",
    ),
)
