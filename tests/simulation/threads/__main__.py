"""`python -m tests.simulation.threads --seeds A:B`: lives of threads that take turns, one life for each seed."""

from __future__ import annotations

import sys

from tests.simulation.threads.lives import start

if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
