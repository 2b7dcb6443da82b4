"""`python -m bench.extent_search [--quick] [--out DIR] [--picture FILE]`: pages touched per insert.

A tablespace is filled, a share of its rows is deleted at random, and rows are inserted again, once with the search
matrix of the store and once by first fit (the first page of the file with room) from the same pages. Counted are the
distinct pages and extents that each 1,000 inserts write; the pages are clean again after each 1,000. Two patterns:
refill, inserts only, into half of the room; steady, 1,000 more random rows deleted before each 1,000 inserts.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.report import RESULTS, keep
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk.extents_kernels import add_data_file, add_extents, join_tablespace, setup_tablespace
from tidemark.engine.disk.space_kernels import space_cleaned, space_reserve, space_settle, space_word, unused_words
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.jit.registry import REGISTRY
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.pool_kernels import setup_memory
from tidemark.engine.table.setup_kernels import fragment_handles, make_table

Words = NDArray[np.int64]

SEED = 4_711
PAGE_WORDS = 1_024
EXTENT_PAGES = 128
BATCH = 1_000
SHARES = (10, 20, 30, 50, 70, 90)
# Words of a piece: from, to; both included.
SIZES = {"32 words": (32, 32), "8 to 120 words": (8, 120)}
SEARCHES = ("matrix", "first fit")
PATTERNS = ("refill", "steady")
STEADY_BATCHES = 200  # the first half only warms up


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def insert_pieces(mem, fragment, words, pages):  # type: ignore[no-untyped-def]
    """Insert pieces as commits would, without content, and note each page; return how many found room."""
    for number in range(words.size):
        page = space_reserve(mem, fragment, words[number], 0)
        if page < 0:
            return number
        free = unused_words(mem, mem[space_word(mem, page)])
        space_settle(mem, page, words[number], free - words[number] - 1)
        pages[number] = page
    return words.size


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def delete_pieces(mem, words, pages):  # type: ignore[no-untyped-def]
    """Delete pieces as commits would."""
    for number in range(words.size):
        free = unused_words(mem, mem[space_word(mem, pages[number])])
        space_settle(mem, pages[number], 0, free + words[number] + 1)
    return words.size


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def clean_pages(mem, first, count, free):  # type: ignore[no-untyped-def]
    """Write all pages to disk and note their free words."""
    for number in range(count):
        space_cleaned(mem, first + number)
        free[number] = unused_words(mem, mem[space_word(mem, first + number)])
    return count


# That list has only the kernels of the product.
for _name in ("insert_pieces", "delete_pieces", "clean_pages"):
    REGISTRY.pop(f"{__name__}.{_name}")


@dataclass
class Run:
    """Medians over all batches of 1,000 inserts of one run."""

    pattern: str
    sizes: str
    deleted_percent: int
    search: str
    pages: float  # distinct pages written by 1,000 inserts
    extents: float
    batches: int
    pages_by_batch: list[int]


class Bed:
    """A tablespace of one file and one fragment, filled."""

    def __init__(self, extents: int, sizes: tuple[int, int], random: np.random.Generator) -> None:
        self.first = 1 << d.FILE_SHIFT | d.FIRST_DATA_PAGE
        self.pages = extents * EXTENT_PAGES
        arena_pages = self.pages // 16 + 64
        self.mem = np.zeros(arena_pages * a.PAGE_WORDS, dtype=np.int64)
        setup_memory(self.mem, 1, 2, arena_pages)
        tablespace = setup_tablespace(self.mem, 1, PAGE_WORDS, EXTENT_PAGES, 0)
        add_extents(self.mem, add_data_file(self.mem, tablespace, 1), extents)
        table = make_table(self.mem, np.array([1, 1, 4, 0, 1, 0, 1, 1], dtype=np.int64))
        same = sizes[1] if sizes[0] == sizes[1] else 0
        join_tablespace(self.mem, table, tablespace, sizes[1], same)
        handles = np.zeros(1, dtype=np.int64)
        fragment_handles(self.mem, table, handles)
        self.fragment = address_of(int(handles[0]))
        wanted = random.integers(sizes[0], sizes[1] + 1, self.pages * PAGE_WORDS // sizes[0])
        places = np.zeros(wanted.size, dtype=np.int64)
        count = insert_pieces(self.mem, self.fragment, wanted, places)
        self.words, self.places = wanted[:count], places[:count]
        self.clean()

    def clean(self) -> Words:
        free = np.zeros(self.pages, dtype=np.int64)
        clean_pages(self.mem, self.first, self.pages, free)
        return free


class Matrix:
    """The search of the store."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    def insert(self, words: Words) -> Words:
        """Pages that pieces of so many words go to, counted from 0."""
        places = np.zeros(words.size, dtype=np.int64)
        if insert_pieces(self._bed.mem, self._bed.fragment, words, places) != words.size:
            raise SystemExit("the tablespace is full; delete more")
        self._bed.clean()
        return places - self._bed.first

    def delete(self, words: Words, places: Words) -> None:
        """Free pieces of these pages."""
        delete_pieces(self._bed.mem, words, places + self._bed.first)
        self._bed.clean()


