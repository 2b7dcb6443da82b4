"""Every public call once: its kind, and which faces lack it and why.

`Transaction`, `TableReads`, `Scan`, `Snapshot` and `Database` make the calls. Every other face gets them from there by
one line a call, which `python -m tools.make_faces` writes from this list, or makes them itself. What another process
may call (`remote/executor.py`), what `dir()` shows and what a store that is open for reading refuses follow from here
too. docs/adr/0033-one-table-of-calls.md says why; docs/architecture.md how to add a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from inspect import getattr_static, isfunction
from typing import Any, NamedTuple, NoReturn, TypeVar

K = TypeVar("K")


class Kind(Enum):
    """What a call is to those that pass it on."""

    # Of one table.
    CHANGE = "changes rows"
    BULK = "changes rows given as data, which a client sends batch by batch"
    LOOKUP = "reads rows by their keys"
    SCAN = "makes a scan"
    QUERY = "makes a scan, and asks it"
    PUSHED = "is read by DuckDB or polars"
    PARTS = "describes indexes or partitions"
    # Of a transaction.
    END = "ends a transaction, or a part of it"
    # Of a store.
    SCHEMA = "changes the schema"
    NAMES = "tells names, from committed rows"
    PRIMARY = "is answered by the node that executes transactions"
    NODE = "is about that node"
    BEGIN = "begins a transaction or a snapshot"
    FILES = "reads or writes files of the store's process"
    REPLICATION = "is about the replication between sites"
    INNER = "is about the store's process"
    # Of a scan, or of a sequence.
    FORM = "returns the rows in a form"
    ANSWER = "computes something from the rows, or gives numbers"
    # Of any object.
    LIFE = "begins or ends the use of an object"
    PROPERTY = "is no call"


class Call(NamedTuple):
    """A call: its name and kind; the faces that lack it and why, or the only ones that have it; arguments that take
    functions, which cannot be sent; whether False or 0 says that no row was accepted.
    """

    name: str
    kind: Kind
    lacks: Mapping[str, str] = {}
    only: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    may_refuse: bool = False


class Face(NamedTuple):
    """A class of users: its calls, and why it lacks all of a kind."""

    calls: tuple[Call, ...]
    lacks: Mapping[Kind, str] = {}


# The reason of a call that is there and raises ReadOnly.
READ_ONLY = "the store was opened with read_only=True"
_OF_WRITER = "ask the process that has the store open for writing"
_PROPERTY = "a property cannot be awaited; use the store without asyncio"

ROW_CALLS = (
    Call("insert", Kind.CHANGE),
    Call("write", Kind.CHANGE),
    Call("update", Kind.CHANGE, may_refuse=True),
    Call("delete", Kind.CHANGE, may_refuse=True),
    Call("upsert", Kind.CHANGE),
    Call("insert_many", Kind.BULK),
    Call("write_many", Kind.BULK),
    Call("upsert_many", Kind.BULK),
    Call("update_many", Kind.BULK),
    Call("delete_many", Kind.CHANGE),
    Call("update_where", Kind.CHANGE, may_refuse=True),
    Call("delete_where", Kind.CHANGE, may_refuse=True),
    Call("get", Kind.LOOKUP),
    Call("get_many", Kind.LOOKUP),
    Call("scan", Kind.SCAN),
    Call("explain", Kind.QUERY),
    Call("count", Kind.QUERY),
    Call("sum", Kind.QUERY),
    Call("min", Kind.QUERY),
    Call("max", Kind.QUERY),
    Call("mean", Kind.QUERY),
    Call("aggregate", Kind.QUERY),
    Call("sample", Kind.QUERY),
    Call("to_arrow", Kind.QUERY),
    Call("to_pandas", Kind.QUERY),
    Call("to_polars", Kind.QUERY),
    Call("to_numpy", Kind.QUERY),
    Call("dataset", Kind.PUSHED),
    Call("scan_polars", Kind.PUSHED),
    Call("indexes", Kind.PARTS),
    Call("partitions", Kind.PARTS),
)
TABLE_CALLS = (
    *ROW_CALLS,
    Call("name", Kind.PROPERTY),
    Call("definition", Kind.PROPERTY),
    Call("columns", Kind.PROPERTY),
    Call("handle", Kind.PROPERTY, only=("typed table", "typed snapshot table", "typed transaction table")),
)
TRANSACTION_CALLS = (
    *ROW_CALLS,
    Call("commit", Kind.END),
    Call("rollback", Kind.END),
    Call("savepoint", Kind.END),
    Call("table", Kind.LIFE),
    Call("txid", Kind.PROPERTY),
)
STORE_CALLS = (
    Call("close", Kind.LIFE),
    Call("table", Kind.LIFE),
    Call("transaction", Kind.BEGIN),
    Call("run", Kind.BEGIN),
    Call("snapshot", Kind.BEGIN),
    Call("create_table", Kind.LIFE, lacks={"read-only store": READ_ONLY}),
    Call("sequence", Kind.LIFE, lacks={"read-only store": READ_ONLY}),
    Call("drop_table", Kind.SCHEMA),
    Call("truncate", Kind.SCHEMA),
    Call("add_column", Kind.SCHEMA),
    Call("drop_column", Kind.SCHEMA),
    Call("rename", Kind.SCHEMA),
    Call("rename_column", Kind.SCHEMA),
    Call("set_default", Kind.SCHEMA),
    Call("widen_column", Kind.SCHEMA),
    Call("add_partition", Kind.SCHEMA),
    Call("drop_partition", Kind.SCHEMA),
    Call("create_index", Kind.SCHEMA, unsent=("progress",)),
    Call("drop_index", Kind.SCHEMA),
    Call("add_check", Kind.SCHEMA),
    Call("drop_check", Kind.SCHEMA),
    Call("set_expiry", Kind.SCHEMA),
    Call("create_tablespace", Kind.SCHEMA),
    Call("add_datafile", Kind.SCHEMA),
    Call("drop_tablespace", Kind.SCHEMA),
    Call("set_conflict_function", Kind.SCHEMA),
    Call("create_replication_table", Kind.SCHEMA),
    Call("tables", Kind.NAMES),
    Call("tablespaces", Kind.NAMES, lacks={"read-only store": _OF_WRITER}),
    Call("indexes", Kind.PARTS),
    Call("partitions", Kind.PARTS),
    Call("outcome", Kind.PRIMARY, lacks={"read-only store": _OF_WRITER}),
    Call("sync", Kind.PRIMARY, lacks={"read-only store": READ_ONLY}),
    Call("expire", Kind.PRIMARY, lacks={"read-only store": READ_ONLY}),
    Call("status", Kind.NODE),
    Call("check", Kind.NODE, lacks={"read-only store": _OF_WRITER}, unsent=("progress",)),
    Call("checkpoint", Kind.NODE, lacks={"read-only store": READ_ONLY}, unsent=("progress",)),
    Call("kill", Kind.NODE, lacks={"read-only store": _OF_WRITER}),
    Call("backup", Kind.FILES),
    Call("archive", Kind.FILES),
    Call("load", Kind.FILES),
    Call("load_sqlite", Kind.FILES),
    Call("plan_load", Kind.FILES),
    Call("adopt", Kind.FILES),
    Call("loads", Kind.FILES),
    Call("sweep_loads", Kind.FILES),
    Call(
        "changes",
        Kind.REPLICATION,
        lacks={"read-only store": _OF_WRITER, "awaited store": "it is an iterator; use it in a thread"},
    ),
    Call("wait_applied", Kind.REPLICATION, lacks={"read-only store": _OF_WRITER}),
    Call("wait_received", Kind.REPLICATION, lacks={"read-only store": _OF_WRITER}),
    Call("check_binlog", Kind.REPLICATION, lacks={"read-only store": _OF_WRITER}),
    Call("check_replication", Kind.REPLICATION),
    Call("replication_rows", Kind.REPLICATION),
    Call("check_usable", Kind.INNER),
    Call("space_report", Kind.INNER, lacks={"read-only store": _OF_WRITER}),
    Call("refresh", Kind.LIFE, only=("read-only store",)),
    Call("where", Kind.INNER, only=("remote store",)),
    Call("epoch", Kind.PROPERTY, only=("read-only store",)),
    Call("locator", Kind.PROPERTY, lacks={"remote store": "connect with the same addresses instead"}),
    Call("restart_report", Kind.PROPERTY, only=("store",)),
    Call("binlog", Kind.PROPERTY, only=("store",)),
    Call("endpoint", Kind.PROPERTY, only=("store",)),
)
SNAPSHOT_CALLS = (
    Call("close", Kind.LIFE, lacks={"awaited snapshot": "the end of `async with` closes it"}),
    Call("table", Kind.LIFE),
    Call("tables", Kind.NAMES),
    Call("epoch", Kind.PROPERTY),
)
SEQUENCE_CALLS = (
    Call("next", Kind.ANSWER),
    Call("take", Kind.ANSWER),
    Call("name", Kind.PROPERTY),
)
SCAN_CALLS = (
    Call("schema", Kind.FORM),
    Call("batches", Kind.FORM),
    *(
        Call(call.name, Kind.FORM if call.name.startswith("to_") else Kind.ANSWER)
        for call in ROW_CALLS
        if call.kind is Kind.QUERY
    ),
)

_OF_TRANSACTION = {
    Kind.PUSHED: "DuckDB and polars read in threads of their own, a transaction belongs to one; use db[table]",
    Kind.PARTS: "it is the same for all transactions; ask the store",
}
_OF_SNAPSHOT = dict.fromkeys((Kind.CHANGE, Kind.BULK), "a snapshot shows one epoch; change the table of the store") | {
    Kind.PARTS: "it is kept for the present alone; ask the table of the store"
}
_AWAITED = {Kind.PUSHED: "DuckDB and polars read in threads of their own; use the store without asyncio"}
_OF_AIO = {**_AWAITED, Kind.PROPERTY: _PROPERTY}
_OF_WRITING = {Kind.CHANGE: READ_ONLY, Kind.BULK: READ_ONLY}

FACES = {
    "table": Face(TABLE_CALLS),
    "transaction table": Face(TABLE_CALLS, _OF_TRANSACTION),
    "typed table": Face(TABLE_CALLS),
    "typed snapshot table": Face(TABLE_CALLS, _OF_SNAPSHOT),
    "typed transaction table": Face(TABLE_CALLS, _OF_TRANSACTION),
    "read-only table": Face(TABLE_CALLS, _OF_WRITING),
    "snapshot table": Face(TABLE_CALLS, _OF_SNAPSHOT),
    "remote table": Face(TABLE_CALLS),
    "remote snapshot table": Face(TABLE_CALLS, _OF_SNAPSHOT),
    "awaited table": Face(TABLE_CALLS, _OF_AIO),
    "awaited snapshot table": Face(TABLE_CALLS, {**_OF_SNAPSHOT, **_OF_AIO}),
    "awaited transaction table": Face(TABLE_CALLS, {**_OF_TRANSACTION, **_OF_AIO}),
    "awaited typed table": Face(TABLE_CALLS, _OF_AIO),
    "awaited typed snapshot table": Face(TABLE_CALLS, {**_OF_SNAPSHOT, **_OF_AIO}),
    "awaited typed transaction table": Face(TABLE_CALLS, {**_OF_TRANSACTION, **_OF_AIO}),
    "transaction": Face(TRANSACTION_CALLS, _OF_TRANSACTION),
    "read-only transaction": Face(TRANSACTION_CALLS, {**_OF_TRANSACTION, **_OF_WRITING}),
    "remote transaction": Face(TRANSACTION_CALLS, _OF_TRANSACTION),
    "awaited transaction": Face(TRANSACTION_CALLS, {**_OF_TRANSACTION, **_AWAITED}),
    "store": Face(STORE_CALLS),
    "read-only store": Face(STORE_CALLS, {Kind.SCHEMA: READ_ONLY, Kind.FILES: _OF_WRITER}),
    "remote store": Face(
        STORE_CALLS,
        {
            Kind.FILES: "files are those of the store's process; call it there, or use the command line",
            Kind.REPLICATION: "binlog and channels are those of the store's process; call it there",
            Kind.INNER: "it is about the store's process; call it there",
        },
    ),
    "awaited store": Face(STORE_CALLS, {Kind.PROPERTY: _PROPERTY}),
    "snapshot": Face(SNAPSHOT_CALLS),
    "read-only snapshot": Face(SNAPSHOT_CALLS),
    "remote snapshot": Face(SNAPSHOT_CALLS),
    "awaited snapshot": Face(SNAPSHOT_CALLS),
    "sequence": Face(SEQUENCE_CALLS),
    "awaited sequence": Face(SEQUENCE_CALLS),
    "scan": Face(SCAN_CALLS),
    "remote scan": Face(SCAN_CALLS),
    "awaited scan": Face(SCAN_CALLS),
}


def calls_of(face: str, *kinds: Kind) -> Iterator[tuple[Call, str | None]]:
    """Yield each call of a face's list, of these kinds or of all, with the reason why the face lacks it, if it does."""
    found = FACES[face]
    for call in found.calls:
        if kinds and call.kind not in kinds:
            continue
        reason = call.lacks.get(face) or found.lacks.get(call.kind)
        if call.only:
            reason = None if face in call.only else f"only a {call.only[0]} has it"
        yield call, reason


