"""Conditions that must hold before any other module of Tidemark is imported.

Without asserts, or on a Python without the GIL, which the store uses as its latch (D13), errors would show up far from
their cause. Each condition is refused here by one line that says what to do.
"""

from __future__ import annotations

import sys
import sysconfig


def check_interpreter(optimize: int, is_free_threaded: bool) -> None:
    """Refuse `python -O` and free-threaded builds.

    Raises: ImportError.
    """
    if optimize:
        raise ImportError(
            "tidemark does not run under python -O or PYTHONOPTIMIZE, because its asserts guard data; start without it"
        )
    if is_free_threaded:
        raise ImportError(
            "tidemark does not run on a free-threaded build of Python, because the GIL is its latch; "
            "use the ordinary build"
        )


check_interpreter(sys.flags.optimize, bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
