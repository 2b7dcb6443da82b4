"""A disk in memory that tracks which changes a power loss may keep.

Inodes and directory entries are separate. Every inode has live content (returned by reads), durable content, and the
ordered changes between them. Every directory has live and durable entries and the changes between them. The model of a
power loss (M1 to M5) is in `power_loss.py`.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, get_args

from tidemark.engine.base.errors import Locked, Rejected
from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File, RawFiles, flat
from tidemark.recovery.crash_harness.disks.content import Content
from tidemark.recovery.crash_harness.disks.power_loss import (
    Change,
    Directory,
    EntryChange,
    Image,
    Inode,
    Piece,
    add,
    apply,
    nodes,
    persist,
)

CrashPolicy = Literal["drop", "keep", "sectors", "torn", "growth"]
CRASH_POLICIES: tuple[CrashPolicy, ...] = get_args(CrashPolicy)
Personality = Literal["clean", "reverted", "late"]
_PIECE_BYTES = 256 << 10


class Rng(Protocol):
    """The part of `random.Random` that a crash draws from."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...
    def randbytes(self, count: int, /) -> bytes: ...


class MemoryDisk:
    """The state of one disk, shared by every `MemoryFiles` opened on it."""

    def __init__(self, root: Directory | None = None, changes: int = 0) -> None:
        self.root = root if root is not None else Directory()
        self.changes = changes
        self.is_locked = False
        self.mutex = threading.RLock()

    def next_change(self) -> int:
        self.changes += 1
        return self.changes


class MemoryFiles(CheckedFiles):
    """`Files` on a disk in memory; another one on the same `disk` acts as a second process.

    `personality` is the effect of an injected sync failure: `"clean"` drops the changes but keeps showing them (ext4,
    XFS), `"reverted"` shows the old content again (Btrfs), `"late"` reports success now and the error at the next sync.
    """

    def __init__(self, disk: MemoryDisk | None = None, personality: Personality = "clean") -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.personality: Personality = personality
        self.raw: _MemoryRaw
        super().__init__(_MemoryRaw(self.disk, personality))

    @classmethod
    def from_snapshot(cls, contents: Mapping[str, bytes]) -> MemoryFiles:
        """Create a disk that durably holds `contents`, as `snapshot` returns them."""
        root = Directory()
        for name, content in contents.items():
            *path, leaf = name.rstrip("/").split("/")
            directory = root
            for part in path:
                directory = add(directory, part, Directory())
            add(directory, leaf, Directory() if name.endswith("/") else Inode(Content(content), Content(content)))
        return cls(MemoryDisk(root))

    def snapshot(self) -> dict[str, bytes]:
        """Return the live content of every file by name; directories end with `/` and are empty."""
        with self.disk.mutex:
            return {name: bytes(content) for name, content in nodes(self.disk.root, "")}

    def digest(self) -> str:
        """Return the hex digest of names and live content."""
        digest = hashlib.sha256()
        with self.disk.mutex:
            for name, content in sorted(nodes(self.disk.root, ""), key=lambda found: found[0]):
                digest.update(f"{len(name)} {name} {len(content)} ".encode())
                for number, block in content.blocks():
                    digest.update(b"%d " % number)
                    digest.update(block)
        return digest.hexdigest()

    def kill(self) -> MemoryFiles:
        """Return the disk as the next process finds it after this one was killed: live content, still unsynced."""
        with self.disk.mutex:
            return MemoryFiles(MemoryDisk(copy.deepcopy(self.disk.root), self.disk.changes), self.personality)

    def pieces(self) -> list[Piece]:
        """Return everything a power loss now may keep or drop, in the order of the calls."""
        found: list[Piece] = []

        def collect(piece: Piece) -> bool:
            found.append(piece)
            return True

        self.image(collect)
        return sorted(found, key=lambda piece: (piece.change, piece.sector))

    def image(self, survives: Callable[[Piece], bool], fill: Callable[[int], bytes] = bytes) -> MemoryFiles:
        """Return the disk after a power loss in which exactly the pieces that `survives` accepts reached it.

        `fill(count)` returns the bytes of grown areas; `survives` is called once for each piece.
        """
        with self.disk.mutex:
            return MemoryFiles(MemoryDisk(Image(survives, fill).of(self.disk.root)), self.personality)

    def lose_sync(self, name: str, survives: Callable[[Piece], bool]) -> None:
        """Fail the sync of a file: of its earlier writes only pieces that `survives` accepts are on the disk, no later
        sync brings the others there, and reads show all of them (the personality `clean`).
        """
        with self.disk.mutex:
            inode = self.raw.inode(name)
            inode.durable = Image(survives, bytes).file_of(inode, name).durable
            inode.pending.clear()

    def crash(self, rng: Rng, policy: CrashPolicy = "sectors") -> MemoryFiles:
        """Return one possible disk after a power loss: with `drop` nothing unsynced survives, with `keep` everything
        does, with `sectors` any subset of sectors and entries, with `torn` a prefix of every write, with `growth` sizes
        without their data.
        """
        if policy not in CRASH_POLICIES:
            raise Rejected(f"{policy!r} is not a crash policy; choose one of {', '.join(CRASH_POLICIES)}")
        share = (0.1, 0.5, 0.9)[rng.randrange(3)]
        has_garbage = rng.random() < 0.5
        cuts: dict[int, int] = {}

        def survives(piece: Piece) -> bool:
            if policy in ("drop", "keep"):
                return policy == "keep"
            if policy == "torn" and piece.kind == "write":
                if piece.change not in cuts:
                    cuts[piece.change] = rng.randrange(piece.sectors + 1)
                return piece.sector < cuts[piece.change]
            if policy == "growth" and (piece.kind == "grow" or piece.is_grown):
                return piece.kind == "grow"
            return rng.random() < share

        return self.image(survives, rng.randbytes if has_garbage else bytes)


