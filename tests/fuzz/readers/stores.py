"""Whole stores with one changed file, opened and listed; catalogs; secrets; files of users; lines of the
local socket.
"""

from __future__ import annotations

import json
import random
import socket
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tidemark as tm
from tests.fuzz.harness import Reader
from tests.fuzz.mutations import Mutation, inside, json_tree, octets, sealed_json, sealed_units, words
from tests.fuzz.readers.stored import kept, schema_records
from tests.replication.support import every_type
from tests.store.support import ACCOUNT, open_memory
from tidemark.control_socket import ControlSocket
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import (
    CatalogDamaged,
    Damaged,
    Incompatible,
    LimitExceeded,
    MemoryExhausted,
    PeerError,
    Rejected,
)
from tidemark.engine.disk.disk_layout import DATA_FILE, DISK_PAGE, DOUBLE_WRITE, EXTENTS, UNDO_GROUP
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.private_files import read_secret
from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.rows.lcp_layout import LCP_BLOCK, LCP_CONTROL
from tidemark.engine.schema.catalog import DATA_NAME, SEAL_NAME, Catalog
from tidemark.engine.schema.catalog_layout import CATALOG_SEAL
from tidemark.engine.sealed import sealed_layout as s
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE
from tidemark.recovery.verification.log_listing import StoreListing
from tidemark.sources import open_source

# Of a file of a log, what holds its groups; the rest stays as it is.
PIECE_BYTES = 24 << 10
NAME = "test.account"
_OPENED = (Damaged, Incompatible, LimitExceeded, MemoryExhausted)


def _mutations_of(name: str) -> Sequence[Mutation]:
    """By what a file is made of."""
    if name.startswith("sysfile"):
        return sealed_units(s.KIND_SYSFILE, SYSFILE)
    if name.startswith("redo/"):
        return (*sealed_units(s.KIND_GROUP, GROUP, 40), schema_records, schema_records)
    if name.startswith("undo/"):
        return sealed_units(s.KIND_UNDO_GROUP, UNDO_GROUP, 40)
    if "/control-" in name:
        return (*sealed_units(s.KIND_LCP_CONTROL, LCP_CONTROL), *[sealed_json(s.KIND_LCP_CONTROL, LCP_CONTROL)] * 4)
    if "extents" in name:
        return sealed_units(s.KIND_EXTENTS, EXTENTS, 16)
    if name.startswith("lcp/"):
        return sealed_units(s.KIND_LCP_BLOCK, LCP_BLOCK, 24)
    if name.startswith("space/"):
        return (*sealed_units(s.KIND_DISK_PAGE, DISK_PAGE, 24), *sealed_units(s.KIND_DATA_FILE, DATA_FILE))
    return sealed_units(s.KIND_DOUBLE_WRITE, DOUBLE_WRITE)


@cache
def _members() -> tuple[bytes, ...]:
    """Name of a file, end of line, its first bytes."""
    names = [name for name, data in kept().contents.items() if any(data) and not name.endswith(".lock")]
    return tuple(name.encode() + b"\n" + kept().contents[name][:PIECE_BYTES] for name in sorted(names))


def _divided(data: bytes) -> tuple[str, bytes]:
    name, _, content = data.partition(b"\n")
    return name.decode("latin1"), content


def _mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    mutations = _mutations_of(_divided(data)[0])
    same = [each for each in others if _divided(each)[0] == _divided(data)[0]]
    mutation = mutations[rng.randrange(len(mutations))]
    changed = inside(mutation, lambda each: _divided(each)[1], lambda each, put: each.partition(b"\n")[0] + b"\n" + put)
    return changed(data, rng, same)


def _contents(data: bytes) -> dict[str, bytes]:
    """The store's files with one of them changed; of the sysfile both copies, or the other one would do."""
    name, content = _divided(data)
    contents = dict(kept().contents)
    if name in contents:
        contents[name] = content + contents[name][len(content) :] if len(content) <= PIECE_BYTES else content
        if name.startswith("sysfile"):
            contents["sysfile.0"] = contents["sysfile.1"] = contents[name]
        if "/control-" in name or name.startswith("lcp/"):
            contents[name] = content
    return contents


