"""What `tidemark` says before it does anything: help with examples, completion, and how soon they come."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.cli.support import ROOT, run
from tidemark.cli.commands import COMMANDS, commands

PAGE = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
# Programs for every command, and for mistakes in options, in one process that says what it has imported.
STARTS = """
import sys
from click.testing import CliRunner
from tidemark.cli.commands import COMMANDS, commands
for line in [["--help"], *([name, "--help"] for name in COMMANDS), ["load", "none"], ["none"], ["completion", "bash"]]:
    assert CliRunner().invoke(commands, line).exit_code == (2 if "none" in line else 0), line
print(*sys.modules)
"""


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every command and command of a group, by its name on the command line."""
    context = click.Context(commands)
    for name in commands.list_commands(context):
        found = commands.get_command(context, name)
        assert found is not None
        yield name, found
        if isinstance(found, click.Group):
            yield from ((f"{name} {each}", inner) for each, inner in found.commands.items())


LEAVES = dict(leaves())


@pytest.mark.parametrize("name", LEAVES)
def test_help_of_a_command_has_an_example_that_it_would_take(name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    title, *lines = [line.strip() for line in result.stdout[result.stdout.index("Example") :].splitlines()]
    assert title in ("Example:", "Examples:") and lines
    for line in lines:
        program, *words = shlex.split(re.split(" [>&|]", line)[0])
        assert program == "tidemark"
        command: click.Command = commands
        context = click.Context(commands, info_name="tidemark")
        while isinstance(command, click.Group):
            word, inner, words = command.resolve_command(context, words)
            assert inner is not None, word
            command = inner
        command.make_parser(context).parse_args(list(words))
        assert command.name in (name.split()[-1], "make") or isinstance(LEAVES[name], click.Group), line


def test_table_of_its_page_has_every_command() -> None:
    _, _, table = PAGE.partition("\n| command | does |")
    named = {each for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for each in re.findall(r"`(\w+)", line)}
    assert named >= set(COMMANDS)


def test_help_mistakes_and_completion_come_without_the_store() -> None:
    """Story: every start imported the whole store, 0.3 s and more, before it said that a path does not exist."""
    done = subprocess.run([sys.executable, "-c", STARTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"numba", "pyarrow", "lmdb", "tidemark.database"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_for_a_shell_completes_through_the_program(shell: str) -> None:
    script = run("completion", shell)
    assert script.exit_code == 0 and f"_TIDEMARK_COMPLETE={shell}_complete" in script.stdout
    words = {"COMP_WORDS": "tidemark lo", "COMP_CWORD": "lo" if shell == "fish" else "1"}
    asked = CliRunner().invoke(commands, env={"_TIDEMARK_COMPLETE": f"{shell}_complete", **words}, prog_name="tidemark")
    assert asked.exit_code == 0
    assert {"load", "log"} <= set(re.split(r"[,\s]", asked.stdout)) and "scan" not in asked.stdout


def test_unknown_command_and_option_are_one_line_that_names_the_help() -> None:
    for line in (["lod"], ["load", "--bulkk"], ["backup", "list"]):
        result = run(*line)
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
        assert result.stderr.rstrip().endswith("--help")
