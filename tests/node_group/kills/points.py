"""Named places at which a process of a node group can be told to die."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from recovery.node_restart.joiner import Joiner
from recovery.node_restart.source import Source
from replication.node_group.life import Life
from replication.node_group.store_thread import StoreThread
from replication.node_group.stream import GroupStream
from replication.node_group.view_file import ViewFile
from tidemark import node_group

BEFORE, BEHIND = "before", "behind"

# Name: whose call, and whether the process dies before or behind it.
POINTS: dict[str, tuple[Any, str, str]] = {
    "group-sealed": (GroupStream, "send", BEFORE),
    "group-sent": (GroupStream, "send", BEHIND),
    "group-synced": (GroupStream, "wait", BEFORE),
    "commit-acknowledged": (GroupStream, "acknowledge", BEHIND),
    "epoch-closed": (GroupStream, "epoch_closed", BEHIND),
    "groups-taken": (GroupStream, "take", BEHIND),
    "group-applied": (StoreThread, "_apply_one", BEHIND),
    "groups-synced": (GroupStream, "applied_through", BEFORE),
    "groups-told": (GroupStream, "applied_through", BEHIND),
    "record-unwritten": (ViewFile, "write", BEFORE),
    "record-written": (ViewFile, "write", BEHIND),
    "view-opens": (Life, "_open", BEFORE),
    "view-opened": (Life, "_open", BEHIND),
    "lead-begins": (node_group._NodeStore, "lead", BEFORE),
    "leads": (node_group._NodeStore, "lead", BEHIND),
    "copy-begun-at-source": (Source, "begin", BEHIND),
    "slice-at-source": (Source, "step", BEHIND),
    "end-at-source": (Source, "_end", BEHIND),
    "copy-begun": (Joiner, "_begin", BEHIND),
    "slice-copied": (Joiner, "_slice", BEHIND),
    "group-copied": (Joiner, "_group", BEHIND),
    "copy-ended": (Joiner, "_end", BEHIND),
    "joined-uncheckpointed": (node_group, "make_recoverable", BEFORE),
    "joined-checkpointed": (node_group, "make_recoverable", BEHIND),
    "brought-back": (node_group._Home, "bring_back", BEHIND),
}

# Only a node that leads comes by these; those at a source only while another one is copied.
OF_PRIMARY = frozenset(
    name
    for name in POINTS
    if name.endswith("-at-source")
    or name
    in ("group-sealed", "group-sent", "group-synced", "commit-acknowledged", "epoch-closed", "lead-begins", "leads")
)

# A life comes by these again and again.
RECURRING = frozenset(name for name in POINTS if name.startswith(("group", "commit", "epoch", "record", "slice")))


def arm(text: str) -> None:
    """Have this process die at a point: "name:count", at the count-th time it comes by."""
    name, _, count = text.partition(":")
    owner, attribute, when = POINTS[name]
    real: Callable[..., Any] = getattr(owner, attribute)
    left = [int(count or 1)]

    def die() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(real)
    def armed(*arguments: Any, **named: Any) -> Any:
        if when == BEFORE:
            die()
        found = real(*arguments, **named)
        if when == BEHIND:
            die()
        return found

    setattr(owner, attribute, armed)
