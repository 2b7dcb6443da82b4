"""The code keeps its rules, and each rule fires on a planted violation."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project import rules
from tests.project.rules import Source

ROOT = rules.ROOT
PACKAGES = rules.read_tree(ROOT, (*rules.LINKED, "tidemark"))
OTHERS = rules.read_tree(ROOT, [name for name in ("tests", "bench", "tools") if (ROOT / name).is_dir()])
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

Rule = Callable[[Source], Iterator[str]]


@functools.cache
def broken(name: str) -> dict[str, list[str]]:
    """What each rule for "packages" or "others" finds. A source is parsed once, then released."""
    known, found = (rules.PACKAGE_RULES, PACKAGES) if name == "packages" else (rules.TEST_RULES, OTHERS)
    lines: dict[str, list[str]] = {rule.__name__: [] for rule in known}
    for source in found:
        for rule in known:
            lines[rule.__name__] += rule(source)
        source.drop_nodes()
    return lines


@pytest.mark.parametrize("rule", rules.PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_packages_keep_the_rule(rule: Rule) -> None:
    assert broken("packages")[rule.__name__] == []


@pytest.mark.parametrize("rule", rules.TEST_RULES, ids=lambda rule: rule.__name__)
def test_tests_and_benchmarks_keep_the_rule(rule: Rule) -> None:
    assert broken("others")[rule.__name__] == []


def test_imports_form_no_cycle() -> None:
    assert list(rules.check_cycles(PACKAGES)) == []


def test_named_exceptions_exist() -> None:
    named = rules.BROAD_EXCEPT_PLACES
    sources = {source.module: source for source in PACKAGES}
    for module in {name.partition(":")[0] for name in named}:
        found = {f"{module}:{node.name}" for node in rules.functions(sources[module])}
        assert found >= {name for name in named if name.startswith(f"{module}:")}
        sources[module].drop_nodes()


def test_rooms_stand_on_the_map() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert list(rules.check_map([source.module for source in PACKAGES], architecture)) == []


def test_cited_decisions_and_faults_stand_in_the_documents() -> None:
    pages = (ROOT / "docs" / "internals" / "decisions.md", ROOT / "docs" / "faults.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    known = frozenset(re.findall(r"^##+ ([DF]\d{1,3})\b", text, re.MULTILINE))
    assert {"D1", "D15", "F01", "F120"} <= known
    assert [line for source in PACKAGES for line in rules.check_citations(source, known)] == []


def test_tests_named_in_the_fault_catalogue_exist() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    tests = "".join(source.text for source in OTHERS)
    assert [name for name in re.findall(r"\btest_\w+\b(?!\.py)", text) if f"def {name}(" not in tests] == []


def test_links_of_documents_lead_somewhere() -> None:
    assert [line for document in DOCUMENTS for line in rules.check_links(document, ROOT)] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Story: a record of a decision was added and not named there, and `make docs` failed until a reader tried it."""
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) for page in DOCUMENTS if page.is_relative_to(docs)]
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(pages) > 90
    assert list(rules.check_navigation(site, pages)) == []
    assert list(rules.check_navigation("- a/b.md\n", ["a/b.md", "b.md"])) == ["mkdocs.yml does not name b.md"]


def test_documents_have_no_phrase_of_the_list() -> None:
    """docs/style.md quotes such phrases in its pairs."""
    documents = [each for each in DOCUMENTS if each.name != "style.md"]
    assert [line for each in documents for line in rules.check_document_phrases(each, ROOT)] == []


