"""The options of a store: their names, defaults and ranges, checked when they are given.

An `Options` that exists is valid: a bad value raises SchemaInvalid before anything is opened. Sizes are given as bytes
or as text with a binary unit (`"64 MiB"`) and read back as `..._bytes`. An option is here only if the store acts on it.
A store keeps those that last (`LASTING`) from one opening to the next (recovery/system_restart/kept_options.py), and
the size of its log in its sysfile.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.watch import Tracer

Size = int | str
Durability = Literal["commit", "epoch"]
ArchivePlace = str | os.PathLike[str] | None

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,19}) ?(B|KiB|MiB|GiB|TiB)")

# Word addresses into the arena and positions in the log stay far inside int64.
_SIZE_BYTES_MAX = 1 << 46
# Copies of rows are kept in slabs of this size; less than one slab has no room for a row of the largest size.
_LCP_MEMORY_BYTES_MIN = 1 << 20
_TRANSACTION_MEMORY_BYTES_MIN = 64 << 10
# By default the old rows of an update of all rows fit if the rows fill a fifth of `data_memory`.
_SNAPSHOT_MEMORY_BYTES = 64 << 20
_SNAPSHOT_SHARE = 4
# Each interval with commits writes a file.
_ARCHIVE_INTERVAL_MS_MIN = 100
_MILLISECONDS_MAX = 24 * 3_600 * 1_000
_STEP_MAX = 65_535  # as of auto_increment_increment
# The log reaches back to the older of two local checkpoints while a third is written: three shares must fit.
_LOG_SHARE_MAX = 0.3


# Options that a store keeps from its last opening: those about its rows and files. The others are about the process
# that has it open.
LASTING = (
    *("data_memory", "page_buffer", "page_flush_rate", "checkpoint_memory", "durability", "epoch_interval_ms"),
    *("gcp_interval_ms", "transaction_memory", "transaction_limit", "checkpoint_interval_ms", "checkpoint_log_share"),
    *("undo_log", "undo_filter", "snapshot_memory", "delete_log", "autoincrement_step", "autoincrement_offset"),
    "expiry_interval_ms",
)


class MemoryWarning(UserWarning):
    """The memory that a store may use is more than the machine has."""


class OptionKeywords(TypedDict, total=False):
    """Every option as a keyword, for the signatures that pass them on."""

    data_memory: Size
    redo_log: Size
    page_buffer: Size
    page_flush_rate: Size
    checkpoint_memory: Size
    durability: Durability
    epoch_interval_ms: int
    gcp_interval_ms: int
    lock_timeout_ms: int
    idle_transaction_ms: int
    transaction_memory: Size
    transaction_limit: Size
    create: bool
    background: bool
    checkpoint_interval_ms: int
    checkpoint_log_share: float
    undo_log: Size
    undo_filter: bool
    snapshot_memory: Size | None
    delete_log: Size
    archive: ArchivePlace
    archive_interval_ms: int
    slow_operation_ms: int
    tracer: Tracer | None
    autoincrement_step: int
    autoincrement_offset: int
    expiry_interval_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to open a store. Sizes are bytes or text such as "64 MiB" (B, KiB, MiB, GiB, TiB), read back in bytes as
    `..._bytes`.

    A store keeps the options of its last opening that are about its rows and files, and has them again where an opening
    names no other: all but `redo_log` (the store's from its creation), `create`, `background`, `lock_timeout_ms`,
    `idle_transaction_ms`, `archive`, `archive_interval_ms`, `slow_operation_ms` and `tracer`.

    Args:
        data_memory: Memory for rows and indexes, whose addresses are reserved at once; it is used as it fills. More
            than the machine has gives a MemoryWarning. In addition, open transactions use 64 bytes for each row they
            have changed or locked.
        redo_log: Size to which the REDO log of a new store grows on disk, from at most 32 MiB; the disk must have the
            whole size free. An existing store keeps its size.
        page_buffer: Memory for pages of disk columns, for each page size in use, including pages on their way to the
            disk.
        page_flush_rate: Bytes of disk pages a local checkpoint writes per second; 0 sets no bound.
        checkpoint_memory: Bound on copies of old rows for a running local checkpoint; operations that would exceed it
            wait.
        durability: "commit": a commit returns when it is on disk; "epoch": a commit returns at once and reaches the
            disk with its epoch.
        epoch_interval_ms: An epoch that has commits is closed this long after its first commit.
        gcp_interval_ms: Life of a GCI; the sysfile is written with each.
        lock_timeout_ms: Longest wait for a row lock or for space in the log; 0 never waits.
        idle_transaction_ms: A transaction of a client (`tm.serve_calls`, `tm.NodeGroup`) that makes no call for so long
            is rolled back, and its next call raises TransactionKilled; 0 sets no limit. Transactions of this process
            have none.
        transaction_memory: Bound on the changes of one transaction in memory; further changes are spooled to a file, as
            are those past half of `redo_log`.
        transaction_limit: Bound on the changes of one transaction, in memory and file together.
        create: Create the store if the directory has none.
        background: Close epochs and write local checkpoints by timer; if False, only calls do.
        checkpoint_interval_ms: A local checkpoint starts this long after the last one; 0: never by time.
        checkpoint_log_share: A local checkpoint starts when the log has grown by this share of `redo_log`.
        undo_log: Size of the UNDO log on disk, created with the first tablespace; an existing one keeps its size.
        undo_filter: Leave records out of the UNDO log that no restart to the end of the log can need, because the REDO
            log has the change; if False, a restart through an epoch can go back as far as the kept local checkpoints.
        snapshot_memory: Bound on old rows kept for open snapshots, used as they are kept; past it the oldest snapshot
            is dropped (SnapshotTooOld). None: a quarter of `data_memory`, and at least 64 MiB.
        delete_log: Memory for a log of deleted rows, with which a node rejoins its group without copying all rows; past
            it the oldest entries are dropped; 0 keeps none.
        archive: A path or URI to which the log is archived from the opening on; None: no archive until
            `Database.archive` is called.
        archive_interval_ms: How often closed epochs are archived.
        slow_operation_ms: Commits, waits for row locks, local checkpoints and scans that take as long or longer are
            logged by the logger `tidemark.slow`; 0 logs none.
        tracer: Called once for each such operation when it has ended, with its name, start and end in µs since 1970,
            and a dict of attributes; see `opentelemetry_tracer`. None: no call.
        autoincrement_step: Sequences and `tm.autoincrement` give numbers that are `autoincrement_offset` apart from a
            multiple of this. Sites that write the same tables take their number of sites, 1 to 65,535.
        autoincrement_offset: Another number at each of these sites, 1 to `autoincrement_step`.
        expiry_interval_ms: How often rows that have expired are deleted (`set_expiry`); 0: only by `expire`. None:
            every 60 s, but never in a store that applies or has applied changes of another site or server: deletions
            come from there. Where it is given, also there.

    Raises:
        SchemaInvalid: A value has the wrong type or is out of range.

    Examples:
        >>> tm.Options(data_memory="2 GiB").data_memory_bytes
        2147483648
    """

    data_memory: Size = "1 GiB"
    redo_log: Size = "256 MiB"
    page_buffer: Size = "64 MiB"
    page_flush_rate: Size = "256 MiB"
    checkpoint_memory: Size = "64 MiB"
    durability: Durability = "commit"
    epoch_interval_ms: int = 100
    gcp_interval_ms: int = 2_000
    lock_timeout_ms: int = 5_000
    idle_transaction_ms: int = 30_000
    transaction_memory: Size = "256 MiB"
    transaction_limit: Size = "16 GiB"
    create: bool = True
    background: bool = True
    checkpoint_interval_ms: int = 300_000
    checkpoint_log_share: float = 0.25
    undo_log: Size = "128 MiB"
    undo_filter: bool = True
    snapshot_memory: Size | None = None
    delete_log: Size = 0
    archive: ArchivePlace = None
    archive_interval_ms: int = 5_000
    slow_operation_ms: int = 0
    tracer: Tracer | None = None
    autoincrement_step: int = 1
    autoincrement_offset: int = 1
    expiry_interval_ms: int | None = None

    data_memory_bytes: int = field(init=False, repr=False)
    redo_log_bytes: int = field(init=False, repr=False)
    page_buffer_bytes: int = field(init=False, repr=False)
    page_flush_rate_bytes: int = field(init=False, repr=False)
    checkpoint_memory_bytes: int = field(init=False, repr=False)
    transaction_memory_bytes: int = field(init=False, repr=False)
    transaction_limit_bytes: int = field(init=False, repr=False)
    undo_log_bytes: int = field(init=False, repr=False)
    snapshot_memory_bytes: int = field(init=False, repr=False)
    delete_log_bytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check every value and compute the sizes in bytes."""
        self._set_size("data_memory", limits.DATA_MEMORY_BYTES_MIN)
        self._set_size("redo_log", limits.REDO_LOG_BYTES_MIN)
        self._set_size("page_buffer", limits.PAGE_BUFFER_BYTES_MIN)
        self._set_size("page_flush_rate", 0)
        self._set_size("checkpoint_memory", _LCP_MEMORY_BYTES_MIN)
        self._set_size("transaction_memory", _TRANSACTION_MEMORY_BYTES_MIN)
        self._set_size("transaction_limit", _TRANSACTION_MEMORY_BYTES_MIN)
        self._set_size("undo_log", limits.UNDO_LOG_BYTES_MIN)
        if self.snapshot_memory is None:
            derived = max(_SNAPSHOT_MEMORY_BYTES, self.data_memory_bytes // _SNAPSHOT_SHARE)
            object.__setattr__(self, "snapshot_memory_bytes", derived)
        else:
            self._set_size("snapshot_memory", limits.SNAPSHOT_MEMORY_BYTES_MIN)
        has_delete_log = parse_size("delete_log", self.delete_log) != 0
        self._set_size("delete_log", limits.DELETE_LOG_BYTES_MIN if has_delete_log else 0)
        for name in ("create", "background", "undo_filter"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise SchemaInvalid(f"option {name} is {value!r}; give True or False", option=name)
        if self.durability not in ("commit", "epoch"):
            raise SchemaInvalid(
                f'option durability is {self.durability!r}; give "commit" or "epoch"', option="durability"
            )
        self._check_integer("epoch_interval_ms", 1, _MILLISECONDS_MAX)
        self._check_integer("gcp_interval_ms", 1, _MILLISECONDS_MAX)
        self._check_integer("lock_timeout_ms", 0, _MILLISECONDS_MAX)
        self._check_integer("idle_transaction_ms", 0, _MILLISECONDS_MAX)
        self._check_integer("checkpoint_interval_ms", 0, _MILLISECONDS_MAX)
        self._check_integer("archive_interval_ms", _ARCHIVE_INTERVAL_MS_MIN, _MILLISECONDS_MAX)
        self._check_integer("slow_operation_ms", 0, _MILLISECONDS_MAX)
        self._check_integer("autoincrement_step", 1, _STEP_MAX)
        self._check_integer("autoincrement_offset", 1, self.autoincrement_step)
        if self.expiry_interval_ms is not None:
            self._check_integer("expiry_interval_ms", 0, _MILLISECONDS_MAX)
        if self.tracer is not None and not callable(self.tracer):
            raise SchemaInvalid(f"option tracer is {self.tracer!r}; give a function or None", option="tracer")
        if self.archive is not None and not isinstance(self.archive, (str, os.PathLike)):
            raise SchemaInvalid(f"option archive is {self.archive!r}; give a path or a URI", option="archive")
        self._check_share()
        if self.transaction_limit_bytes < self.transaction_memory_bytes:
            raise SchemaInvalid(
                f"option transaction_limit is {self.transaction_limit}; give transaction_memory"
                f" ({self.transaction_memory}) or more",
                option="transaction_limit",
            )
        if self.gcp_interval_ms < self.epoch_interval_ms:
            raise SchemaInvalid(
                f"option gcp_interval_ms is {self.gcp_interval_ms}; a GCI lasts at least one epoch, "
                f"give epoch_interval_ms ({self.epoch_interval_ms}) or more",
                option="gcp_interval_ms",
            )

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, object]) -> Options:
        """Build options from a user's keywords.

        Raises: SchemaInvalid for an unknown keyword, naming the nearest known one, and for bad values.

        Examples:
            >>> tm.Options.from_keywords({"durability": "epoch"}).durability
            'epoch'
        """
        known = [one.name for one in fields(cls) if one.init]
        for name in keywords:
            if name not in known:
                raise no_such_option(name, known)
        return cls(**keywords)  # type: ignore[arg-type]

    def _set_size(self, name: str, minimum_bytes: int) -> None:
        size_bytes = parse_size(name, getattr(self, name))
        if not minimum_bytes <= size_bytes <= _SIZE_BYTES_MAX:
            raise SchemaInvalid(
                f"option {name} is {size_bytes:,} bytes; give {format_size(minimum_bytes)} "
                f"to {format_size(_SIZE_BYTES_MAX)}",
                option=name,
            )
        # Normalised, so that options with equal sizes are equal, however they were spelled.
        object.__setattr__(self, name, format_size(size_bytes))
        object.__setattr__(self, name + "_bytes", size_bytes)

    def _check_integer(self, name: str, minimum: int, maximum: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise SchemaInvalid(f"option {name} is {value!r}; give an integer {minimum:,} to {maximum:,}", option=name)

    def _check_share(self) -> None:
        share = self.checkpoint_log_share
        is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not is_number or not 0.01 <= share <= _LOG_SHARE_MAX:
            raise SchemaInvalid(
                f"option checkpoint_log_share is {share!r}; give a number 0.01 to {_LOG_SHARE_MAX}",
                option="checkpoint_log_share",
            )


def no_such_option(name: object, known: Collection[str]) -> SchemaInvalid:
    """Return the error for an unknown name, which names the nearest known one, or all of them."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
    return SchemaInvalid(f"there is no option {name!r}; {advice}", option=name)


