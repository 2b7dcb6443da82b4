"""Named places at which a process of a node group can be made to die, and how each is reached."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from tidemark.engine.store import group_apply
from tidemark.nodes import node_group
from tidemark.recovery.local_checkpoint import writer as checkpoint
from tidemark.recovery.node_restart import restart as node_restart
from tidemark.recovery.node_restart.joiner import Joiner
from tidemark.recovery.node_restart.source import Source
from tidemark.recovery.system_restart.restart import Restart
from tidemark.replication.injector.attached import AttachedBinlog
from tidemark.replication.node_group import copy_server, fetch
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.life import Life
from tidemark.replication.node_group.messages import FilePart
from tidemark.replication.node_group.primacy import Primacy
from tidemark.replication.node_group.store_thread import StoreThread
from tidemark.replication.node_group.stream import GroupStream
from tidemark.replication.node_group.view_file import ViewFile
from tidemark.replication.node_group.views import Node
from tidemark.replication.node_group.votes import Candidacy

BEFORE, AFTER = "before", "after"


class Scene(Enum):
    """Which process reaches a point, and what must happen for that."""

    BACKUP = "a member that takes groups"
    PRIMARY = "the primary, as transactions commit"
    ANY = "every member now and then"
    VIEW = "a member, as another one dies and the view changes"
    CANDIDATE = "the primary, as another member dies"
    LEAD = "a member that takes over from the primary"
    SOURCE = "the primary, while a node is copied"
    JOINER = "a node that was left out and comes back"
    WIPED = "a node that comes back without its disk"
    FILES = "a member that fetches the file of a large transaction"
    FILES_SOURCE = "the primary that gives the file out"
    SCHEMA = "a member, as a table is changed"
    ARBITRATOR = "the arbitrator, asked for a vote"


class Point(NamedTuple):
    """The process that makes the call, the call, and whether the process dies before or after it; `calls_max`: it dies
    at one of so many first calls; `message`: count only calls with such a message among arguments and result.
    """

    scene: Scene
    owner: Any
    attribute: str
    when: str
    calls_max: int = 1
    message: type | None = None


_Lcp = checkpoint.LocalCheckpoint
S = Scene
POINTS: dict[str, Point] = {
    # --- a commit -------------------------------------------------------------------------------------
    "group-sealed": Point(S.PRIMARY, GroupStream, "send", BEFORE, 5),
    "group-sent": Point(S.PRIMARY, GroupStream, "send", AFTER, 5),
    "group-synced": Point(S.PRIMARY, GroupStream, "wait", BEFORE, 5),
    "commit-acknowledged": Point(S.PRIMARY, GroupStream, "acknowledge", AFTER, 5),
    "group-shared": Point(S.PRIMARY, GroupStream, "share", BEFORE, 5),
    "shared-acknowledged": Point(S.PRIMARY, GroupStream, "shared", AFTER, 5),
    "groups-in-memory": Point(S.BACKUP, GroupStream, "applied_through", AFTER, 5),
    "epoch-closed": Point(S.PRIMARY, GroupStream, "epoch_closed", AFTER, 3),
    "groups-taken": Point(S.BACKUP, GroupStream, "take", AFTER, 5),
    "group-applied": Point(S.BACKUP, StoreThread, "apply_one", AFTER, 5),
    "groups-synced": Point(S.BACKUP, GroupStream, "synced_through", BEFORE, 5),
    "groups-told": Point(S.BACKUP, GroupStream, "synced_through", AFTER, 5),
    "file-part-come": Point(S.FILES, Conversation, "receive", AFTER, 2, FilePart),
    "file-fetched": Point(S.FILES, fetch, "write_file", AFTER),
    "file-part-sent": Point(S.FILES_SOURCE, Conversation, "send", AFTER, 2, FilePart),
    "file-given": Point(S.FILES_SOURCE, copy_server, "send_file", AFTER),
    "schema-unapplied": Point(S.SCHEMA, group_apply, "apply_change", BEFORE),
    "schema-applied": Point(S.SCHEMA, group_apply, "apply_change", AFTER),
    # --- views ----------------------------------------------------------------------------------------
    "record-unwritten": Point(S.VIEW, ViewFile, "write", BEFORE, 3),
    "record-written": Point(S.VIEW, ViewFile, "write", AFTER, 3),
    "view-proposed": Point(S.CANDIDATE, Candidacy, "propose", AFTER),
    "view-decided": Point(S.VIEW, Node, "learn", BEFORE),
    "view-on-disk": Point(S.VIEW, Node, "adopt", BEFORE),
    "adopted-told": Point(S.VIEW, Node, "adopt", AFTER),
    "adopted-taken": Point(S.CANDIDATE, Primacy, "take_adopted", AFTER),
    "view-opens": Point(S.VIEW, Life, "open_view", BEFORE),
    "view-opened": Point(S.VIEW, Life, "open_view", AFTER),
    "lead-begins": Point(S.LEAD, node_group.DrivenStore, "lead", BEFORE),
    "leads": Point(S.LEAD, node_group.DrivenStore, "lead", AFTER),
    "vote-unwritten": Point(S.ARBITRATOR, ViewFile, "write", BEFORE),
    "vote-written": Point(S.ARBITRATOR, ViewFile, "write", AFTER),
    # --- a copy ---------------------------------------------------------------------------------------
    "copy-asked-at-source": Point(S.SOURCE, copy_server.CopyServer, "copy", BEFORE),
    "copy-begun-at-source": Point(S.SOURCE, Source, "begin", AFTER),
    "slice-at-source": Point(S.SOURCE, Source, "step", AFTER, 5),
    "end-at-source": Point(S.SOURCE, Source, "end_copy", AFTER),
    "end-told-at-source": Point(S.SOURCE, copy_server.ServedCopy, "run", AFTER),
    "join-asked-at-source": Point(S.SOURCE, Life, "keep_log", AFTER, 3),
    "rows-removed": Point(S.WIPED, node_restart, "remove_store_files", AFTER),
    "copied-whole": Point(S.WIPED, Joiner, "end_copy", AFTER),
    "copy-begun": Point(S.JOINER, Joiner, "begin_copy", AFTER),
    "deletes-copied": Point(S.JOINER, Joiner, "apply_deletes", AFTER),
    "slice-copied": Point(S.JOINER, Joiner, "apply_slice", AFTER, 3),
    "group-copied": Point(S.JOINER, Joiner, "apply_group", AFTER, 2),
    "copy-ended": Point(S.JOINER, Joiner, "end_copy", AFTER),
    "seam-unwritten": Point(S.JOINER, Restart, "make_durable", BEFORE),
    "seam-written": Point(S.JOINER, Restart, "make_durable", AFTER),
    "joined-uncheckpointed": Point(S.JOINER, node_group, "make_recoverable", BEFORE),
    "checkpoint-of-joiner-begun": Point(S.JOINER, _Lcp, "start", AFTER),
    "older-checkpoints-stand": Point(S.JOINER, _Lcp, "continue_from_newest", BEFORE),
    "joined-checkpointed": Point(S.JOINER, node_group, "make_recoverable", AFTER),
    "brought-back": Point(S.JOINER, node_group.StoreHome, "rejoin", AFTER),
    "copy-followed": Point(S.JOINER, StoreThread, "copy_from_primary", AFTER),
    # --- local checkpoints, binlogs ---------------------------------------------------------------------
    "checkpoint-begun": Point(S.ANY, _Lcp, "start", AFTER),
    "checkpoint-fragment": Point(S.ANY, _Lcp, "write_fragment", AFTER, 5),
    "checkpoint-unpublished": Point(S.ANY, checkpoint, "write_control", BEFORE),
    "checkpoint-published": Point(S.ANY, checkpoint, "write_control", AFTER),
    "binlog-epoch-unwritten": Point(S.ANY, AttachedBinlog, "write_epoch", BEFORE, 3),
    "binlog-epoch-written": Point(S.ANY, AttachedBinlog, "write_epoch", AFTER, 3),
    "binlog-gap-untold": Point(S.JOINER, AttachedBinlog, "close_gap", BEFORE),
    "binlog-gap-told": Point(S.JOINER, AttachedBinlog, "close_gap", AFTER),
}


SHARING = ("group-shared", "shared-acknowledged", "groups-in-memory")
# Points at which one process alone dies.
ALONE = frozenset({S.BACKUP, S.PRIMARY, S.ANY, S.FILES, S.FILES_SOURCE, S.SCHEMA})


def points_of(variants: set[str], with_arbitrator: bool, with_binlog: bool, is_sharing: bool = False) -> list[str]:
    """Return the points that a site can reach. Others need a part the site does not have; and if commits are only in
    memory, a death of two nodes at once may lose them.
    """
    found = []
    for name, point in POINTS.items():
        if (name in SHARING and not is_sharing) or (is_sharing and point.scene not in ALONE):
            continue
        if point.scene is Scene.ARBITRATOR and not with_arbitrator:
            continue
        if name.startswith("binlog") and not with_binlog:
            continue
        if name == "deletes-copied" and "delete_log" not in variants:
            continue
        if name == "slice-copied" and variants == {"replay_log"}:
            continue
        found.append(name)
    return found


def arm(text: str) -> None:
    """Make this process die at a point: "name:count" dies when it reaches the point for the count-th time from now."""
    name, _, count = text.partition(":")
    point = POINTS[name]
    owner, attribute = point.owner, point.attribute
    real: Callable[..., Any] = getattr(owner, attribute)
    left = [int(count or 1)]

    def die(*messages: Any) -> None:
        if point.message is not None and not any(isinstance(each, point.message) for each in messages):
            return
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(real)
    def armed(*arguments: Any, **named: Any) -> Any:
        if point.when == BEFORE:
            die(*arguments)
        found = real(*arguments, **named)
        if point.when == AFTER:
            die(found, *arguments)
        return found

    setattr(owner, attribute, armed)
