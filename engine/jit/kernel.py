"""The only home of numba: the `kernel` decorator and where compiled code is kept.

Rules of every kernel (D2, D13): it takes flat contiguous arrays and int64 scalars, has one explicit signature, is
compiled at first call, never raises for data, never trusts a length. Kernels that touch shared rows, indexes or logs
hold the GIL; `nogil=True` is for private memory only.

The cache of compiled code has a folder for each module of kernels, named by a digest of its source and of every kernel
and layout source it imports: numba alone detects a change of the kernel's own file but not of a helper in another file,
and would keep running stale code. Two installations with the same sources share it. Its files are unpickled, so only
files this user wrote are read (`engine/jit/kept_code.py`).

The kernel door: with TIDEMARK_KERNEL_DOOR=1 in the environment when this module is imported, a harness that decides
which thread runs is called before and after each kernel call (`set_door`). Otherwise kernels are numba's dispatchers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.resources
import logging
import os
import pkgutil
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numba
from numba.core import caching, codegen, compiler, compiler_machinery, sigutils, typed_passes

from tidemark.engine.jit.kept_code import SUFFIX, KeptCode

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("tidemark.kernels")


# Packages that contain modules of kernels, and the suffixes of all modules that compiled code is built from.
FLOORS = ("tidemark.engine.", "tidemark.recovery.", "tidemark.replication.")
KERNELS = "_kernels"
LAYOUT = "_layout"
LIMITS = ".limits"

_IMPORTS = re.compile(r"^from ([\w.]+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def is_kernels(module: str) -> bool:
    """Whether a module of this name has kernels."""
    return module.endswith(KERNELS) and module.startswith(FLOORS)


@functools.cache
def _source(module: str) -> bytes | None:
    """Return the source of a module of kernels or of a layout, imported or not yet; None if there is none."""
    if not module.startswith(FLOORS):  # a kernel of a test or a benchmark
        spec = sys.modules[module].__spec__
        return spec.loader.get_data(spec.origin) if spec is not None else None  # type: ignore[union-attr]
    package, _, name = module.rpartition(".")
    if package.endswith((KERNELS, LAYOUT)):  # a name inside such a module
        return None
    entry = importlib.resources.files(package) / f"{name}.py"
    return entry.read_bytes() if entry.is_file() else None


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """Return the modules of kernels and layouts that a module names in its imports, and this one."""
    found = {__name__}
    for origin, names in _IMPORTS.findall((_source(module) or b"").decode()):
        found.add(origin)
        found.update(f"{origin}.{name}" for name in re.findall(r"\w+", names))
    named = {each for each in found if each.endswith((KERNELS, LAYOUT, LIMITS)) and each.startswith(FLOORS)}
    return frozenset(each for each in (*named, __name__) if _source(each) is not None)


@functools.cache
def source_digest(module: str) -> str:
    """Return a hex digest of all sources from which the code of a module of kernels is built."""
    reached, ahead = {module}, [module]
    while ahead:
        new = _imported(ahead.pop()) - reached
        reached |= new
        ahead += new
    digest = hashlib.sha256(numba.__version__.encode())
    for each in sorted(reached):
        digest.update(each.encode())
        digest.update(_source(each) or b"")
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    base = os.environ.get("TIDEMARK_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidemark"
    )
    return os.path.join(base, "kernels")


CACHE_FOLDER = _cache_folder()
_kept = KeptCode(CACHE_FOLDER)
REGISTRY: dict[str, Any] = {}
_COMPILERS: list[Callable[[], Any]] = []
_announced = False
_unkept_announced = False
# Re-entrant: compiling a kernel may import a module, which declares others.
_compiling = threading.RLock()
# Types of all signatures, kept for good: if two threads created one during their first calls, one type could get two
# type codes, and numba would then find no compiled version for it.
_TYPES: list[Any] = []


class Door(Protocol):
    """Calls of a harness around kernel calls; each may let another thread run."""

    def before(self, kernel: str) -> None:
        """Run before a kernel of this name is called."""
        ...

    def after(self, kernel: str) -> None:
        """Run after it has returned."""
        ...


HAS_DOOR = os.environ.get("TIDEMARK_KERNEL_DOOR") == "1"
_door: Door | None = None


def set_door(door: Door | None) -> None:
    """Set the door that is called around each kernel call; None: no door. Only with HAS_DOOR."""
    global _door
    _door = door


def _through_door(dispatcher: F, name: str) -> F:
    """Return the kernel, called through the door."""

    def call(*args: Any) -> Any:
        door = _door
        if door is None:
            return dispatcher(*args)
        door.before(name)
        found = dispatcher(*args)
        door.after(name)
        return found

    return call  # type: ignore[return-value]


class _HelperLibrary(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code of a helper, to be linked into kernels: never called alone, so never optimised or translated alone.

    numba would optimise and translate each helper with everything it calls; a kernel that links it is optimised as a
    whole anyway.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """numba's lowering into a `_HelperLibrary`, without an entry point."""

    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower the helper, and register its code for callers."""
        state.library = _HelperLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library.finalize()
        # Callers look the code up by its entry point; there is none, so the library takes its place.
        state.cr = state.cr._replace(cfunc=state.library)
        state.targetctx.insert_user_function(state.library, state.cr.fndesc, [state.library])
        return True


class _HelperCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """numba's own pipeline with `_HelperLowering`."""

    def define_pipelines(self) -> list[Any]:
        """Return one pipeline, nopython."""
        pipeline = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (_HelperLowering, text) if each is typed_passes.NativeLowering else (each, text)
            for each, text in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class _KeptKernel:
    """The files of one kernel, one for each processor and signature it was compiled for. They replace numba's files:
    numba unpickles its index before anything can check it.
    """

    def __init__(self, folder: str, stem: str) -> None:
        self._folder = folder
        self._stem = stem

    def _leaf(self, key: Any) -> str:
        return f"{self._stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"

    def load(self, key: Any) -> Any:
        """Return the object numba stored, or None. Raises: ValueError, OSError."""
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
    """numba's own implementation, with `_CodeLocator`."""

    _locator_classes = [_CodeLocator]


