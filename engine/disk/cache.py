"""The page cache of one page size: pages brought into memory, pinned, cleaned, and flushed for a local checkpoint.

Owns the region of frames in the arena, the right to fill a frame, and the waiters. Kernels decide about pages and
frames under the GIL (`engine/disk/frames_kernels.py`); this module handles files, threads and errors.

Invariants: (H1) a frame that is being filled belongs to one thread, others wait until it is done or has failed; (H2)
the frames that all holders have reserved never exceed those of the cache, so a holder with a reservation gets its
frames once dirty pages are cleaned, and two of them cannot wait for each other; but a thread that already holds pages
and asks for more may wait `wait_ms` in vain; (H3) a page is verified before any thread sees it: checksum, store, page
number, directory; (H4) dirty pages are copied to `WriteBehind` under `_turn` and are clean from then on; `PageWriter`
writes them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import MemoryExhausted, NoSuchTable
from tidemark.engine.base.owner import call_owner
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk.disk_layout import DOUBLE_WRITE_PAGES_MAX
from tidemark.engine.disk.frames_kernels import (
    COPIED_WORDS,
    claim_pages,
    copy_dirty_pages,
    drop_page,
    finish_copies,
    forget_page,
    heads_of,
    setup_cache,
    unpin_pages,
)
from tidemark.engine.disk.page_reader import PageReader, Scratch
from tidemark.engine.disk.read_ahead import ReadAhead
from tidemark.engine.disk.write_behind import WriteBehind
from tidemark.engine.memory.arena_layout import OK, S_UNDO, ST_INVARIANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.disk.double_write import Places
    from tidemark.engine.disk.page_writer import PageWriter
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.sealed.sealed_layout import Words

WAIT_MS = 10_000
# A waiter checks again after this time even if no thread wakes it: a signal may interrupt the thread that should.
POLL_SECONDS = 0.05
_ALL_LSNS = 1 << 62
BEHIND_PAGES_MAX = DOUBLE_WRITE_PAGES_MAX // 2  # of each of the two batches of `WriteBehind`
CLEAN_PAGES = 16  # cleaned at once by a thread that needs a frame
_COUNTERS = {
    "frames": c.C_FRAMES,
    "resident": c.C_RESIDENT,
    "hot": c.C_HOT,
    "dirty": c.C_DIRTY,
    "pinned": c.C_PINNED,
    "hits": c.C_HITS,
    "misses": c.C_MISSES,
    "evictions": c.C_EVICTIONS,
}


class PageCache:
    """A cache in the arena at word `address`; its region must be zero and have `cache_region_words` words."""

    def __init__(
        self,
        mem: Words,
        address: int,
        page_words: int,
        frames: int,
        *,
        files: Files,
        places: Places,
        writer: PageWriter,
        store: bytes,
        clock: Clock,
        wait_ms: int = WAIT_MS,
        policy: int = c.POLICY_LIRS,
        can_write: bool = True,
        wake_writer: Callable[[], bool] = lambda: False,
    ) -> None:
        """wake_writer: see `WriteBehind`. can_write: False for a restart that only rehearses. Then dirty pages stay in
        memory, and once they fill the page buffer `hold` raises MemoryExhausted: open with a larger `page_buffer`.

        Raises: MemoryExhausted.
        """
        if setup_cache(mem, address, page_words, frames, heads_of(frames), policy) != OK:
            raise MemoryExhausted(f"page_buffer has no room for {frames} pages; open with a larger page_buffer")
        self.address = address
        self.frames = frames
        self.page_words = page_words
        self.can_write = can_write
        self._mem = mem
        self._files = files
        self._writer = writer
        self._clock = clock
        self.wait_seconds = wait_ms / 1_000
        self._batch_pages = max(1, min(BEHIND_PAGES_MAX, frames // 4))
        self._turn = threading.Lock()
        self.write_behind = WriteBehind(writer, page_words, self._batch_pages, wake_writer)
        self.reader = PageReader(mem, address, page_words, files, places, self.write_behind, store)
        self._changed = threading.Condition()
        self.waiting = 0
        self.reserved = 0  # frames reserved by all holders (H2)
        self.ahead = ReadAhead(call_owner(self._load_ahead))
        self._scratch: list[Scratch] = []

    # --- holding ---------------------------------------------------------------------------------
    def hold(self, pages: Iterable[int], is_reference: bool = True) -> None:
        """Load pages and pin them until `release` of the same numbers; all of them or none.

        A page with FRESH_PAGE is formatted instead of read if it is still wholly free: owner from its extent, LSN from
        the current UNDO log. is_reference: False if the same work has requested the pages before, as a commit has; LIRS
        then does not count another reference. Never call this with the commit latch held: a frame may have to be
        cleaned, and the UNDO log takes the latch to flush.

        Raises: PageDamaged (also for an unreadable page), IoFailed, FileTruncated, NoSuchTable (the table was dropped
        meanwhile), MemoryExhausted (too many pages, or other threads pin them for `wait_ms`), StorageFull, SyncFailed
        (dirty pages had to be written).
        """
        wanted = distinct(pages)
        reservation = [0]
        try:
            self._reserve_frames(wanted.size, reservation)
            self._claim(wanted, c.CLAIM_PIN | (0 if is_reference else c.CLAIM_QUIET))
        except BaseException:
            self._release_frames(reservation)
            raise

    def release(self, pages: Iterable[int]) -> None:
        """Release pages held with these numbers. A KeyboardInterrupt is raised only at the end, and a MemoryError is
        retried once: pages left unreleased would stay pinned until the store is closed.
        """
        wanted: Words | None = None
        reservation = [0]
        interrupt: KeyboardInterrupt | None = None
        has_failed = False
        while True:
            try:
                if wanted is None:
                    reservation[0] = (made := distinct(pages)).size
                    wanted = made
                self._unpin(wanted)
                self._release_frames(reservation)
                break
            except KeyboardInterrupt as error:
                interrupt = error  # every step may be repeated
            except MemoryError:
                if has_failed:
                    raise
                has_failed = True
        if interrupt is not None:
            raise interrupt

    def ensure(self, pages: Iterable[int]) -> None:
        """Load pages without pinning them: they stay until other pages need their frames. Raises: as `hold`."""
        wanted = distinct(pages)
        step = self._batch_pages
        for start in range(0, wanted.size, step):
            part = wanted[start : start + step].tolist()
            self.hold(part)
            self.release(part)

    def load(self, page: int) -> None:
        """Do `ensure` for one page; the read that follows at once counts as its reference. Raises: as `hold`."""
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = Scratch(self.page_words)
        wanted, out = scratch.wanted, scratch.out
        wanted[0], out[0] = page, 0
        try:
            what = self._claim_one(wanted, out)
            if what == c.CLAIM_DIRTY and self.can_write:
                self._clean_some()
                what = self._claim_one(wanted, out)
            if what == c.CLAIM_LOAD:
                if not self.reader.load_one(page, scratch):
                    self.reader.load(wanted, [0], out, c.CLAIM_QUIET)
                self._notify()
        except BaseException:
            self._undo_claim(wanted, out, c.CLAIM_QUIET)
            raise
        self._scratch.append(scratch)
        if what < 0:
            self.ensure([page])

    def _claim_one(self, wanted: Words, out: Words) -> int:
        claim_pages(self._mem, self.address, wanted, 0, 1, c.CLAIM_QUIET, out)
        return int(out[0])

    def read_ahead(self, pages: Iterable[int]) -> None:
        """Have another thread load pages; a caller that needs one of them meanwhile waits only for that read.

        Never fails: an unreadable page is left to the caller that needs it. Requests past a few hundred pages are
        dropped.
        """
        self.ahead.ask(distinct(pages).tolist())

    def forget_files(self, file_ids: Iterable[int]) -> None:
        """Drop all pages of data files that are being removed, dirty or not: no transaction changes them any more. An
        interrupted batch is finished first, because the places of its pages will be gone.

        Raises: MemoryExhausted (another thread holds one for `wait_ms`), StorageFull, IoFailed, SyncFailed; pages
        that were already dropped stay dropped.
        """
        gone = np.array(sorted(file_ids), dtype=np.int64)
        deadline = self._clock.monotonic() + self.wait_seconds
        self.ahead.forget(set(gone.tolist()))
        while True:
            with self._turn, self._writer.turn:
                self._writer.settle()
                self.write_behind.forget(frozenset(gone.tolist()))
                done = [forget_page(self._mem, self.address, page) for page in self._pages_of(gone)]
            self._notify()
            if ST_INVARIANT not in done:
                return
            with self._changed:
                self._wait(deadline)

    def _pages_of(self, file_ids: Words) -> list[int]:
        """Return the pages of these data files that have a frame."""
        first, used = int(self._mem[self.address + c.C_ENTRY]), int(self._mem[self.address + c.C_FRESH_ENTRY])
        entries = self._mem[first : first + used * c.CACHE_ENTRY_WORDS].reshape(used, c.CACHE_ENTRY_WORDS)
        pages = entries[entries[:, c.CE_FRAME] != 0, c.CE_PAGE]
        found: list[int] = pages[np.isin(pages >> c.FILE_SHIFT, file_ids)].tolist()
        return found

    def _reserve_frames(self, count: int, reservation: list[int]) -> None:
        """Reserve frames for a holder. reservation[0]: how many it has; no signal can come between the two
        assignments.
        """
        if count > self.frames:
            raise self._exhausted(f"has {self.frames} frames, {count} are needed at once")
        deadline = self._clock.monotonic() + self.wait_seconds
        with self._changed:
            while self.reserved + count > self.frames:
                self._wait(deadline)
            self.reserved += count
            reservation[0] = count

    def _release_frames(self, reservation: list[int]) -> None:
        with self._changed:
            self.reserved -= reservation[0]
            reservation[0] = 0
            self._changed.notify_all()

    def _claim(self, wanted: Words, how: int) -> None:
        """Claim pages and load those that are missing; all of them or none."""
        out = np.zeros(wanted.size, dtype=np.int64)
        if not self.can_write:
            how |= c.CLAIM_ANY
        deadline = self._clock.monotonic() + self.wait_seconds
        at = 0
        try:
            while at < wanted.size:
                before = at
                at = claim_pages(self._mem, self.address, wanted, at, wanted.size, how, out)
                missing = [i for i, what in enumerate(out[before:at].tolist(), before) if what == c.CLAIM_LOAD]
                if missing:
                    # Load our own pages first: another thread may wait for them while we would wait for it.
                    self.reader.load(wanted, missing, out, how)
                    self._notify()
                elif at < wanted.size and out[at] < 0:
                    at = self._clear_obstacle(wanted, at, how, out, deadline)
        except BaseException:
            self._undo_claim(wanted, out, how)
            raise

    def _undo_claim(self, wanted: Words, out: Words, how: int) -> None:
        """Undo a claim that failed. `out` lists every page that was claimed: the kernel writes it, so no signal can
        come between a claim and its entry.
        """
        for at in np.flatnonzero(out > 0).tolist():
            page = wanted[at : at + 1]
            is_ours = out[at] == c.CLAIM_LOAD
            is_dropped = is_ours and drop_page(self._mem, self.address, int(page[0]) & ~c.FRESH_PAGE) == OK
            if not is_dropped and how & c.CLAIM_PIN:
                unpin_pages(self._mem, self.address, page, 0, 1)
        self._notify()

    def _clear_obstacle(self, wanted: Words, at: int, how: int, out: Words, deadline: float) -> int:
        """Remove what made the claim of wanted[at] fail, or wait until it is gone; returns the position at which to
        continue.
        """
        reason = int(out[at])
        if reason == c.CLAIM_NOWHERE:
            raise NoSuchTable("the table of a disk page was dropped; begin a new transaction", page=int(wanted[at]))
        if reason == c.CLAIM_DIRTY:
            if not self.can_write:
                raise self._exhausted("is full of changed pages, which this restart may not write")
            self._clean_some()
            return at
        if reason == c.CLAIM_AGAIN:
            return at
        with self._changed:
            # Claim again with the condition held: a thread that ends a load or a pin must take it to notify.
            self.waiting += 1
            try:
                after = claim_pages(self._mem, self.address, wanted, at, at + 1, how, out)
                if after == at and out[at] == reason:
                    self._wait(deadline)
            finally:
                self.waiting -= 1
        if after > at and out[at] == c.CLAIM_LOAD:
            self.reader.load(wanted, [at], out, how)
            self._notify()
        return int(after)

    def _wait(self, deadline: float) -> None:
        self._files.failure.check()
        if self._clock.monotonic() >= deadline:
            raise self._exhausted("is pinned by other threads")
        self._changed.wait(POLL_SECONDS)

    def _exhausted(self, what: str) -> MemoryExhausted:
        return MemoryExhausted(f"page_buffer {what}; try again, or open with a larger page_buffer", frames=self.frames)

    def _unpin(self, wanted: Words) -> None:
        at = 0
        while at < wanted.size:
            at = unpin_pages(self._mem, self.address, wanted, at, wanted.size)
        self._notify()

    def _notify(self) -> None:
        if self.waiting:
            with self._changed:
                self._changed.notify_all()

    def _load_ahead(self, pages: list[int]) -> None:
        """Load pages for the read-ahead thread, without leaving them pinned or counting a reference."""
        step = max(1, self._batch_pages)
        for start in range(0, len(pages), step):
            wanted = np.array(pages[start : start + step], dtype=np.int64)
            reservation = [0]
            try:
                self._reserve_frames(wanted.size, reservation)
                self._claim(wanted, c.CLAIM_QUIET)
            finally:
                self._release_frames(reservation)

    # --- writing ---------------------------------------------------------------------------------
    def clean(self, limit: int) -> int:
        """Write up to `limit` dirty pages, the next victims first, and all copies in `WriteBehind`; returns how many.

        They are durable in the data files after the next batch or `flush`; a torn one is repaired from the double-write
        file. Raises: StorageFull, IoFailed, SyncFailed; copies that were not written keep waiting.
        """
        if not self.can_write:
            return 0
        with self._turn:
            before = self.write_behind.pages_written
            self._copy_for_room(limit)
            self.write_behind.write_all()
            return self.write_behind.pages_written - before

    def flush(self, bytes_per_second: int = 0) -> int:
        """Write every page that is dirty now, at a bounded rate (0: unbounded); returns how many were copied out.

        Pages that become dirty meanwhile wait for the next flush. Durable on return: all pages that were dirty at the
        start, in their places. Raises: StorageFull, IoFailed, SyncFailed; MemoryExhausted if writing is not allowed.
        """
        if not self.can_write:
            raise self._exhausted("may not be written by this restart")
        undo = int(self._mem[S_UNDO])
        before_lsn = int(self._mem[undo + c.U_LSN]) if undo else _ALL_LSNS
        cursor = _new_cursor()
        begun = self._clock.monotonic()
        copied = 0
        while cursor[0] >= 0:
            with self._turn:
                copied += self._copy_out(c.COPY_ALL, before_lsn, self._batch_pages, cursor)
            if bytes_per_second:
                due = copied * self.page_words * 8 / bytes_per_second
                self._clock.sleep(max(0.0, due - (self._clock.monotonic() - begun)))
        with self._turn:
            self.write_behind.write_all()
        with self._writer.turn:
            self._writer.settle()
        return copied

    def _clean_some(self) -> None:
        """Clean some victims. `with`, not `acquire`: a signal right after `acquire` would keep the turn forever."""
        with self._turn:
            self._copy_for_room(min(self._batch_pages, CLEAN_PAGES))

    def _copy_for_room(self, limit: int) -> int:
        """Copy out cold pages, or hot ones if no cold one can be copied; returns how many. The caller holds `_turn`."""
        return self._copy_out(c.COPY_COLD, 0, limit, _new_cursor()) or self._copy_out(
            c.COPY_HOT, 0, limit, _new_cursor()
        )

    def _copy_out(self, how: int, before_lsn: int, limit: int, cursor: Words) -> int:
        """Copy dirty pages to the batch being filled, which makes them clean; returns how many. The caller holds
        `_turn`.
        """
        done = 0
        while done < limit and cursor[0] >= 0:
            batch = self.write_behind.filling()
            start = batch.count
            most = min(batch.count + limit - done, self.write_behind.capacity)
            copied = batch.copied[start * COPIED_WORDS :]
            try:
                count = copy_dirty_pages(
                    self._mem, self.address, how, before_lsn, start, most, cursor, batch.pages, batch.copied
                )
                self.write_behind.added(batch, int(count))
                finish_copies(self._mem, self.address, copied, count - start, 1)
            except BaseException:
                # All entries that the kernel may have written, not the first `count`: a signal may have come after the
                # kernel ended and before `count` was set. A page whose copy was already finished is not changed again.
                finish_copies(self._mem, self.address, copied, most - start, 0)
                self._notify()
                raise
            done += count - start
            if count == start and how != c.COPY_ALL:
                break
        self._notify()
        return done

    # --- others ----------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop reading ahead. Dirty pages are lost, as in a crash."""
        self.ahead.close()

    def counters(self) -> dict[str, int]:
        """Return the counters for `status()`."""
        found = {name: int(self._mem[self.address + word]) for name, word in _COUNTERS.items()}
        return {
            **found,
            "waiting": self.write_behind.waiting,
            "pages_read": self.reader.pages_read,
            "pages_written": self.write_behind.pages_written,
        }


def _new_cursor() -> Words:
    return np.zeros(1, dtype=np.int64)


def distinct(pages: Iterable[int]) -> Words:
    """Return each page once, in order of number, with FRESH_PAGE if any of its mentions has it."""
    if isinstance(pages, list) and len(pages) == 1:
        return np.array(pages, dtype=np.int64)
    found: dict[int, int] = {}
    for page in pages:
        number = page & ~c.FRESH_PAGE
        found[number] = found.get(number, 0) | page
    return np.array([found[number] for number in sorted(found)], dtype=np.int64)