LONG_BODY = "\n".join(["    x = 1"] * 61)
PLANTED: list[tuple[Rule, str, str]] = [
    (rules.check_floors, "tidemark.engine.table.table", "import tidemark.recovery.verification.check"),
    (rules.check_floors, "tidemark.engine.table.table", "def f():\n    from tidemark import database"),
    (rules.check_floors, "tidemark.recovery.verification.check", "from tidemark.replication import link"),
    (rules.check_floors, "tidemark.recovery.verification.check", "from ...replication.wire.link import Link"),
    (rules.check_rooms, "tidemark.engine.types.text", "from tidemark.engine.rows import columnar"),
    (
        rules.check_rooms,
        "tidemark.engine.types.text",
        "if TYPE_CHECKING:\n    from tidemark.engine.store.store import Store",
    ),
    (rules.check_compiled, "tidemark.engine.rows.rows_kernels", "from tidemark.engine.base.ids import SLOT_BITS"),
    (rules.check_phrases, "tidemark.engine.table.table", "# nobody waits"),
    (rules.check_phrases, "tidemark.engine.table.table", "x = f'{y} stands behind {z}'"),
    (rules.check_phrases, "tidemark.engine.table.table", 'def f():\n    """What comes of\n    whoever waits."""'),
    (rules.check_compiled, "tidemark.engine.rows.lcp_layout", "from tidemark.engine.rows import row_format"),
    *(
        (rules.check_kernel_calls, module, text)
        for module, text in (
            ("tidemark.database", "from tidemark.engine.rows.lcp_kernels import finish_load"),
            ("tidemark.database", "def f():\n    from tidemark.engine.rows import lcp_kernels"),
            ("tidemark.database", "if TYPE_CHECKING:\n    import tidemark.engine.rows.lcp_kernels as k"),
            # A helper is for kernels.
            ("tidemark.database", "from tidemark.engine.rows.lcp_kernels import checked_image_words"),
            ("tidemark.replication.channel.a", "from tidemark.recovery.backup import entries_kernels"),
            ("tidemark.recovery.backup.a_kernels", "from tidemark.engine.rows.lcp_kernels import finish_load"),
            ("tidemark.recovery.backup.a_kernels", "from tidemark.engine.rows import lcp_kernels"),
        )
    ),
    (
        rules.check_letters,
        "tidemark.engine.rows.rows_kernels",
        "from tidemark.engine.memory.arena_layout import PAGE_SHIFT",
    ),
    (rules.check_letters, "tidemark.engine.rows.rows_kernels", "from tidemark.engine.memory import arena_layout as B"),
    (rules.check_homes, "tidemark.engine.table.table", "import numba"),
    (rules.check_homes, "tidemark.engine.table.table", "from numba import njit"),
    (rules.check_homes, "tidemark.engine.table.table", "def f():\n    import lmdb"),
    (rules.check_homes, "tidemark.engine.table.table", "import fcntl"),
    (rules.check_homes, "tidemark.engine.table.table", "from time import monotonic"),
    (rules.check_homes, "tidemark.engine.table.table", "import random"),
    (rules.check_homes, "tidemark.engine.table.table", "import secrets"),
    (rules.check_homes, "tidemark.engine.table.table", "from uuid import uuid4"),
    (rules.check_homes, "tidemark.engine.table.table", "import datetime\nx = datetime.datetime.now()"),
    (rules.check_homes, "tidemark.engine.table.table", "from datetime import datetime as d\nx = d.now()"),
    (rules.check_homes, "tidemark.engine.table.table", "import numpy as np\nx = np.random.default_rng()"),
    (rules.check_homes, "tidemark.engine.table.table", "import numpy as np\nx = np.memmap('f')"),
    (rules.check_homes, "tidemark.engine.table.table", "from pathlib import Path"),
    (rules.check_homes, "tidemark.engine.table.table", "import pathlib\nx = pathlib.Path('f')"),
    (rules.check_homes, "tidemark.engine.table.table", "import tempfile"),
    (rules.check_homes, "tidemark.engine.table.table", "import mmap"),
    (rules.check_homes, "tidemark.engine.files.directory", "import socket"),
    (rules.check_homes, "tidemark.recovery.verification.check", "import pyspark.sql"),
    (rules.check_homes, "tidemark.engine.base.clock", "import pickle"),
    (rules.check_homes, "tidemark.engine.files.directory", "from marshal import loads"),
    (rules.check_homes, "tidemark.engine.files.directory", "from tests.project import rules"),
    (rules.check_os, "tidemark.engine.table.table", "import os\nos.unlink('f')"),
    (rules.check_os, "tidemark.engine.table.table", "import os as o\no.path.exists('f')"),
    (rules.check_os, "tidemark.engine.table.table", "from os import fsync"),
    (rules.check_os, "tidemark.engine.table.table", "from os.path import getsize"),
    (rules.check_os, "tidemark.engine.table.table", "import os\nx = os.environ['A']"),
    (rules.check_os, "tidemark.engine.rows.rows_kernels", "import os\nx = os.environ['A']"),
    (rules.check_os, "tidemark.engine.table.table", "import os\nx = os.urandom(8)"),
    (rules.check_builtins, "tidemark.engine.table.table", "open('f')"),
    (rules.check_builtins, "tidemark.engine.table.table", "f = open"),
    (rules.check_builtins, "tidemark.engine.table.table", "eval('1')"),
    (rules.check_builtins, "tidemark.engine.files.directory", "exec('1')"),
    (rules.check_builtins, "tidemark.engine.files.directory", "__import__('os')"),
    (rules.check_homes, "tidemark.engine.table.table", "from multiprocessing.connection import Client"),
    (rules.check_homes, "tidemark.replication.wire.wire", "import importlib\nx = importlib.import_module(name)"),
    (rules.check_homes, "tidemark.engine.table.table", "import pandas as pd\nx = pd.read_pickle('f')"),
    (
        rules.check_unpickling,
        "tidemark.replication.wire.wire",
        "from numba.core import caching\nx = caching.pickle.loads(data)",
    ),
    (rules.check_unpickling, "tidemark.engine.rows.rows_kernels", "x = a._pickle"),
    (
        rules.check_unpickling,
        "tidemark.engine.rows.columnar",
        "def f(lib):\n    return lib.read(data, allow_pickle=True)",
    ),
    (rules.check_anonymous_memory, "tidemark.engine.memory.arena", "import mmap\nmmap.mmap(fd, 4096)"),
    (rules.check_lazy_imports, "tidemark.engine.table.table", "import pyarrow as pa"),
    (rules.check_lazy_imports, "tidemark.engine.table.table", "class A:\n    from pyarrow import compute"),
    (rules.check_sizes, "tidemark.engine.table.table", "x = '" + "a" * 120 + "'"),
    (rules.advise_functions, "tidemark.engine.table.table", f"def f():\n    '''One line.'''\n{LONG_BODY}"),
    (rules.advise_modules, "tidemark.engine.table.table", "x = 1\n" * 501),
    (rules.advise_modules, "tidemark.engine.table.table", "x = 1"),
    (rules.advise_functions, "tidemark.engine.table.table", f"class A:\n  async def f(self):\n{LONG_BODY}"),
    (rules.check_unfinished, "tidemark.engine.table.table", "x = 1  # TO" + "DO: later"),
    (rules.check_unfinished, "tidemark.engine.table.table", "raise NotImpl" + "ementedError"),
    (rules.check_broad_except, "tidemark.engine.table.table", "try:\n    f()\nexcept:\n    pass"),
    (rules.check_broad_except, "tidemark.engine.table.table", "try:\n    f()\nexcept Exception:\n    pass"),
    (
        rules.check_broad_except,
        "tidemark.engine.table.table",
        "try:\n    f()\nexcept (OSError, BaseException) as e:\n    raise X from e",
    ),
    (rules.check_broad_except, "tidemark.engine.table.table", "with contextlib.suppress(Exception):\n    f()"),
    (
        rules.check_handles,
        "tidemark.engine.rows.rows_kernels",
        "@kernel('...')\ndef f(mem, fragment):\n    return mem[fragment]",
    ),
    (
        rules.check_handles,
        "tidemark.engine.rows.rows_kernels",
        "@kernel('...')\ndef f(mem, tables):\n    x = tables[0]\n    return mem[x]",
    ),
    (
        rules.check_handles,
        "tidemark.engine.rows.rows_kernels",
        "@kernel('...')\ndef f(mem, table):\n    x = mem[table]\n    table = descriptor_of(mem, table)\n    return x",
    ),
    (rules.check_checkpoint_names, "tidemark.engine.table.table", "def start_checkpoint(): ..."),
    (rules.check_checkpoint_names, "tidemark.engine.table.table", "class Checkpointer: ..."),
    (rules.check_checkpoint_names, "tidemark.engine.table.table", "CHECKPOINT_BIT = 1"),
    (rules.check_checkpoint_names, "tidemark.engine.table.table", "def f(checkpoint_id): ..."),
    (rules.check_checkpoint_names, "tidemark.engine.table.table", "self.last_checkpoint = 1"),
    (rules.check_checkpoint_names, "recovery.checkpoint_scan", ""),
    (rules.check_sleep, "tests.files.test_x", "import time\ntime.sleep(1)"),
    (rules.check_private, "tests.files.test_x", "db._store.log"),
    (rules.check_private, "tests.files.test_x", "from tidemark.engine.table.table import _made"),
    (rules.check_private, "tests.files.test_x", "monkeypatch.setattr(log, '_write', None)"),
]