def names(calls: tuple[Call, ...], *kinds: Kind) -> frozenset[str]:
    return frozenset(call.name for call in calls if call.kind in kinds)


def _name_for_users(member: Any, name: str) -> None:
    """Give a call, and what it is made from, this name in place of one with a class that users do not know."""
    while isfunction(member):
        if member.__qualname__.rpartition(".")[0] not in _classes:
            member.__qualname__ = name
        member = getattr(member, "__wrapped__", None)


class Lacking:
    """In place of a call that a face lacks: AttributeError with the reason."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise AttributeError(self._message)

    def __repr__(self) -> str:
        return f"<no call: {self._message}>"


_classes: set[str] = set()  # of users, which TypeErrors may name


def has_calls_of(face: str, refusal: Callable[..., NoReturn] | None = None) -> Callable[[type[K]], type[K]]:
    """Decorate the class of a face. A call that it lacks raises AttributeError with the reason, or is `refusal`, which
    raises ReadOnly. `dir()` of an object shows its calls, and of other names only those of Python's protocols. A call
    made from another one gets the name of its class, and one of a class that users do not know the name without it:
    Python's TypeErrors begin with these names.
    """

    def decorate(kind: type[K]) -> type[K]:
        shown = set()
        _classes.add(kind.__qualname__)
        for call, reason in calls_of(face):
            if reason is None or reason == READ_ONLY:
                shown.add(call.name)
            if reason == READ_ONLY and refusal is not None:
                setattr(kind, call.name, refusal)
            elif reason is not None and reason != READ_ONLY:
                setattr(kind, call.name, Lacking(f"{kind.__name__} has no {call.name}: {reason}"))
        for name, member in vars(kind).items():
            if isfunction(member) and name == member.__name__:
                member.__qualname__, member.__module__ = f"{kind.__qualname__}.{name}", kind.__module__
        for name in shown:
            in_class = f"{kind.__qualname__}.{name}" if name in vars(kind) else name
            _name_for_users(getattr_static(kind, name, None), in_class)

        def listed(self: Any) -> list[str]:
            return [name for name in object.__dir__(self) if name in shown or name.startswith("__")]

        kind.__dir__ = listed  # type: ignore[method-assign]
        return kind

    return decorate
