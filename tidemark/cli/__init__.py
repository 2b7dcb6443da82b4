"""The command line: a thin layer over the API. An error is one line; exit codes are 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `tidemark` script."""
    from tidemark.cli.commands import commands

    commands()
