"""Names of places: what each form opens, or the error of one line and its class."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tidemark.backup import verify
from tidemark.recovery.places import names as places
from tidemark.recovery.places.names import answered, canonical_place, shown_place
from tidemark.recovery.places.storage import ArrowRaw, open_place

ROOM: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "4 MiB", "background": False}

LOCAL = [
    "{root}/a b",
    "file:{root}/a b",
    "file:{root}/a%20b",
    "file://{root}/a%20b",
    "file://localhost{root}/a%20b",
    "FILE:{root}/a b",
    "a b",
    "./a b",
    "other/../a b",
]


@pytest.mark.parametrize("form", LOCAL)
def test_forms_of_one_directory(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = form.format(root=tmp_path)
    assert canonical_place(text) == str(tmp_path / "a b")
    with tm.open(tmp_path / "store", **ROOM) as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id").insert((1,))
        db.backup(text)
        assert tm.diff(db, text)["is_equal"]
        assert verify(text)["is_sound"]
    assert (tmp_path / "a b" / "1" / "manifest").exists() and not (tmp_path / "other").exists()


def test_colon_in_a_local_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("./a:b", Path("a:b"), Path("./a:b"), tmp_path / "a:b", f"file:{tmp_path}/a:b"):
        assert canonical_place(place) == str(tmp_path / "a:b")
    assert canonical_place("x/a:b") == str(tmp_path / "x/a:b")


URIS = [
    ("s3://bucket/a", "s3://bucket/a"),
    ("s3a://bucket/a/", "s3://bucket/a"),
    ("S3N://bucket/a", "s3://bucket/a"),
    ("gs://bucket/a", "gs://bucket/a"),
    ("abfss://c@account/a", "abfss://c@account/a"),
    ("hdfs://host:8020/a", "hdfs://host:8020/a"),
]


@pytest.mark.parametrize(("text", "want"), URIS)
def test_uris_have_one_form(text: str, want: str) -> None:
    assert canonical_place(text) == want == canonical_place(want)


REFUSED = [
    ("s3a:bk4", "give s3://…"),
    ("s3:/bucket/x", "give s3://…"),
    (Path("s3://bucket/x"), "give s3://…"),
    ("hdfs:/x", "give hdfs://…"),
    ("dbfs:/x", "give dbfs://…"),
    ("word:x", r"./word:x for a local file"),
    ("nothing://host/x", "there is no filesystem 'nothing'"),
    ("file:x", "give file:///path"),
    ("file://elsewhere/x", "give file:///path"),
]


@pytest.mark.parametrize(("place", "text"), REFUSED)
def test_other_words_before_a_colon_are_refused_and_make_no_directory(
    place: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tm.open(tmp_path / "store", **ROOM) as db:
        db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        calls = [
            lambda: db.backup(place),
            lambda: db.archive(place),
            lambda: db.plan_load("t", place),
            lambda: verify(place),
            lambda: tm.restore(place, tmp_path / "copy"),
            lambda: tm.diff(db, place),
        ]
        for call in calls:
            with pytest.raises(tm.Rejected, match=text) as caught:
                call()
            assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


SECRET = [
    "s3://AKIA:TOPSECRET@bucket/x?region=eu",
    "s3://bucket/x?secret_key=TOPSECRET&region=eu",
    "gs://bucket/x?access_token=TOPSECRET",
    "s3:/AKIA:TOPSECRET@bucket/x",
    "s3://AKIA:TOP/TOPSECRET@bucket/x",
]


@pytest.mark.parametrize("text", SECRET)
def test_secrets_of_a_uri_are_not_shown(text: str) -> None:
    assert "TOPSECRET" not in shown_place(text) and "bucket/x" in shown_place(text)

    def refused(uri: str) -> Any:
        raise OSError(f"cannot use {text}: AWS Error ACCESS_DENIED\nmore lines")

    with pytest.raises(tm.Rejected) as caught:
        answered(text, lambda: refused(text))
    assert "TOPSECRET" not in f"{caught.value}{caught.value.evidence}" and "\n" not in str(caught.value)


SAID = [
    (OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2"), tm.FileMissing),
    (FileNotFoundError("nothing there"), tm.FileMissing),
    (OSError("AWS Error ACCESS_DENIED during HeadObject: No response body."), tm.Rejected),
    (PermissionError("denied"), tm.Rejected),
    (OSError("AWS Error NETWORK_CONNECTION during HeadBucket: curlCode: 7"), tm.IoFailed),
    (OSError("Unable to load libjvm: libjvm.so: cannot open shared object file"), tm.Rejected),
    (ImportError("Please install gcsfs"), tm.Rejected),
    (tm.StorageFull("full"), tm.StorageFull),
]


@pytest.mark.parametrize(("error", "kind"), SAID)
def test_errors_of_libraries_have_a_class(error: Exception, kind: type[Exception]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(kind):
        answered("s3://bucket/x", fail)


def test_place_that_never_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ANSWER_S", 0.05)
    ended = threading.Event()
    with pytest.raises(tm.IoFailed, match="did not answer"):
        answered("gs://bucket/x", ended.wait)
    ended.set()


def test_name_with_a_mark_of_patterns_is_one_file_of_fsspec() -> None:
    """Story: a place was `memory://x?y`. A rename made a folder, and a removal took other files with it."""
    files = open_place("memory://patterns/x?y", True)
    for name in ("a", "ab", "ac"):
        files.close(files.create(name))
    files.rename("a", "b")
    files.unlink("b")
    assert sorted(files.list()) == ["ab", "ac"]


def test_rename_of_a_missing_object_is_missing(tmp_path: Path) -> None:
    """Story: the second end of a load over S3 reported a broken disk."""
    from pyarrow import fs as arrow_fs

    files = open_place((arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem()), ""))
    assert isinstance(files.raw, ArrowRaw)
    with pytest.raises(tm.FileMissing):
        files.rename("nothing", "something")


def test_file_of_a_pyarrow_filesystem_is_read_by_threads_at_their_own_places(tmp_path: Path) -> None:
    """Story: a read was a seek and a read. Of two threads that read one file, one moved the position between the two
    calls of the other, which then got bytes of another place.
    """
    arrow_fs = pytest.importorskip("pyarrow.fs")
    (tmp_path / "file").write_bytes(bytes(range(256)) * 16)
    files = open_place((arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem()), ""))
    file = files.open("file")
    streams = files.raw.streams
    streams[int(file)] = _Restless(streams[int(file)])
    assert [files.pread(file, at, 4) for at in (5, 250, 4_094)] == [
        bytes([5, 6, 7, 8]),
        bytes([250, 251, 252, 253]),
        bytes([254, 255]),
    ]
    files.close_all()


class _Restless:
    """A stream whose position another thread moves before every call."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stream, name)

        def called(*given: Any) -> Any:
            self._stream.seek(77)
            return call(*given)

        return called