@pytest.mark.parametrize(("rule", "module", "text"), PLANTED)
def test_rule_fires_on_planted_violation(rule: Rule, module: str, text: str) -> None:
    assert list(rule(Source(module, text)))


ALLOWED: list[tuple[str, str]] = [
    (
        "tidemark.recovery.backup.a_kernels",
        "from tidemark.engine.rows.lcp_kernels import checked_image_words, packed_place\n"
        "from tidemark.engine.sealed.checksums_kernels import P1\n"
        "from tidemark.recovery.backup.b_kernels import f",
    ),
    ("tidemark.recovery.backup.a", "from .a_kernels import f\nfrom tidemark.engine.rows import lcp_layout"),
    ("tidemark.engine.store.a", "from tidemark.engine.rows.lcp_kernels import finish_load"),
    (
        "tidemark.replication.wire.wire",
        "import socket\nfrom tidemark.recovery import check\nfrom tidemark.engine.base.errors import Error",
    ),
    ("tidemark.engine.rows.rows_kernels", "import numba"),
    ("tidemark.engine.jit.kernel", "import os\nx = os.path.join('a', os.environ.get('A', ''))"),
    ("tidemark.engine.files.directory", "import os, fcntl\nopen('f')\nos.pwrite(1, b'', 0)"),
    ("tidemark.engine.table.table", "import os\nx = os.path.join('a', 'b'), os.getpid()"),
    ("tidemark.engine.table.table", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow as pa"),
    ("tidemark.engine.table.table", "def f():\n    import pyarrow as pa\n    return pa"),
    ("tidemark.engine.memory.arena", "import mmap\nmmap.mmap(-1, 4096)"),
    ("tidemark.database", "def open(path): ...\nx = open('shop')"),
    ("tidemark.engine.table.table", "import re, datetime\nx = re.compile('a'), datetime.datetime(1970, 1, 1)"),
    ("tidemark.engine.table.table", "try:\n    f()\nexcept BaseException:\n    undo()\n    raise"),
    (
        "tidemark.database",
        "def checkpoint(checkpoint_memory): ...\nclass LocalCheckpoint: ...\nglobal_checkpoint_ms = 1",
    ),
    ("tidemark.engine.table.table", f"def f():\n    '''{'x' * 10}\n" + "\n" * 80 + "    '''\n    return 1"),
]


@pytest.mark.parametrize(("module", "text"), ALLOWED)
def test_rules_are_silent_on_what_is_allowed(module: str, text: str) -> None:
    assert [line for rule in rules.PACKAGE_RULES for line in rule(Source(module, text))] == []


def test_cycle_through_lazy_and_relative_imports_is_found() -> None:
    sources = [
        Source("tidemark.engine", "", is_package=True),
        Source("tidemark.engine.a", "def f():\n    from tidemark.engine import b"),
        Source("tidemark.engine.b", "from .c import x"),
        Source("tidemark.engine.c", "import tidemark.engine.a"),
    ]
    assert list(rules.check_cycles(sources)) == [
        "import cycle: " + " -> ".join(f"tidemark.engine.{name}" for name in "abca")
    ]


def test_cycle_through_an_import_for_types_is_found() -> None:
    sources = [
        Source(
            "tidemark.engine.a",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tidemark.engine.b import B",
        ),
        Source("tidemark.engine.b", "from tidemark.engine.a import A"),
    ]
    assert list(rules.check_cycles(sources)) == [
        "import cycle: tidemark.engine.a -> tidemark.engine.b -> tidemark.engine.a"
    ]


def test_unknown_citation_missing_room_and_dead_link_are_found(tmp_path: Path) -> None:
    assert list(rules.check_citations(Source("engine.a", "# D99 and F17"), frozenset({"F17"})))
    modules = ["tidemark.engine", "tidemark.engine.a", "tidemark.engine.b"]
    found = list(rules.check_map(modules, "see `engine/a.py`"))
    assert found == ["docs/architecture.md does not mention engine/b"]
    document = tmp_path / "a.md"
    document.write_text("[there](a.md#part) [web](https://example.org) [gone](b.md)")
    assert list(rules.check_links(document, tmp_path)) == ["a.md links to b.md, which is not there"]
    document.write_text("`nobody`\n\n```\nbehind\n```\nIt falls behind, and somebody\n")
    assert [line.split(";")[0] for line in rules.check_document_phrases(document, tmp_path)] == [
        "a.md:6 says 'somebody'"
    ]
