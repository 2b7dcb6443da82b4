"""A standalone cluster of Spark on loopback: a master and two workers of one core, as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.waiting import wait_until
from tidemark.recovery.spark.java import java_variables

HOME = Path(pyspark.__file__).parent
WORKERS = 2
_MASTER = re.compile(r"spark://127\.0\.0\.1:[1-9]\d*")
_PACKAGE = "org.apache.spark.deploy"


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Run a cluster for the block; return its master as Spark names it. directory: for logs and files of workers."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **java_variables(), "SPARK_LOCAL_IP": "127.0.0.1"}
    # Otherwise the tenth executor that is killed ends the application.
    environment["SPARK_MASTER_OPTS"] = "-Dspark.deploy.maxExecutorRetries=-1"
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        command = [HOME / "bin" / "spark-class", *arguments]
        with log.open("wb") as out:
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=directory))
        return log

    def said(log: Path, pattern: re.Pattern[str]) -> str:
        wait_until(lambda: pattern.search(log.read_text()) or any(each.poll() is not None for each in processes))
        found = pattern.search(log.read_text())
        assert found is not None, log.read_text()[-2_000:]
        return found[0]

    ports = ("--host", "127.0.0.1", "--webui-port", "0")
    try:
        log = start("master", f"{_PACKAGE}.master.Master", *ports, "--port", "0")
        master = said(log, re.compile(rf"(?<=Starting Spark master at ){_MASTER.pattern}"))
        room = ("--cores", "1", "--memory", "1g")
        for number in range(WORKERS):
            work = ("--work-dir", str(directory / f"worker-{number}"))
            log = start(f"worker-{number}", f"{_PACKAGE}.worker.Worker", *ports, *room, *work, master)
            said(log, re.compile("Successfully registered with master"))
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()
