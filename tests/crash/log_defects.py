"""Defects planted where the log is synced, where its floor is raised, where it is cut, and in the control files that
allow the cut.
"""

from __future__ import annotations

from tests.crash.defects import Defect

LOG_DEFECTS: tuple[Defect, ...] = (
    # --- a log that grows ------------------------------------------------------------------------------
    Defect(
        "next-file-of-the-log-not-synced",
        "tidemark.engine.log.geometry",
        "    files.fdatasync(file)\n    files.sync_directory(geometry.folder)\n    return file",
        "    files.sync_directory(geometry.folder)\n    return file",
        "growth-states",
    ),
    Defect(
        "name-of-the-next-file-of-the-log-not-durable",
        "tidemark.engine.log.geometry",
        "    files.sync_directory(geometry.folder)\n    return file",
        "    return file",
        "growth-states",
    ),
    Defect(
        "next-file-of-the-log-not-declared",
        "tidemark.engine.log.redo",
        "                self.declare_files(grown)",
        "                pass",
        "growth-states",
    ),
    Defect(
        "next-file-of-the-log-in-one-copy-of-the-sysfile",
        "tidemark.recovery.system_restart.sysfile",
        'frozenset({"incarnation", "geometry", "undo_geometry"})',
        'frozenset({"incarnation", "undo_geometry"})',
        "growth-states",
    ),
    # --- what a failed sync or a kill left is firmed up whole ------------------------------------------
    Defect(
        "one-group-of-a-batch-rewritten",
        "tidemark.engine.log.reader",
        "self._doubtful = [*self._doubtful[max(0, before) :], group]",
        "self._doubtful = [group]",
        "batch-states",
    ),
    Defect(
        "first-group-of-a-batch-not-rewritten",
        "tidemark.engine.log.reader",
        "for group in self._doubtful]\n            self._write(self._doubtful[0].lsn,",
        "for group in self._doubtful[1:] or self._doubtful]\n            self._write(self._doubtful[1:2][-1].lsn"
        " if len(self._doubtful) > 1 else self._doubtful[0].lsn,",
        "batch-states",
    ),
    Defect(
        "batch-not-told-in-its-groups",
        "tidemark.engine.log.redo",
        "stamp, group.sequence - 1 - self.writing.reached)",
        "stamp, 0)",
        "batch-states",
    ),
    Defect(
        "rest-of-a-torn-batch-comes-back",
        "tidemark.engine.log.reader",
        "        if self._has_remnants:",
        "        if False:",
        "batches",
    ),
    Defect(
        "floor-of-a-cut-before-its-end-is-firm",
        "tidemark.recovery.system_restart.restart",
        "            reader.make_durable()\n",
        "",
        "second-loss",
    ),
    Defect(
        "batch-rewritten-after-the-sysfile",
        "tidemark.recovery.system_restart.restart",
        "        reader.seal_tail()\n",
        "        sysfile = write_sysfile(copies, replace(sysfile, durable_lsn=reader.end_lsn))\n"
        "        reader.seal_tail()\n",
        "second-loss",
    ),
    Defect(
        "pages-of-the-last-batch-not-written-again",
        "tidemark.engine.disk.double_write",
        "if held is None or is_torn or np.array_equal(held, copy):",
        "if is_torn:",
        "double-write",
    ),
    Defect(
        "newest-segment-believed",
        "tidemark.recovery.backup.archive",
        "last = make_durable(self._place, segment)",
        "last = self._log.group_at(*tail)",
        "archive",
    ),
    # --- and so is all else that a killed process or a failed sync leaves in the cache --------------------
    Defect(
        "folder-that-is-there-believed",
        "tidemark.engine.files.durable_files",
        "        files.make_directory(path)\n    files.sync_directory",
        "        files.make_directory(path)\n        files.sync_directory",
        "shown-names",
    ),
    Defect(
        "names-of-a-store-believed",
        "tidemark.recovery.system_restart.two_copies",
        '        files.sync_directory("")\n',
        "",
        "shown-names",
    ),
    Defect(
        "level-file-of-a-broken-backup-believed",
        "tidemark.recovery.backup.writer",
        "                make_file_durable(self._files, level.level_name)\n",
        "",
        "shown-backups",
    ),
    Defect(
        "manifest-that-stays-believed",
        "tidemark.recovery.backup.retention",
        "        _make_durable(files, kept)\n",
        "        pass\n",
        "shown-backups",
    ),
    Defect(
        "published-load-believed",
        "tidemark.recovery.load.commit",
        "    place.sync()\n    return read_manifest",
        "    return read_manifest",
        "shown-load",
    ),
    # --- files of others ---------------------------------------------------------------------------------
    Defect(
        "directory-not-looked-at-under-the-lock",
        "tidemark.recovery.system_restart.restart",
        "            check_place(files, self._options.create)",
        "            pass",
        "directory",
    ),
    Defect(
        "forget-removes-every-file",
        "tidemark.recovery.system_restart.place",
        "for leaf in files.list(folder) if FOLDERS[folder].fullmatch(leaf)]",
        "for leaf in files.list(folder)]",
        "directory",
    ),
    # --- the floor -----------------------------------------------------------------------------------
    Defect(
        "floor-not-raised-by-sync",
        "tidemark.database",
        "        self._clockwork.raise_floor()\n        return closed",
        "        return closed",
        "floor",
    ),
    Defect(
        "floor-not-raised-by-a-local-checkpoint",
        "tidemark.background",
        "            self.raise_floor()\n",
        "",
        "floor",
    ),
    Defect(
        "floor-goes-back",
        "tidemark.recovery.system_restart.sysfile",
        "            if changed.durable_lsn < self.content.durable_lsn:",
        "            if False:",
        "floor",
    ),
    # --- the tail, and the ids -----------------------------------------------------------------------
    Defect(
        "log-cut-that-a-node-needs",
        "tidemark.engine.log.redo",
        " and self._needs.allow(lsn):",
        ":",
        "tail",
    ),
    Defect(
        "openings-not-counted",
        "tidemark.engine.base.ids",
        "    if incarnation >= INCARNATION_MAX:",
        "    if False:",
        "tail",
    ),
    # --- what the log reports to its followers ------------------------------------------------------------
    Defect(
        "row-of-a-dropped-partition-told",
        "tidemark.engine.log.row_changes",
        "                chosen = np.ascontiguousarray(chosen[is_kept])",
        "                pass",
        "follower-drops",
    ),
    # --- a control file is whole when it has its name --------------------------------------------------
    Defect(
        "control-file-named-before-it-is-whole",
        "tidemark.recovery.local_checkpoint.control",
        "return control_name(lcp_id) + NEW",
        "return control_name(lcp_id)",
        "first-checkpoint",
    ),
    # --- a write and its sync in one call ------------------------------------------------------------
    Defect(
        "short-synced-write-taken-for-whole",
        "tidemark.engine.files.layer",
        "        if is_synced and done == count:",
        "        if is_synced:",
        "synced-writes",
    ),
    Defect(
        "rest-of-a-short-write-not-synced",
        "tidemark.engine.files.layer",
        "            self._pwrite_rest(file, offset, flat(words), done)\n        self.fdatasync(file)",
        "            self._pwrite_rest(file, offset, flat(words), done)",
        "synced-writes",
    ),
    Defect(
        "sync-that-failed-in-one-call-repeated",
        "tidemark.engine.files.layer",
        "INTERRUPTED = frozenset({errno.EINTR})",
        "INTERRUPTED = frozenset({errno.EINTR, errno.EIO})",
        "synced-writes",
    ),
    Defect(
        "failed-sync-taken-for-a-failed-write",
        "tidemark.engine.files.layer",
        "            is_sync = written[0] == count\n",
        "            is_sync = False\n",
        "synced-writes",
    ),
    Defect(
        "call-between-a-failed-sync-and-its-latch",
        "tidemark.engine.files.layer",
        "            is_sync = written[0] == count\n",
        "            is_sync = written[0] == count and len(written) > 0\n",
        "synced-writes",
    ),
    Defect(
        "write-counted-as-synced-before-it-was",
        "tidemark.engine.files.layer",
        "        writes = file.writes\n        is_synced = True\n",
        "        writes = file.writes\n        is_synced = True\n        file.synced = writes + 1\n",
        "synced-writes",
    ),
    # --- threads that wait for one another's work ----------------------------------------------------
    Defect(
        "follower-keeps-the-gate-to-itself",
        "tidemark.engine.log.leaders",
        "            if passed:\n                gate.open()",
        "            pass",
        "gates",
    ),
    Defect(
        "followers-that-left-are-still-counted",
        "tidemark.engine.log.leaders",
        "                    gate.followers.discard(token)\n",
        "                    pass\n",
        "gates",
    ),
    Defect(
        "leader-wakes-its-own-group-alone",
        "tidemark.engine.log.leaders",
        "if each <= self.reached]:",
        "if each == self.reached]:",
        "gates",
    ),
    Defect(
        "failure-told-to-the-first-group-alone",
        "tidemark.engine.log.leaders",
        "for sequence in waiting if self._failure.first is not None else waiting[:1]:",
        "for sequence in waiting[:1]:",
        "gates",
    ),
)
