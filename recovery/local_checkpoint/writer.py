"""Writes a local checkpoint while transactions continue (D6).

Order of durable writes: data files → their sync → disk pages (UNDO log before each) and UNDO mark → extents file →
directory sync → log durable through E → control file → its sync → its name → the directory's sync → older checkpoints
removed → tails of both logs cut. After a crash before the control file has its name, the previous checkpoint counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.engine.base.histogram import LCP_BOUNDS, Histogram
from tidemark.engine.disk.disk_layout import UNDO_MARK_WORDS
from tidemark.engine.memory.arena_layout import F_LCP_COPIED, F_ROWS
from tidemark.engine.rows.lcp_layout import COPIES_FRAGMENT, COPIES_TABLE
from tidemark.engine.store.fragment_scan import END, FragmentScan
from tidemark.recovery.local_checkpoint.control import (
    Control,
    UndoMark,
    control_ids,
    control_name,
    log_start,
    read_controls,
    unnamed_control,
    write_control,
)
from tidemark.recovery.local_checkpoint.data_file import FOLDER, DataFileWriter, copies_name, data_name, new_span
from tidemark.recovery.local_checkpoint.extents_file import copy_headers, write_extents

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

Progress = Callable[[int, int, str], None]
# (table, fragment number) -> descriptor of the fragments in a local checkpoint.
Parts = dict[tuple[int, int], int]
Sizes = tuple[int, int, int]  # entries, blocks and bytes of a data file
KEPT = 2


@dataclass
class LcpReport:
    """Result of one local checkpoint."""

    lcp_id: int
    epoch: int
    rows: int = 0
    copies_bytes: int = 0
    size_bytes: int = 0
    pages: int = 0  # pages of disk columns
    seconds: float = 0.0


class LocalCheckpoint:
    """Writes the local checkpoints of one store, one at a time."""

    def __init__(
        self,
        store: Store,
        files: Files,
        identity: tuple[bytes, int],
        next_id: int,
        unsound: frozenset[int] = frozenset(),
    ) -> None:
        """unsound: checkpoints with files that the restart found damaged; no restart may fall back to them (F59)."""
        self._store = store
        self._files = files
        self._identity = identity
        self._sink = store.resources.sink
        self._unsound = unsound
        self.next_id = next_id
        self.adopted: dict[tuple[int, int], Sizes] = {}  # data files that tasks of a restore have written already
        self.completed = 0
        self.abandoned = 0
        self.run_seconds = Histogram(LCP_BOUNDS)
        self.last_start_lsn = 0
        self.progress: tuple[int, int] | None = None  # of the running one: rows written, rows in all
        # Of the running checkpoint: whether there are disk columns, where its UNDO_LCP record is, the extents at its
        # start.
        self._has_disk = False
        self._mark_lsn = 0
        self._extents: Words = store.resources.no_words

    def run(self, progress: Progress | None = None) -> LcpReport:
        """Write one local checkpoint. Durable on return: the state at the end of the epoch in the report.

        Raises: StorageFull if the disk is full (the previous checkpoint still counts), StoreFailed.
        """
        began = self._store.clock.monotonic()
        lcp_id = self.next_id
        self.next_id += 1
        self._store.users.pin(self)
        try:
            parts: Parts = {}
            try:
                control = self.start(lcp_id, parts)
                report = LcpReport(lcp_id, control.epoch)
                self.write_data(control, parts, report, progress)
                self._write_disk(control, report)
                self._files.sync_directory(FOLDER)
                self._store.log.make_durable(control.start_sequence - 1)
                self._store.room.await_followers(control.epoch)
                self._files.mark("lcp", lcp_id=lcp_id, epoch=control.epoch)
                write_control(self._files, self._identity, control)
            except BaseException:
                # After a full disk, or Ctrl-C in `checkpoint()`, the store continues with the previous checkpoint.
                if self._store.failure.first is None:
                    self._abandon(lcp_id, parts)
                raise
        finally:
            self.progress = None
            self._store.users.unpin(self)
        self.completed += 1
        self.last_start_lsn = control.start_lsn
        self._retire_older()
        report.seconds = self._store.clock.monotonic() - began
        self.run_seconds.observe(report.seconds)
        if self._store.resources.watch is not None:
            self._store.resources.watch.note("local checkpoint", report.seconds, lcp_id=lcp_id, rows=report.rows)
        return report

    def start(self, lcp_id: int, parts: Parts) -> Control:
        store = self._store
        disk = store.disk
        if disk.is_started:
            disk.undo.make_room(UNDO_MARK_WORDS)  # other threads may take it; the reserve for marks remains
        with store.latch:
            epoch, lsn, sequence = store.epochs.close()
            if disk.is_started:
                self._mark_lsn = disk.undo.mark_lcp(lcp_id, epoch)
                self._extents = copy_headers(disk.space)
            self._has_disk = disk.is_started
            # Start the sink first: commits may need it as soon as the first fragment's scan has started.
            self._sink.start()
            # Partitions added later are not part of this checkpoint; those dropped later stay in memory (`pin`).
            definitions = [table.definition for table in store.tables.by_name.values()]
            for table in store.tables.by_name.values():
                for number, fragment in table.by_number.items():
                    parts[table.table_id, number] = fragment
                    FragmentScan(store, fragment).start(epoch)
            space = store.space
            return Control(
                lcp_id,
                epoch,
                lsn,
                sequence,
                store.tables.next_id,
                definitions,
                tablespaces=space.definitions(),
                next_tablespace_id=space.next_tablespace_id,
                next_file_id=space.next_file_id,
            )

    def write_data(self, control: Control, parts: Parts, report: LcpReport, progress: Progress | None) -> None:
        lcp_id = control.lcp_id
        total = self._store.arena.sum_words(list(parts.values()), F_ROWS)
        self.progress = (0, total)
        span = new_span()
        place = (lcp_id, COPIES_TABLE, COPIES_FRAGMENT)
        with DataFileWriter(self._files, copies_name(lcp_id), self._identity, place, new_span()) as copies:
            for part, fragment in parts.items():
                sizes = self.adopted.get(part)
                if sizes is None:
                    sizes = self.write_fragment(lcp_id, part, fragment, span, copies, report)
                control.fragments[part] = sizes
                report.rows += sizes[0]
                report.size_bytes += sizes[2]
                self.progress = (report.rows, total)
                if progress is not None:
                    progress(report.rows, total, "rows")
            self.drain(copies, report)
            with self._store.latch:
                self._sink.stop()
            copies.close()
        # The sink has stopped, so no commit copies rows now.
        copied = self._store.arena.sum_words(list(parts.values()), F_LCP_COPIED)
        control.copies = (copied, copies.blocks, copies.size_bytes)
        report.size_bytes += copies.size_bytes

    def write_fragment(
        self,
        lcp_id: int,
        part: tuple[int, int],
        fragment: int,
        span: Words,
        copies: DataFileWriter,
        report: LcpReport,
    ) -> Sizes:
        """Write the data file of one fragment; return its entries, blocks and bytes. Durable on return: its content."""
        with DataFileWriter(self._files, data_name(lcp_id, *part), self._identity, (lcp_id, *part), span) as writer:
            self.scan(fragment, writer, copies, report)
            writer.close()
        return writer.entries, writer.blocks, writer.size_bytes

    def _write_disk(self, control: Control, report: LcpReport) -> None:
        """Write disk pages as of the end of E or later, the UNDO records that lead back to E, then extent headers."""
        if not self._has_disk:
            return
        disk = self._store.disk
        report.pages = disk.flush(self._store.options.page_flush_rate_bytes)
        disk.undo.flush_through(self._mark_lsn)
        control.undo = UndoMark(self._mark_lsn, *disk.undo.mark_place(self._mark_lsn))
        control.extents = write_extents(self._files, self._identity, control.lcp_id, self._extents)
        report.size_bytes += control.extents[2]
        self._extents = self._store.resources.no_words

    def scan(self, fragment: int, writer: DataFileWriter, copies: DataFileWriter, report: LcpReport) -> None:
        found = FragmentScan(self._store, fragment)
        room_words = 0
        while room_words != END:
            self._store.failure.check()
            room_words = found.next(writer.block, writer.state)
            if room_words > 0:
                writer.make_room(room_words)
                self.drain(copies, report, only_full=True)

    def drain(self, copies: DataFileWriter, report: LcpReport, only_full: bool = False) -> None:
        for buffer in self._sink.take_full() if only_full else self._sink.take():
            entries = buffer[1 : int(buffer[0])]
            copies.append(entries)  # commits have counted them, by fragment
            report.copies_bytes += entries.nbytes
            self._sink.reuse(buffer)

    def _abandon(self, lcp_id: int, parts: Parts) -> None:
        """Run the scan to its end to clear the remaining bits, and remove the files. The previous checkpoint stays."""
        store = self._store
        scans = [FragmentScan(store, fragment) for fragment in parts.values()]
        with store.latch:
            for each in scans:
                each.abandon()
            self._sink.stop()
        for each in scans:
            each.finish_abandoned()
        self.abandoned += 1
        self._remove(lcp_id)

    def forget_older(self) -> None:
        """Remove all checkpoints but the newest, after a restore: the older ones lack rows that are not in the log
        either, so no restart may fall back to them. Durable on return.
        """
        for lcp_id in control_ids(self._files)[1:]:
            self._remove(lcp_id)
        self._files.sync_directory(FOLDER)

    def continue_from_newest(self) -> None:
        """Keep only the newest checkpoint and cut the logs to its start: no log leads from an older one to it."""
        self.forget_older()
        self._cut_logs(read_controls(self._files, self._identity[0])[:1])

    def _remove(self, lcp_id: int) -> None:
        """Remove a checkpoint's files, the control file first, so that no control file ever names a missing file."""
        files = self._files
        if files.exists(control_name(lcp_id)):
            files.unlink(control_name(lcp_id))
            files.sync_directory(FOLDER)
        if files.exists(unnamed_control(lcp_id)):
            files.unlink(unnamed_control(lcp_id))
        prefix = f"{lcp_id}-"
        for name in files.list(FOLDER):
            leaf = name.rpartition("/")[2]
            if leaf.startswith(prefix) and leaf.endswith(".data"):
                files.unlink(f"{FOLDER}/{leaf}")

    def _retire_older(self) -> None:
        """Keep the two newest checkpoints, remove the others, cut the log to the older one's start (D14)."""
        found = read_controls(self._files, self._identity[0])
        intact = [control for control in found if control.lcp_id not in self._unsound]
        if len(intact) < KEPT:
            return  # a restart may need the second one: all stay until two are intact
        kept = {control.lcp_id for control in intact[:KEPT]}
        for lcp_id in control_ids(self._files):
            if lcp_id not in kept:
                self._remove(lcp_id)
        self._cut_logs(intact[:KEPT])

    def _cut_logs(self, kept: list[Control]) -> None:
        """Free space, files and log that only checkpoints older than these need."""
        self._store.space.remove_unnamed(each for control in kept for each in control.tablespaces)
        older, newest = kept[-1], kept[0]
        disk = self._store.disk
        start = log_start(kept, True)
        with self._store.latch:
            self._store.log.set_tail(start.lsn, start.sequence, start.what)
            if newest.undo is not None:
                disk.undo.set_mark(newest.undo.position)
            if older.undo is not None:
                disk.undo.set_tail(older.undo.sequence, older.undo.position)
            disk.space.free_dropped(owner for control in kept for owner in control.owners())
        self._store.spools.cut(self._store.log.tail_lsn)
