"""The cache of compiled kernels.

The cache has a folder for each module of kernels, named by a digest of its source, of every kernel and layout source it
imports, and of the versions of the compiler: numba alone detects a change of the kernel's own file but not of a helper
in another file, and would keep running stale code. A file is named by kernel, Python version and processor. No path of
an installation is in a name, so two installations with the same sources share the code. Its files are unpickled, so
only files this user wrote are read (`engine/jit/kept_code.py`).

No digest covers this module: nothing here changes the code that is compiled.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
from numba.core import caching

from tidemark.engine.jit.compiling import Compiling
from tidemark.engine.jit.kept_code import CACHE_FOLDER, SUFFIX, KeptCode
from tidemark.engine.jit.shipped_code import SHIPPED

_log = logging.getLogger("tidemark.kernels")

# Packages that contain modules of kernels, and the suffixes of all modules that compiled code is built from.
FLOORS = ("tidemark.engine.", "tidemark.recovery.", "tidemark.replication.")
KERNELS = "_kernels"
LAYOUT = "_layout"
LIMITS = ".limits"
# Decides how kernels and helpers are compiled.
DECLARATIONS = "tidemark.engine.jit.kernel"

_IMPORTS = re.compile(r"^from ([\w.]+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


@functools.cache
def _source(module: str) -> bytes | None:
    """Return the source of a module of kernels or of a layout, imported or not yet; None if there is none."""
    if not module.startswith(FLOORS):  # a kernel of a test or a benchmark
        spec = sys.modules[module].__spec__
    elif module.rpartition(".")[0].endswith((KERNELS, LAYOUT)):  # a name inside such a module
        return None
    else:
        spec = importlib.util.find_spec(module)
    return spec.loader.get_data(spec.origin) if spec is not None else None  # type: ignore[union-attr]


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """Return the modules of kernels and layouts that a module names in its imports, and DECLARATIONS."""
    found = set()
    for origin, names in _IMPORTS.findall((_source(module) or b"").decode()):
        found.add(origin)
        found.update(f"{origin}.{name}" for name in re.findall(r"\w+", names))
    named = {each for each in found if each.endswith((KERNELS, LAYOUT, LIMITS)) and each.startswith(FLOORS)}
    return frozenset(each for each in (*named, DECLARATIONS) if _source(each) is not None)


@functools.cache
def source_digest(module: str) -> str:
    """Return a hex digest of all sources from which the code of a module of kernels is built, and of the compiler."""
    reached, ahead = {module}, [module]
    while ahead:
        new = _imported(ahead.pop()) - reached
        reached |= new
        ahead += new
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for each in sorted(reached):
        digest.update(each.encode())
        digest.update(_source(each) or b"")
    return digest.hexdigest()[:16]


_kept = KeptCode(CACHE_FOLDER)
COMPILING = Compiling(CACHE_FOLDER)
_unkept_announced = False


class _KeptKernel:
    """The files of one kernel, one for each processor and signature it was compiled for. They replace numba's files:
    numba unpickles its index before anything can check it.
    """

    def __init__(self, folder: str, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._takes_shipped = True

    def _leaf(self, key: Any) -> str:
        return f"{self._stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"

    def exists(self, key: Any) -> bool:
        """Whether there is a file; its content may still be unusable."""
        is_shipped = self._takes_shipped and SHIPPED.exists(self._folder, self._stem)
        return is_shipped or _kept.exists(self._folder, self._leaf(key))

    def leave_shipped(self) -> bool:
        """Use no code of the installation from now on, because it cannot be loaded; return whether there was any."""
        had, self._takes_shipped = self._takes_shipped and SHIPPED.exists(self._folder, self._stem), False
        return had

    def load(self, key: Any) -> Any:
        """Return the object numba stored, or None. Raises: ValueError, OSError."""
        code: bytes | memoryview | None = SHIPPED.read(self._folder, self._stem) if self._takes_shipped else None
        if code is None:
            code = _kept.read(self._folder, self._leaf(key))
        return None if code is None else caching.pickle.loads(code)

    def save(self, key: Any, data: Any) -> None:
        """Keep an object of numba. Raises: OSError."""
        _kept.write(self._folder, self._leaf(key), caching.dumps(data))


class _CodeLocator(caching._CacheLocator):  # type: ignore[misc]
    """Where the code of one kernel is kept: by its module's digest, not by the path of the installation."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._digest = source_digest(function.__module__)
        self.folder = f"{function.__module__.rpartition('.')[2]}-{self._digest}"

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder is created with the first file."""

    def get_cache_path(self) -> str:
        """Return the folder of its module."""
        return os.path.join(CACHE_FOLDER, self.folder)

    def get_source_stamp(self) -> str:
        """Return the digest of its module."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return an empty text: names of kernels are unique in a module."""
        return ""

    @classmethod
    def from_function(cls, function: Callable[..., Any], _: str) -> _CodeLocator:
        """Create a locator; numba calls this instead of the constructor."""
        return cls(function)


class _CodeImplementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """numba's own implementation, with `_CodeLocator`, and without the intermediate code."""

    _locator_classes = [_CodeLocator]

    def reduce(self, compiled: Any) -> Any:
        """Return the parts to keep. numba would add code from which other functions inline this one: two thirds of the
        file, parsed at each start. No kernel is called by another, so only the names that are looked up are needed.
        """
        (name, kind, (machine_code, _)), *others = super().reduce(compiled)
        functions = (compiled.fndesc.llvm_func_name, compiled.fndesc.llvm_cpython_wrapper_name)
        names = "".join(f'define void @"{each}"() {{ ret void }}\n' for each in functions)
        return (name, kind, (machine_code, llvmlite.binding.parse_assembly(names).as_bitcode())), *others


class NoCode(Exception):
    """A kernel has no usable code, and no wait was announced in which it could be compiled."""


class CodeCache(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of one kernel; unusable code is compiled again (F70)."""

    _impl_class = _CodeImplementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _KeptKernel(self._impl.locator.folder, self._impl.filename_base)
        self._is_unusable = False

    def flush(self) -> None:
        """Do nothing: code that is compiled again replaces the old file."""

    def is_kept(self, sig: Any, target_context: Any) -> bool:
        """Whether the compiled version is in the cache; it may be unusable."""
        return self._cache_file.exists(self._index_key(sig, target_context.codegen()))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled version, or None to compile it. Raises: NoCode if that was not announced."""
        found = None
        try:
            # Not numba's own method: it first prepares the context to compile, which takes longer than all else here.
            found = None if self._is_unusable else self._load_overload(sig, target_context)
        except OSError as error:
            _announce_unkept(error)
        except Exception as error:  # code of another version of a library may make its reader raise anything
            if self._cache_file.leave_shipped():
                _log.warning("compiled code of %s, of the installation, cannot be used (%s)", self._name, error)
                return self.load_overload(sig, target_context)  # an earlier process may have compiled it
            self._is_unusable = True
            _log.warning("compiled code of %s cannot be used (%s); compiling it again", self._name, error)
        if found is None and not COMPILING.is_waiting:
            raise NoCode(self._name)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled version. If that fails, the next process compiles it again."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _announce_unkept(error)


def _announce_unkept(error: OSError) -> None:
    global _unkept_announced
    if not _unkept_announced:
        _unkept_announced = True
        _log.warning("compiled code cannot be kept in %s (%s); each start compiles again", CACHE_FOLDER, error)
