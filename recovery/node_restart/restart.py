"""Brings a node back over a link: from its own files if they lead to X, or by a full copy
(docs/internals/node-group.md, *Where X ends*).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Damaged, ForeignFile, ValueOutOfRange
from tidemark.engine.disk.double_write import FILE_NAME as DOUBLE_WRITE_NAME
from tidemark.engine.sealed.version import check_format
from tidemark.recovery.local_checkpoint.control import read_controls
from tidemark.recovery.local_checkpoint.data_file import FOLDER as LCP_FOLDER
from tidemark.recovery.node_restart.joiner import Join
from tidemark.recovery.node_restart.messages import ROWID_SYNC
from tidemark.recovery.system_restart.place import FOLDERS, own_leaves
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.sysfile import NAMES, has_sysfile, read_sysfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.local_checkpoint.writer import LcpReport, LocalCheckpoint
    from tidemark.recovery.node_restart.joiner import Link
    from tidemark.recovery.node_restart.messages import Progress as Counters
    from tidemark.recovery.node_restart.messages import Welcome
    from tidemark.recovery.system_restart.restart import CaughtUp, Opened
    from tidemark.recovery.system_restart.through import Through

_log = logging.getLogger("tidemark.node")


def rejoin(
    files: Files,
    options: Options,
    clock: Clock,
    welcome: Welcome,
    link: Link,
    through: Through,
    variant: str = ROWID_SYNC,
    begun: Callable[[Counters], None] = lambda counters: None,
) -> tuple[Opened, CaughtUp]:
    """Return the store of this node, equal to the live node's after the group that `End` names, and where the stream
    continues. The caller calls `make_recoverable` next.

    through: the last epoch that the group completed with this node. If the node's own files do not lead there, because
    they are damaged or begin later, they are removed and everything is copied; `Begin.why` says so. The caller holds
    the lock. begun: see `Join`. Durable on return: nothing that was copied.

    Raises: VersionTooNew, VersionTooOld before anything is done, if this program does not read the live node's format;
    ForeignFile, and the errors that end a join: the files are then as they were, except for the writes of a restart.
    """
    check_format(welcome.format_version, "what the primary writes")
    if through.epoch and through.sequence != 0 and has_sysfile(files):
        join = Join(welcome, link, through.epoch, variant, begun=begun)
        try:
            return _run(Restart(files, options, clock, through, catch_up=join), join)
        except ForeignFile:
            raise  # it belongs to another store and must not be removed
        except (Damaged, ValueOutOfRange) as error:
            if join.joiner is not None:
                raise  # the live node has sent messages already, so the error is not about these files
            why = f"full copy: this node's own files do not lead to epoch {through.epoch} ({error})"
            _log.warning("%s", why)
    else:
        why = "full copy: this node has no valid state"
    _check_ours(files, welcome.store)
    remove_store_files(files)
    join = Join(welcome, link, 0, variant, why, begun)
    return _run(Restart(files, options, clock, catch_up=join), join)


def make_recoverable(lcp: LocalCheckpoint) -> LcpReport:
    """Write the local checkpoint that makes the copied state this node's own. Durable on return: the rows of the
    checkpoint.

    Call it before another group is applied: the checkpoint's epoch has ended on the live node, the next one has not. A
    crash before the checkpoint is durable leaves the node as it was before it joined. Older checkpoints are removed: no
    log leads from them to the copied rows. Raises: StorageFull, StoreFailed.
    """
    report = lcp.run()
    lcp.continue_from_newest()
    return report


def _run(restart: Restart, join: Join) -> tuple[Opened, CaughtUp]:
    opened = restart.run()
    assert join.joiner is not None and join.joiner.caught_up is not None
    return opened, join.joiner.caught_up


def _check_ours(files: Files, store: bytes) -> None:
    """Check that nothing of another store will be removed. Raises: ForeignFile, Incompatible."""
    sysfile = read_sysfile(files)
    if sysfile is not None and sysfile.store != store:
        raise ForeignFile("this directory holds another store than the live node; give an empty one")
    if sysfile is None and files.exists(LCP_FOLDER):
        read_controls(files, store)


def remove_store_files(files: Files) -> None:
    """Remove the files of a store, and nothing else. The sysfile goes first, so after a crash in the middle no restart
    takes the rest for a store. Durable on return.
    """
    for name in NAMES:
        if files.exists(name):
            files.unlink(name)
    files.sync_directory("")
    for folder in FOLDERS:
        if files.exists(folder):
            for leaf in own_leaves(files, folder):
                files.unlink(f"{folder}/{leaf}")
            files.sync_directory(folder)
    if files.exists(DOUBLE_WRITE_NAME):
        files.unlink(DOUBLE_WRITE_NAME)
        files.sync_directory("")