class _CodeCache(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of one kernel; unusable code is compiled again (F70)."""

    _impl_class = _CodeImplementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _KeptKernel(self._impl.locator.folder, self._impl.filename_base)

    def flush(self) -> None:
        """Do nothing: code that is compiled again replaces the old file."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled version, or None to compile it."""
        try:
            found = super().load_overload(sig, target_context)
        except OSError as error:
            _announce_unkept(error)
            return None
        except Exception as error:  # code of another version of a library may make its reader raise anything
            _log.warning("compiled code of %s cannot be used (%s); compiling it again", self._name, error)
            return None
        if found is None:
            _announce()
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


def _announce() -> None:
    # The first run of a version compiles for some seconds; say so once, so that it does not seem to hang.
    global _announced
    if not _announced:
        _announced = True
        _log.warning("compiling kernels for the first run; kept in %s", CACHE_FOLDER)


def import_all() -> None:
    """Import every module of kernels, so that all kernels are declared."""
    for floor in FLOORS:
        for module in pkgutil.walk_packages(importlib.import_module(floor.rstrip(".")).__path__, floor):
            if is_kernels(module.name):
                importlib.import_module(module.name)


def declared() -> tuple[Callable[[], Any], ...]:
    """Return a function for each kernel declared so far that gets its code, compiled or from the cache."""
    return tuple(_COMPILERS)


def compile_declared() -> None:
    """Get the code of all declared kernels, for a process that must not stall for seconds at a later first call."""
    for compile_once in declared():
        compile_once()


def kernel(signature: str, *, nogil: bool = False) -> Callable[[F], F]:
    """Declare a kernel called from Python, with its one signature, compiled at its first call."""

    def declare(function: F) -> F:
        # Kernels allocate nothing. Without numba's run-time (NRT) calls of helpers do not count references: counting
        # is atomic, and keeps memory accesses from overlapping (ADR 0006).
        dispatcher = numba.njit(error_model="numpy", nogil=nogil, _nrt=False, no_cfunc_wrapper=True)(function)
        dispatcher._cache = _CodeCache(function)
        REGISTRY[f"{function.__module__}.{function.__name__}"] = (dispatcher, signature)
        with _compiling:
            _TYPES.append(sigutils.normalize_signature(signature))
        if numba.config.DISABLE_JIT:
            return function

        def compile_once(*args: Any, **kws: Any) -> Any:
            # Two restart threads may make the first call at once; numba's own lock does not cover `disable_compile`.
            with _compiling:
                if not dispatcher.signatures:
                    dispatcher.compile(signature)
                    dispatcher.disable_compile()
                return dispatcher.overloads[dispatcher.signatures[0]].entry_point

        # numba calls this attribute if no compiled version fits; arguments of another type then raise a TypeError.
        dispatcher._compile_for_args = compile_once
        _COMPILERS.append(compile_once)
        if HAS_DOOR:
            return _through_door(dispatcher, function.__name__)  # type: ignore[no-any-return]
        return dispatcher  # type: ignore[no-any-return]

    return declare


def helper(function: F) -> F:
    """Declare a function that only kernels call; it is compiled into them, and kept only there."""
    if numba.config.DISABLE_JIT:
        return function
    dispatcher = numba.njit(
        error_model="numpy",
        _nrt=False,
        no_cfunc_wrapper=True,
        no_cpython_wrapper=True,
        pipeline_class=_HelperCompiler,
    )(function)
    resolve = dispatcher.get_call_template

    def compile_quietly(args: tuple[Any, ...]) -> Any:
        # Always inside the compilation of a kernel, under its lock. numba's own method would record times at each depth
        # of nesting, and ask for an entry point.
        if args not in dispatcher.overloads:
            dispatcher.overloads[args] = dispatcher._compiler.compile(args, None)
        return dispatcher.overloads[args].entry_point

    def resolve_any_number(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        # Each constant is a separate type to numba: `f(0)` and `f(1)` would each compile f, and everything it calls.
        named = {name: numba.types.unliteral(each) for name, each in kws.items()}
        return resolve(tuple(numba.types.unliteral(each) for each in args), named)

    dispatcher.compile = compile_quietly
    dispatcher.get_call_template = resolve_any_number
    return dispatcher  # type: ignore[no-any-return]
