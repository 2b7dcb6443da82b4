"""Each face has the calls of the list, and says why it lacks the others (`tidemark/calls.py`)."""

from __future__ import annotations

import decimal
import inspect
import pickle
import re
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import tidemark as tm
from tests.faces.faces import TABLE, Faces
from tidemark.calls import FACES, READ_ONLY, Call, Face, Kind, calls_of, has_calls_of
from tools import make_faces

# Public names of classes that are for the floors below and for tests.
COMPLETIONS = "_ipython_key_completions_"  # IPython's name
INNER = {"parts", "out_of_memory", "links", "link", "table", "owner"}


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faces]:
    with ExitStack() as at_end:
        yield Faces(tmp_path_factory.mktemp("faces") / "store", "memory", at_end)


@pytest.mark.parametrize("face", FACES)
def test_a_face_has_its_calls_or_says_why_not(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        for call, reason in calls_of(face):
            if reason is None or reason == READ_ONLY:
                assert hasattr(made, call.name), call.name
                continue
            with pytest.raises(AttributeError) as caught:
                getattr(made, call.name)
            assert str(caught.value) == f"{type(made).__name__} has no {call.name}: {reason}"
            assert not hasattr(type(made), call.name)


@pytest.mark.parametrize("face", FACES)
def test_dir_shows_what_users_call_and_no_more(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        shown = {name for name in dir(made) if not name.startswith("__")}
        assert shown == {call.name for call, reason in calls_of(face) if reason in (None, READ_ONLY)}


@pytest.mark.parametrize("face", FACES)
def test_a_face_has_no_other_public_calls(faces: Faces, face: str) -> None:
    """A call that is added to a class is added to the list. What the engine's classes have is inner."""
    with faces.face(face) as made:
        listed = {call.name for call, _ in calls_of(face)}
        found = set()
        for kind in type(made).__mro__:
            if kind.__module__.startswith("tidemark.") and not kind.__module__.startswith("tidemark.engine."):
                found |= {name for name, member in vars(kind).items() if name[0] != "_" and is_member(member)}
        assert found - listed - INNER == set()


def is_member(member: Any) -> bool:
    return inspect.isroutine(member) or isinstance(member, property) or hasattr(member, "__get__")


def test_a_call_has_the_signature_and_the_text_of_the_one_it_is_made_from() -> None:
    for name in ("upsert_many", "insert_many", "delete_many"):
        inner, outer = (
            inspect.signature(getattr(tm.Transaction, name)),
            inspect.signature(getattr(tm.TableHandle, name)),
        )
        assert [*outer.parameters] == [each for each in inner.parameters if each != "table"]
        for kind in (tm.RemoteTable, tm.aio.Table):
            assert inspect.signature(getattr(kind, name)) == outer
        text = inspect.getdoc(getattr(tm.TableHandle, name)) or ""
        assert f'>>> db["item"].{name}(' in text and "txn" not in text
        assert inspect.getdoc(getattr(tm.RemoteTable, name)) == text
        assert getattr(tm.RemoteTable, name).__qualname__ == f"RemoteTable.{name}"
    assert [*inspect.signature(tm.Transaction.sum).parameters] == ["self", "table", "column", "where"]
    assert '>>> txn.sum("item", "stock")' in (inspect.getdoc(tm.Transaction.sum) or "")
    assert inspect.iscoroutinefunction(tm.aio.Table.insert)
    assert "table" not in inspect.signature(tm.TransactionTable.get).parameters
    assert ">>> " in (inspect.getdoc(tm.TransactionTable.get) or "")
    assert (inspect.getdoc(tm.aio.Database.kill) or "").startswith("`Database.kill`, awaited.\n\nRoll back")


def test_wrong_arguments_are_counted_as_the_caller_sees_them(faces: Faces) -> None:
    for table in (faces.db[TABLE], faces.remote[TABLE]):
        with pytest.raises(TypeError, match="missing a required argument: 'data'"):
            table.insert_many()
        with pytest.raises(TypeError, match="unexpected keyword argument 'indx'"):
            table.delete_many([1], indx="by_name")


def test_what_a_remote_call_does_not_take_is_in_no_signature_and_no_text(faces: Faces) -> None:
    """Story: `check`, `checkpoint` and `create_index` described `progress`, a function, which cannot be sent."""
    for call in (faces.remote.check, faces.remote.checkpoint, faces.remote.create_index):
        text = inspect.getdoc(call) or ""
        assert "progress" not in text and "Args:\n\n" not in text and "Raises:" in text
        assert "progress" not in inspect.signature(call).parameters
    assert "    unique: Whether" in (inspect.getdoc(faces.remote.create_index) or "")
    with pytest.raises(TypeError, match="progress"):
        faces.remote.check(progress=print)


@pytest.mark.parametrize(
    "face", ["table", "snapshot table", "remote table", "transaction", "snapshot", "store", "scan"]
)
def test_a_face_is_not_pickled(faces: Faces, face: str) -> None:
    with faces.face(face) as made, pytest.raises((tm.Unsupported, TypeError)):
        pickle.dumps(made)


def test_modules_show_what_users_call() -> None:
    """Story: `dir(tm)` had `Any`, `annotations` and the rooms of the engine, and neither `aio` nor a version."""
    shown = {name for name in dir(tm) if not name.startswith("__")}
    assert shown == {*tm.__all__, "aio", "errors"} and {"__version__", "__doc__"} <= set(dir(tm))
    assert not {"Any", "annotations", "TYPE_CHECKING", "engine", "_HOME"} & {*dir(tm), *dir(tm.aio)}
    assert set(dir(tm.aio)) == set(tm.aio.__all__) >= {"Database", "TypedTable", "open", "connect"}
    assert all(hasattr(tm.aio, name) for name in dir(tm.aio)) and re.fullmatch(r"\d+\.\d+\.\d+", tm.__version__)


def test_errors_are_of_the_module_that_users_know() -> None:
    """Story: a traceback said `tidemark.engine.base.errors.DuplicateKey`."""
    for name, kind in vars(tm.errors).items():
        if isinstance(kind, type):
            assert kind is getattr(tm, name) and kind.__module__ == "tidemark.errors"
            assert inspect.getsource(kind).startswith(f"class {name}")
    error = tm.DuplicateKey("a row has this key", table="main.t", key=1)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is tm.errors.DuplicateKey and (again.message, again.key) == (error.message, 1)
    assert traceback.format_exception_only(error) == ["tidemark.errors.DuplicateKey: a row has this key\n"]


@pytest.mark.parametrize("face", [face for face in FACES if "awaited" not in face])
def test_wrong_arguments_name_the_call_or_a_class_that_users_know(faces: Faces, face: str) -> None:
    """Story: `TableCreation.create_table() missing ...`: nobody knew that class."""
    with faces.face(face) as made:
        for call, reason in calls_of(face):
            found = getattr(made, call.name, None) if reason is None else None
            if not inspect.isroutine(found):
                continue
            with pytest.raises(TypeError) as caught:
                list(found(*[None] * 20, no_such_argument=1))
            named = re.match(r"(?:(\w+)\.)?(\w+)\(\) ", str(caught.value))
            if named is not None and named[1] is not None:
                assert hasattr(tm, named[1]) or named[1] == type(made).__name__, str(caught.value)


def test_prompts_complete_names_and_show_objects(faces: Faces) -> None:
    """Story: transactions and the classes of asyncio showed addresses, and `db["` completed nothing."""
    for name in ("store", "remote store", "read-only store", "awaited store", "snapshot", "read-only snapshot"):
        with faces.face(name) as made:
            assert TABLE in getattr(made, COMPLETIONS)(), name
    assert getattr(faces.db[TABLE][1], COMPLETIONS)() == ["id", "name", "n", "note"]
    with faces.db.transaction() as txn:
        assert repr(txn) == "<tidemark transaction, not begun>"
        txn.update(TABLE, 1, {})
        assert repr(txn) == f"<tidemark transaction {txn.txid:#x}, open>"
    assert repr(txn) == f"<tidemark transaction {txn.txid:#x}, ended>"
    with faces.remote.transaction() as other:
        assert repr(other) == f"<tidemark transaction {other.txid:#x} of another process, open>"
    assert repr(faces.aio).startswith("<tidemark store '") and repr(faces.aio).endswith(", open, awaited>")
    with faces.face("awaited transaction") as made:
        assert repr(made) == f"<tidemark transaction {made.txid:#x}, open, awaited>"
    assert repr(faces.aio.transaction()) == "<tidemark transaction, not begun, awaited>"


def test_a_definition_is_printed_as_the_calls_that_make_it(faces: Faces) -> None:
    assert eval(repr(faces.db[TABLE].columns), vars(tm)) == faces.db[TABLE].columns
    made = {"create_table": faces.db.create_table, "create_index": faces.db.create_index}
    parts = tm.ListPartition(["a", "b"], {"x": [("k", 1)], "y": [("k", 2), ("l", 1)]})
    columns = [
        tm.Column("a", tm.Char(3)),
        tm.Column("b", tm.Int8),
        tm.Column("c", tm.Decimal(5, 2), True, decimal.Decimal("1.50")),
        tm.Column("d", tm.Enum("on", "off"), default="on", storage="disk"),
    ]
    names = {**{name: getattr(tm, name) for name in tm.__all__}, **made}
    for partition in (
        None,
        parts,
        tm.KeyPartition(2, "a", linear=True),
        tm.RangePartition("b", [("all", tm.MAXVALUE)]),
    ):
        faces.db.create_table("printed", columns, ["a", "b"], partition)
        faces.db.create_index("printed", "by_c", ["c", "a"], unique=True, ordered=True)
        definition = faces.db["printed"].definition
        faces.db.drop_table("printed")
        exec(repr(definition).replace("Decimal('1.50')", "__import__('decimal').Decimal('1.50')"), names)
        again = faces.db["printed"].definition
        assert repr(again) == repr(definition) and again.columns == definition.columns
        assert (again.partition, again.indexes) == (definition.partition, definition.indexes)
        faces.db.drop_table("printed")


def test_classes_have_the_lines_that_the_generator_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_faces.main(["--check"]) == 0, capsys.readouterr().err


def test_a_line_that_differs_is_found() -> None:
    """Planted: a call that no list has, and one that is gone."""
    text = f"class A:\n{make_faces.BEGIN}    gone = f(B.gone)\n\n    def get(self): ...\n"
    sources = {(Kind.CHANGE, Kind.LOOKUP): "f(B.{})"}
    lines = make_faces.rendered(text, "A", "remote table", sources).splitlines()
    assert "    insert = f(B.insert)" in lines and "    gone = f(B.gone)" not in lines
    assert "    get = f(B.get)" not in lines, "the class defines it"


def test_a_lacking_call_is_refused_and_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A face of one list: a call that it has, one that it lacks, one that raises ReadOnly."""
    calls = (Call("has", Kind.LOOKUP), Call("lacks", Kind.LOOKUP, {"odd": "of a reason"}), Call("writes", Kind.CHANGE))
    monkeypatch.setitem(FACES, "odd", Face(calls, {Kind.CHANGE: READ_ONLY}))

    def refuse(self: Any) -> Any:
        raise tm.ReadOnly("it is for reading")

    class Odd:
        inner = 1

        def has(self) -> int:
            return 1

        def writes(self) -> int:
            return 2

    made: Any = has_calls_of("odd", refuse)(Odd)()
    assert made.has() == 1 and [name for name in dir(made) if name[:2] != "__"] == ["has", "writes"]
    with pytest.raises(AttributeError, match="^Odd has no lacks: of a reason$"):
        _ = made.lacks
    with pytest.raises(tm.ReadOnly):
        made.writes()
