"""The peers, each opened the way its own documentation recommends for the durability that is compared.

Key-value stores hold the key as 8 big-endian bytes and the row packed by `struct`; SQLite holds columns. The Redis
client is a few lines here, faster than the usual Python client without its C parser.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from bench.rows import PACK

try:
    import rocksdict as rocksdict
except ImportError:
    rocksdict = None  # type: ignore[assignment]

REDIS_BINARY = shutil.which("redis-server")
REDIS_MISSING = "redis-server is not installed"
ROCKSDB_MISSING = "rocksdict is not installed"
MAP_BYTES = 8 << 30
SQL_TABLE = "create table t (id integer primary key, b real, ts integer, name blob, flags integer)"
SQL_INSERT = "insert into t values (?,?,?,?,?)"
Pairs = list[tuple[bytes, bytes]]


def missing_peers() -> list[str]:
    """Return which peers cannot be measured on this machine, and why."""
    return [
        *([] if REDIS_BINARY else [f"Redis: {REDIS_MISSING}"]),
        *([] if rocksdict else [f"RocksDB: {ROCKSDB_MISSING}"]),
    ]


def key_bytes(key: int) -> bytes:
    """Return a key in the form that key-value stores sort."""
    return key.to_bytes(8, "big")


def encode(tuples: Iterable[tuple[Any, ...]]) -> Pairs:
    """Rows as sorted (key, packed row)."""
    return sorted((key_bytes(row[0]), PACK.pack(*row)) for row in tuples)


def remove(path: Path) -> None:
    """Remove a peer's file or folder, its side files included."""
    shutil.rmtree(path, ignore_errors=True)
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if each.is_file():
            each.unlink()


# --- SQLite ------------------------------------------------------------------------------------------
def sqlite_open(
    path: Path, synchronous: str, is_new: bool = True, tables: Iterable[str] = (SQL_TABLE,)
) -> sqlite3.Connection:
    """A connection in WAL mode; a new one makes the tables."""
    if is_new:
        remove(path)
    connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    connection.execute("pragma journal_mode=wal")
    connection.execute(f"pragma synchronous={synchronous}")
    connection.execute("pragma cache_size=-262144")
    if is_new:
        for table in tables:
            connection.execute(table)
    return connection


def sqlite_load(connection: sqlite3.Connection, tuples: Iterable[tuple[Any, ...]], statement: str = SQL_INSERT) -> None:
    """All rows in one transaction."""
    connection.execute("begin")
    connection.executemany(statement, tuples)
    connection.execute("commit")


def sqlite_settings(synchronous: str) -> str:
    """What is printed beside the figure."""
    return f"SQLite {sqlite3.sqlite_version}, WAL, synchronous={synchronous}, 256 MiB cache, integer primary key"


# --- LMDB --------------------------------------------------------------------------------------------
def lmdb_open(path: Path, sync: bool = True) -> lmdb.Environment:
    """A new environment."""
    remove(path)
    return lmdb.open(str(path), map_size=MAP_BYTES, sync=sync, metasync=sync, max_readers=64)


def lmdb_load(environment: lmdb.Environment, pairs: Pairs) -> None:
    """All rows in one transaction, sorted, in append mode."""
    with environment.begin(write=True) as txn:
        txn.cursor().putmulti(pairs, append=True)


LMDB_SYNC = "LMDB, default sync, rows sorted and packed beforehand"
LMDB_NO_SYNC = "LMDB, sync=False (flushed by the system when it likes)"


# --- RocksDB -----------------------------------------------------------------------------------------
def rocksdb_open(path: Path) -> Any:
    """A new database of raw bytes; write buffer 64 MiB."""
    remove(path)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(64 << 20)
    options.increase_parallelism(2)
    return rocksdict.Rdict(str(path), options)


def rocksdb_write_options(sync: bool) -> Any:
    """Write options: through the WAL, synced or not."""
    options = rocksdict.WriteOptions()
    options.sync = sync
    return options


def rocksdb_load(database: Any, pairs: Pairs, sync: bool, batch_rows: int = 100_000) -> None:
    """Rows by WriteBatch; only the last batch needs the sync."""
    for first in range(0, len(pairs), batch_rows):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in pairs[first : first + batch_rows]:
            batch.put(key, value)
        is_last = first + batch_rows >= len(pairs)
        database.write(batch, rocksdb_write_options(sync and is_last))


