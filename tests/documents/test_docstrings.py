"""Docstrings of public callables: their examples run, and each has an example and says what it raises."""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.ports import free_port
from tests.store.support import SMALL
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.settings.options import split_keywords

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "docs" / "site" / "hooks.py"
# Part of the protocol by which a MemoryError becomes an error of Tidemark, not for callers.
INTERNAL = {"out_of_memory"}
SECRET = b"sixteen bytes or more"
OF_NODE: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "2 MiB", "undo_log": "2 MiB"}


# --- the names that an example finds -------------------------------------------------------------
def create_item(db: Database) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("name", tm.VarChar(20)), tm.Column("stock", tm.Int32)]
    db.create_table("item", columns, "id").insert_many([(1, "pen", 10), (2, "cup", 5), (3, "bag", 0)])


def with_store(names: dict[str, Any], at_end: ExitStack) -> None:
    """`db`: an open store in memory, with a binlog, and a table `item` of three rows."""
    options, replication = split_keywords({**SMALL, "server_id": 1, "log_bin": "binlog"})
    db = at_end.enter_context(Database(MemoryFiles(), options, ManualClock(), None, None, None, replication))
    create_item(db)
    names["db"] = db


def with_view(names: dict[str, Any], at_end: ExitStack) -> None:
    """`db`: the store in `shop`, attached to read-only; `writer`: the same store, open for writing."""
    writer = at_end.enter_context(tm.open("shop", **SMALL))
    create_item(writer)
    writer.checkpoint()
    names["writer"] = writer
    names["db"] = at_end.enter_context(tm.open("shop", read_only=True))


def with_assembler(names: dict[str, Any], at_end: ExitStack) -> None:
    """`asm`: an assembler of programs for rows of `item`."""
    with_store(names, at_end)
    names["asm"] = tm.Assembler(names["db"]["item"].definition)


def with_replica(names: dict[str, Any], at_end: ExitStack) -> None:
    """`replica`: an empty store with server id 2. `db` is its source, and leaves bulk loads out of its binlog."""
    with_store(names, at_end)
    names["db"].binlog.set_option("log_load_rows", False)
    options, replication = split_keywords({**SMALL, "server_id": 2})
    opened = Database(MemoryFiles(), options, ManualClock(2), None, None, None, replication)
    names["replica"] = at_end.enter_context(opened)
    names["secret"] = SECRET


def with_whole_updates(names: dict[str, Any], at_end: ExitStack) -> None:
    """`db`: a store that logs whole updates."""
    options, replication = split_keywords(
        {**SMALL, "server_id": 1, "log_bin": "binlog", "log_update_as_write": False, "log_updated_only": False}
    )
    opened = Database(MemoryFiles(), options, ManualClock(1), None, None, None, replication)
    names["db"] = at_end.enter_context(opened)
    create_item(names["db"])


def with_channel(names: dict[str, Any], at_end: ExitStack) -> None:
    """`channel`: from `db` to `replica`, without threads."""
    with_replica(names, at_end)
    names["channel"] = at_end.enter_context(tm.Channel(names["db"], names["replica"]))


def with_remote(names: dict[str, Any], at_end: ExitStack) -> None:
    """`remote`: the store `db`, as a client of another process sees it."""
    with_store(names, at_end)
    serving = at_end.enter_context(tm.serve_calls(names["db"], "127.0.0.1:0", SECRET))
    names["remote"] = at_end.enter_context(tm.connect([serving.address], SECRET))


def with_asyncio(names: dict[str, Any], at_end: ExitStack) -> None:
    """`asyncio`, and `db` with `secret`: a store for `serve_calls`."""
    with_store(names, at_end)
    names.update(asyncio=asyncio, secret=SECRET)


def with_group(names: dict[str, Any], at_end: ExitStack) -> None:
    """`group`: the address of a group of one node."""
    names["group"] = f"1=127.0.0.1:{free_port()}"


def with_node(names: dict[str, Any], at_end: ExitStack) -> None:
    """`node`: the only node of a group."""
    with_group(names, at_end)
    node = tm.NodeGroup("node 1", 1, names["group"], SECRET, found=True, **OF_NODE)
    names["node"] = at_end.enter_context(node)
    node.wait_member(60_000)


def with_arbitrated_group(names: dict[str, Any], at_end: ExitStack) -> None:
    """`group`: the addresses of a group of one node and an arbitrator."""
    names["group"] = f"1=127.0.0.1:{free_port()},arbitrator=127.0.0.1:{free_port()}"


def with_arbitrator(names: dict[str, Any], at_end: ExitStack) -> None:
    """Name `arbitrator`: the arbitrator of a group whose only node does not run."""
    with_arbitrated_group(names, at_end)
    names["arbitrator"] = at_end.enter_context(tm.Arbitrator("arbitrator", names["group"], SECRET, is_new=True))


