"""`python -m bench.page_cache [--quick] [--out DIR] [--picture FILE]`: hit rates of LIRS and LRU.

The kernels of the page cache are driven with traces of page numbers; nothing is read from a disk, so a trace means the
same to both. What is counted are hits after a first tenth of each trace. Seeds are printed and kept.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import RESULTS, keep
from tidemark.engine.disk.cache_layout import CLAIM_LOAD, POLICY_LIRS, POLICY_LRU
from tidemark.engine.disk.frames_kernels import cache_region_words, claim_pages, heads_of, loaded_page, setup_cache
from tidemark.engine.memory.arena_layout import P_SCRATCH, PAGE_WORDS, S_POOL

PAGES = 20_000
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
ACCESSES = 400_000
SEEDS = (1, 2, 3)
POLICIES = {"LIRS": POLICY_LIRS, "LRU": POLICY_LRU}
ZIPF = 0.99
SCAN_EVERY = 50_000  # point reads between two scans of all pages
LOOP_PAGES = 3_000
FRAME_WORDS = 32  # a frame's content does not matter here
CACHE = 2 * PAGE_WORDS


@dataclass
class HitRate:
    """One policy, load and size; shares of accesses after the first tenth of the trace."""

    load: str
    share: float
    frames: int
    policy: str
    median: float
    lowest: float
    highest: float


def zipf_reads(rng: np.random.Generator, count: int) -> Any:
    """Point reads by Zipf's law; which pages are popular is shuffled."""
    weights = 1.0 / np.arange(1, PAGES + 1) ** ZIPF
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count))
    return rng.permutation(PAGES)[np.minimum(drawn, PAGES - 1)]


def with_scans(rng: np.random.Generator, count: int) -> Any:
    """Point reads, and a scan of all pages between each `SCAN_EVERY` of them."""
    points = zipf_reads(rng, count)
    scan = np.arange(PAGES)
    parts = [part for start in range(0, count, SCAN_EVERY) for part in (points[start : start + SCAN_EVERY], scan)]
    return np.concatenate(parts)[:count]


def loop(_: np.random.Generator, count: int) -> Any:
    """The same pages in the same order, over and over: a join that reads its inner table again and again."""
    return np.resize(np.arange(LOOP_PAGES), count)


def mixed(rng: np.random.Generator, count: int) -> Any:
    """A quarter loop, interleaved with point reads and scans."""
    points = with_scans(rng, count)
    is_loop = rng.random(count) < 0.25
    points[is_loop] = PAGES + np.resize(np.arange(LOOP_PAGES), int(is_loop.sum()))
    return points


LOADS = {
    f"point reads (Zipf {ZIPF})": zipf_reads,
    f"the same, a full scan every {SCAN_EVERY:,}": with_scans,
    f"loop over {LOOP_PAGES:,} pages": loop,
    "point reads, scans and a quarter of loop": mixed,
}


def hit_rate(trace: Any, frames: int, policy: int) -> float:
    """Return the share of hits after the first tenth of the trace."""
    mem = np.zeros(CACHE + cache_region_words(FRAME_WORDS, frames), dtype=np.int64)
    mem[S_POOL + P_SCRATCH] = PAGE_WORDS
    if setup_cache(mem, CACHE, FRAME_WORDS, frames, heads_of(frames), policy) != 0:
        raise SystemExit("the cache does not fit its region")
    pages = (trace + (1 << 32 | 1)).astype(np.int64)
    out = np.zeros(pages.size, dtype=np.int64)
    empty = np.zeros(FRAME_WORDS, dtype=np.int64)
    at = 0
    while at < pages.size:
        # One page at a time: a page is pinned while it is loaded, and pins would shrink the small caches.
        after = claim_pages(mem, CACHE, pages, at, at + 1, 0, out)
        if after > at and out[at] == CLAIM_LOAD:
            loaded_page(mem, CACHE, int(pages[at]), empty, 0, 0)
        at = after
    counted = out[pages.size // 10 :]
    return float(np.mean(counted != CLAIM_LOAD))


def measure(count: int, seeds: tuple[int, ...]) -> list[HitRate]:
    """Every load, size and policy."""
    found = []
    for name, make in LOADS.items():
        traces = [make(np.random.default_rng(seed), count) for seed in seeds]
        for share in SHARES:
            frames = int(PAGES * share)
            for policy, code in POLICIES.items():
                rates = sorted(hit_rate(trace, frames, code) for trace in traces)
                rate = HitRate(name, share, frames, policy, rates[len(rates) // 2], rates[0], rates[-1])
                print(f"{name}: {frames:,} frames, {policy}: {rate.median:.1%}")
                found.append(rate)
    return found


def draw(rates: list[HitRate], target: Path) -> None:
    """One panel for each load: hit rate by frames."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "page-cache"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(LOADS), figsize=(15, 3.8), sharey=True)
    for axis, name in zip(axes, LOADS, strict=True):
        for policy, colour in zip(POLICIES, ("#1f5fa8", "#e08a1e"), strict=True):
            line = [each for each in rates if each.load == name and each.policy == policy]
            shares = [each.share * 100 for each in line]
            axis.plot(shares, [each.median * 100 for each in line], marker="o", label=policy, color=colour)
        axis.set_xscale("log")
        axis.set_xticks([share * 100 for share in SHARES], [f"{share:.0%}" for share in SHARES])
        axis.minorticks_off()
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(f"frames, % of {PAGES:,} pages")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("hits, % of accesses")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure, print, keep, draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.page_cache", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short traces, one seed: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="also draw the hit rates into this SVG file")
    arguments = parser.parse_args()
    count, seeds = (40_000, SEEDS[:1]) if arguments.quick else (ACCESSES, SEEDS)
    print(f"seeds {', '.join(map(str, seeds))}; {count:,} accesses each")
    rates = measure(count, seeds)
    settings = {
        "pages": PAGES,
        "accesses": count,
        "seeds": seeds,
        "scan_every": SCAN_EVERY,
        "loop_pages": LOOP_PAGES,
        "rates": [asdict(rate) for rate in rates],
    }
    target = keep([], settings, arguments.out, "page-cache" + ("-quick" if arguments.quick else ""))
    print(f"kept in {target.name}")
    if arguments.picture:
        draw(rates, arguments.picture)


if __name__ == "__main__":
    main()
