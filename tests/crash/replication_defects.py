"""Defects of replication that are planted, and the functions and seeds of the simulation that must see them."""

from __future__ import annotations

from tests.crash.defects import Defect

PART = "simulation"  # followed by the names of functions to draw from

REPLICATION_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "received-counts-as-applied-after-a-restart",
        "tidemark.replication.channel.channel",
        "self.progress.applied_epoch = 0 if row is None else row.epoch",
        "self.progress.applied_epoch = 0 if row is None else relay.epoch",
        "simulation NONE NDB$MAX_INS",
    ),
    Defect(
        "refused-row-not-refreshed",
        "tidemark.replication.applier.one_pass",
        "        self.refresh(batch)\n\n    def _log_exceptions",
        "        pass\n\n    def _log_exceptions",
        "simulation NDB$EPOCH NDB$EPOCH2",
    ),
    Defect(
        "max-replicated-epoch-not-recovered",
        "tidemark.replication.applier.applier",
        "self.mre.value = max(self.mre.value, starting_epoch(rows, self.mre.own_id, self.mre.ignored))",
        "self.mre.value = max(self.mre.value, 0 * len(rows))",
        "simulation NDB$EPOCH NDB$EPOCH2",
    ),
    Defect(
        "row-epoch-not-compared",
        "tidemark.replication.applier.judges",
        "np.full((1, batch.rows), epoch.frozen, dtype=np.int64)",
        "np.full((1, batch.rows), 1 << 62, dtype=np.int64)",
        "simulation NDB$EPOCH NDB$EPOCH2",
    ),
    Defect(
        "own-change-overwritten-by-a-reflected-one",
        "tidemark.replication.conflict.functions",
        "    check = Check.NONE if kind is Kind.WRITE else Check.AUTHOR\n",
        "    check = Check.NONE\n",
        "simulation NDB$EPOCH2",
    ),
    Defect(
        "mark-not-carried-to-what-follows",
        "tidemark.replication.applier.one_pass",
        "rejected = self.epoch.tracker.is_marked(batch.transactions)",
        "rejected = np.isin(batch.transactions, np.concatenate(self.epoch.marked))",
        "simulation NDB$EPOCH_TRANS NDB$EPOCH2_TRANS",
    ),
    Defect(
        "exceptions-row-left-out",
        "tidemark.replication.applier.one_pass",
        "        for stop in [*(np.flatnonzero(np.diff(is_read)) + 1).tolist(), batch.rows]:",
        "        for stop in (np.flatnonzero(np.diff(is_read)) + 1).tolist():",
        "simulation NDB$OLD NDB$MAX",
    ),
    Defect(
        "binlog-served-before-it-is-synced",
        "tidemark.replication.injector.attached",
        "        return self.writer.served().end",
        "        return self.writer.end",
        "simulation NONE NDB$OLD",
    ),
    Defect(
        "epochs-logged-again-after-a-restart",
        "tidemark.replication.injector.attached",
        "            self._written = self._handled = self.newest_epoch = tail.epoch\n",
        "            self._written = self._handled = self.newest_epoch = 0\n",
        "simulation NONE NDB$OLD",
    ),
    Defect(
        "smaller-value-taken",
        "tidemark.replication.conflict.functions",
        '    "NDB$MAX_INS": (Check.GREATER, Check.GREATER, ',
        '    "NDB$MAX_INS": (Check.GREATER, Check.NONE, ',
        "simulation NDB$MAX_INS",
    ),
    Defect(
        "reset-forgets-what-was-judged",
        "tidemark.replication.channel.endpoint",
        "            if self._is_judged_once():\n                return None\n",
        "",
        "site-reset",
    ),
    Defect(
        "row-in-the-way-stops-the-channel",
        "tidemark.replication.applier.held_rows",
        "if self._take_out is None or _key(table, other) in held:",
        "if self._take_out is not None or _key(table, other) in held:",
        "site-clash",
    ),
    Defect(
        "row-taken-out-is-not-told-of",
        "tidemark.replication.applier.one_pass",
        "        marks.tag_local(self.txn)\n",
        "        marks.tag_own(self.txn)\n",
        "site-clash",
    ),
    Defect(
        "row-taken-out-has-no-exceptions-row",
        "tidemark.replication.applier.one_pass",
        "        self._write_exceptions(applied, gone, causes, OperationType.WRITE_ROW)\n",
        "        pass\n",
        "site-clash",
    ),
    Defect(
        "update-of-nothing-not-logged",
        "tidemark.replication.binlog.images",
        "not (options.empty_update or batch.rule.logs_empty)",
        "not options.empty_update",
        "site-nothing",
    ),
    Defect(
        "site-on-the-way-speaks-for-those-behind-it",
        "tidemark.replication.channel.reach",
        "applied_here.through(handled if epoch >= newest else epoch)",
        "applied_here.through(handled)",
        "simulation NONE NDB$OLD NDB$MAX",
    ),
    Defect(
        "sites-further-on-are-not-told-of",
        "tidemark.replication.channel.reach",
        "for each in ((server_id, applied), *forwarded_epochs)]",
        "for each in ((server_id, applied),)]",
        "simulation NONE NDB$OLD NDB$MAX",
    ),
)