def _open(data: bytes) -> object:
    """Open, read and check all rows, close."""
    files = MemoryFiles.from_snapshot(_contents(data))
    db = open_memory(files)
    try:
        rows = [len(list(db[name].scan())) for name in db.tables()]
        db.check()
        return rows
    finally:
        db.close()


def _list(data: bytes) -> object:
    listing = StoreListing(MemoryFiles.from_snapshot(_contents(data)))
    sizes = listing.tables(), listing.tablespaces(), listing.sizes_bytes()
    entries = [*listing.redo(), *listing.undo(), *listing.local_checkpoints()]
    return sizes, len(entries)


def _framed_by_line(mutation: Mutation) -> Mutation:
    """For files that a first line identifies."""
    return inside(
        mutation, lambda data: data.partition(b"\n")[2], lambda data, put: data.partition(b"\n")[0] + b"\n" + put
    )


# --- the catalog ---------------------------------------------------------------------------------------------
_STORE, _INCARNATION = bytes(range(16)), 1
_VALUE, _SEAL, _DATA = b"value", b"seal", b"data"  # what the first line says the rest is


class _Message(NamedTuple):
    """What the catalog takes for a definition."""

    table_id: int
    body: bytes

    def to_json(self) -> bytes:
        return self.body


@cache
def _dictionary() -> tuple[PosixFiles, Catalog]:
    files = PosixFiles(f"{_folder().name}/store", create=True)
    files.read_errors_latch = False
    return files, Catalog(files, f"{_folder().name}/store", _STORE, _INCARNATION)


def _write_catalog(body: bytes) -> None:
    definitions: Any = [_Message(7, body)]
    _dictionary()[1].rewrite(1, definitions)


@cache
def _catalog_members() -> tuple[bytes, ...]:
    body = every_type("memory").to_json()
    _write_catalog(body)
    folder = Path(_folder().name) / "store"
    files = ((_SEAL, SEAL_NAME), (_DATA, DATA_NAME))
    return (_VALUE + b"\n" + body, *(kind + b"\n" + (folder / name).read_bytes() for kind, name in files))


def _read_catalog(data: bytes) -> object:
    """A value under right seals; else the seal or the file of LMDB in the place of the right one."""
    kind, _, content = data.partition(b"\n")
    if kind in (_SEAL, _DATA):
        _write_catalog(_catalog_members()[0].partition(b"\n")[2])
        name = SEAL_NAME if kind == _SEAL else DATA_NAME
        (Path(_folder().name) / "store" / name).write_bytes(content)
    else:
        _write_catalog(content)
    return _dictionary()[1].read()


