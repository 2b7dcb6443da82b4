"""How kernels and helpers are declared and compiled. Compiled code is kept by `engine/jit/code_cache.py`.

Rules of every kernel (D2, D13): it takes flat contiguous arrays and int64 scalars, has one explicit signature, is
compiled at first call, never raises for data, never trusts a length. Kernels that touch shared rows, indexes or logs
hold the GIL; `nogil=True` is for private memory only.

The kernel door: with TIDEMARK_KERNEL_DOOR=1 in the environment when this module is imported, a harness that decides
which thread runs is called before and after each kernel call (`set_door`). Otherwise kernels are numba's dispatchers.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numba
from numba.core import codegen, compiler, compiler_machinery, sigutils, typed_passes

from tidemark.engine.jit.code_cache import CodeCache, NoCode
from tidemark.engine.jit.registry import COMPILERS, LOCK, REGISTRY, compile_set

F = TypeVar("F", bound=Callable[..., Any])


# Array types of all signatures, kept for good: if two threads created one during their first calls, one type could get
# two type codes, and numba would then find no compiled version for it. Keyed by text; there are few.
_TYPES: dict[str, Any] = {}
_ARRAY_TYPE = re.compile(r"Array\([^)]*\)|\w+\[[^\]]*\]")


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


def kernel(signature: str, *, nogil: bool = False) -> Callable[[F], F]:
    """Declare a kernel called from Python, with its one signature, compiled at its first call."""

    def declare(function: F) -> F:
        # Kernels allocate nothing. Without numba's run-time (NRT) calls of helpers do not count references: counting
        # is atomic, and keeps memory accesses from overlapping (ADR 0006).
        dispatcher = numba.njit(error_model="numpy", nogil=nogil, _nrt=False, no_cfunc_wrapper=True)(function)
        dispatcher._cache = CodeCache(function)
        name = f"{function.__module__}.{function.__name__}"
        REGISTRY[name] = (dispatcher, signature)
        with LOCK:
            for each in set(_ARRAY_TYPE.findall(signature)) - _TYPES.keys():
                _TYPES[each] = sigutils.normalize_signature(f"void({each})")
        if numba.config.DISABLE_JIT:
            return function

        def entry_point() -> Any:
            # Two restart threads may make the first call at once; numba's own lock does not cover `disable_compile`.
            with LOCK:
                if not dispatcher.signatures:
                    dispatcher.compile(signature)
                    dispatcher.disable_compile()
                return dispatcher.overloads[dispatcher.signatures[0]].entry_point

        def compile_once(*args: Any, **kws: Any) -> Any:
            try:
                return entry_point()
            except NoCode:
                compile_set(name, dispatcher)
            return entry_point()

        # numba calls this attribute if no compiled version fits; arguments of another type then raise a TypeError.
        dispatcher._compile_for_args = compile_once
        COMPILERS[name] = compile_once
        if HAS_DOOR:
            return _through_door(dispatcher, function.__name__)  # type: ignore[no-any-return]
        return dispatcher  # type: ignore[no-any-return]

    return declare


class _Helper:
    """A helper, which becomes a numba dispatcher when a compiler first uses it. Most processes only load compiled
    kernels, and there are three helpers to a kernel.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.py_func = function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)  # `_numba_type_` is what a compiler asks for

    @functools.cached_property
    def _dispatcher(self) -> Any:
        dispatcher = numba.njit(
            error_model="numpy",
            _nrt=False,
            no_cfunc_wrapper=True,
            no_cpython_wrapper=True,
            pipeline_class=_HelperCompiler,
        )(self.py_func)
        resolve = dispatcher.get_call_template

        def compile_quietly(args: tuple[Any, ...]) -> Any:
            # Always inside the compilation of a kernel, under its lock. numba's own method would record times at each
            # depth of nesting, and ask for an entry point.
            if args not in dispatcher.overloads:
                dispatcher.overloads[args] = dispatcher._compiler.compile(args, None)
            return dispatcher.overloads[args].entry_point

        def resolve_any_number(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
            # Each constant is a separate type to numba: `f(0)` and `f(1)` would each compile f, and everything it
            # calls.
            named = {name: numba.types.unliteral(each) for name, each in kws.items()}
            return resolve(tuple(numba.types.unliteral(each) for each in args), named)

        dispatcher.compile = compile_quietly
        dispatcher.get_call_template = resolve_any_number
        return dispatcher


def helper(function: F) -> F:
    """Declare a function that only kernels call; it is compiled into them, and kept only there."""
    return function if numba.config.DISABLE_JIT else _Helper(function)  # type: ignore[return-value]
