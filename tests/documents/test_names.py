"""Every public name that a document, an example or a docstring gives exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import isclass, ismodule
from pathlib import Path

import tidemark as tm

ROOT = Path(__file__).parents[2]
PACKAGES = ("tidemark", "engine", "recovery", "replication")
NAME = re.compile(r"(?<![\w.])tm((?:\.[A-Za-z_]\w*)+)")


def documents() -> Iterator[Path]:
    """Yield every page, and every example beside one. The changelog also names what is gone."""
    yield from (path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")
    yield from (path for path in sorted((ROOT / "docs").rglob("*")) if path.suffix in (".md", ".py"))


def texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each document and each docstring."""
    for path in documents():
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield str(path.relative_to(ROOT)), ast.get_docstring(node) or ""


def missing(name: str) -> bool:
    """Whether a dotted name after `tm` leads nowhere. Attributes of objects are unknown, those of classes are not."""
    found: object = tm
    for part in name.split("."):
        if not (ismodule(found) or isclass(found)):
            return False
        if not hasattr(found, part):
            return part not in getattr(found, "__annotations__", {})
        found = getattr(found, part)
    return False


def test_public_names_of_documents_and_docstrings_exist() -> None:
    """Story: two documents named `tm.server_tls` and `tm.client_tls`, and there were no such names, so a program had no
    public way to TLS.
    """
    found = {(name[1:], place) for place, text in texts() for name in NAME.findall(text)}
    assert {name for name, _ in found} >= {"open", "Channel", "server_tls", "client_tls", "aio.open"}
    assert [(name, place) for name, place in sorted(found) if missing(name)] == []


def test_names_that_lead_nowhere_are_found() -> None:
    assert [name for name in ("opn", "Channel.begin", "aio.opn", "LockTimeout.x") if not missing(name)] == []
    assert [name for name in ("open", "Channel.start", "aio.open", "ROWID", "Options.archive") if missing(name)] == []
