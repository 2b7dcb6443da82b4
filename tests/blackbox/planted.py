"""`python -m tests.blackbox.planted NAME`: plant a defect and run what must find it.

Exit code 0 and one line if it was found, 1 if not. The line is changed while the module is imported, also in the
processes of a history or a group; no file is touched.
"""

from __future__ import annotations

import os
import sys

from tests.blackbox.defects import DEFECTS, Defect
from tests.planting import plant_line

VARIABLE = "TIDEMARK_BLACKBOX_DEFECT"
# As a module that the server of forked processes loads first, it plants in all of them.
HERE = "tests.blackbox.planted"


def _planted(name: str) -> Defect:
    """Plant a defect in this process."""
    defect = next(each for each in DEFECTS if each.name == name)
    plant_line(defect.module, defect.old, defect.new)
    return defect


def main(arguments: list[str]) -> int:
    """See the module. More arguments are those of a command that is run again with other libraries."""
    name, *command = arguments
    is_again = VARIABLE in os.environ
    os.environ[VARIABLE] = name
    defect = _planted(name)
    from tidemark.recovery.crash_harness.forks import FORKS

    FORKS.set_forkserver_preload([HERE, "tidemark.recovery.crash_harness.preloaded"])
    from tests.blackbox.__main__ import FOUND
    from tests.blackbox.__main__ import main as run

    code = run(command or list(defect.command))
    if is_again:
        return code
    print(f"{name}: {'found' if code == FOUND else 'MISSED'}")
    return 0 if code == FOUND else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
elif VARIABLE in os.environ and HERE not in sys.argv[0].replace("/", "."):
    _planted(os.environ[VARIABLE])
