"""Naive twins of disk pages and of their cache, written from the rules."""

from __future__ import annotations

HEADER_WORDS = 16


class SlottedPage:
    """Pieces by slot; free slots last in, first out; no free slot at the directory's end."""

    def __init__(self, page_words: int) -> None:
        self.page_words = page_words
        self.pieces: dict[int, list[int]] = {}
        self.entries = 0
        self.free_slots: list[int] = []

    @property
    def free_words(self) -> int:
        return self.page_words - HEADER_WORDS - self.entries - sum(map(len, self.pieces.values()))

    def take(self, content: list[int]) -> int:
        need = len(content) + (not self.free_slots)
        if not content or need > self.free_words:
            return -1
        if self.free_slots:
            slot = self.free_slots.pop()
        else:
            slot = self.entries
            self.entries += 1
        self.pieces[slot] = content
        return slot

    def take_given(self, slot: int, content: list[int]) -> bool:
        fresh = max(0, slot + 1 - self.entries)
        if slot < 0 or slot in self.pieces or not content or len(content) + fresh > self.free_words:
            return False
        self.free_slots += range(self.entries, slot)
        if slot in self.free_slots:
            self.free_slots.remove(slot)
        self.entries = max(self.entries, slot + 1)
        self.pieces[slot] = content
        return True

    def give(self, slot: int) -> bool:
        if slot not in self.pieces:
            return False
        del self.pieces[slot]
        self.free_slots.append(slot)
        while self.entries and self.entries - 1 in self.free_slots:
            self.entries -= 1
            self.free_slots.remove(self.entries)
        return True


class Cache:
    """LIRS or LRU over page numbers. Lists run from the oldest to the newest."""

    def __init__(self, frames: int, hot_max: int, entries: int, is_lru: bool = False) -> None:
        self.frames, self.hot_max, self.entries, self.is_lru = frames, hot_max, entries, is_lru
        self.stack: list[int] = []
        self.queue: list[int] = []
        self.ghosts: list[int] = []
        self.hot: set[int] = set()
        self.resident: set[int] = set()
        self.loading: set[int] = set()
        self.writing: set[int] = set()
        self.dirty: set[int] = set()
        self.pins: dict[int, int] = {}
        self.hits = self.misses = self.evictions = 0

    def claim(self, page: int, *, is_quiet: bool = False, is_any: bool = False, pins: bool = True) -> str:
        if page in self.resident:
            if page in self.loading:
                return "loading"
            if not is_quiet:
                self.hits += 1
                self.reference(page)
            if pins:
                self.pin(page)
            return "hit"
        why = self.make_room(is_any)
        if why:
            return why
        if page in self.ghosts:
            self.ghosts.remove(page)
        elif len(self.resident) + len(self.ghosts) >= self.entries:
            self.stack.remove(self.ghosts.pop(0))
        self.resident.add(page)
        self.misses += 1
        if is_quiet:
            self.enqueue(page)
        else:
            self.reference(page)
        self.loading.add(page)
        self.pin(page)
        self.prune()
        return "load"

    def touch(self, page: int) -> bool:
        """A read of a page in memory; returns whether it is loaded."""
        if page not in self.resident - self.loading:
            return False
        if not self.pins.get(page):
            self.hits += 1
            self.reference(page)
        return True

    def make_room(self, is_any: bool) -> str:
        if len(self.resident) < self.frames:
            return ""
        cold = [page for page in self.queue if not self.is_held(page)]
        hot = [page for page in self.stack if page in self.hot and not self.is_held(page)]
        clean = [page for page in cold if page not in self.dirty]
        if not clean and (not cold or is_any):
            clean = [page for page in hot if page not in self.dirty]
        if not clean:
            return "dirty" if cold or (not cold and hot) else "pinned"
        self.evict(clean[0])
        return ""

    def is_held(self, page: int) -> bool:
        return bool(self.pins.get(page)) or page in self.loading or page in self.writing

    def evict(self, page: int) -> None:
        self.evictions += 1
        self.lose_frame(page)
        if page in self.stack:
            self.ghosts.append(page)

    def lose_frame(self, page: int) -> None:
        self.resident.discard(page)
        self.hot.discard(page)
        if page in self.queue:
            self.queue.remove(page)

    def enqueue(self, page: int) -> None:
        if page in self.queue:
            self.queue.remove(page)
        self.queue.append(page)

    def push(self, page: int) -> None:
        if page in self.stack:
            self.stack.remove(page)
        self.stack.append(page)

    def reference(self, page: int) -> None:
        if self.is_lru:
            self.enqueue(page)
            return
        was_on_stack = page in self.stack
        self.push(page)
        if page in self.hot:
            pass
        elif was_on_stack or len(self.hot) < self.hot_max:
            self.hot.add(page)
            if page in self.queue:
                self.queue.remove(page)
            if len(self.hot) > self.hot_max:
                bottom = self.stack.pop(0)
                self.hot.remove(bottom)
                self.enqueue(bottom)
        else:
            self.enqueue(page)
        self.prune()

    def prune(self) -> None:
        while self.stack and self.stack[0] not in self.hot:
            page = self.stack.pop(0)
            if page in self.ghosts:
                self.ghosts.remove(page)

    def pin(self, page: int) -> None:
        self.pins[page] = self.pins.get(page, 0) + 1

    def unpin(self, page: int) -> None:
        if self.pins.get(page):
            self.pins[page] -= 1

    def loaded(self, page: int) -> None:
        self.loading.remove(page)

    def drop(self, page: int) -> None:
        self.loading.remove(page)
        self.unpin(page)
        self.lose_frame(page)
        if page in self.stack:
            self.stack.remove(page)
        self.prune()

    def forget(self, page: int) -> bool:
        if page not in self.resident or self.is_held(page):
            return False
        self.dirty.discard(page)
        self.evict(page)
        self.prune()
        return True

    def copy_cold(self, limit: int) -> list[int]:
        return self.copy([page for page in self.queue if not self.is_held(page)], limit)

    def copy_hot(self, limit: int) -> list[int]:
        return self.copy([page for page in self.stack if page in self.hot and not self.is_held(page)], limit)

    def copy(self, candidates: list[int], limit: int) -> list[int]:
        copied = [page for page in candidates if page in self.dirty][:limit]
        self.dirty.difference_update(copied)
        self.writing.update(copied)
        return copied

    def written(self, pages: list[int], is_durable: bool) -> None:
        self.writing.difference_update(pages)
        if not is_durable:
            self.dirty.update(pages)
