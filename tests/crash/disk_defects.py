"""Planted defects of disk columns: pages, their copies, the UNDO log, restarts."""

from __future__ import annotations

from tests.crash.defects import Defect

DISK_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "page-before-its-undo",
        "tidemark.engine.disk.page_writer",
        "        self.write_ahead.flush_through(lsn)",
        "        pass",
        "disk-order",
    ),
    Defect(
        "copies-not-synced",
        "tidemark.engine.disk.double_write",
        "        self._files.fdatasync(self._file)",
        "        pass",
        "disk-order",
    ),
    Defect(
        "copies-lost-before-pages-are-durable",
        "tidemark.engine.disk.page_writer",
        "        self.settle()\n        self._double_write",
        "        self._double_write",
        "disk-order",
    ),
    Defect(
        "data-files-not-synced",
        "tidemark.engine.disk.page_writer",
        "            self.places.sync_files()",
        "            pass",
        "disk-order",
    ),
    Defect(
        "undo-group-not-synced",
        "tidemark.engine.disk.undo",
        "            self.files.fdatasync(self._handles[number])",
        "            pass",
        "disk-order",
    ),
    Defect(
        "undone-twice",
        "tidemark.recovery.system_restart.disk",
        "            self.columns.undo.mark_restart(\n                control.lcp_id, control.undo.lsn,"
        " control.undo.sequence, control.undo.position\n            )",
        "            pass",
        "disk-restarts",
    ),
    Defect(
        "undo-log-grows-by-every-replay",
        "tidemark.recovery.system_restart.disk",
        "            self._rewind(earlier)",
        "            self.columns.undo.mark_restart(control.lcp_id, control.undo.lsn, control.undo.sequence,"
        " control.undo.position)",
        "disk-restarts",
    ),
    Defect(
        "replay-counts-twice",
        "tidemark.recovery.system_restart.disk",
        "            self.columns.undo.count_replayed_once()",
        "            pass",
        "disk-undo-full",
    ),
    Defect(
        "rewound-over-groups-that-count",
        "tidemark.recovery.system_restart.disk",
        "        self._write_sysfile(replace(self.sysfile, undo_void=void))",
        "        pass",
        "disk-restarts",
    ),
    Defect(
        "free-page-read-to-be-undone",
        "tidemark.engine.store.disk_replay",
        "held, [int(state[3]) | FRESH_PAGE]",
        "held, [int(state[3])]",
        "disk-grown",
    ),
    Defect(
        "sync-beside-a-write-covers-it",
        "tidemark.engine.files.layer",
        "flat(view), done)\n        finally:\n            file.writes += 1",
        "flat(view), done)\n        finally:\n            pass",
        "disk-beside",
    ),
)

# These change compiled code, or need many crash states: only in the long runs.
DISK_KERNEL_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "torn-pages-not-mended",
        "tidemark.recovery.system_restart.disk",
        "self.columns.pages_repaired = rewrite_last_batch(self._files, self.columns.space, self.sysfile.store)",
        "pass",
        "disk-states",
    ),
    Defect(
        "filter-drops-what-may-be-lost",
        "tidemark.engine.disk.undo",
        "        restorable = self._restorable_epoch() if self.is_filtering else -1",
        "        restorable = (1 << 62) if self.is_filtering else -1",
        "disk-epoch",
    ),
    Defect(
        "filter-drops-structure",
        "tidemark.engine.disk.undo_kernels",
        "        if words[at] & D.UNDO_KIND_MASK == D.UNDO_UPDATE and epoch <= restorable_epoch:",
        "        if words[at] & D.UNDO_KIND_MASK <= D.UNDO_FREE and epoch <= restorable_epoch:",
        "disk-states",
    ),
    Defect(
        "free-page-undone-as-it-stands",
        "tidemark.engine.store.disk_replay_kernels",
        "        if space_is_fresh(mem, page) == 1:",
        "        if page < 0:",
        "disk-left",
    ),
    Defect(
        "undone-page-keeps-its-lsn",
        "tidemark.engine.store.disk_replay_kernels",
        "            cache_dirtied(mem, cache, page, lsn - 1)",
        "            cache_dirtied(mem, cache, page, lsn)",
        "disk-states",
    ),
    Defect(
        "extents-copied-late",
        "tidemark.recovery.local_checkpoint.writer",
        "write_extents(self._files, self._identity, control.lcp_id, self._extents)",
        "write_extents(self._files, self._identity, control.lcp_id, copy_headers(disk.space))",
        "disk-states",
    ),
)
