"""A module loaded with its source changed; no file is touched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


class _Planter(SourceFileLoader):
    """Loads the module changed."""

    change: Callable[[str], str]

    def path_stats(self, path: str) -> dict[str, int]:
        raise OSError("neither use nor leave compiled code")

    def get_data(self, path: str) -> bytes:
        return self.change(super().get_data(path).decode()).encode()


class _Finder(MetaPathFinder):
    def __init__(self, module: str, change: Callable[[str], str]) -> None:
        self._module = module
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == self._module else None
        if found is None or found.origin is None:
            return None
        loader = _Planter(fullname, found.origin)
        loader.change = self._change
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def plant(module: str, change: Callable[[str], str]) -> None:
    """From now on `module` is loaded with `change(source)` for its source. Raises RuntimeError if it is loaded."""
    if module in sys.modules:
        raise RuntimeError(f"{module} is loaded already; what is planted would have no effect")
    sys.meta_path.insert(0, _Finder(module, change))


def plant_line(module: str, old: str, new: str) -> None:
    """From now on `module` is loaded with `new` in place of `old`. Its import raises ValueError unless `old` is there
    once.
    """

    def change(source: str) -> str:
        if source.count(old) != 1:
            raise ValueError(f"{module} has {old!r} {source.count(old)} times")
        return source.replace(old, new)

    plant(module, change)


@contextmanager
def without_the_face() -> Iterator[None]:
    """Within the block, a low-level module can be imported without the package's `__init__`, which loads most of the
    program.
    """
    assert "tidemark" not in sys.modules, "the program is loaded already"
    package = ModuleType("tidemark")
    package.__path__ = [str(ROOT / "tidemark")]
    sys.modules["tidemark"] = package
    try:
        yield
    finally:
        del sys.modules["tidemark"]
