"""The defects that are planted: one changed line each, and the part of the harness that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """`old` occurs once in the module; `new` takes its place."""

    name: str
    module: str
    old: str
    new: str
    part: str


DEFECTS: tuple[Defect, ...] = (
    # --- unique indexes ------------------------------------------------------------------------------
    Defect(
        "unique-build-does-not-wait-twice",
        "tidemark.engine.store.unique_build",
        "        self.build.wait_for_older(table, generation)",
        "        pass",
        "unique-build",
    ),
    # --- spooled transactions ------------------------------------------------------------------------
    Defect(
        "spool-file-not-synced",
        "tidemark.engine.txn.spool",
        "self._files.files.fdatasync(self._file)",
        "pass",
        "spool-order",
    ),
    Defect("spool-name-not-durable", "tidemark.engine.txn.spool", "self._files.sync_names()", "pass", "spool-order"),
    Defect(
        "spool-file-goes-too-early",
        "tidemark.engine.log.spool_files",
        "if kept.lsn < tail_lsn:",
        "if tail_lsn >= 0:",
        "spool-order",
    ),
    Defect(
        "changed-block-not-written-again",
        "tidemark.engine.txn.spool",
        "if checksum == block.checksum:",
        "if block.checksum is not None:",
        "spool-states",
    ),
    Defect(
        "every-spool-file-swept",
        "tidemark.recovery.system_restart.spool",
        "    sweep(files, {name for each in kept.values() for name in each.names})",
        "    sweep(files, set())",
        "spool-states",
    ),
    Defect(
        "savepoint-leaves-its-blocks",
        "tidemark.engine.txn.spool",
        "while self.blocks and self.blocks[-1].stop > used:",
        "while self.blocks and self.blocks[-1].start > used + (1 << 40):",
        "spool-states",
    ),
    # --- the log -------------------------------------------------------------------------------------
    Defect(
        "group-not-synced",
        "tidemark.engine.log.redo",
        "            self.files.fdatasync(self.handles[number])",
        "            pass",
        "states",
    ),
    Defect(
        "commit-does-not-wait",
        "tidemark.engine.txn.transaction",
        "(log.wait if wait else log.share)(ticket, self.txid)",
        "pass",
        "disk-states",
    ),
    Defect(
        "next-group-counts-as-durable",
        "tidemark.engine.log.redo",
        "writing.reached = last.sequence\n",
        "writing.reached = last.sequence + 1\n",
        "states",
    ),
    Defect(
        "second-file-of-a-group-not-synced",
        "tidemark.engine.log.redo",
        "        for number, *_ in pieces:",
        "        for number, *_ in pieces[:1]:",
        "states",
    ),
    Defect(
        "torn-group-accepted",
        "tidemark.engine.log.reader",
        "not is_sealed(words, KIND_GROUP, size) or records",
        "records",
        "states",
    ),
    Defect(
        "log-overwrites-what-is-needed",
        "tidemark.engine.log.redo",
        "free = self._limit_lsn - self.head_lsn - PRIVATE_BYTES",
        "free = self.geometry.capacity_bytes",
        "laps",
    ),
    Defect(
        "full-disk-under-the-log-forgotten",
        "tidemark.engine.log.redo",
        "            raise failure from error",
        "            return",
        "disk-full",
    ),
    Defect(
        "log-outruns-its-reach",
        "tidemark.engine.log.redo",
        "            if end_lsn > self.reach_lsn and self.extend_reach is not None:",
        "            if False:",
        "laps",
    ),
    Defect(
        "end-of-log-not-firmed-up", "tidemark.recovery.system_restart.restart", "reader.seal_tail()", "pass", "states"
    ),
    # --- local checkpoints ---------------------------------------------------------------------------
    Defect(
        "names-of-data-files-not-synced",
        "tidemark.recovery.local_checkpoint.writer",
        "                self._files.sync_directory(FOLDER)\n                self._store.log.make_durable",
        "                self._store.log.make_durable",
        "states",
    ),
    Defect(
        "data-file-not-synced",
        "tidemark.engine.files.sequential",
        "            self._files.fdatasync(self._file)\n        self.leave()",
        "            pass\n        self.leave()",
        "states",
    ),
    Defect(
        "control-file-before-the-log",
        "tidemark.recovery.local_checkpoint.writer",
        "                self._store.log.make_durable(control.start_sequence - 1)",
        "                pass",
        "epoch",
    ),
    Defect(
        "name-of-control-file-not-synced",
        "tidemark.engine.files.durable_files",
        '    files.rename(unnamed, name)\n    files.sync_directory(name.rpartition("/")[0])\n',
        "    files.rename(unnamed, name)\n",
        "states",
    ),
    Defect(
        "abandoned-checkpoint-leaves-bits",
        "tidemark.recovery.local_checkpoint.writer",
        "                    self._abandon(lcp_id, parts)",
        "                    pass",
        "disk-full",
    ),
    Defect(
        "old-rows-not-loaded",
        "tidemark.recovery.system_restart.load",
        "for control in {each.lcp_id: each for each in self.chosen.values() if each is not None}.values():",
        "for control in ():",
        "states",
    ),
    Defect(
        "sysfile-before-the-log",
        "tidemark.background",
        "            store.log.make_durable(sequence - 1)\n            self.writing_since",
        "            self.writing_since",
        "epoch",
    ),
    Defect(
        "log-files-not-durable-at-creation",
        "tidemark.engine.log.geometry",
        "        files.fdatasync(file)\n        files.close(file)",
        "        files.close(file)",
        "states",
    ),
    # --- restart -------------------------------------------------------------------------------------
    Defect(
        "replay-begins-a-group-late",
        "tidemark.recovery.system_restart.replay",
        "        for group in groups:\n            for some",
        "        for group in groups[1:]:\n            for some",
        "states",
    ),
    Defect(
        "epochs-given-again",
        "tidemark.recovery.system_restart.restart",
        "gci=max(highest + 1, int(gci_of(caught_up.epoch))),",
        "gci=max(1, int(gci_of(caught_up.epoch))),",
        "states",
    ),
    Defect(
        "dropped-tables-come-back",
        "tidemark.recovery.system_restart.replay",
        '{change["drop"] for _, change in changes if "drop" in change}',
        "set()",
        "states",
    ),
    Defect(
        "counts-of-copied-rows-unchecked",
        "tidemark.recovery.system_restart.load",
        "check_counts(name, (load.entries, block.blocks, block.size_bytes), control.copies)",
        "pass",
        "damage",
    ),
    Defect(
        "log-cut-that-a-fallback-needs",
        "tidemark.recovery.system_restart.restart",
        "        if self._start < (start.lsn, start.sequence):",
        "        if False:",
        "damage",
    ),
    # --- the disk ------------------------------------------------------------------------------------
    Defect(
        "short-write-taken-for-whole",
        "tidemark.engine.files.layer",
        "            if done != view.nbytes:\n                self._pwrite_rest",
        "            if done == 0:\n                self._pwrite_rest",
        "short-write",
    ),
    Defect(
        "short-read-taken-for-whole",
        "tidemark.engine.files.layer",
        "        if got != view.nbytes:\n            got",
        "        if got == 0:\n            got",
        "short-read",
    ),
    Defect(
        "failed-sync-forgotten",
        "tidemark.engine.files.layer",
        '                failure.first = (SyncFailed, "fdatasync", file.name, cause)',
        "                return",
        "sync-error-reverting",
    ),
    # --- indexes and partitions ----------------------------------------------------------------------
    Defect(
        "schema-change-does-not-wait",
        "tidemark.engine.store.schema_log",
        "        resources.log.wait(ticket)",
        "        pass",
        "index-states",
    ),
    Defect(
        "index-published-and-not-logged",
        "tidemark.engine.store.index_build",
        "            self._schema.log("
        '{"alter": json.loads(after.to_json())}, lambda: table.publish_definition(after, parts))',
        "            table.publish_definition(after, parts)",
        "index-states",
    ),
    Defect(
        "index-published-before-its-walk-ends",
        "tidemark.engine.store.index_build",
        "if not self.is_walked(table):\n                return",
        "if self._fillings[0].walked < 0 and table.count():\n"
        "                self._fillings[0].walked = 0\n                return",
        "stress",
    ),
    Defect(
        "older-transactions-not-waited-for",
        "tidemark.engine.store.index_build",
        "[place for place in store.locks.open_now() if int(store.mem[place.desc + X_GENERATION]) < birth]",
        "[place for place in store.locks.open_now() if False]",
        "stress",
    ),
    Defect(
        "build-given-up-stays-in-the-list",
        "tidemark.engine.store.index_build",
        "                withdraw_index(mem, table.handle, part.tree.handle)",
        "                pass",
        "stress",
    ),
    Defect(
        "dropped-index-comes-back",
        "tidemark.engine.store.index_build",
        'schema.log({"alter": json.loads(after.to_json())}, lambda: table.remove_index(after, parts))',
        "table.remove_index(after, parts)",
        "index-states",
    ),
    Defect(
        "restart-builds-indexes-of-one-fragment",
        "tidemark.recovery.system_restart.indexes",
        "index.tree.load(index.tree.merge(collect(index.tree)))",
        "index.tree.load(index.tree.merge(collect(index.tree)[:1]))",
        "index-states",
    ),
    Defect(
        "restart-builds-one-part-of-an-index",
        "tidemark.recovery.system_restart.indexes",
        "for kind in kinds_of(definition))",
        "for kind in kinds_of(definition)[:1])",
        "index-states",
    ),
    Defect(
        "entries-of-a-dropped-partition-stay",
        "tidemark.engine.table.table",
        "            index.forget(self.fragment)",
        "            pass",
        "life",
    ),
    Defect(
        "dropped-partition-comes-back",
        "tidemark.engine.store.store",
        'self.schema.log({"alter": json.loads(change.definition.to_json())}, lambda: table.apply(change))',
        'self.schema.log({"alter": json.loads(before.to_json())}, lambda: table.apply(change))',
        "partition-states",
    ),
    # --- transactions in memory ----------------------------------------------------------------------
    Defect(
        "savepoint-undoes-nothing",
        "tidemark.engine.txn.transaction",
        "int(self.mem[self.desc + X_LAST]) != until:",
        "False:",
        "stateful",
    ),
    Defect(
        "batch-stays-half-done",
        "tidemark.engine.access.batch_operations",
        "    with txn.savepoint():\n        touch_many(txn, table, encoded, a.MODE_DELETE, 0)",
        "    if True:\n        touch_many(txn, table, encoded, a.MODE_DELETE, 0)",
        "stateful",
    ),
)

# These change compiled code, which takes minutes each time, or need many crash states: only in the long runs.
KERNEL_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "synced-write-not-synced",
        "tidemark.engine.files.synced_write_kernels",
        "failed = done == count and fdatasync(descriptor) < 0",
        "failed = False",
        "synced-writes",
    ),
    Defect(
        "end-of-a-group-not-zeroed",
        "tidemark.engine.log.group_kernels",
        "    for i in range(used, written):",
        "    for i in range(used + 1, written):",
        "sealing",
    ),
    Defect(
        "batch-left-out-of-a-header",
        "tidemark.engine.log.group_kernels",
        "    words[12] = unsynced\n",
        "",
        "sealing",
    ),
    Defect(
        "scan-position-off-by-one",
        "tidemark.engine.txn.commit_kernels",
        "and rowid >= mem[fragment + A.F_LCP_POSITION]",
        "and rowid > mem[fragment + A.F_LCP_POSITION] + 3",
        "states",
    ),
    Defect(
        "inserted-row-not-marked",
        "tidemark.engine.txn.commit_kernels",
        "    if not_passed(mem, fragment, rowid):\n        mem[row] |= A.LCP_BIT",
        "    if False:\n        mem[row] |= A.LCP_BIT",
        "states",
    ),
    Defect(
        "old-row-not-copied",
        "tidemark.engine.txn.commit_kernels",
        "        copies[0] += write_lcp_entry(mem, fragment, rowid, row, copies, copies[0])",
        "        copies[0] += 0",
        "states",
    ),
    Defect(
        "build-position-not-advanced",
        "tidemark.engine.index.tree_build_kernels",
        "        mem[tree + X.I_BUILT_ROWID] = state[0]\n        if place == -1:",
        "        if place == -1:",
        "life",
    ),
    Defect(
        "entry-of-a-deleted-row-stays",
        "tidemark.engine.txn.commit_kernels",
        "        if remove_entries(mem, txn, fragment, rowid) != A.OK:",
        "        if False:",
        "life",
    ),
    Defect(
        "entry-of-a-changed-key-not-added",
        "tidemark.engine.index.changes_kernels",
        "        changed |= 1 << i",
        "        changed |= 0",
        "life",
    ),
    Defect(
        "records-of-a-dropped-partition-not-passed-over",
        "tidemark.engine.store.replay_kernels",
        "                if fragment != 0 and epoch > mem[fragment + A.F_REPLAY_EPOCH]:",
        "                if epoch > mem[fragment + A.F_REPLAY_EPOCH]:",
        "partition-states",
    ),
    Defect(
        "unique-entry-of-the-old-key-stays",
        "tidemark.engine.txn.commit_kernels",
        "        remove_replaced(mem, txn, buf, operation, fragment, rowid, row)\n",
        "        pass\n",
        "unique",
    ),
    Defect(
        "unique-entry-of-a-deleted-row-stays",
        "tidemark.engine.txn.commit_kernels",
        "        remove_of_row(mem, txn, fragment, rowid, X.I_BIRTH)\n",
        "        pass\n",
        "unique",
    ),
    Defect(
        "unique-entry-of-an-undone-update-stays",
        "tidemark.engine.txn.abort_kernels",
        "        remove_updated(mem, txn, buf, operation, fragment, row)\n",
        "        pass\n",
        "unique",
    ),
    Defect(
        "unique-entry-another-image-needs-is-removed",
        "tidemark.engine.index.unique_changes_kernels",
        "        if newest == operation or tag != applied_tag(mem, buf, index, fragment, row, newest, operation):",
        "        if True:",
        "unique",
    ),
    Defect(
        "savepoint-ends-its-transaction",
        "tidemark.engine.txn.abort_kernels",
        "        mem[txn + A.X_CHANGES] = changes\n",
        "        mem[txn + A.X_CHANGES] = changes\n        finish(mem, txn)\n",
        "stateful",
    ),
)
