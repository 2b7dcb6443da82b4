"""The state of a disk in memory, and the effect of a power loss on it.

Model: (M1) `fdatasync` makes content and size durable, never the name; (M2) `sync_directory` makes the entries of that
directory durable, never content; (M3) without them any subset of the pieces may survive: single 512-byte sectors of a
write, the growth of a file without its data (zeros or garbage there), a truncation, an entry; (M4) data past the
surviving size is gone; (M5) of a rename only the removal of the old target may survive, or both names, or all of it,
but the file keeps a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemark.recovery.crash_harness.disks.content import Content

SECTOR_BYTES = 512


@dataclass(frozen=True)
class Piece:
    """A unit that a power loss keeps or drops as a whole.

    `change` is the number of its call, in order. For `write` the piece is one sector: number `sector` of `sectors`; for
    `grow` it is the new size, `length` bytes more from `offset`; for `truncate` the size is `offset`.
    """

    change: int
    kind: Literal["write", "grow", "truncate", "link", "unlink"]
    name: str
    offset: int = 0
    length: int = 0
    sector: int = 0
    sectors: int = 1
    is_grown: bool = False

    def __hash__(self) -> int:
        # Pieces of one disk differ in call or sector. A cheap hash matters: every crash point draws sets of thousands
        # of them.
        return self.change << 20 ^ self.sector


@dataclass(eq=False)
class Change:
    """A change of content or size that is not durable yet; for `grow` and `truncate` `offset` is the new size."""

    number: int
    kind: Literal["write", "grow", "truncate"]
    offset: int
    data: bytes = b""
    size_before: int = 0


@dataclass(eq=False)
class Inode:
    """A file without its names."""

    live: Content = field(default_factory=Content)
    durable: Content = field(default_factory=Content)
    pending: list[Change] = field(default_factory=list)
    late_error: int = 0


@dataclass(eq=False)
class EntryChange:
    """A change of a directory that is not durable yet."""

    number: int
    kind: Literal["link", "unlink"]
    name: str
    node: Inode | Directory
    directory: Directory
    # The unlink of a rename's source cannot survive without the link of its target (M5).
    after: EntryChange | None = None
    is_durable: bool = False


@dataclass(eq=False)
class Directory:
    """Names, and the nodes they refer to."""

    live: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    pending: list[EntryChange] = field(default_factory=list)
    late_error: int = 0


class Image:
    """Builds the tree that a power loss leaves."""

    def __init__(self, survives: Callable[[Piece], bool], fill: Callable[[int], bytes]) -> None:
        self._survives = survives
        self._fill = fill
        self._entries: dict[int, bool] = {}
        self._made: dict[int, Inode | Directory] = {}

    def of(self, root: Directory) -> Directory:
        """Return the tree that is left of `root`."""
        # Decide entries of all directories first, in the order of the calls: a rename links two directories.
        found: list[EntryChange] = []
        entry_changes(root, found, set())
        for change in sorted(found, key=lambda change: change.number):
            linked = change.after is None or change.after.is_durable or self._entries.get(id(change.after), False)
            self._entries[id(change)] = self._survives(Piece(change.number, change.kind, change.name)) and linked
        return self._directory(root, "")

    def _directory(self, old: Directory, path: str) -> Directory:
        entries = dict(old.durable)
        for change in old.pending:
            if self._entries[id(change)]:
                apply_entry(entries, change)
        new = Directory()
        for name, node in entries.items():
            full = f"{path}{name}"
            if id(node) not in self._made:
                if isinstance(node, Directory):
                    self._made[id(node)] = self._directory(node, f"{full}/")
                else:
                    self._made[id(node)] = self.file_of(node, full)
            add(new, name, self._made[id(node)])
        return new

    def file_of(self, old: Inode, name: str) -> Inode:
        """Return what the power loss leaves of one file."""
        content = old.durable.copy()
        size_durable = len(content)
        for change in old.pending:
            if change.kind == "write":
                self._write(content, change, name, size_durable)
            elif change.kind == "grow":
                more = change.offset - change.size_before
                if self._survives(Piece(change.number, "grow", name, change.size_before, more)):
                    content += self._fill(max(0, change.offset - len(content)))
            elif self._survives(Piece(change.number, "truncate", name, change.offset)):
                del content[change.offset :]
        return Inode(content, content.copy())

    def _write(self, content: Content, change: Change, name: str, size_durable: int) -> None:
        end = change.offset + len(change.data)
        first = change.offset // SECTOR_BYTES
        sectors = (end - 1) // SECTOR_BYTES - first + 1
        for sector in range(sectors):
            start = max(change.offset, (first + sector) * SECTOR_BYTES)
            stop = min(end, (first + sector + 1) * SECTOR_BYTES)
            piece = Piece(change.number, "write", name, start, stop - start, sector, sectors, stop > size_durable)
            if self._survives(piece) and start < len(content):
                kept = min(stop, len(content))
                content[start:kept] = change.data[start - change.offset : kept - change.offset]


def add(directory: Directory, name: str, node: Any) -> Any:
    """Enter `node` durably, unless the name exists; return the node of the name."""
    directory.durable[name] = directory.live.setdefault(name, node)
    return directory.live[name]


def nodes(directory: Directory, path: str) -> Iterator[tuple[str, Content]]:
    """Yield full names and live content below a directory; directories end with `/`."""
    for name, node in directory.live.items():
        if isinstance(node, Directory):
            yield f"{path}{name}/", Content()
            yield from nodes(node, f"{path}{name}/")
        else:
            yield f"{path}{name}", node.live


def apply(content: Content, change: Change) -> None:
    end = change.offset if change.kind == "grow" else change.offset + len(change.data)
    content.grow(end)
    if change.kind == "write":
        content[change.offset : end] = change.data
    elif change.kind == "truncate":
        del content[change.offset :]


def apply_entry(entries: dict[str, Inode | Directory], change: EntryChange) -> None:
    if change.kind == "link":
        entries[change.name] = change.node
    elif entries.get(change.name) is change.node:
        del entries[change.name]


def persist(change: EntryChange) -> None:
    """Make a change of entries durable, after all earlier ones of its directory."""
    # A failed sync may have dropped the change from the list already.
    pending = change.directory.pending
    through = pending.index(change) + 1 if change in pending else 0
    earlier, change.directory.pending = pending[:through], pending[through:]
    for each in earlier or [change]:
        # A journal takes both halves of a rename at once (M5).
        if each.after is not None and not each.after.is_durable:
            persist(each.after)
        apply_entry(change.directory.durable, each)
        each.is_durable = True


def entry_changes(directory: Directory, found: list[EntryChange], seen: set[int]) -> None:
    """Collect the pending changes of a directory and of all below it, removed ones included."""
    if id(directory) in seen:
        return
    seen.add(id(directory))
    found += directory.pending
    below = [*directory.live.values(), *directory.durable.values(), *(change.node for change in directory.pending)]
    for node in below:
        if isinstance(node, Directory):
            entry_changes(node, found, seen)
