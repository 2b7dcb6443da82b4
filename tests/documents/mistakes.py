"""One way to meet each class of error, for `docs/errors.md`.

Each function is named after its class and raises it, in a directory of its own. Most do what a user or a disk does.
What takes several machines, a full disk or a defect of the program is rendered by the function that makes the message.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

import tidemark as tm
from tests.elsewhere import elsewhere
from tidemark import read_only as read_only_views
from tidemark.cli.mysql_commands import mysql_users
from tidemark.database import Database
from tidemark.engine.access import batch_operations, statuses
from tidemark.engine.base import errors, out_of_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.failure import Failure
from tidemark.engine.base.options import Options
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.files import layer
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.log import redo, spool_files
from tidemark.engine.log.redo import RedoLog
from tidemark.engine.programs import running
from tidemark.engine.programs.program_layout import PE_DIVISION
from tidemark.engine.rows.row_var import build_var_part
from tidemark.engine.schema.catalog import Catalog
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION_OLDEST
from tidemark.engine.sealed.version import check_format
from tidemark.engine.store.group_apply import GroupApplier
from tidemark.engine.txn.log_room import LogRoom
from tidemark.engine.txn.transaction import Transaction
from tidemark.recovery.backup.rows_file import CheckedFile
from tidemark.recovery.load import commit
from tidemark.recovery.load.commit import abort, publish
from tidemark.recovery.system_restart.sysfile import RESTORING
from tidemark.remote.transaction import RemoteTransaction
from tidemark.replication.binlog.position import Position
from tidemark.replication.calls.memory import CallMemory, Share
from tidemark.replication.channel import reach
from tidemark.replication.channel.source import SourceBinlog
from tidemark.replication.ingest.client import peer_error
from tidemark.replication.node_group import view_file
from tidemark.replication.settings.options import check_of_node
from tidemark.replication.wire import handshake
from tidemark.replication.wire.handshake import CallerHandshake

Scene = Callable[[Path], object]
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("name", tm.VarChar(20)), tm.Column("count", tm.Int32)]
SMALL: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "16 MiB", "background": False}


def _stub(**parts: object) -> Any:
    """What a function looks at of the object it belongs to."""
    return SimpleNamespace(**parts)


def _open(path: Path, **options: Any) -> Any:
    return tm.open(path / "store", **{**SMALL, **options})


def _store(path: Path, **options: Any) -> Any:
    """A store with a table of two rows."""
    return _filled(_open(path, **options))


def _filled(db: Any) -> Any:
    db.create_table("item", COLUMNS, "id")
    db["item"].insert_many([(1, "pen", 10), (2, "ink", 3)])
    return db


def _file(path: Path, name: str, offset: int) -> None:
    """Flip a byte of a file."""
    with (path / "store" / name).open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


# --- Rejected -----------------------------------------------------------------------------------
def invalid_name(path: Path) -> object:
    return _store(path).create_table("shop/item", [tm.Column("id", tm.Int64)], "id")


def schema_invalid(path: Path) -> object:
    return _store(path).create_table("basket", [tm.Column("id", tm.Int64)], "number")


def no_such_table(path: Path) -> object:
    return _store(path)["itme"]


def no_such_column(path: Path) -> object:
    return _store(path)["item"].update(1, {"cuont": 2})


def no_such_partition(path: Path) -> object:
    db = _store(path)
    db.create_table(
        "sale", [tm.Column("day", tm.Int32)], "day", partition=tm.RangePartition("day", [("old", 100), ("new", 200)])
    )
    return db.drop_partition("sale", "odl")


def no_partition(path: Path) -> object:
    db = _store(path)
    db.create_table("sale", [tm.Column("day", tm.Int32)], "day", partition=tm.RangePartition("day", [("old", 100)]))
    return db["sale"].insert({"day": 200})


def table_exists(path: Path) -> object:
    return _store(path).create_table("item", [tm.Column("id", tm.Int64)], "id")


def index_exists(path: Path) -> object:
    db = _store(path)
    db.create_index("item", "by_name", ["name"])
    return db.create_index("item", "by_name", ["count"])


def no_such_index(path: Path) -> object:
    return list(_store(path)["item"].scan(index="by_nmae"))


def no_such_tablespace(path: Path) -> object:
    return _store(path).drop_tablespace("slow")


def tablespace_exists(path: Path) -> object:
    db = _store(path)
    db.create_tablespace("slow")
    return db.create_tablespace("slow")


def tablespace_in_use(path: Path) -> object:
    db = _store(path)
    db.create_tablespace("slow")
    db.create_table(
        "photo", [tm.Column("id", tm.Int64), tm.Column("image", tm.Blob, storage="disk")], "id", tablespace="slow"
    )
    return db.drop_tablespace("slow")


def duplicate_key(path: Path) -> object:
    return _store(path)["item"].insert((1, "cup", 1))


def row_not_found(path: Path) -> object:
    return _store(path)["item"].update(3, {"count": 0})


def type_mismatch(path: Path) -> object:
    return _store(path)["item"].insert((3, "cup", "four"))


def value_out_of_range(path: Path) -> object:
    return _store(path)["item"].insert((3, "cup", 1 << 40))


def not_null_violation(path: Path) -> object:
    return _store(path)["item"].insert((3, None, 1))


def check_failed(path: Path) -> object:
    db = _store(path)
    db.add_check("item", "in stock", tm.col("count") >= 0)
    return db["item"].update(1, {"count": tm.col("count") - 11})


def row_too_large(path: Path) -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 1 << 31

    try:
        build_var_part(b"", [Long()])
    except tm.RowTooLarge as error:
        raise _store(path).parts.store.tables.named("item").format._too_large(error, None) from None


def transaction_too_large(path: Path) -> object:
    db = _store(path, transaction_memory="1 MiB", transaction_limit="2 MiB")
    return db["item"].insert_many([(number, "x" * 20, 0) for number in range(10, 60_000)])


def limit_exceeded(path: Path) -> object:
    with _store(path) as db:
        db["item"].insert_many([(number, "x" * 20, 0) for number in range(10, 40_000)])
        db.checkpoint()
    return _open(path, data_memory="2 MiB")


def read_only(path: Path) -> None:
    db = _store(path)
    db.checkpoint()
    tm.open(path / "store", read_only=True)["item"].insert((3, "cup", 1))


def wrong_thread(path: Path) -> object:
    with _store(path).transaction() as txn:
        return elsewhere(lambda: txn.get("item", 1))


def snapshot_closed(path: Path) -> object:
    db = _store(path)
    snapshot = db.snapshot()
    table = snapshot["item"]
    snapshot.close()
    return table.get(1)


def transaction_ended(path: Path) -> object:
    with _store(path).transaction() as txn:
        pass
    return txn.get("item", 1)


def transaction_killed(path: Path) -> object:
    db = _store(path)
    txn = db.transaction()
    db.kill(txn.txid)
    return txn.get("item", 1)


def program_invalid(path: Path) -> object:
    return _store(path)["item"].scan(where=tm.col("name") + 1 == 2).count()


def program_failed(path: Path) -> object:
    table = _store(path).parts.store.tables.named("item")
    found = next(batch_operations.scan(table, None))
    raise running.failed(table, found.entries[int(found.offsets[0]) :], PE_DIVISION)


def load_ended(path: Path) -> object:
    job = _store(path).plan_load("item")
    abort(job)
    return publish(job, [])


def load_refused(path: Path) -> object:
    db = _store(path)
    job = db.plan_load("item")
    publish(job, [])
    db.drop_table("item")
    return db.adopt(job)


def unsupported(path: Path) -> object:
    db = _store(path)
    return db.add_column("item", tm.Column("photo", tm.Blob, nullable=True, storage="disk"))


# --- Retryable ----------------------------------------------------------------------------------
def lock_timeout(path: Path) -> object:
    clock = ManualClock()
    options = Options.from_keywords({**SMALL, "lock_timeout_ms": 1})
    db = _filled(Database(PosixFiles(path / "store", create=True), options, clock))
    with db.transaction() as txn:
        txn.update("item", 1, {"count": 1})
        clock.advance(3.2)
        return elsewhere(lambda: db["item"].update(1, {"count": 2}))


def write_conflict(path: Path) -> object:
    db = _store(path)
    with db.transaction(isolation="snapshot") as txn:
        db["item"].update(1, {"count": 1})
        return txn.update("item", 1, {"count": 2})


def memory_exhausted(path: Path) -> object:
    db = _store(path, data_memory="4 MiB")
    for start in range(10, 1 << 20, 5_000):
        db["item"].insert_many([(number, "x" * 20, 0) for number in range(start, start + 5_000)])
    return None


def deadlock(path: Path) -> object:
    """Two transactions, in two threads, each lock a row and then ask for the row of the other. The older one begins
    first, so that the victim is the same in each run, although either thread may find the circle.
    """
    db, both, older = _store(path), threading.Barrier(2), threading.Event()

    def lock(first: int, second: int) -> None:
        if first == 2:
            older.wait()
        with db.transaction() as txn:
            older.set()
            txn.update("item", first, {"count": 0})
            both.wait()
            txn.update("item", second, {"count": 0})

    found: list[tm.Error] = []
    threads = [threading.Thread(target=_kept, args=(found, lock, *keys)) for keys in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise found[0]


def _kept(found: list[tm.Error], call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except tm.Error as error:
        found.append(error)


def not_primary(path: Path) -> object:
    db = _store(path)
    GroupApplier(db.parts.store)
    return db["item"].insert((3, "cup", 1))


def redo_overloaded(_path: Path) -> object:
    raise LogRoom.overloaded(_room(follower_holds_log=lambda: False))


def binlog_overloaded(_path: Path) -> object:
    raise LogRoom.overloaded(_room(follower_holds_log=lambda: True))


def _room(**parts: object) -> Any:
    log = _stub(geometry=_stub(capacity_bytes=16 << 20))
    return _stub(_log=log, awaited=None, may_spool=True, _shortage=_stub(reason=""), **parts)


def storage_full(_path: Path) -> object:
    raise layer.answer("pwrite", "redo.0", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def too_many_files(_path: Path) -> object:
    raise layer.answer("open", "redo.0", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))


def checkpoint_memory_exhausted(_path: Path) -> None:
    statuses._wait_for_copies(_stub(store=_stub(failure=Failure(), clock=_stub(monotonic=lambda: 1.0))), 0.0)


def call_memory_exhausted(_path: Path) -> None:
    Share(CallMemory(64 << 20)).take(65 << 20)


def snapshot_too_old(path: Path) -> object:
    db = _store(path, snapshot_memory="1 MiB")
    db["item"].insert_many([(number, "x" * 20, 0) for number in range(10, 50_000)])
    snapshot = db.snapshot()
    db["item"].update_where({"count": 1})
    return snapshot["item"].get(1)


def primary_lost(_path: Path) -> object:
    def ask(_what: object) -> None:
        raise tm.PeerError("the other side shut the link; connect again")

    own = _stub(_check=lambda: None, link=_stub(ask=ask), _lose=lambda: None, txid=4_711)
    return RemoteTransaction._ask(own, "get")


# --- OutcomeUnknown -----------------------------------------------------------------------------
def outcome_unknown(_path: Path) -> object:
    raise out_of_memory._unknown(None, MemoryError("8 MiB"))


def commit_interrupted(_path: Path) -> object:
    raise redo.commit_interrupted(4_711)


# --- StoreFailed --------------------------------------------------------------------------------
def store_closed(path: Path) -> object:
    db = _store(path)
    db.close()
    return db["item"]


def commit_unanswered(_path: Path) -> None:
    links = _stub(until=lambda _: "unknown")
    RemoteTransaction._ask_outcome(_stub(_links=links, txid=4_711), tm.PeerTimeout("no answer"))


def commit_on_failed_store(_path: Path) -> None:
    def fail(_sequence: int, _lead: None) -> None:
        io_failed(Path())

    RedoLog.wait(_stub(writing=_stub(wait=fail), _lead=None), 12)


def invariant_broken(_path: Path) -> None:
    store = _stub(failure=Failure(), epochs=_stub())
    Transaction._check_undone(_stub(store=store), -99)


def forked_handle(path: Path) -> object:
    db = _store(path)
    db.checkpoint()
    shown = tm.open(path / "store", read_only=True)
    read_only_views._refuse_in_child()
    return shown["item"]


def io_failed(_path: Path) -> None:
    failure = Failure()
    failure.first = (tm.IoFailed, "pwrite", "redo.0", OSError(errno.EIO, os.strerror(errno.EIO)))
    failure.check()


def sync_failed(_path: Path) -> None:
    failure = Failure()
    failure.first = (tm.SyncFailed, "fdatasync", "redo.0", OSError(errno.EIO, os.strerror(errno.EIO)))
    failure.check()


# --- Damaged ------------------------------------------------------------------------------------
def file_missing(path: Path) -> object:
    return tm.open(path / "stroe", create=False)


def sysfile_damaged(path: Path) -> object:
    _store(path).close()
    _file(path, "sysfile.0", 100)
    _file(path, "sysfile.1", 100)
    return _open(path)


def redo_damaged(path: Path) -> object:
    db = _store(path)
    for number in range(10, 400):
        db["item"].insert((number, "cup", 1))
        db.sync()
    db.close()
    _file(path, "redo/0000.redo", 150_000)
    return _open(path)


def spool_damaged(_path: Path) -> object:
    raise spool_files.damaged("spool/000012.spool", 12, 8_192, "fails its checksum")


def catalog_damaged(_path: Path) -> object:
    seal = {"tables": 1, "tables_digest": 0, "lsn": 0}
    return Catalog.read(_stub(_checked_seal=lambda: seal, _values=list, _store=(0, 0)))


def foreign_file(path: Path) -> object:
    for name in ("a", "b"):
        (path / name).mkdir()
        _store(path / name).close()
    shutil.copy(path / "b" / "store" / "sysfile.1", path / "a" / "store" / "sysfile.1")
    return _open(path / "a")


def file_truncated(path: Path) -> object:
    _store(path).close()
    os.truncate(min((path / "store" / "redo").iterdir()), 4_096)
    return _open(path)


def lcp_damaged(path: Path) -> object:
    db = _store(path)
    for _ in range(4):
        db["item"].update_where({"count": tm.col("count") + 1})
        db.checkpoint()
    db.close()
    for file in sorted((path / "store" / "lcp").rglob("*")):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    return _open(path)


def undo_damaged(_path: Path) -> object:
    raise UndoReader._damage(_stub(_place=lambda _: ("undo/0", 8_192)), 12, 0, "fails its checksum")


def view_damaged(_path: Path) -> object:
    raise view_file._damaged("can be read")


def page_damaged(_path: Path) -> object:
    return tm.Int64.from_var(b"abc")


def binlog_damaged(_path: Path) -> object:
    raise Position("binlog.000001", 8_192).damaged("fails its checksum")


def load_damaged(_path: Path) -> object:
    raise commit._damaged("00c0ffee.manifest", "fails its checksum")


def backup_damaged(_path: Path) -> object:
    raise CheckedFile._damaged(_stub(_name="1-main.t/1/0-2.parquet"), 8_192, "fails its checksum")


def restore_unfinished(path: Path) -> object:
    _store(path).close()
    (path / "store" / RESTORING).touch()
    return _open(path)


def version_too_new(_path: Path) -> None:
    check_format(999, "sysfile.0")


def version_too_old(_path: Path) -> None:
    check_format(FORMAT_VERSION_OLDEST - 1, "sysfile.0")


def locked(path: Path) -> object:
    db = _store(path)
    return db, _open(path)


# --- PeerError ----------------------------------------------------------------------------------
def frame_rejected(_path: Path) -> object:
    own, frame = _stub(_content=None, is_done=False), _stub(kind=99, payload=b"")
    return CallerHandshake.receive(own, frame)


def peer_unauthenticated(_path: Path) -> object:
    address = _stub(shown="mysql.example:3306", user="tidemark")
    raise peer_error(address, RuntimeError(1045, "Access denied"))


def peer_unproved(_path: Path) -> object:
    content = {"error": "PeerUnauthenticated", "message": "the secrets differ"}
    raise handshake._unproved(handshake._pack(content))


def peer_version(_path: Path) -> object:
    own = _stub(_peer_fields=lambda *_: {"newest": 0, "oldest": 0}, own=_stub(caller="replica"))
    return handshake.CalledHandshake._challenge(own, b"")


def peer_refused(_path: Path) -> object:
    return list(SourceBinlog.copy(_stub(_copy=None), b""))


def peer_timeout(_path: Path) -> object:
    raise reach.late(reach.APPLIED, 42, 1_000, [2, 3], {2: 41})


def epoch_gap(_path: Path) -> object:
    what = "epoch 42, which the replica has applied (newest here: 40)"
    raise SourceBinlog._gap(_stub(_server_id=1), what)


def position_lost(_path: Path) -> object:
    raise SourceBinlog._lost(_stub(_server_id=1), "binlog.000001")


# --- the MySQL port -----------------------------------------------------------------------------
USERS = [tm.MysqlUser("repl", b"sixteen bytes or more")]
SERVED: dict[str, Any] = {"server_id": 1, "log_bin": "binlog", "log_update_as_write": False, "log_updated_only": False}


def _serve(path: Path, address: object = "127.0.0.1:0", users: Any = USERS, flavor: str = "mysql") -> object:
    return tm.serve_mysql(_store(path, **SERVED), address, users, flavor)


def _port_taken(path: Path) -> object:
    db = _store(path, **SERVED)
    return tm.serve_mysql(db, tm.serve_mysql(db, "127.0.0.1:0", USERS).address, USERS)


def _closed(path: Path) -> object:
    db = _store(path, **SERVED)
    db.close()
    return tm.serve_mysql(db, "127.0.0.1:0", USERS)


def _waited(at: list[int] | None, **options: Any) -> Scene:
    def scene(path: Path) -> object:
        db = _store(path, **options)
        return db.wait_received(db.sync(), 100, at)

    return scene


def _command_line(**given: Any) -> object:
    missing = {"mysql": None, "mysql_user": (), "mysql_read": (), "mysql_status_rows": False}
    return mysql_users({**missing, **given})


MYSQL: dict[str, Scene] = {
    "an address without a port": lambda path: _serve(path, "127.0.0.1"),
    "a port that is taken": _port_taken,
    "an address that other hosts reach, without TLS": lambda path: _serve(path, "0.0.0.0:3306"),
    "no user": lambda path: _serve(path, users=[]),
    "a user twice": lambda path: _serve(path, users=[*USERS, *USERS]),
    "users that are none": lambda path: _serve(path, users=[("repl", b"sixteen bytes or more")]),
    "one user that is not in a list": lambda path: _serve(path, users=USERS[0]),
    "a user without a password": lambda path: tm.MysqlUser("repl", b""),
    "a password that is text": lambda path: tm.MysqlUser("repl", "sixteen bytes or more"),  # type: ignore[arg-type]
    "a user without a name": lambda path: tm.MysqlUser("", b"sixteen bytes or more"),
    "a flavor that is none": lambda path: _serve(path, flavor="oracle"),
    "a path in place of a store": lambda path: tm.serve_mysql("shop", "127.0.0.1:0", USERS),  # type: ignore[arg-type]
    "a store that is closed": _closed,
    "a store without a server id": lambda path: tm.serve_mysql(_store(path), "127.0.0.1:0", USERS),
    "a store without a binlog": lambda path: tm.serve_mysql(_store(path, server_id=1), "127.0.0.1:0", USERS),
    "a store that logs updates as writes": lambda path: tm.serve_mysql(
        _store(path, server_id=1, log_bin="binlog"), "127.0.0.1:0", USERS
    ),
    "log_gtids at a node of a group": lambda path: check_of_node({"log_gtids": True}),
    "mysql_purge_bytes that is no size": lambda path: _store(path, mysql_purge_bytes="much"),
    "wait_received without a binlog": _waited(None),
    "wait_received when no replica has come": _waited(None, **SERVED),
    "wait_received at the store itself": _waited([1], **SERVED),
    "wait_received at a replica that does not come": _waited([2], **SERVED),
    "--mysql without a user": lambda path: _command_line(mysql="127.0.0.1:3306"),
    "--mysql-user without a file": lambda path: _command_line(mysql="127.0.0.1:3306", mysql_user=("repl",)),
    "--mysql-user without --mysql": lambda path: _command_line(mysql_user=("repl:repl.secret",)),
}


# --- the page -----------------------------------------------------------------------------------
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
BASES = (tm.Error, tm.Rejected, tm.Retryable, tm.StoreFailed, tm.Damaged, tm.Incompatible, tm.PeerError)
HEAD = """# Errors, one of each

