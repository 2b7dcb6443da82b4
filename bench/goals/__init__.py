"""The measured goals of docs/findings/goals.md: each name has a function from the run's context to lines."""

from __future__ import annotations

from collections.abc import Callable

from bench.context import Context
from bench.goals import (
    p01_bulk_insert,
    p03_reads,
    p05_update,
    p06_durable_update,
    p07_scans,
    p08_update_during_lcp,
    p09_restart,
    p10_conflict_predicate,
    p11_apply_epochs,
    p12_disk_updates,
    p15_start,
    p16_memory,
)
from bench.report import Line

# P16 before P5: updates leave stale pages in the files of some peers.
GOALS: dict[tuple[str, ...], Callable[[Context], list[Line]]] = {
    ("P1", "P2"): p01_bulk_insert.measure,
    ("P16",): p16_memory.measure,
    ("P3", "P4"): p03_reads.measure,
    ("P5",): p05_update.measure,
    ("P6",): p06_durable_update.measure,
    ("P7",): p07_scans.measure,
    ("P8",): p08_update_during_lcp.measure,
    ("P10",): p10_conflict_predicate.measure,
    ("P11",): p11_apply_epochs.measure,
    ("P12",): p12_disk_updates.measure,
    ("P15",): p15_start.measure,
    ("P9",): p09_restart.measure,
}
