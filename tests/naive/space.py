"""Reservation of disk pages, the obvious way: everything is a list and is counted anew at each call."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Page:
    """A page: words not used, words reserved, and whether it is dirty."""

    number: int
    free: int
    promised: int = 0
    is_dirty: bool = False
    touched: int = 0  # when it came into the list it is in

    @property
    def available(self) -> int:
        return self.free - self.promised

    @property
    def is_open(self) -> bool:
        return self.is_dirty or self.promised > 0


@dataclass
class Extent:
    pages: list[Page]
    hint: int = 0
    touched: int = 0
    place: int | None = None  # in the matrix


@dataclass
class Fragment:
    """One fragment with all the extents it may ever get."""

    payload: int
    any_need: int
    small_need: int
    spare: list[Extent]
    extents: list[Extent] = field(default_factory=list)
    current: Extent | None = None
    clock: int = 0

    def page_class(self, free: int) -> int:
        if free >= self.payload:
            return 0
        if free >= self.any_need:
            return 1
        return 2 if free >= self.small_need else 3

    def position(self, extent: Extent) -> int:
        free = sum(page.available for page in extent.pages)
        limit = self.payload * len(extent.pages)
        row = next(i for i in range(5) if i == 4 or free >= int((4 - i) * limit / 5))
        column = min(self.page_class(page.available) for page in extent.pages)
        return 4 * row + column

    def open_pages(self, is_dirty: bool, number: int) -> list[Page]:
        """Open pages of one list, the newest in it first."""
        found = [
            page
            for extent in self.extents
            for page in extent.pages
            if page.is_open and page.is_dirty == is_dirty and self.page_class(page.available) == number
        ]
        return sorted(found, key=lambda page: -page.touched)

    def matrix(self, position: int) -> list[Extent]:
        """Extents of one list, the newest in it first."""
        found = [each for each in self.extents if each is not self.current and self.position(each) == position]
        return sorted(found, key=lambda extent: -extent.touched)

    def change(self, page: Page, free: int, promised: int, is_dirty: bool) -> None:
        """Give a page new numbers; in a list it joins, it comes first."""
        before = (page.is_open, page.is_dirty, self.page_class(page.available))
        self.clock += 1
        page.free, page.promised, page.is_dirty = free, promised, is_dirty
        if before != (page.is_open, page.is_dirty, self.page_class(page.available)):
            page.touched = self.clock
        for extent in self.extents:
            self.file_extent(extent)

    def file_extent(self, extent: Extent) -> None:
        place = None if extent is self.current else self.position(extent)
        if place != extent.place:
            self.clock += 1
            extent.place, extent.touched = place, self.clock

    def find(self, number: int) -> Page | None:
        return next((page for extent in self.extents for page in extent.pages if page.number == number), None)

    def search(self, need: int, near: int) -> Page | None:
        wanted = self.find(near)
        if wanted is not None and wanted.available >= need:
            return wanted
        needed = 0 if need > self.any_need else 2 if need <= self.small_need else 1
        for is_dirty in (True, False):
            for number in range(needed + 1):
                if pages := self.open_pages(is_dirty, number):
                    return pages[0]
        if self.current is not None and (page := self.from_hint(self.current, need)):
            return page
        found = next(
            (self.matrix(position)[0] for position in range(20) if position % 4 <= needed and self.matrix(position)),
            None,
        )
        if found is None:
            if not self.spare:
                return None
            found = self.spare.pop(0)
            self.extents.append(found)
        before, self.current = self.current, found
        if before is not None:
            self.file_extent(before)
        self.file_extent(found)
        return self.from_hint(found, need)

    def from_hint(self, extent: Extent, need: int) -> Page | None:
        order = [*range(extent.hint, len(extent.pages)), *range(extent.hint)]
        for index in order:
            if extent.pages[index].available >= need:
                extent.hint = index
                return extent.pages[index]
        return None

    def reserve(self, words: int, near: int) -> int | None:
        page = self.search(words + 1, near)
        if page is None:
            return None
        self.change(page, page.free, page.promised + words + 1, page.is_dirty)
        return page.number
