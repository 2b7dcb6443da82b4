"""What a directory holds: a store, the remains of an interrupted creation, nothing, or something else (ADR 0025).

Owns the names of a store. `check_place`, which writes nothing, examines the directory before a store is opened or
created. Whether `LOCK` is a lock file is checked when it is taken (`engine/files/directory.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing, ForeignFile, Rejected
from tidemark.engine.disk.data_file import FOLDER as SPACE_FOLDER
from tidemark.engine.disk.double_write import FILE_NAME as DOUBLE_WRITE_NAME
from tidemark.engine.disk.undo_ring import FOLDER as UNDO_FOLDER
from tidemark.engine.files.directory import LOCK_NAME, PosixFiles
from tidemark.engine.files.opened import Opened
from tidemark.engine.log.geometry import FOLDER as REDO_FOLDER
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.reader import holds_groups
from tidemark.engine.log.spool_files import FOLDER as SPOOL_FOLDER
from tidemark.engine.sealed.sealed_layout import KIND_SYSFILE
from tidemark.recovery.local_checkpoint.data_file import FOLDER as LCP_FOLDER
from tidemark.recovery.system_restart.kept_options import NAME as OPTIONS_NAME
from tidemark.recovery.system_restart.kept_options import UNNAMED as OPTIONS_UNNAMED
from tidemark.recovery.system_restart.sysfile import NAMES, RESTORING, has_sysfile, read_copy
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.files.protocol import Files

# The folders of a store's rows and logs, and the names that it gives to files there.
FOLDERS = {
    REDO_FOLDER: re.compile(r"[0-9]{4,}\.redo"),
    LCP_FOLDER: re.compile(r"control-[0-9]+(\.new)?|[0-9]+-([0-9]+-[0-9]+|copies|extents)\.data"),
    UNDO_FOLDER: re.compile(r"[0-9]{4,}\.undo"),
    SPACE_FOLDER: re.compile(r"[0-9]+\.data"),
    SPOOL_FOLDER: re.compile(r"[0-9a-f]{16}\.spool"),
    LOAD_FOLDER: re.compile(r"[0-9a-f]{16}[-.][0-9a-f.\-]*(load|manifest|open|adopting|published|aborted)(\.new)?"),
}
# Everything a store keeps in its directory. `node` has the view of a node of a group.
STORE_NAMES = frozenset(
    [
        *(LOCK_NAME, *NAMES, RESTORING, DOUBLE_WRITE_NAME, OPTIONS_NAME, OPTIONS_UNNAMED),
        *FOLDERS,
        *("catalog", "catalog.seal", "control.sock", "binlog", "relay", "node"),
    ]
)
_NODE_NAMES = frozenset([LOCK_NAME, "view.0", "view.1", "control.sock"])
_LOOK_BYTES = 4_096  # of a file of the log: a creation that lost its LOCK has written nothing else there
_SHOWN_NAMES = 2


def is_own(name: str) -> bool:
    """Whether a store gives this name, with its folder, to a file."""
    folder, _, leaf = name.partition("/")
    return name in STORE_NAMES if folder not in FOLDERS else FOLDERS[folder].fullmatch(leaf) is not None


def own_leaves(files: Files, folder: str) -> list[str]:
    """Return the names in a folder that the store gives to its files there."""
    return [leaf for leaf in files.list(folder) if FOLDERS[folder].fullmatch(leaf)]


def check_place(files: Files, create: bool) -> bool:
    """Whether the directory has a store, intact or damaged; otherwise one may be made there. Writes nothing.

    Raises: FileMissing if there is none and `create` is not set; ForeignFile if other files are there; VersionTooNew,
    VersionTooOld.
    """
    if has_store(files):
        return True
    if not create:
        raise no_store(files, "check the path, or open with create=True to make a store")
    others = _others(files)
    if others and has_store(files):  # another process made one meanwhile
        return True
    if others:
        raise ForeignFile(
            f"{_named(files)} is not empty and has no store: it has {_some(others)}; give a new or empty directory",
            file=others[0],
        )
    return False


def has_store(files: Files) -> bool:
    """Whether the directory has an intact sysfile, a local checkpoint, a group of the log, or an unfinished restore."""
    is_whole = any(_is_file(files, name) and read_copy(files, name) is not None for name in NAMES)
    return is_whole or files.exists(RESTORING) or holds_rows(files)


def holds_rows(files: Files) -> bool:
    """Whether the directory has files of a local checkpoint or a group of the log: if the sysfile is not intact, it is
    damaged.
    """
    if _is_folder(files, LCP_FOLDER) and own_leaves(files, LCP_FOLDER):
        return True
    if not _is_folder(files, REDO_FOLDER):
        return False
    logs = [f"{REDO_FOLDER}/{leaf}" for leaf in own_leaves(files, REDO_FOLDER)]
    return all(_is_file(files, name) for name in logs) and holds_groups(files)


def check_exists(files: Files) -> None:
    """Raises: FileMissing if the directory has no sysfile."""
    if not has_sysfile(files):
        raise no_store(files)


def no_store(files: Files, advice: str = "check the path") -> FileMissing:
    """Return the error for a directory without a store; it says what the directory has."""
    return nothing_here(files, "store", "sysfile that is intact", advice)


def nothing_here(files: Files, what: str, sign: str, advice: str) -> FileMissing:
    """Return the error for a directory that has no `what`, since it has no `sign`; it says what the directory has."""
    names = list(files.list())
    found = f"it has {_some(names)}, but no {sign}" if names else "it is empty"
    where = f"in {files.directory}" if isinstance(files, PosixFiles) else "here"
    return FileMissing(f"there is no {what} {where}: {found}; {advice}")


def _named(files: Files) -> str:
    return files.directory if isinstance(files, PosixFiles) else "the directory"


def _some(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    shown, more = names[:_SHOWN_NAMES], len(names) - _SHOWN_NAMES
    return f"{', '.join(shown)} and {more} more" if more > 0 else " and ".join(shown)


def _others(files: Files) -> list[str]:
    """Return the names that no interrupted creation of a store leaves."""
    is_locked = files.exists(LOCK_NAME)
    return [
        name
        for name in files.list()
        if not (name.startswith(".") or name in (LOCK_NAME, "lost+found")) and not _is_unmade(files, name, is_locked)
    ]


def _is_unmade(files: Files, name: str, is_locked: bool) -> bool:
    """Whether an interrupted creation may have left a name. `LOCK` comes first; a crash of the machine may lose it, but
    only before anything was written into the other files.
    """
    if name in NAMES:
        return (
            _is_file(files, name)
            and files.size(name) <= SYSFILE_BYTES
            and (is_locked or _is_sysfile(_head(files, name, SYSFILE_BYTES)))
        )
    if name == REDO_FOLDER and _is_folder(files, name):
        return all(_is_unmade_log(files, leaf, is_locked) for leaf in files.list(name))
    if name == LCP_FOLDER:
        return _is_folder(files, name) and not files.list(name)
    return name == "node" and _is_folder(files, name) and _NODE_NAMES.issuperset(files.list(name))


def _is_sysfile(content: bytes) -> bool:
    return not content.strip(b"\0") or int.from_bytes(content[8:10], "little") == KIND_SYSFILE


def _is_unmade_log(files: Files, leaf: str, is_locked: bool) -> bool:
    name = f"{REDO_FOLDER}/{leaf}"
    if not FOLDERS[REDO_FOLDER].fullmatch(leaf) or not _is_file(files, name):
        return False
    return is_locked or not _head(files, name, _LOOK_BYTES).strip(b"\0")


def _is_file(files: Files, name: str) -> bool:
    """Whether a name is that of a regular file."""
    return _answers(files.size, name)


def _is_folder(files: Files, name: str) -> bool:
    """Whether a name is that of a directory, not reached by a link."""
    return _answers(files.list, name)


def _answers(ask: Callable[[str], object], name: str) -> bool:
    try:
        ask(name)
    except (FileMissing, Rejected):
        return False
    return True


def _head(files: Files, name: str, count: int) -> bytes:
    with Opened(files, files.open(name, False)) as file:
        return files.pread(file, 0, count)
