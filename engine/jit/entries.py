"""Entry points of kernels, for frequent callers."""

from __future__ import annotations

from typing import Any


def entry_of(declared: Any) -> Any:
    """Return the compiled function of a kernel. It does not look up the types of its arguments, and takes any array for
    one of its signature. With the kernel door, and in plain Python, it is the kernel itself.
    """
    compile_once = getattr(declared, "_compile_for_args", None)
    return declared if compile_once is None else compile_once()
