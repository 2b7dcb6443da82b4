"""Tidemark: an embedded, transactional row store.

This module only exports the public names. In the examples of docstrings, `tm` is this module and `db` an open store.
Its table `item` has the columns `id` (the key), `name` and `stock`, and the rows (1, "pen", 10), (2, "cup", 5)
and (3, "bag", 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# First: it refuses an interpreter on which the store cannot work.
from tidemark import _preflight as _preflight  # isort: skip

if TYPE_CHECKING:
    from tidemark import aio as aio
    from tidemark.backup import restore
    from tidemark.comparison import diff, repair
    from tidemark.database import Database
    from tidemark.engine.base.errors import (
        BackupDamaged,
        BinlogDamaged,
        BinlogOverloaded,
        CallMemoryExhausted,
        CatalogDamaged,
        CheckpointMemoryExhausted,
        CommitInterrupted,
        CommitOnFailedStore,
        CommitUnanswered,
        Damaged,
        Deadlock,
        DuplicateKey,
        EpochGap,
        Error,
        FileMissing,
        FileTruncated,
        ForeignFile,
        ForkedHandle,
        FrameRejected,
        Incompatible,
        IndexExists,
        InvalidName,
        InvariantBroken,
        IoFailed,
        LcpDamaged,
        LimitExceeded,
        LoadDamaged,
        LoadEnded,
        LoadRefused,
        Locked,
        LockTimeout,
        MemoryExhausted,
        NoPartition,
        NoSuchColumn,
        NoSuchIndex,
        NoSuchPartition,
        NoSuchTable,
        NoSuchTablespace,
        NotNullViolation,
        NotPrimary,
        OutcomeUnknown,
        PageDamaged,
        PeerError,
        PeerRefused,
        PeerTimeout,
        PeerUnauthenticated,
        PeerUnproved,
        PeerVersion,
        PositionLost,
        PrimaryLost,
        ProgramFailed,
        ProgramInvalid,
        ReadOnly,
        RedoDamaged,
        RedoOverloaded,
        Rejected,
        RestoreUnfinished,
        Retryable,
        RowNotFound,
        RowTooLarge,
        SchemaInvalid,
        SnapshotClosed,
        SnapshotTooOld,
        SpoolDamaged,
        StorageFull,
        StoreClosed,
        StoreFailed,
        SyncFailed,
        SysfileDamaged,
        TableExists,
        TablespaceExists,
        TablespaceInUse,
        TooManyFiles,
        TransactionEnded,
        TransactionTooLarge,
        TypeMismatch,
        UndoDamaged,
        Unsupported,
        ValueOutOfRange,
        VersionTooNew,
        VersionTooOld,
        ViewDamaged,
        WrongThread,
    )
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.private_files import read_secret
    from tidemark.engine.jit.warm_up import warmup
    from tidemark.engine.programs.expressions import Expression, col
    from tidemark.engine.programs.interpreter import Assembler, Program
    from tidemark.engine.rows.row import Row
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.partition import (
        MAXVALUE,
        HashPartition,
        KeyPartition,
        LinearHash,
        ListPartition,
        Partition,
        RangePartition,
    )
    from tidemark.engine.schema.types import (
        Blob,
        Bool,
        Date,
        DateTime,
        Decimal,
        Enum,
        Float32,
        Float64,
        Int8,
        Int16,
        Int32,
        Int64,
        Text,
        Time,
        Timestamp,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
    )
    from tidemark.engine.schema.types_text import Binary, Char, VarBinary, VarChar
    from tidemark.handles import TableHandle
    from tidemark.monitoring.metrics import metrics
    from tidemark.monitoring.port import serve_metrics
    from tidemark.monitoring.tracing import opentelemetry_tracer
    from tidemark.nodes.arbitrator import Arbitrator
    from tidemark.nodes.node_group import NodeGroup
    from tidemark.opening import open_or_attach as open
    from tidemark.pushdown.dataset import TableDataset
    from tidemark.read_only import ReadOnlyDatabase
    from tidemark.remote.database import RemoteDatabase, connect
    from tidemark.remote.scan import RemoteScan
    from tidemark.remote.serving import CallServing, serve_calls
    from tidemark.remote.table import RemoteTable
    from tidemark.remote.transaction import RemoteTransaction
    from tidemark.scans import AUTHOR, EPOCH, FRAGMENT, ROWID, Scan
    from tidemark.session import Transaction
    from tidemark.sites.channel import Applied, Channel
    from tidemark.sites.serving import Serving, serve
    from tidemark.snapshot import Snapshot, SnapshotTable
    from tidemark.typed_rows import TypedTable


# Each name is imported when it is first used, so that commands which open no store start at once. The other names of
# `__all__` are errors.
_HOMES = {
    "tidemark.backup": "restore",
    "tidemark.comparison": "diff repair",
    "tidemark.database": "Database",
    "tidemark.engine.base.options": "Options",
    "tidemark.engine.files.private_files": "read_secret",
    "tidemark.engine.jit.warm_up": "warmup",
    "tidemark.engine.programs.expressions": "Expression col",
    "tidemark.engine.programs.interpreter": "Assembler Program",
    "tidemark.engine.rows.row": "Row",
    "tidemark.engine.schema.column": "Column",
    "tidemark.engine.schema.partition": (
        "HashPartition KeyPartition LinearHash ListPartition MAXVALUE Partition RangePartition"
    ),
    "tidemark.engine.schema.types": (
        "Blob Bool Date DateTime Decimal Enum Float32 Float64 Int16 Int32 Int64 Int8 Text Time "
        "Timestamp UInt16 UInt32 UInt64 UInt8"
    ),
    "tidemark.engine.schema.types_text": "Binary Char VarBinary VarChar",
    "tidemark.handles": "TableHandle",
    "tidemark.monitoring.metrics": "metrics",
    "tidemark.monitoring.port": "serve_metrics",
    "tidemark.monitoring.tracing": "opentelemetry_tracer",
    "tidemark.nodes.arbitrator": "Arbitrator",
    "tidemark.nodes.node_group": "NodeGroup",
    "tidemark.opening": "open",
    "tidemark.pushdown.dataset": "TableDataset",
    "tidemark.read_only": "ReadOnlyDatabase",
    "tidemark.remote.database": "RemoteDatabase connect",
    "tidemark.remote.scan": "RemoteScan",
    "tidemark.remote.serving": "CallServing serve_calls",
    "tidemark.remote.table": "RemoteTable",
    "tidemark.remote.transaction": "RemoteTransaction",
    "tidemark.scans": "AUTHOR EPOCH FRAGMENT ROWID Scan",
    "tidemark.session": "Transaction",
    "tidemark.sites.channel": "Applied Channel",
    "tidemark.sites.serving": "Serving serve",
    "tidemark.snapshot": "Snapshot SnapshotTable",
    "tidemark.typed_rows": "TypedTable",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aio":
        return import_module("tidemark.aio")
    if name not in __all__:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
    module = import_module(_HOME.get(name, "tidemark.engine.base.errors"))
    globals()[name] = value = getattr(module, "open_or_attach" if name == "open" else name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AUTHOR",
    "EPOCH",
    "FRAGMENT",
    "MAXVALUE",
    "ROWID",
    "Applied",
    "Arbitrator",
    "Assembler",
    "BackupDamaged",
    "Binary",
    "BinlogDamaged",
    "BinlogOverloaded",
    "Blob",
    "Bool",
    "CallServing",
    "CatalogDamaged",
    "Channel",
    "Char",
    "CallMemoryExhausted",
    "CheckpointMemoryExhausted",
    "Column",
    "CommitInterrupted",
    "CommitOnFailedStore",
    "CommitUnanswered",
    "Damaged",
    "Database",
    "Date",
    "DateTime",
    "Deadlock",
    "Decimal",
    "DuplicateKey",
    "Enum",
    "EpochGap",
    "Error",
    "Expression",
    "FileMissing",
    "FileTruncated",
    "Float32",
    "Float64",
    "ForeignFile",
    "ForkedHandle",
    "FrameRejected",
    "HashPartition",
    "Incompatible",
    "IndexExists",
    "Int16",
    "Int32",
    "Int64",
    "Int8",
    "InvalidName",
    "InvariantBroken",
    "IoFailed",
    "KeyPartition",
    "LcpDamaged",
    "LimitExceeded",
    "LinearHash",
    "ListPartition",
    "LoadDamaged",
    "LoadEnded",
    "LoadRefused",
    "LockTimeout",
    "Locked",
    "MemoryExhausted",
    "NoPartition",
    "NoSuchColumn",
    "NoSuchIndex",
    "NoSuchPartition",
    "NoSuchTable",
    "NoSuchTablespace",
    "NodeGroup",
    "NotNullViolation",
    "NotPrimary",
    "Options",
    "OutcomeUnknown",
    "PageDamaged",
    "Partition",
    "PeerError",
    "PeerRefused",
    "PeerTimeout",
    "PeerUnauthenticated",
    "PeerUnproved",
    "PeerVersion",
    "PositionLost",
    "PrimaryLost",
    "Program",
    "ProgramFailed",
    "ProgramInvalid",
    "RangePartition",
    "ReadOnly",
    "ReadOnlyDatabase",
    "RedoDamaged",
    "RedoOverloaded",
    "Rejected",
    "RemoteDatabase",
    "RemoteScan",
    "RemoteTable",
    "RemoteTransaction",
    "RestoreUnfinished",
    "Retryable",
    "Row",
    "RowNotFound",
    "RowTooLarge",
    "Scan",
    "SchemaInvalid",
    "Serving",
    "Snapshot",
    "SnapshotClosed",
    "SnapshotTable",
    "SnapshotTooOld",
    "SpoolDamaged",
    "StorageFull",
    "StoreClosed",
    "StoreFailed",
    "SyncFailed",
    "SysfileDamaged",
    "TableDataset",
    "TableExists",
    "TableHandle",
    "TablespaceExists",
    "TablespaceInUse",
    "Text",
    "Time",
    "Timestamp",
    "TooManyFiles",
    "Transaction",
    "TransactionEnded",
    "TransactionTooLarge",
    "TypeMismatch",
    "TypedTable",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt8",
    "UndoDamaged",
    "Unsupported",
    "ValueOutOfRange",
    "VarBinary",
    "VarChar",
    "VersionTooNew",
    "VersionTooOld",
    "ViewDamaged",
    "WrongThread",
    "col",
    "connect",
    "diff",
    "metrics",
    "open",
    "opentelemetry_tracer",
    "read_secret",
    "repair",
    "restore",
    "serve",
    "serve_calls",
    "serve_metrics",
    "warmup",
]