# By the name of the callable: the longest prefix in here says how its examples begin. One that ends with a dot is for
# the methods of a class, and not for the class.
NAMES: dict[str, Callable[[dict[str, Any], ExitStack], None]] = {
    "tidemark": with_store,
    "tidemark.Applied": with_replica,
    "tidemark.Arbitrator": with_arbitrated_group,
    "tidemark.Arbitrator.": with_arbitrator,
    "tidemark.Assembler": with_assembler,
    "tidemark.Channel": with_replica,
    "tidemark.Channel.": with_channel,
    "tidemark.MysqlServing": with_whole_updates,
    "tidemark.NodeGroup": with_group,
    "tidemark.NodeGroup.": with_node,
    "tidemark.ReadOnlyDatabase": with_view,
    "tidemark.ReadOnlySnapshot": with_view,
    "tidemark.RemoteDatabase": with_store,
    "tidemark.RemoteDatabase.": with_remote,
    "tidemark.RemoteScan": with_remote,
    "tidemark.RemoteSnapshot": with_remote,
    "tidemark.RemoteSnapshotTable": with_remote,
    "tidemark.RemoteTable": with_remote,
    "tidemark.RemoteTransaction": with_remote,
    "tidemark.Serving": with_replica,
    "tidemark.serve": with_replica,
    "tidemark.serve_mysql": with_whole_updates,
    "tidemark.aio": with_asyncio,
    "tidemark.spark": with_view,
}
# Callables whose examples start Spark and have places that a reader replaces: they are compiled and not run. What Spark
# does is tested in `tests/spark`.
COMPILED = {
    *("tidemark.spark.changes", "tidemark.spark.diff", "tidemark.spark.load", "tidemark.spark.read"),
    *("tidemark.spark.restore", "tidemark.spark.session", "tidemark.spark.stream", "tidemark.spark.typed_errors"),
    "tidemark.spark.verify",
}
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


# --- which callables are public ------------------------------------------------------------------
def assigned(name: str) -> ast.expr:
    """The values that `docs/site/hooks.py` assigns to a name; the module cannot be imported without the tools of the
    site.
    """
    for node in ast.parse(HOOKS.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == name:
                return node.value
    raise ValueError(f"{HOOKS} has no {name}")


def strings(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def kept_members() -> dict[str, set[str]]:
    """Of classes of the engine, the members that are for callers."""
    table = assigned("KEPT")
    assert isinstance(table, ast.Dict)
    return {
        f"tidemark.{key.value}": strings(value)
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant)
    }


KEPT = kept_members()
RETURNED = {f"tidemark.{name}" for name in strings(assigned("RETURNED"))}


def path_of(item: Any) -> str:
    return f"{item.__module__}.{item.__qualname__}"


def documented() -> Iterator[tuple[str, Any]]:
    """Each name that a page of the reference has, with its object."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name in re.findall(r"^#* ?::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            yield name, getattr(importlib.import_module(module), attribute)


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods of a class with their names, including those of its bases."""
    for name in dir(kind):
        owners = [each for each in kind.__mro__ if name in vars(each)]
        member = vars(owners[0])[name]
        call = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or name in INTERNAL or not inspect.isfunction(call) or call.__name__.startswith("_"):
            continue
        if all(name in KEPT.get(path_of(each), {name}) for each in owners):
            yield name, call


def is_made_by_callers(kind: type) -> bool:
    """Whether callers create its objects."""
    if path_of(kind) in RETURNED or issubclass(kind, BaseException) or inspect.isabstract(kind):
        return False
    return any("__init__" in vars(each) for each in kind.__mro__[:-1])


def callables() -> dict[str, tuple[str, str]]:
    """By name, the docstring of each public callable and that of its class."""
    found: dict[str, tuple[str, str]] = {}
    seen: set[int] = set()
    for name, item in documented():
        if inspect.isclass(item):
            if is_made_by_callers(item):
                found[name] = (inspect.getdoc(item) or "", "")
            for member, call in methods(item):
                if id(call) not in seen:
                    seen.add(id(call))
                    found[f"{name}.{member}"] = (inspect.getdoc(call) or "", inspect.getdoc(item) or "")
        elif inspect.isfunction(item):
            found[name] = (inspect.getdoc(item) or "", "")
    return found


def classes() -> dict[str, str]:
    return {name: item.__doc__ or "" for name, item in documented() if inspect.isclass(item)}


CALLABLES = callables()
DOCSTRINGS = {name: inspect.cleandoc(text) for name, text in classes().items()} | {
    name: text for name, (text, _) in CALLABLES.items()
}
EXAMPLES = sorted(name for name, text in DOCSTRINGS.items() if ">>> " in text)


# --- the tests -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(COMPILED))
def test_example_that_is_not_run_compiles(name: str) -> None:
    section, _, examples = DOCSTRINGS[name].partition("\n\nExamples:\n")
    blocks = BLOCK.findall(examples)
    assert blocks and "```" not in section, f"{name}: its example is a block of code in the section Examples:"
    for block in blocks:
        compile(inspect.cleandoc(block), name, "exec")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_its_docstring_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, section, examples = DOCSTRINGS[name].partition("\n\nExamples:\n")
    assert section and ">>> " not in before, f"{name}: an example belongs into the section Examples:"
    is_last = all(line.startswith("    ") for line in examples.splitlines() if line)
    assert is_last, f"{name}: Examples: is the last section"
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"tm": tm, "__name__": "__main__"}
    prefix = max((each for each in NAMES if name == each or name.startswith(f"{each.rstrip('.')}.")), key=len)
    with ExitStack() as at_end:
        NAMES[prefix](names, at_end)
        report: list[str] = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        parsed = doctest.DocTestParser().get_doctest(examples, names, name, name, 0)
        runner.run(parsed, out=report.append, clear_globs=False)
        assert not report, "".join(report)


def lacks(name: str, text: str, of_class: str) -> list[str]:
    """What a docstring lacks. A method's example may be in its class, and the class may list errors that all calls
    raise.
    """
    method = name.rpartition(".")[2]
    has_example = (
        name in COMPILED or ">>> " in text or re.search(rf"^ *(>>>|\.\.\.) .*\.{method}\(", of_class, re.MULTILINE)
    )
    has_errors = re.search(r"\b[Rr]aises?\b", text) or re.search(r"\braises?\b", of_class)
    return ["example"] * (not has_example) + ["Raises"] * (not has_errors)


def test_public_callables_have_an_example_and_say_what_they_raise() -> None:
    assert {name: each for name, texts in CALLABLES.items() if (each := lacks(name, *texts))} == {}
