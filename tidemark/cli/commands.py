"""The `tidemark` script: which module has which command, and how an error ends it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

import tidemark
from tidemark.cli.output import example

# Each command, the module of this package that has it, and its line in the list. A module is imported when its command
# is called or completed, so that help and usage errors appear at once.
COMMANDS = {
    "arbitrator": ("node_commands", "Run the arbitrator, which decides if a node group is split."),
    "archive": ("backup_commands", "Copy the log of closed epochs to a place of backups."),
    "backup": ("backup_commands", "Back a store up; list, verify, prune and try backups."),
    "check": ("store_commands", "Verify files and rows, or replication."),
    "checkpoint": ("store_commands", "Make a local checkpoint."),
    "completion": ("other_commands", "Print a script that completes commands in a shell."),
    "demo": ("other_commands", "Load, change, kill, restart and check TPC-H rows."),
    "diff": ("verify_commands", "Compare two copies, and repair one of them."),
    "doctor": ("doctor_command", "Look for trouble: the machine, the disk, a store."),
    "dump": ("row_commands", "Write a table into a CSV, Parquet or Arrow file."),
    "info": ("store_commands", "Print the options a store was made with, and its files."),
    "init": ("store_commands", "Make a store."),
    "kill": ("store_commands", "Roll back an open transaction, or end the link of a client."),
    "load": ("row_commands", "Load rows from CSV, Parquet or Arrow files."),
    "log": ("log_commands", "Print a log, or the local checkpoints."),
    "node": ("node_commands", "Run a node of a group of synchronous replicas."),
    "partitions": ("store_commands", "List the partitions of a table and their rows."),
    "replicate": ("channel_commands", "Follow a store that is served, or a MySQL or MariaDB server."),
    "report": ("report_command", "Show how full pages are; with -o, a page about the store."),
    "restore": ("backup_commands", "Restore a store from a backup, to its end, an epoch or a time."),
    "scan": ("row_commands", "Print the rows of a table."),
    "schema": ("schema_command", "Show columns, keys and indexes of the tables."),
    "secret": ("channel_commands", "Make a secret for the links of stores."),
    "serve": ("channel_commands", "Serve a store's binlog to replicas."),
    "sql": ("sql_command", "Run a query of DuckDB over the tables."),
    "status": ("store_commands", "Print every counter."),
    "tables": ("store_commands", "List the tables and their rows."),
    "top": ("top_command", "Watch an open store: commits, log, page cache, lag."),
    "warmup": ("other_commands", "Compile all kernels now, on all cores."),
}


class _WrongUsage(click.ClickException):
    """A mistake in the command line, on one line; click's own takes four."""

    exit_code = 2


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn a usage error or an error of the system into one line that says what to do."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        path = "tidemark" if error.ctx is None else error.ctx.command_path
        text = " ".join(error.format_message().split()).rstrip(".")
        raise _WrongUsage(f"{text}; see {path} --help") from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has closed the pipe: click ends the command silently
            raise
        where = f" {error.filename}" if error.filename else " standard output"
        raise click.ClickException(f"{error.strerror}:{where}; {_advice(error.errno)}") from error


def _advice(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space there and run the command again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run the command as a user with the right, or give another path"
    return "check the path and run the command again"


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, says = COMMANDS[cmd_name]
        found = getattr(import_module(f"tidemark.cli.{module}"), cmd_name)
        assert isinstance(found, click.Command)
        found.short_help = says
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in COMMANDS.items()])

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        with _in_one_line():
            return super().make_context(*args, **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_one_line():
            return super().invoke(ctx)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("tidemark init shop", "tidemark load shop test.item items.csv --create --key id"),
)
@click.version_option(tidemark.__version__)
def commands() -> None:
    """Tidemark: an embedded, transactional row store."""
