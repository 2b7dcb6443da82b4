"""Lines that install Tidemark name its checkout or its wheel, in documents, messages and docstrings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.base.extras import advice

ROOT = Path(__file__).parents[2]
# Words of a command line that installs, then the bare name. A path to a folder of that name is none.
BY_NAME = re.compile(r"\binstall(?:\s+-\S+)*\s+(?:[\w.<>=-]+\s+)*?[\"']?tidemark(?![\w/.-])")
FOLDERS = ("bench", "docs", "engine", "recovery", "replication", "tests", "tidemark", "tools")


def texts() -> dict[str, str]:
    """Every text file of the tree but this one, by its path."""
    paths = [path for path in ROOT.iterdir() if path.is_file() and not path.is_symlink()]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py", ".sh", ".toml", ".yml")]
    kept = (".md", ".py", ".toml", ".yml", "")
    found = {path for path in paths if path.suffix in (*kept, ".sh") and path != Path(__file__).resolve()}
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace") for path in sorted(found)}


def test_nothing_installs_the_project_of_that_name_on_the_index() -> None:
    """Story: the package of this name on the public index is another project, with a package and a command of the same
    names. The guide, two pages and three messages advised to install it.
    """
    known = texts()
    assert {"README.md", "docs/guide.md", "Makefile", "tidemark/monitoring/metrics.py"} <= known.keys()
    assert [(path, found[0]) for path, text in known.items() for found in BY_NAME.finditer(text)] == []


def test_such_lines_are_found() -> None:
    lines = [
        "pip install tidemark",
        'pip install "tidemark[spark]"',
        "pip install -U 'tidemark'",
        "install tidemark[x]",
    ]
    assert all(BY_NAME.search(line) for line in [*lines, "pip install numpy tidemark", "pip\ninstall\ntidemark"])
    right = ["pip install .", "pip install '.[spark]'", "pip install ./tidemark", "pip install dist/*.whl", advice("x")]
    assert not any(BY_NAME.search(line) for line in [*right, "an installed tidemark", "pip install tidemark/"])


def test_extras_that_are_advised_exist() -> None:
    projects = re.search(
        r"^\[project.optional-dependencies\]\n(.*?)^\[", (ROOT / "pyproject.toml").read_text(), re.S | re.M
    )
    assert projects is not None
    extras = set(re.findall(r"^(\w+) = \[", projects[1], re.MULTILINE))
    advised = {
        extra
        for path, text in texts().items()
        if not path.startswith("tests/")
        for names in re.findall(r"(?:\.|\.whl\)?)\[([\w,]+)\]['\"]", text)
        for extra in names.split(",")
    }
    assert advised >= {"spark", "metrics", "mysql"} and advised <= extras


@pytest.mark.parametrize(
    ("library", "extra", "call"),
    [("pandas", "pandas", "to_pandas"), ("polars", "polars", "to_polars"), ("polars", "polars", "scan_polars")],
)
def test_frames_without_their_library_say_what_installs_it(
    library: str, extra: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with open_memory() as db:
        item = db.create_table("item", [tm.Column("id", tm.Int64)], "id")
        item.insert((1,))
        with pytest.raises(tm.Unsupported, match=re.escape(advice(extra))):
            getattr(item, call)()
