"""Code of the guide, the tutorials and the examples runs exactly as printed on its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of a page in one language, in their order."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def run(folder: Path, *command: str) -> str:
    """Standard output of a command of Python, run in a folder, which ends well."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def run_program(folder: Path, *parts: str) -> str:
    """Run these blocks as one program."""
    (folder / "program.py").write_text("\n".join(parts), encoding="utf-8")
    return run(folder, "program.py")


def shown(heading: str) -> list[str]:
    """What the page of examples prints under a heading, block by block."""
    _, _, section = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition(f"\n## {heading}")
    return [block.strip() for block in section.split("\n## ")[0].split("```")[1::2]]


def test_pages_that_are_typed_in_one_directory_open_stores_of_their_own() -> None:
    """Story: README and guide both made `shop`, so who typed one after the other met TableExists. So did the tutorial
    of two sites and the page on replication, and the guide and two more pages.
    """
    pages = ["guide.md", "expected.md", "migration.md", "clients.md", "metrics.md", "load.md", "replication.md"]
    pages += [str(path.relative_to(DOCS)) for path in sorted((DOCS / "tutorials").glob("*.md"))]
    made: dict[str, set[str]] = {}
    for page in ("../README.md", *pages):
        for store in re.findall(r"\bopen\(\s*\"([^\"]+)\"", "\n".join(blocks(page))):
            made.setdefault(store, set()).add(page)
    assert {"accounts", "shop", "bank", "moved", "first site", "spark-shop"} <= made.keys()
    assert {store: pages for store, pages in made.items() if len(pages) > 1} == {}


def test_metrics_as_their_page_uses_them(tmp_path: Path) -> None:
    run_program(tmp_path, *blocks("metrics.md"))


def test_guide_is_one_program(tmp_path: Path) -> None:
    run_program(tmp_path, *blocks("guide.md"))


def test_first_store_survives_its_kill(tmp_path: Path) -> None:
    bank, transfer, crash = blocks("tutorials/first-store.md")
    assert "\nif __name__" in bank
    (tmp_path / "bank.py").write_text(bank.replace("\nif __name__", f"\n{transfer}\n\nif __name__"), encoding="utf-8")
    (tmp_path / "crash.py").write_text(crash, encoding="utf-8")
    assert run(tmp_path, "crash.py") == "rows 1000 total 100000\n"
    commands = re.findall(r"^venv/bin/tidemark (.*?) +#", blocks("tutorials/first-store.md", "sh")[-1], re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        run(tmp_path, "-c", "from tidemark.cli import main; main()", *command.split())


def test_migration_is_one_program(tmp_path: Path) -> None:
    """Story: the page called `db.run(work, 100)` for `work(txn, 100)`, and no test ran it."""
    run_program(tmp_path, *blocks("migration.md"))


def test_what_people_expect_is_one_program(tmp_path: Path) -> None:
    run_program(tmp_path, *blocks("expected.md"))


def test_clients_as_their_page_uses_them(tmp_path: Path) -> None:
    run_program(tmp_path, *blocks("clients.md"))


def test_web_workers_lose_no_visit(tmp_path: Path) -> None:
    for name, block in zip(("store.py", "app.py", "visits.py"), blocks("tutorials/web-workers.md"), strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    run(tmp_path, "-c", "from tidemark.cli import main; main()", "secret", "web-secret")
    assert run(tmp_path, "visits.py") == "visits: 200\n"


def test_sensor_data_is_one_program(tmp_path: Path) -> None:
    program = "\n".join(blocks("tutorials/sensor-data.md"))
    for size, smaller in (("2_000_000", "20_000"), ("1_800_000", "18_000"), ("SENSORS = 2_000", "SENSORS = 20")):
        assert size in program
        program = program.replace(size, smaller)
    assert "readings above 23" in run_program(tmp_path, program)


def test_back_to_ten_minutes_ago_is_one_program(tmp_path: Path) -> None:
    """Story: a line for the shell had an epoch that no store of a reader has, so it failed for everybody."""
    run_program(tmp_path, *blocks("tutorials/point-in-time.md"))
    lines = "".join(blocks("tutorials/point-in-time.md", "sh"))
    commands = re.findall(r"^tidemark (.*?) *(?:#.*)?$", lines, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        run(tmp_path, "-c", "from tidemark.cli import main; main()", *command.split())


@pytest.mark.spark
def test_spark_tutorial_is_one_program(tmp_path: Path) -> None:
    run_program(tmp_path, *blocks("tutorials/spark.md"))


def test_loads_as_their_page_uses_them(tmp_path: Path) -> None:
    run_program(tmp_path, blocks("load.md")[0])
    assert list((tmp_path / "readings-archive" / "archive").iterdir())


@pytest.mark.parametrize("number", [0, 1], ids=["one way", "two active sites"])
def test_replication_as_its_page_uses_it(tmp_path: Path, number: int) -> None:
    run_program(tmp_path, "import tidemark as tm\n", blocks("replication.md")[number])


@pytest.mark.parametrize(
    ("script", "heading", "block"),
    [
        ("sensor_data.py --readings 100000", "Sensor data", 1),
        ("two_sites.py", "Two sites", 0),
        ("job_queue.py", "Job queue", 0),
        ("subscribers.py", "Subscribers", 0),
        ("sessions.py", "Sessions", 0),
        ("order_book.py", "Order book", 0),
        ("from_sqlite.py", "From SQLite", 0),
        ("feature_store.py --users 20000", "Feature store", 1),
        ("killed_writer.py", "A killed writer", 0),
    ],
)
def test_example_prints_what_its_page_says(tmp_path: Path, script: str, heading: str, block: int) -> None:
    name, *arguments = script.split()
    assert run(tmp_path, str(EXAMPLES / name), *arguments).strip() == shown(heading)[block]
