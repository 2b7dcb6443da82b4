"""The commands of a node group: `tidemark node` as processes that are killed, stopped, and given a disk that hangs."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.blackbox.histories import CLOCK, make_tables
from tests.ports import free_ports
from tidemark.cli import main
from tidemark.recovery.crash_harness.forks import FORKS

SECRET = b"thirty-two bytes of a secret key"
WHOLE_SECONDS = 150
SLOW_FILE = "TIDEMARK_TEST_SLOW_FILE"
# Delays every sync by the milliseconds that stand in a file, for as long as they stand there.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static volatile long *ms;
static void nap(void) {
    const char *name = getenv("TIDEMARK_TEST_SLOW_FILE");
    if (!name) return;
    if (!ms) {
        int fd = open(name, O_RDONLY);
        if (fd < 0) return;
        ms = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
    }
    for (long left = *ms; left > 0 && *ms > 0; left -= 20) { struct timespec t = {0, 20000000}; nanosleep(&t, 0); }
}
#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
int fdatasync(int fd) { REAL(fdatasync); nap(); return real(fd); }
int fsync(int fd) { REAL(fsync); nap(); return real(fd); }
#define WRITE(name, off) ssize_t name(int fd, const struct iovec *v, int c, off o, int f) \
    { REAL(name); if (f) nap(); return real(fd, v, c, o, f); }
WRITE(pwritev2, off_t)
WRITE(pwritev64v2, off64_t)
"""


def preloaded(folder: Path) -> str | None:
    """Compile the library that lets disks hang; return its path, None without a compiler."""
    source, made = folder / "slow.c", folder / "slow.so"
    source.write_text(SHIM)
    command = ["gcc", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    if shutil.which("gcc") is None or subprocess.run(command, capture_output=True).returncode:
        return None
    return str(made)


def _run(arguments: list[str], log: str, slow: str) -> None:
    os.environ[SLOW_FILE] = slow
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["tidemark", *arguments]
    main()


class Group:
    """The commands of a node group."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.secret = folder / "secret"
        self.secret.write_bytes(SECRET)
        os.chmod(self.secret, 0o600)
        ports = free_ports(2 * nodes)
        self.numbers = list(range(1, nodes + 1))
        self.text = ",".join(f"{number}=127.0.0.1:{ports[number - 1]}" for number in self.numbers)
        self.calls = {number: ("127.0.0.1", ports[nodes + number - 1]) for number in self.numbers}
        self.commands: dict[int, Any] = {}

    def start(self, number: int, *more: str) -> None:
        host, port = self.calls[number]
        arguments = (
            *("node", self.folder / f"n{number}", "--node", number, "--group", self.text),
            *("--secret-file", self.secret, "--calls", f"{host}:{port}"),
            *("--data-memory", "64 MiB", "-o", "redo_log=32 MiB", "-o", "transaction_memory=64 KiB", *more),
        )
        log, slow = self.folder / f"log{number}", self.slow_file(number)
        self.hang(number, 0)
        given = [str(each) for each in arguments], str(log), str(slow)
        self.commands[number] = FORKS.Process(target=_run, args=given, daemon=True)
        self.commands[number].start()

    def slow_file(self, number: int) -> Path:
        return self.folder / f"slow{number}"

    def hang(self, number: int, delay_ms: int) -> None:
        """Let each sync of a node take so long from now on."""
        with open(self.slow_file(number), "r+b" if self.slow_file(number).exists() else "w+b") as file:
            file.write(struct.pack("<q", delay_ms))

    def signal(self, number: int, what: signal.Signals) -> None:
        pid = self.commands[number].pid
        assert pid is not None
        os.kill(pid, what)

    def lose(self, number: int) -> None:
        """Kill a node and remove its directory."""
        self.kill(number)
        shutil.rmtree(self.folder / f"n{number}")

    def found(self) -> None:
        """Start the group for the first time."""
        self.start(1, "--found")
        self.wait([1])
        for number in self.numbers[1:]:
            self.start(number)
        self.wait(self.numbers)

    def kill(self, number: int) -> None:
        process = self.commands.pop(number)
        process.kill()
        process.join()

    def close(self) -> None:
        for number in list(self.commands):
            self.kill(number)

    def where(self, number: int) -> dict[str, Any] | None:
        """Return the view of one node, None if it does not answer."""
        with suppress(tm.Error), tm.connect([self.calls[number]], SECRET, timeout_ms=500) as db:
            return db.where()
        return None

    def wait(self, numbers: list[int]) -> int:
        """Wait until each of these nodes says that they are the members; return the primary. A node that hung says what
        it knew before.
        """
        end = CLOCK.monotonic() + WHOLE_SECONDS
        wanted = {self.calls[number] for number in numbers}
        while True:
            views = [self.where(number) for number in numbers]
            told = {(view["view"], view["primary"] and tuple(view["primary"])) for view in views if view is not None}
            members = [{tuple(each) for each in view["members"]} for view in views if view is not None]
            if len(told) == 1 and members == [wanted] * len(numbers):
                ((_, primary),) = told
                if primary is not None:
                    return next(each for each in self.numbers if self.calls[each] == primary)
            if CLOCK.monotonic() > end:
                raise AssertionError(f"nodes {numbers} did not become the members: {views}")
            CLOCK.sleep(0.05)

    def connect(self, timeout_ms: int = 10_000) -> Any:
        return tm.connect(list(self.calls.values()), SECRET, timeout_ms=timeout_ms)


@contextmanager
def group(folder: Path, nodes: int = 3) -> Iterator[Group]:
    """A group with the tables of histories."""
    made = Group(folder, nodes)
    try:
        made.found()
        with made.connect() as db:
            make_tables(db)
        yield made
    finally:
        made.close()