class FirstFit:
    """The first page of the file that has room."""

    def __init__(self, free: Words) -> None:
        self._free = free

    def insert(self, words: Words) -> Words:
        """As `Matrix.insert`."""
        places = np.zeros(words.size, dtype=np.int64)
        for number, need in enumerate((words + 1).tolist()):
            place = int(np.argmax(self._free >= need))
            if self._free[place] < need:
                raise SystemExit("the tablespace is full; delete more")
            self._free[place] -= need
            places[number] = place
        return places

    def delete(self, words: Words, places: Words) -> None:
        """As `Matrix.delete`."""
        np.add.at(self._free, places, words + 1)


def run_once(extents: int, pattern: str, name: str, percent: int, search: str) -> Run:
    """Do one run. Both searches delete and insert the same rows."""
    sizes = SIZES[name]
    random = np.random.default_rng([SEED, percent, *sizes])
    bed = Bed(extents, sizes, random)
    order = random.permutation(bed.words.size)
    cut = bed.words.size * percent // 100
    gone, left = order[:cut], order[cut:]
    words, places = bed.words[left], bed.places[left] - bed.first
    delete_pieces(bed.mem, bed.words[gone], bed.places[gone])
    free = bed.clean()
    space = Matrix(bed) if search == "matrix" else FirstFit(free)
    is_steady = pattern == "steady"
    written = []
    for _ in range(STEADY_BATCHES if is_steady else max(1, gone.size // 2 // BATCH)):
        drawn = random.integers(sizes[0], sizes[1] + 1, BATCH)
        if is_steady:
            which = random.permutation(words.size)[:BATCH]
            space.delete(words[which], places[which])
            words[which] = drawn
            places[which] = found = space.insert(drawn)
        else:
            found = space.insert(drawn)
        written.append(found)
    counted = written[len(written) // 2 :] if is_steady else written
    pages = [int(np.unique(each).size) for each in counted]
    touched = [int(np.unique(each // EXTENT_PAGES).size) for each in counted]
    return Run(pattern, name, percent, search, median(pages), median(touched), len(counted), pages)


def measure(extents: int) -> list[Run]:
    """All runs."""
    return [
        run_once(extents, pattern, name, percent, search)
        for pattern in PATTERNS
        for name in SIZES
        for percent in SHARES
        for search in SEARCHES
    ]


def table_of(runs: list[Run]) -> str:
    """The measured table as Markdown."""
    lines = [
        "| pattern | pieces | rows deleted | search | pages | extents | batches |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for run in runs:
        what = f"| {run.pattern} | {run.sizes} | {run.deleted_percent} % | {run.search}"
        lines.append(f"{what} | {run.pages:,.0f} | {run.extents:,.0f} | {run.batches} |")
    return "\n".join(lines)


def draw(runs: list[Run], target: Path) -> None:
    """Pages and extents by the share deleted, a panel for each pattern and kind of pieces."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "extent-search"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(PATTERNS), 2 * len(SIZES), figsize=(14, 6.6))
    colours = {"matrix": "#1f5fa8", "first fit": "#e08a1e"}
    for row, pattern in enumerate(PATTERNS):
        for place, (name, what) in enumerate((name, what) for name in SIZES for what in ("pages", "extents")):
            axis = axes[row][place]
            for search in SEARCHES:
                some = [run for run in runs if (run.pattern, run.sizes, run.search) == (pattern, name, search)]
                values = [getattr(run, what) for run in some]
                axis.plot([run.deleted_percent for run in some], values, "o-", label=search, color=colours[search])
            axis.set_title(f"{pattern}: {what} written per 1,000 inserts\npieces of {name}", fontsize=9)
            axis.set_xlabel("% of the rows deleted before")
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, print the table, keep the figures and the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.extent_search", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small tablespace")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="SVG file to draw")
    arguments = parser.parse_args()
    extents = 16 if arguments.quick else 64
    runs = measure(extents)
    print(table_of(runs))
    settings: dict[str, Any] = {"seed": SEED, "extents": extents, "runs": [asdict(run) for run in runs]}
    print(f"kept in {keep([], settings, arguments.out, 'extent-search').name}")
    if arguments.picture is not None:
        draw(runs, arguments.picture)


if __name__ == "__main__":
    main()
