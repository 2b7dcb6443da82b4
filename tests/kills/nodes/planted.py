"""Planted defects of node groups, in every process, to check that the kill loop finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidemark.recovery.node_restart.joiner import Joiner
from tidemark.recovery.node_restart.messages import Slice
from tidemark.replication.node_group.life import Life
from tidemark.replication.node_group.machine import Machine
from tidemark.replication.node_group.primacy import Primacy


def commit_without_waiting() -> None:
    """Acknowledge a commit when only the primary has it."""
    Primacy.through = lambda self, log: log.applied  # type: ignore[method-assign]


def slice_skipped() -> None:
    """Let a joiner skip the first slice with rows."""
    take = Joiner.apply_slice

    def skipping(self: Any, message: Slice) -> None:
        if message.rows and not getattr(self, "has_skipped", False):
            self.has_skipped = True
            message = replace(message, words=message.words[:0], rows=0)
        take(self, message)

    Joiner.apply_slice = skipping  # type: ignore[method-assign]


def lease_not_asked() -> None:
    """Let a read show what it has found, whatever its view is by then."""

    def may_show(self: Any, view: int, now: float) -> bool:
        return bool(self.view.number)

    Machine.may_show = may_show  # type: ignore[method-assign]
    Life.shown = lambda self, view: None  # type: ignore[method-assign]
    Machine.reads_in = lambda self: self.view.number  # type: ignore[method-assign]


DEFECTS: dict[str, Callable[[], None]] = {
    "commit-without-waiting": commit_without_waiting,
    "slice-skipped": slice_skipped,
    "lease-not-asked": lease_not_asked,
}


def plant(name: str) -> None:
    """Plant a defect in this process, before its node begins."""
    DEFECTS[name]()
