"""Tidemark: an embedded, transactional row store.

This module only exports the public names. In the examples of docstrings, `tm` is this module and `db` an open store.
Its table `item` has the columns `id` (the key), `name` and `stock`, and the rows (1, "pen", 10), (2, "cup", 5)
and (3, "bag", 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# First: it refuses an interpreter on which the store cannot work.
from tidemark import _preflight as _preflight  # isort: skip
from tidemark import errors as errors
from tidemark.engine.base.errors import *  # every error class is public

__version__ = "0.1.0"  # of the distribution, too (pyproject.toml)

if TYPE_CHECKING:
    from tidemark import aio as aio
    from tidemark.backup import restore as restore
    from tidemark.comparison import diff as diff
    from tidemark.comparison import repair as repair
    from tidemark.database import Database as Database
    from tidemark.engine.access.scan_batch import AUTHOR as AUTHOR
    from tidemark.engine.access.scan_batch import EPOCH as EPOCH
    from tidemark.engine.access.scan_batch import FRAGMENT as FRAGMENT
    from tidemark.engine.access.scan_batch import ROWID as ROWID
    from tidemark.engine.base.options import MemoryWarning as MemoryWarning
    from tidemark.engine.base.options import Options as Options
    from tidemark.engine.files.private_files import read_secret as read_secret
    from tidemark.engine.jit.warm_up import warmup as warmup
    from tidemark.engine.programs.expressions import Expression as Expression
    from tidemark.engine.programs.expressions import col as col
    from tidemark.engine.programs.interpreter import Assembler as Assembler
    from tidemark.engine.programs.interpreter import Program as Program
    from tidemark.engine.rows.row import Row as Row
    from tidemark.engine.schema.column import Column as Column
    from tidemark.engine.schema.computed import autoincrement as autoincrement
    from tidemark.engine.schema.computed import now as now
    from tidemark.engine.schema.computed import uuid7 as uuid7
    from tidemark.engine.schema.partition import MAXVALUE as MAXVALUE
    from tidemark.engine.schema.partition import HashPartition as HashPartition
    from tidemark.engine.schema.partition import KeyPartition as KeyPartition
    from tidemark.engine.schema.partition import LinearHash as LinearHash
    from tidemark.engine.schema.partition import ListPartition as ListPartition
    from tidemark.engine.schema.partition import Partition as Partition
    from tidemark.engine.schema.partition import RangePartition as RangePartition
    from tidemark.engine.types import JSON as JSON
    from tidemark.engine.types import UUID as UUID
    from tidemark.engine.types import Binary as Binary
    from tidemark.engine.types import Blob as Blob
    from tidemark.engine.types import Bool as Bool
    from tidemark.engine.types import Char as Char
    from tidemark.engine.types import Date as Date
    from tidemark.engine.types import DateTime as DateTime
    from tidemark.engine.types import Decimal as Decimal
    from tidemark.engine.types import Enum as Enum
    from tidemark.engine.types import Float32 as Float32
    from tidemark.engine.types import Float64 as Float64
    from tidemark.engine.types import Int8 as Int8
    from tidemark.engine.types import Int16 as Int16
    from tidemark.engine.types import Int32 as Int32
    from tidemark.engine.types import Int64 as Int64
    from tidemark.engine.types import Text as Text
    from tidemark.engine.types import Time as Time
    from tidemark.engine.types import Timestamp as Timestamp
    from tidemark.engine.types import UInt8 as UInt8
    from tidemark.engine.types import UInt16 as UInt16
    from tidemark.engine.types import UInt32 as UInt32
    from tidemark.engine.types import UInt64 as UInt64
    from tidemark.engine.types import VarBinary as VarBinary
    from tidemark.engine.types import VarChar as VarChar
    from tidemark.handles import TableHandle as TableHandle
    from tidemark.handles import TypedTable as TypedTable
    from tidemark.monitoring.metrics import metrics as metrics
    from tidemark.monitoring.port import serve_metrics as serve_metrics
    from tidemark.monitoring.tracing import opentelemetry_tracer as opentelemetry_tracer
    from tidemark.nodes.arbitrator import Arbitrator as Arbitrator
    from tidemark.nodes.node_group import NodeGroup as NodeGroup
    from tidemark.opening import open as open
    from tidemark.pushdown.dataset import TableDataset as TableDataset
    from tidemark.read_only import ReadOnlyDatabase as ReadOnlyDatabase
    from tidemark.read_only import ReadOnlySnapshot as ReadOnlySnapshot
    from tidemark.remote.database import RemoteDatabase as RemoteDatabase
    from tidemark.remote.database import connect as connect
    from tidemark.remote.scan import RemoteScan as RemoteScan
    from tidemark.remote.serving import CallServing as CallServing
    from tidemark.remote.serving import serve_calls as serve_calls
    from tidemark.remote.snapshot import RemoteSnapshot as RemoteSnapshot
    from tidemark.remote.snapshot import RemoteSnapshotTable as RemoteSnapshotTable
    from tidemark.remote.table import RemoteTable as RemoteTable
    from tidemark.remote.transaction import RemoteTransaction as RemoteTransaction
    from tidemark.replication.mysql_source.users import MysqlUser as MysqlUser
    from tidemark.replication.wire.wire import client_tls as client_tls
    from tidemark.replication.wire.wire import server_tls as server_tls
    from tidemark.scans import Scan as Scan
    from tidemark.sequences import Sequence as Sequence
    from tidemark.session import Transaction as Transaction
    from tidemark.session import TransactionTable as TransactionTable
    from tidemark.session import TypedTransactionTable as TypedTransactionTable
    from tidemark.sites.channel import Applied as Applied
    from tidemark.sites.channel import Channel as Channel
    from tidemark.sites.mysql_serving import MysqlServing as MysqlServing
    from tidemark.sites.mysql_serving import serve_mysql as serve_mysql
    from tidemark.sites.serving import Serving as Serving
    from tidemark.sites.serving import serve as serve
    from tidemark.snapshot import Snapshot as Snapshot
    from tidemark.snapshot import SnapshotTable as SnapshotTable
    from tidemark.typed_rows import TypedSnapshotTable as TypedSnapshotTable

# Each name is imported when it is first used, so that commands which open no store start at once.
_HOMES = {
    "tidemark.backup": "restore",
    "tidemark.comparison": "diff repair",
    "tidemark.database": "Database",
    "tidemark.engine.access.scan_batch": "AUTHOR EPOCH FRAGMENT ROWID",
    "tidemark.engine.base.options": "MemoryWarning Options",
    "tidemark.engine.files.private_files": "read_secret",
    "tidemark.engine.jit.warm_up": "warmup",
    "tidemark.engine.programs.expressions": "Expression col",
    "tidemark.engine.programs.interpreter": "Assembler Program",
    "tidemark.engine.rows.row": "Row",
    "tidemark.engine.schema.column": "Column",
    "tidemark.engine.schema.computed": "autoincrement now uuid7",
    "tidemark.engine.schema.partition": (
        "HashPartition KeyPartition LinearHash ListPartition MAXVALUE Partition RangePartition"
    ),
    "tidemark.engine.types": (
        "Binary Blob Bool Char Date DateTime Decimal Enum Float32 Float64 Int16 Int32 Int64 Int8 JSON Text Time "
        "Timestamp UInt16 UInt32 UInt64 UInt8 UUID VarBinary VarChar"
    ),
    "tidemark.handles": "TableHandle TypedTable",
    "tidemark.monitoring.metrics": "metrics",
    "tidemark.monitoring.port": "serve_metrics",
    "tidemark.monitoring.tracing": "opentelemetry_tracer",
    "tidemark.nodes.arbitrator": "Arbitrator",
    "tidemark.nodes.node_group": "NodeGroup",
    "tidemark.opening": "open",
    "tidemark.pushdown.dataset": "TableDataset",
    "tidemark.read_only": "ReadOnlyDatabase ReadOnlySnapshot",
    "tidemark.remote.database": "RemoteDatabase connect",
    "tidemark.remote.scan": "RemoteScan",
    "tidemark.remote.serving": "CallServing serve_calls",
    "tidemark.remote.snapshot": "RemoteSnapshot RemoteSnapshotTable",
    "tidemark.remote.table": "RemoteTable",
    "tidemark.remote.transaction": "RemoteTransaction",
    "tidemark.replication.mysql_source.users": "MysqlUser",
    "tidemark.replication.wire.wire": "client_tls server_tls",
    "tidemark.scans": "Scan",
    "tidemark.sequences": "Sequence",
    "tidemark.session": "Transaction TransactionTable TypedTransactionTable",
    "tidemark.sites.channel": "Applied Channel",
    "tidemark.sites.mysql_serving": "MysqlServing serve_mysql",
    "tidemark.sites.serving": "Serving serve",
    "tidemark.snapshot": "Snapshot SnapshotTable",
    "tidemark.typed_rows": "TypedSnapshotTable",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_NAMES = [*_HOME, *(name for name, value in vars(errors).items() if isinstance(value, type))]
if not TYPE_CHECKING:  # type checkers take the imports above
    __all__ = _NAMES


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aio":
        return import_module("tidemark.aio")
    if name not in _HOME:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*_NAMES, "aio", "errors", *(name for name in globals() if name.startswith("__"))})
