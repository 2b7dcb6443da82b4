"""What must hold before any other module of Tidemark is imported.

Three things go wrong on a user's machine in ways that would show up far from their cause: asserts switched off, a
Python without the GIL that the store uses as its latch (D13), and a module of the user's own that hides one of our
floors, whose names are short. Each is refused here by one line that says what to do.

Imports the standard library only: nothing else is known to be ours yet.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.util import find_spec
from pathlib import PurePath

FLOORS = ("engine", "recovery", "replication")


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


def check_floor(name: str, root: PurePath) -> None:
    """Refuse a module `name` that is not the package beside ours in the folder `root`; nothing is imported.

    Raises: ImportError.
    """
    try:
        spec = find_spec(name)
        found = spec.origin if spec else None
    except ValueError:
        # A module already imported that carries no spec: made by hand, certainly not ours.
        found = getattr(sys.modules[name], "__file__", None) or "a module made at run time"
    expected = root / name / "__init__.py"
    if found is None:
        raise ImportError(f"tidemark's package {name!r} is missing from {root}; install tidemark again")
    if PurePath(found) != expected:
        raise ImportError(
            f"tidemark's package {name!r} is hidden by {found}; rename that module or take its folder off sys.path"
        )


def check() -> None:
    """Run every check.

    Raises: ImportError.
    """
    check_interpreter(sys.flags.optimize, bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
    root = PurePath(__file__).parent.parent
    for name in FLOORS:
        check_floor(name, root)


check()