One message of each class, as it is raised: what happened, the values, what to do. `tests/documents/mistakes.py` raises
them and writes this page; [the reference](reference/errors.md) has the classes with their fields. The class of an error
says whether anything happened, and what to do next.
"""
FAMILIES = {
    tm.Rejected: "nothing happened; change the call",
    tm.Retryable: "the transaction was rolled back whole; run it again",
    tm.OutcomeUnknown: "ask for the outcome",
    tm.StoreFailed: "close the store and open it again",
    tm.Damaged: "data on the disk is not what was written; nothing was changed",
    tm.Incompatible: "the store needs another version of the program",
    tm.Error: "the store is in use",
    tm.PeerError: "the other side of a link",
}


def classes() -> list[type[tm.Error]]:
    """Return every public class of error that has no subclass but is raised itself, in the order of their module."""
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, tm.Error)]
    return [each for each in found if each not in BASES]


def render(kind: type[tm.Error], path: Path) -> str:
    """Raise an error of a class in a directory; return its message without what differs from run to run."""
    scene = globals()[re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()]
    error = _raised(scene, path)
    if type(error) is not kind:
        raise error
    return _shown(error, path)


def _raised(scene: Scene, path: Path) -> tm.Error | click.UsageError:
    try:
        scene(path)
    except (tm.Error, click.UsageError) as error:
        return error
    raise AssertionError(f"{scene.__name__} raised nothing")


def _shown(error: Exception, path: Path) -> str:
    text = str(error).replace(str(path), "/data")
    text = re.sub(r"(127\.0\.0\.1(?::|', ))[1-9]\d{4}\b", r"\g<1>33060", text)
    return re.sub(r"\b[0-9a-f]{16}\b", "00c0ffee00c0ffee", re.sub(r"pid \d+", "pid 4711", text))


def _block(title: str, text: str) -> str:
    lines = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"\n**{title}**\n", "```text", *lines, "```", ""])


def page(folder: Path) -> str:
    """Return the text of the page."""
    parts = [HEAD]
    family: type[tm.Error] | None = None
    for number, kind in enumerate(classes()):
        base = next(each for each in FAMILIES if issubclass(kind, each))
        base = next((each for each in FAMILIES if each is not tm.Error and issubclass(kind, each)), base)
        if base is not family:
            family = base
            title = "Locked" if base is tm.Error else base.__name__
            parts.append(f"\n## {title}: {FAMILIES[base]}\n")
        place = folder / str(number)
        place.mkdir()
        parts.append(_block(kind.__name__, render(kind, place)))
    parts.append("\n## Mistakes at the MySQL port\n")
    for number, (title, scene) in enumerate(MYSQL.items()):
        place = folder / f"mysql-{number}"
        place.mkdir()
        error = _raised(scene, place)
        parts.append(_block(title, f"{type(error).__name__}: {_shown(error, place)}"))
    return "".join(parts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(Path(folder)), encoding="utf-8")