def _mutate_catalog(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    kind = data.partition(b"\n")[0]
    mutations = {_VALUE: [json_tree], _SEAL: sealed_units(s.KIND_CATALOG_SEAL, CATALOG_SEAL)}.get(kind, [octets()])
    return _framed_by_line(rng.choice(list(mutations)))(data, rng, [data])


# --- secrets -------------------------------------------------------------------------------------------------
def _read_secret(data: bytes) -> object:
    path = Path(_folder().name) / "secret"
    path.write_bytes(data)
    path.chmod(0o600)
    return read_secret(path)


# --- files of users ------------------------------------------------------------------------------------------
_SUFFIXES = (b".csv", b".parquet", b".arrow")


@cache
def _user_members() -> tuple[bytes, ...]:
    """The suffix, end of line, a file."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "id": [1, 2, 3],
            "owner": ["a", "ü", "b"],
            "balance": [1.5, -2.0, 3.0],
            "note": [None, "x", "yy"],
            "kind": pa.array(["red", "blue", None]).dictionary_encode(),
            "raw": pa.array([b"a", None, b"\0\1\2"]),
            "at": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        }
    )
    arrow, columnar = pa.BufferOutputStream(), pa.BufferOutputStream()
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    parquet.write_table(table, columnar)
    text = b'"id","owner","balance","note","kind","d"\n1,"a",1.5,,"red",1.25\n2,"\xc3\xbc",-2,"x",,-0.5\n'
    files = (text, columnar.getvalue().to_pybytes(), arrow.getvalue().to_pybytes())
    return tuple(suffix + b"\n" + data for suffix, data in zip(_SUFFIXES, files, strict=True))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def _read_rows(data: bytes) -> object:
    """As `load` does it, but for the commit."""
    suffix, _, content = data.partition(b"\n")
    path = Path(_folder().name) / ("rows" + (suffix if suffix in _SUFFIXES else b".csv").decode())
    path.write_bytes(content)
    source = open_source(path, _account()[NAME].definition)
    txn = _account().transaction()
    try:
        return [txn.write_many(NAME, batch) for batch in source.batches]
    finally:
        txn.rollback()


@cache
def _account() -> Any:
    db = open_memory()
    more = [
        tm.Column("d", tm.Decimal(10, 2), nullable=True),
        tm.Column("kind", tm.Enum("red", "blue"), nullable=True),
        tm.Column("raw", tm.VarBinary(20), nullable=True),
        tm.Column("at", tm.Timestamp, nullable=True),
    ]
    db.create_table(NAME, [*ACCOUNT, *more], "id")
    return db


def _user_errors() -> tuple[type[BaseException], ...]:
    """What `open_source` and `write_many` say they raise."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, Rejected, tm.Error)


# --- the local socket ------------------------------------------------------------------------------------------
def _status(**arguments: Any) -> Any:
    return {"rows": 1, "asked": sorted(arguments)}


@cache
def _served() -> tuple[ControlSocket, PosixFiles]:
    """Of this process: a child has a socket of its own."""
    files = PosixFiles(_folder().name)
    return ControlSocket(files, {"status": lambda: {"rows": 1}, "backup": _status}, SystemClock()), files


def _ask_line(data: bytes) -> object:
    """Send a request, and read its answer; nothing may come but one line."""
    _, files = _served()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(files.socket_address("control.sock"))
        connection.sendall(data.replace(b"\n", b" ")[:4_000] + b"\n")
        answer = json.loads(connection.makefile("rb").readline())
    if "error" in answer:
        raise PeerError(str(answer["message"]))
    return answer["result"]


_REQUESTS = (b'{"command": "status"}', b'{"command": "backup", "arguments": {"place": "/x", "incremental": true}}')


_ROWS_MUTATION = _framed_by_line(octets())
_TEXT_MUTATION = _framed_by_line(words(('"', ",", "\n", "\r", "NULL", "1e400", "-1", "\0", "nan", "2020-01-01", '""')))
_LAZY: Callable[[], Sequence[bytes]] = _members
READERS = (
    Reader(
        "opened stores",
        _LAZY,
        _open,
        _OPENED,
        (_mutate,),
        ("accepted", "RedoDamaged", "SysfileDamaged"),
        memory_bytes=4 << 30,  # arenas are reserved, and touched as they are used
        cost=100,
    ),
    Reader(
        "listed stores",
        _LAZY,
        _list,
        _OPENED,
        (_mutate,),
        ("accepted", "RedoDamaged", "SysfileDamaged"),
        cost=80,
    ),
    Reader(
        "catalogs",
        _catalog_members,
        _read_catalog,
        (CatalogDamaged,),
        (_mutate_catalog,),
        ("accepted", "does not match its seal", "not a table definition", "a table that its seal counts"),
        memory_bytes=4 << 30,  # the map of LMDB
        cost=10,
    ),
    Reader(
        "secrets",
        lambda: (b"a secret of 32 bytes for the test", b"crlf\r\n", b"x" * (64 << 10)),
        _read_secret,
        (Rejected,),
        (octets(), words(("\r", "\n", "\r\n", "\0", ""))),
        ("accepted", "is empty", "more than"),
    ),
    Reader(
        "files of users",
        _user_members,
        _read_rows,
        _user_errors(),
        (_ROWS_MUTATION, _TEXT_MUTATION),
        ("accepted", "ArrowInvalid", "CSV"),
        memory_bytes=512 << 20,
        cost=5,
    ),
    Reader(
        "lines of the local socket",
        lambda: _REQUESTS,
        _ask_line,
        (PeerError,),
        (
            json_tree,
            octets(),
            words(('"command"', '"arguments"', "{", "}", "[", ":", '"backup"', '"status"', "null", "1e999")),
        ),
        ("accepted", "no such command", "does not take these arguments"),
        cost=2,
    ),
)