class _MemoryRaw(RawFiles):
    """The calls of `RawFiles` on a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, personality: Personality) -> None:
        self._disk = disk
        self._personality = personality
        self._inodes: dict[int, Inode] = {}
        self._numbers = 0
        self._has_lock = False

    def _parent(self, name: str) -> tuple[Directory, str]:
        path, _, leaf = name.rpartition("/")
        return self._directory(path), leaf

    def _directory(self, path: str) -> Directory:
        node: Inode | Directory = self._disk.root
        for part in path.split("/") if path else ():
            if not isinstance(node, Directory):
                raise OSError(errno.ENOTDIR, "not a directory")
            if part not in node.live:
                raise OSError(errno.ENOENT, "no such directory")
            node = node.live[part]
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, "not a directory")
        return node

    def inode(self, name: str) -> Inode:
        directory, leaf = self._parent(name)
        node = directory.live.get(leaf)
        if node is None:
            raise OSError(errno.ENOENT, "no such file")
        if isinstance(node, Directory):
            raise OSError(errno.EISDIR, "a directory")
        return node

    def _link(self, directory: Directory, name: str, node: Inode | Directory) -> EntryChange:
        change = EntryChange(self._disk.next_change(), "link", name, node, directory)
        directory.pending.append(change)
        directory.live[name] = node
        return change

    def _unlink(self, directory: Directory, name: str, after: EntryChange | None = None) -> None:
        node = directory.live.pop(name)
        change = EntryChange(self._disk.next_change(), "unlink", name, node, directory, after)
        directory.pending.append(change)

    def _handle(self, inode: Inode, name: str, writable: bool) -> File:
        self._numbers += 1
        self._inodes[self._numbers] = inode
        return File(self._numbers, name, writable)

    def create(self, name: str) -> File:
        with self._disk.mutex:
            directory, leaf = self._parent(name)
            if leaf in directory.live:
                raise OSError(errno.EEXIST, "exists")
            inode = Inode()
            self._link(directory, leaf, inode)
            return self._handle(inode, name, True)

    def open(self, name: str, writable: bool) -> File:
        with self._disk.mutex:
            return self._handle(self.inode(name), name, writable)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        with self._disk.mutex:
            live, octets = self._inodes[file].live, flat(view)
            count = max(0, min(len(octets), len(live) - offset))
            for at in range(0, count, _PIECE_BYTES):  # a slice of the content is a copy
                end = min(count, at + _PIECE_BYTES)
                octets[at:end] = live[offset + at : offset + end]
            return count

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        data = bytes(flat(buffer))
        with self._disk.mutex:
            inode = self._inodes[file]
            if data:
                self._grow(inode, offset + len(data))
                inode.live[offset : offset + len(data)] = data
                inode.pending.append(Change(self._disk.next_change(), "write", offset, data))
        return len(data)

    def _grow(self, inode: Inode, size: int) -> None:
        before = len(inode.live)
        if size > before:
            inode.pending.append(Change(self._disk.next_change(), "grow", size, size_before=before))
            inode.live.grow(size)

    def truncate(self, file: File, size: int) -> None:
        with self._disk.mutex:
            inode = self._inodes[file]
            self._grow(inode, size)
            if size < len(inode.live):
                del inode.live[size:]
                inode.pending.append(Change(self._disk.next_change(), "truncate", size))

    def fdatasync(self, file: File) -> None:
        with self._disk.mutex:
            inode = self._inodes[file]
            changes, inode.pending = inode.pending, []
            if inode.late_error:
                number, inode.late_error = inode.late_error, 0
                raise OSError(number, "of an earlier write")
            for change in changes:
                apply(inode.durable, change)

    def sync_directory(self, path: str) -> None:
        with self._disk.mutex:
            directory = self._directory(path)
            if directory.late_error:
                directory.pending.clear()
                number, directory.late_error = directory.late_error, 0
                raise OSError(number, "of an earlier change")
            if directory.pending:
                persist(directory.pending[-1])

    def fail_sync(self, target: File | str, error_number: int) -> None:
        """Fail the sync of a file or directory as the disk's personality says."""
        with self._disk.mutex:
            node = self._directory(target) if isinstance(target, str) else self._inodes[target]
            node.pending.clear()
            if self._personality == "late":
                node.late_error = error_number
                return
            if self._personality == "reverted" and isinstance(node, Directory):
                node.live = dict(node.durable)
            elif self._personality == "reverted" and isinstance(node, Inode):
                node.live = node.durable.copy()
            raise OSError(error_number, "injected")

    def make_directory(self, path: str) -> None:
        with self._disk.mutex:
            directory, leaf = self._parent(path)
            if leaf in directory.live:
                raise OSError(errno.EEXIST, "exists")
            self._link(directory, leaf, Directory())

    def rename(self, source: str, target: str) -> None:
        with self._disk.mutex:
            inode = self.inode(source)
            directory, leaf = self._parent(target)
            old = directory.live.get(leaf)
            if isinstance(old, Directory):
                raise OSError(errno.EISDIR, "a directory")
            if old is inode:
                return
            if old is not None:
                self._unlink(directory, leaf)
            linked = self._link(directory, leaf, inode)
            self._unlink(*self._parent(source), linked)

    def unlink(self, name: str) -> None:
        with self._disk.mutex:
            self.inode(name)
            self._unlink(*self._parent(name))

    def link(self, name: str, source_name: str, source: RawFiles) -> bool:
        if not isinstance(source, _MemoryRaw) or source._disk is not self._disk:
            return False
        with self._disk.mutex:
            inode = self.inode(source_name)
            directory, leaf = self._parent(name)
            if leaf in directory.live:
                raise OSError(errno.EEXIST, "exists")
            self._link(directory, leaf, inode)
            return True

    def remove_tree(self, path: str) -> None:
        with self._disk.mutex:
            self._directory(path)
            self._unlink(*self._parent(path))

    def names(self, path: str) -> tuple[str, ...]:
        with self._disk.mutex:
            return tuple(self._directory(path).live)

    def size(self, file: File) -> int:
        return len(self._inodes[file].live)

    def size_of(self, name: str) -> int:
        with self._disk.mutex:
            return len(self.inode(name).live)

    def exists(self, name: str) -> bool:
        with self._disk.mutex:
            try:
                directory, leaf = self._parent(name)
            except FileNotFoundError:
                return False
            return leaf in directory.live

    def lock(self) -> None:
        with self._disk.mutex:
            if self._has_lock:
                return
            if self._disk.is_locked:
                raise Locked("another handle has the disk in memory; close it", pid=None)
            if "LOCK" not in self._disk.root.live:
                self._link(self._disk.root, "LOCK", Inode())
            self._disk.is_locked = self._has_lock = True

    def unlock(self) -> None:
        with self._disk.mutex:
            if self._has_lock:
                self._disk.is_locked = self._has_lock = False

    def close(self, file: File) -> None:
        del self._inodes[file]
