"""The command line: a thin layer over the API. An error is one line; exit codes are 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `tidemark` script."""
    try:
        from tidemark.cli.commands import commands
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("tidemark: the command line needs click; install tidemark[cli]")
    commands()