def warn_of_size(options: Options, memory_bytes: int, stacklevel: int) -> None:
    """Warn of a data_memory that is more than the memory of the machine; 0: that is unknown."""
    if 0 < memory_bytes < options.data_memory_bytes:
        warnings.warn(
            f"data_memory is {options.data_memory_bytes:,} bytes ({options.data_memory}), and the machine has"
            f" {memory_bytes:,} bytes of memory: as rows fill it, the system ends the process or swaps; give less, or"
            " put columns on disk",
            MemoryWarning,
            stacklevel=stacklevel + 1,
        )


def larger(name: str, size_bytes: int) -> str:
    """Return, for a message, what an option is and a larger value to give."""
    return f'{name} is {format_size(size_bytes)}; {name}="{format_size(2 * size_bytes)}" has twice the room'


def parse_size(name: str, value: object) -> int:
    """Return the bytes of a size given as an integer or as text such as "64 MiB".

    Raises: SchemaInvalid, naming the option `name`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    matched = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        raise SchemaInvalid(
            f"option {name} is {value!r}; give bytes as an integer, or a whole number with B, KiB, MiB, GiB or TiB "
            f'such as "64 MiB"',
            option=name,
        )
    return int(matched[1]) * _UNITS[matched[2]]


def format_size(size_bytes: int) -> str:
    """Return the shortest text that `parse_size` turns back into exactly `size_bytes`."""
    unit = next(unit for unit in reversed(_UNITS) if size_bytes % _UNITS[unit] == 0)
    return f"{size_bytes // _UNITS[unit]} {unit}"
