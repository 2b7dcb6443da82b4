"""Planted defects: one changed line each, and the part of the harness that must see it.

`python -m tests.crash.planted NAME` runs that part against the changed program; exit code 0 and one line on standard
output if it was seen, 1 if not. The line is changed while the module is imported; no file is touched.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

import pytest

from engine.errors import Error

MISSED = 1


@dataclass(frozen=True)
class Defect:
    """`old` occurs once in the module; `new` takes its place."""

    name: str
    module: str
    old: str
    new: str
    part: str


DEFECTS: tuple[Defect, ...] = (
    # --- the log -------------------------------------------------------------------------------------
    Defect(
        "group-not-synced",
        "engine.log.redo",
        "            self._files.fdatasync(self._handles[number])",
        "            pass",
        "states",
    ),
    Defect("commit-does-not-wait", "engine.transaction", "            log.wait(ticket)", "            pass", "states"),
    Defect(
        "next-group-counts-as-durable",
        "engine.log.redo",
        "self.durable_sequence = group.sequence\n                self.durable_lsn",
        "self.durable_sequence = group.sequence + 1\n                self.durable_lsn",
        "states",
    ),
    Defect(
        "second-file-of-a-group-not-synced",
        "engine.log.redo",
        "        for number in numbers:",
        "        for number in numbers[:1]:",
        "states",
    ),
    Defect(
        "torn-group-accepted",
        "engine.log.reader",
        "not is_sealed(words, KIND_GROUP, size) or records",
        "records",
        "states",
    ),
    Defect(
        "log-overwrites-what-is-needed",
        "engine.log.redo",
        "free = self.geometry.capacity_bytes - (self.head_lsn - self.tail_lsn) - PRIVATE_BYTES",
        "free = self.geometry.capacity_bytes",
        "laps",
    ),
    Defect(
        "full-disk-under-the-log-forgotten",
        "engine.log.redo",
        "            raise failure from error",
        "            return",
        "disk-full",
    ),
    Defect(
        "log-outruns-its-reach",
        "engine.log.redo",
        "            if end > self.reach_lsn and self.extend_reach is not None:",
        "            if False:",
        "laps",
    ),
    Defect("end-of-log-not-firmed-up", "recovery.system_restart.restart", "reader.seal_tail()", "pass", "states"),
    # --- local checkpoints ---------------------------------------------------------------------------
    Defect(
        "names-of-data-files-not-synced",
        "recovery.local_checkpoint.writer",
        "                self._files.sync_directory(FOLDER)\n                self._store.log.wait",
        "                self._store.log.wait",
        "states",
    ),
    Defect(
        "data-file-not-synced",
        "recovery.local_checkpoint.data_file",
        "        self._write()\n        self._files.fdatasync(self._file)\n        self._files.close",
        "        self._write()\n        self._files.close",
        "states",
    ),
    Defect(
        "control-file-before-the-log",
        "recovery.local_checkpoint.writer",
        "                self._store.log.wait(control.start_sequence - 1)",
        "                pass",
        "epoch",
    ),
    Defect(
        "name-of-control-file-not-synced",
        "recovery.local_checkpoint.control",
        "        files.close(file)\n    files.sync_directory(FOLDER)",
        "        files.close(file)",
        "states",
    ),
    Defect(
        "abandoned-checkpoint-leaves-bits",
        "recovery.local_checkpoint.writer",
        "                    self._abandon(lcp_id, parts)",
        "                    pass",
        "disk-full",
    ),
    Defect(
        "old-rows-not-loaded",
        "recovery.system_restart.load",
        "for control in {each.lcp_id: each for each in self.chosen.values() if each is not None}.values():",
        "for control in ():",
        "states",
    ),
    Defect(
        "sysfile-before-the-log",
        "tidemark.background",
        "            store.log.wait(sequence - 1)\n            # Here",
        "            # Here",
        "epoch",
    ),
    Defect(
        "log-files-not-durable-at-creation",
        "engine.log.geometry",
        "        files.fdatasync(file)\n        files.close(file)",
        "        files.close(file)",
        "states",
    ),
    # --- restart -------------------------------------------------------------------------------------
    Defect(
        "replay-begins-a-group-late",
        "recovery.system_restart.replay",
        "        for group in groups:\n            stop",
        "        for group in groups[1:]:\n            stop",
        "states",
    ),
    Defect(
        "epochs-given-again",
        "recovery.system_restart.restart",
        "                gci=highest + 1,",
        "                gci=1,",
        "states",
    ),
    Defect(
        "dropped-tables-come-back",
        "recovery.system_restart.replay",
        '{change["drop"] for _, change in changes if "drop" in change}',
        "set()",
        "states",
    ),
    Defect(
        "counts-of-copied-rows-unchecked",
        "recovery.system_restart.load",
        "check_counts(name, (int(state[2]), *seen), control.copies)",
        "pass",
        "damage",
    ),
    Defect(
        "log-cut-that-a-fallback-needs",
        "recovery.system_restart.restart",
        "min((tail_lsn, tail_sequence), self._start)",
        "(tail_lsn, tail_sequence)",
        "damage",
    ),
    # --- the disk ------------------------------------------------------------------------------------
    Defect(
        "short-write-taken-for-whole",
        "engine.file_layer",
        "        if done != view.nbytes:\n            self._pwrite_rest",
        "        if done == 0:\n            self._pwrite_rest",
        "short-write",
    ),
    Defect(
        "short-read-taken-for-whole",
        "engine.file_layer",
        "        if got != view.nbytes:\n            got",
        "        if got == 0:\n            got",
        "short-read",
    ),
    Defect(
        "failed-sync-forgotten",
        "engine.file_layer",
        '                failure.first = (SyncFailed, "fdatasync", file.name, cause)',
        "                return",
        "sync-error-reverting",
    ),
    # --- disk columns --------------------------------------------------------------------------------
    Defect(
        "page-before-its-undo",
        "engine.disk.page_writer",
        "        self._write_ahead.flush_through(lsn)",
        "        pass",
        "disk-order",
    ),
    Defect(
        "copies-not-synced",
        "engine.disk.double_write",
        "        self._files.fdatasync(self._file)",
        "        pass",
        "disk-order",
    ),
    Defect(
        "copies-lost-before-pages-are-durable",
        "engine.disk.page_writer",
        "        self.settle()\n        self._double_write",
        "        self._double_write",
        "disk-order",
    ),
    Defect(
        "data-files-not-synced",
        "engine.disk.page_writer",
        "            self._places.sync_files()",
        "            pass",
        "disk-order",
    ),
    Defect(
        "undo-group-not-synced",
        "engine.log.undo",
        "            self._files.fdatasync(self._handles[number])",
        "            pass",
        "disk-order",
    ),
    Defect(
        "undone-twice",
        "recovery.system_restart.disk",
        "            self.columns.undo.mark_restart(\n                control.lcp_id, control.undo.lsn,"
        " control.undo.sequence, control.undo.position\n            )",
        "            pass",
        "disk-restarts",
    ),
    Defect(
        "undo-log-grows-by-every-replay",
        "recovery.system_restart.disk",
        "            self._rewind(earlier)",
        "            self.columns.undo.mark_restart(control.lcp_id, control.undo.lsn, control.undo.sequence,"
        " control.undo.position)",
        "disk-restarts",
    ),
    Defect(
        "replay-counts-twice",
        "recovery.system_restart.disk",
        "            self.columns.undo.made_again()",
        "            pass",
        "disk-undo-full",
    ),
    Defect(
        "rewound-over-groups-that-count",
        "recovery.system_restart.disk",
        "        self.sysfile = replace(self.sysfile, undo_void=void)",
        "        pass",
        "disk-restarts",
    ),
    # --- transactions in memory ----------------------------------------------------------------------
    Defect(
        "savepoint-undoes-nothing",
        "engine.transaction",
        "int(self.mem[self.desc + X_LAST]) != until:",
        "False:",
        "stateful",
    ),
    Defect(
        "batch-stays-half-done",
        "engine.batch_operations",
        "    with txn.savepoint():\n        touch_many(txn, table, encoded, MODE_DELETE, 0)",
        "    if True:\n        touch_many(txn, table, encoded, MODE_DELETE, 0)",
        "stateful",
    ),
)

# These change compiled code, which takes minutes each time, or need many crash states: only in the long runs.
SPOOL_DEFECTS: tuple[Defect, ...] = (
    Defect("spool-file-not-synced", "engine.spool", "self._files.files.fdatasync(self._file)", "pass", "spool-order"),
    Defect("spool-name-not-durable", "engine.spool", "self._files.sync_names()", "pass", "spool-order"),
    Defect("spool-file-goes-too-early", "engine.spool_files", "if lsn < tail_lsn:", "if tail_lsn >= 0:", "spool-order"),
    Defect(
        "changed-block-not-written-again",
        "engine.spool",
        "if checksum == block.checksum:",
        "if block.checksum is not None:",
        "spool-states",
    ),
    Defect(
        "every-spool-file-swept",
        "recovery.system_restart.spool",
        "    sweep(files, kept)",
        "    sweep(files, {})",
        "spool-states",
    ),
    Defect(
        "savepoint-leaves-its-blocks",
        "engine.spool",
        "while self.blocks and self.blocks[-1].stop > used:",
        "while self.blocks and self.blocks[-1].start > used + (1 << 40):",
        "spool-states",
    ),
)

KERNEL_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "torn-pages-not-mended",
        "recovery.system_restart.disk",
        "self.columns.pages_repaired = mend(self._files, self.columns.space, self.sysfile.store)",
        "pass",
        "disk-states",
    ),
    Defect(
        "filter-drops-what-may-be-lost",
        "engine.log.undo",
        "        restorable = self._restorable_epoch() if self.is_filtering else -1",
        "        restorable = (1 << 62) if self.is_filtering else -1",
        "disk-epoch",
    ),
    Defect(
        "filter-drops-structure",
        "engine.kernels.undo",
        "        if words[at] & UNDO_KIND_MASK == UNDO_UPDATE and epoch <= restorable_epoch:",
        "        if words[at] & UNDO_KIND_MASK <= UNDO_FREE and epoch <= restorable_epoch:",
        "disk-states",
    ),
    Defect(
        "undone-page-keeps-its-lsn",
        "engine.kernels.disk_replay",
        "                cache_dirtied(mem, mem[space + TS_CACHE], page, lsn - 1)",
        "                cache_dirtied(mem, mem[space + TS_CACHE], page, lsn)",
        "disk-states",
    ),
    Defect(
        "extents-copied-late",
        "recovery.local_checkpoint.writer",
        "write_extents(self._files, self._identity, control.lcp_id, self._extents)",
        "write_extents(self._files, self._identity, control.lcp_id, copy_headers(disk.space))",
        "disk-states",
    ),
    Defect(
        "scan-position-off-by-one",
        "engine.kernels.commit",
        "and rowid >= mem[fragment + F_LCP_POSITION]",
        "and rowid > mem[fragment + F_LCP_POSITION] + 3",
        "states",
    ),
    Defect(
        "inserted-row-not-marked",
        "engine.kernels.commit",
        "        if not_passed(mem, fragment, rowid):\n            mem[row] |= LCP_BIT",
        "        if False:\n            mem[row] |= LCP_BIT",
        "states",
    ),
    Defect(
        "old-row-not-copied",
        "engine.kernels.commit",
        "        copies[0] += write_entry(mem, copies, fragment, rowid, row, False, copies, copies[0])",
        "        copies[0] += 0",
        "states",
    ),
    Defect(
        "savepoint-ends-its-transaction",
        "engine.kernels.commit",
        "        mem[txn + X_CHANGES] = changes\n",
        "        mem[txn + X_CHANGES] = changes\n        finish(mem, txn)\n",
        "stateful",
    ),
)


class _Planter(SourceFileLoader):
    """Loads the module with the line changed."""

    defect: Defect

    def path_stats(self, path: str) -> dict[str, int]:
        raise OSError("neither use nor leave compiled code")

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        if text.count(self.defect.old) != 1:
            raise SystemExit(f"{self.defect.name}: its line occurs {text.count(self.defect.old)} times")
        return text.replace(self.defect.old, self.defect.new).encode()


class _Finder(MetaPathFinder):
    def __init__(self, defect: Defect) -> None:
        self.defect = defect

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.defect.module:
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        loader = _Planter(fullname, found.origin)
        loader.defect = self.defect
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def part(name: str) -> Callable[[], object]:
    """A part of the harness, small; an anomaly loop by the name of its anomaly."""
    from hypothesis import Phase

    from recovery.crash_harness import disk_history, history, spool_history
    from recovery.crash_harness.anomaly_loop import anomaly_loop
    from recovery.crash_harness.crash_states import crash_states, record
    from recovery.crash_harness.program import whole_state
    from tests.crash import test_disk_tables
    from tests.crash.test_stateful import run

    if name == "states":
        return lambda: [crash_states(history.work, whole_state, seed) for seed in (1, 2)]
    if name == "epoch":
        return lambda: crash_states(history.epoch_work, whole_state, 1)
    if name == "laps":
        return lambda: record(history.long_work, 1)
    if name == "damage":
        return damage
    if name == "disk-order":
        return lambda: record(disk_history.work, 1)
    if name == "disk-restarts":
        return test_disk_tables.test_fifty_restarts_broken_off_in_replay_do_not_fill_the_undo_log
    if name == "disk-undo-full":
        return test_disk_tables.test_store_with_a_full_undo_log_takes_a_local_checkpoint_after_a_restart
    if name == "disk-states":
        return lambda: [crash_states(disk_history.work, whole_state, seed, 2) for seed in (1, 2, 3)]
    if name == "disk-epoch":
        return lambda: [crash_states(disk_history.epoch_work, whole_state, seed, 2) for seed in (1, 2, 3)]
    if name == "spool-order":
        return lambda: record(spool_history.work, 1)
    if name == "spool-states":
        return lambda: [crash_states(spool_history.tiny_work, whole_state, seed, 1) for seed in (1, 2)]
    if name == "stateful":
        return lambda: run(300, 40, phases=[Phase.generate], derandomize=True)
    return lambda: anomaly_loop(history.short_work, whole_state, name, 5)


def damage() -> None:
    """Files with right checksums and wrong content, and what a restart without both local checkpoints still needs."""
    from tests.recovery import test_local_checkpoint_content as content
    from tests.recovery.support import make_history

    content.test_log_before_both_checkpoints_is_kept_once_a_restart_has_needed_it()
    content.test_entries_missing_from_an_intact_file_of_the_newest_are_counted(make_history(), "{newest}-copies.data")


# What a defect makes the harness or the store raise; a line that was changed badly raises something else.
SEEN = (AssertionError, Error, ValueError, LookupError, BaseExceptionGroup, pytest.fail.Exception)


def main(name: str) -> int:
    """Plant it, look."""
    defect = next(each for each in (*DEFECTS, *SPOOL_DEFECTS, *KERNEL_DEFECTS) if each.name == name)
    sys.meta_path.insert(0, _Finder(defect))
    harness = part(defect.part)
    try:
        harness()
    except SEEN as error:
        print(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return 0
    return MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
