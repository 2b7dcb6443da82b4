"""Places in an object store, against a server of S3 on this machine: every call, its errors, no secrets anywhere."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pyarrow.fs as arrow_fs
import pytest
from click.testing import CliRunner
from moto.server import ThreadedMotoServer

import tidemark as tm
from tests.backup.support import content
from tidemark import backup
from tidemark.cli.commands import commands
from tidemark.recovery.places import names as places
from tidemark.recovery.places import storage
from tidemark.recovery.spark.read import rows_of_backup, spark_place

ROOM: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "4 MiB", "undo_log": "2 MiB", "background": False}
KEY, SECRET = "AKIDTESTKEY", "TOP/SECRET+VALUE"
SHOWN = ("TOP/SECRET", "TOP%2FSECRET", "SECRET+VALUE", "SECRET%2BVALUE")
BUCKET = "shop"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    system(f"{host}:{port}", allow_bucket_creation=True).create_dir(BUCKET)
    yield f"{host}:{port}"
    server.stop()


def system(endpoint: str, **options: Any) -> Any:
    """A filesystem that tries once."""
    once = arrow_fs.AwsStandardS3RetryStrategy(max_attempts=1)
    about = {"endpoint_override": endpoint, "scheme": "http", "region": "eu-west-1", "retry_strategy": once}
    return arrow_fs.S3FileSystem(access_key=KEY, secret_key=SECRET, **about, **options)


def uri(endpoint: str, path: str) -> str:
    secret = SECRET.replace("/", "%2F").replace("+", "%2B")
    return f"s3://{KEY}:{secret}@{path}?endpoint_override={endpoint}&scheme=http&region=eu-west-1"


def place_of(form: str, endpoint: str, path: str) -> Any:
    if form == "fsspec":
        return f"memory://{path}"
    return uri(endpoint, path) if form == "URI" else (system(endpoint), path)


FORMS = pytest.mark.parametrize("form", ["URI", "tuple"])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **ROOM) as opened:
        opened.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(9))], "id", tm.HashPartition(2))
        opened["t"].insert_many([(key, f"n{key}") for key in range(500)])
        yield opened


@pytest.mark.parametrize("form", ["URI", "tuple", "fsspec"])
def test_life_of_a_place(form: str, endpoint: str, db: tm.Database, tmp_path: Path) -> None:
    place = place_of(form, endpoint, f"{BUCKET}/life/{form}")
    db.archive(place)
    db.backup(place)
    db["t"].delete_many(range(50))
    db.backup(place, incremental=True)
    assert tm.diff(db, place)["is_equal"]
    db["t"].insert((1_000, "late"))
    db.archive()
    want = content(db)
    assert [each["kind"] for each in backup.backups(place)["backups"]] == ["incremental", "full"]
    assert backup.verify(place, rows=True)["is_sound"]
    tm.restore(place, tmp_path / "copy", **ROOM)
    with tm.open(tmp_path / "copy", **ROOM) as copy:
        assert content(copy) == want
    db.backup(place)
    assert backup.prune(place, 1)["removed"] == [2, 1]
    assert backup.verify(place)["is_sound"]


def test_spark_gets_a_place_without_secrets_and_settings_for_them(endpoint: str, db: tm.Database) -> None:
    place = uri(endpoint, f"{BUCKET}/spark")
    db.backup(place)
    found = rows_of_backup(place, "t", None)
    settings: dict[str, str] = {}
    session: Any = SimpleNamespace(conf=SimpleNamespace(set=settings.__setitem__))
    assert spark_place(session, found.place) == f"s3a://{BUCKET}/spark" and len(found.names) == 2
    assert settings == {
        f"fs.s3a.bucket.{BUCKET}.access.key": KEY,
        f"fs.s3a.bucket.{BUCKET}.secret.key": SECRET,
        f"fs.s3a.bucket.{BUCKET}.endpoint": endpoint,
        f"fs.s3a.bucket.{BUCKET}.endpoint.region": "eu-west-1",
        f"fs.s3a.bucket.{BUCKET}.path.style.access": "true",
        f"fs.s3a.bucket.{BUCKET}.connection.ssl.enabled": "false",
    }


def calls(place: Any, db: tm.Database, tmp_path: Path) -> dict[str, Callable[[], Any]]:
    return {
        "backup": lambda: db.backup(place),
        "archive": lambda: db.archive(place),
        "backups": lambda: backup.backups(place),
        "verify": lambda: backup.verify(place),
        "plan": lambda: backup.plan(place),
        "prune": lambda: backup.prune(place, 1),
        "restore": lambda: tm.restore(place, tmp_path / "copy", **ROOM),
        "diff": lambda: tm.diff(db, place),
        "read": lambda: rows_of_backup(place, "t", None),
    }


def check_refused(kind: type[tm.Error], place: Any, db: tm.Database, tmp_path: Path) -> None:
    for name, call in calls(place, db, tmp_path).items():
        if name == "read" and isinstance(place, tuple):
            continue
        with pytest.raises(kind) as caught:
            call()
        said = f"{caught.value} {caught.value.evidence}"
        assert "\n" not in said and not any(secret in said for secret in SHOWN), said
    assert not (tmp_path / "copy").exists()


@FORMS
def test_missing_bucket(form: str, endpoint: str, db: tm.Database, tmp_path: Path) -> None:
    check_refused(tm.FileMissing, place_of(form, endpoint, "nobucket/x"), db, tmp_path)


@FORMS
def test_refused_key(form: str, endpoint: str, db: tm.Database, tmp_path: Path) -> None:
    def check_keys(after: str) -> None:
        urlopen(
            Request(
                f"http://{endpoint}/moto-api/reset-auth", after.encode(), {"Content-Type": "text/plain"}, method="POST"
            )
        ).close()

    check_keys("0")
    try:
        check_refused(tm.Rejected, place_of(form, endpoint, f"{BUCKET}/x"), db, tmp_path)
    finally:
        check_keys("inf")


@FORMS
def test_end_that_cannot_be_reached(
    form: str, db: tm.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ANSWER_S", 0.2)  # pyarrow tries a URI for 12 s
    with socket.socket() as free:  # nobody listens there
        free.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{free.getsockname()[1]}"
        check_refused(tm.IoFailed, place_of(form, closed, f"{BUCKET}/x"), db, tmp_path)


class _Failing:
    """A filesystem of which one call fails."""

    def __init__(self, real: Any, call: str, after: int) -> None:
        self._real = real
        self._call = call
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call and self._is_due() else getattr(self._real, name)

    def _is_due(self) -> bool:
        self._left -= 1
        return self._left < 0

    def _fail(self, *arguments: Any) -> None:
        raise OSError(f"AWS Error NETWORK_CONNECTION for s3://{KEY}:{SECRET}@{BUCKET}/x\nand more")


CALLS = {"get_file_info": 5, "create_dir": 0, "open_output_stream": 2, "open_input_file": 0, "move": 0}


@pytest.mark.parametrize("call", CALLS)
def test_call_that_fails_ends_a_backup_with_one_line(
    call: str, endpoint: str, db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = system(endpoint), f"{BUCKET}/fails/{call}"
    with monkeypatch.context() as patched:
        patched.setattr(storage, "filesystem_of", lambda place: (_Failing(real, call, CALLS[call]), path))
        with pytest.raises(tm.IoFailed, match="cannot be reached") as caught:
            db.backup(uri(endpoint, path))
        assert "\n" not in str(caught.value) and not any(secret in str(caught.value) for secret in SHOWN)
    assert db.backup((real, path))["rows"] == 500
    assert backup.verify((real, path))["is_sound"]


def test_no_secret_in_reports_messages_files_and_logs(
    endpoint: str, db: tm.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = uri(endpoint, f"{BUCKET}/secret")
    shown: list[Any] = [db.archive(place), db.status(), db.backup(place), db.backup(place, incremental=True)]
    shown += [call() for name, call in calls(place, db, tmp_path).items() if name not in ("archive", "read")]
    with pytest.raises(tm.Rejected) as caught:
        db.archive(tmp_path / "elsewhere")
    shown += [caught.value, caught.value.evidence, db.status(), caplog.text]
    for arguments in (
        ["backup", "list", place],
        ["backup", "verify", place],
        ["backup", "verify", "--json", place],
        ["restore", place, str(tmp_path / "again"), "--plan"],
        ["backup", "list", place.replace("s3:/", "s3a:")],
        ["backup", "list", place.replace(BUCKET, "nobucket")],
        ["diff", str(tmp_path / "copy"), place],
    ):
        done = CliRunner().invoke(commands, arguments)
        shown.append(f"{done.output} {done.exception}")
    texts = [str(each) for each in shown]
    texts += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    held = system(endpoint)
    for info in held.get_file_info(arrow_fs.FileSelector(f"{BUCKET}/secret", recursive=True)):
        if info.is_file:
            texts.append(held.open_input_file(info.path).read().decode("latin-1"))
    assert len(texts) > 25
    assert [text[:200] for text in texts if any(secret in text for secret in SHOWN)] == []