ROCKSDB_SYNC = "RocksDB (rocksdict), raw mode, 64 MiB write buffer, WriteOptions.sync=True"
ROCKSDB_NO_SYNC = "RocksDB (rocksdict), raw mode, 64 MiB write buffer, WAL without sync"


# --- Redis -------------------------------------------------------------------------------------------
def command(*words: bytes) -> bytes:
    """One command in Redis' protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class RedisClient:
    """A blocking connection: send prepared commands, read whole replies."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb", buffering=1 << 16)

    def close(self) -> None:
        """Hang up."""
        self.replies.close()
        self.socket.close()

    def reply(self) -> Any:
        """The next reply: bytes, integer, list or None. Raises RuntimeError for an error reply."""
        line = self.replies.readline()
        kind, body = line[:1], line[1:-2]
        if kind == b"$":
            size = int(body)
            return None if size < 0 else self.replies.read(size + 2)[:-2]
        if kind == b"*":
            count = int(body)
            return None if count < 0 else [self.reply() for _ in range(count)]
        if kind == b":":
            return int(body)
        if kind == b"+":
            return body
        raise RuntimeError(f"Redis answered {line!r}")

    def ask(self, *words: bytes) -> Any:
        """One command, one reply."""
        self.socket.sendall(command(*words))
        return self.reply()

    def ask_all(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send commands in one round trip; return their replies."""
        self.socket.sendall(b"".join(command(*words) for words in commands))
        return [self.reply() for _ in commands]

    def pipeline(self, commands: bytes, count: int) -> None:
        """Send many prepared commands, then read their short replies."""
        sender = threading.Thread(target=self.socket.sendall, args=(commands,))
        sender.start()
        for _ in range(count):
            self.reply()
        sender.join()


def redis_load(client: RedisClient, pairs: Pairs, per_command: int = 500) -> None:
    """Rows by MSET, pipelined."""
    commands = []
    for first in range(0, len(pairs), per_command):
        words = [b"MSET"]
        for pair in pairs[first : first + per_command]:
            words.extend(pair)
        commands.append(command(*words))
    client.pipeline(b"".join(commands), len(commands))


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A Redis server on a loopback port, started here, with its files in `folder`; `stop` ends it."""

    def __init__(self, folder: Path, append_only: str, is_new: bool = True) -> None:
        """append_only: "no", or the value of appendfsync."""
        if REDIS_BINARY is None:
            raise FileNotFoundError(REDIS_MISSING)
        if is_new:
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        words = [REDIS_BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder.resolve())]
        words += ["--save", "", "--daemonize", "no", "--logfile", "redis.log", "--loglevel", "notice"]
        words += ["--appendonly", "no" if append_only == "no" else "yes", "--auto-aof-rewrite-percentage", "0"]
        if append_only != "no":
            words += ["--appendfsync", append_only]
        began = time.perf_counter()
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.client = self._connect()
            self.start_s = time.perf_counter() - began
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _connect(self) -> RedisClient:
        pause = threading.Event()
        while self.process.poll() is None:
            try:
                client = RedisClient(self.port)
            except ConnectionError:
                pause.wait(0.002)
                continue
            while True:
                try:
                    client.ask(b"PING")
                    return client
                except RuntimeError:  # the server is loading
                    pause.wait(0.002)
        raise RuntimeError("redis-server ended before it answered")

    def info(self, name: bytes) -> int:
        """One integer of INFO."""
        for line in self.client.ask(b"INFO").splitlines():
            key, _, value = line.partition(b":")
            if key == name:
                return int(value)
        raise KeyError(name)

    def wait_until_zero(self, name: bytes) -> None:
        """Wait until a counter of INFO is 0: a background save or rewrite has ended."""
        pause = threading.Event()
        while self.info(name):
            pause.wait(0.05)

    def stop(self) -> None:
        """End the server's process; its files stay as they are."""
        self.client.close()
        self.process.terminate()
        self.process.wait()


@contextmanager
def redis(folder: Path, append_only: str, is_new: bool = True) -> Iterator[RedisServer]:
    """A server for a block."""
    server = RedisServer(folder, append_only, is_new)
    try:
        yield server
    finally:
        server.stop()


def redis_settings(append_only: str) -> str:
    """What is printed beside the figure."""
    aof = "no AOF" if append_only == "no" else f"appendonly yes, appendfsync {append_only}"
    return f"Redis on loopback, {aof}, save off, minimal client"
