"""`demo` on a machine that has only what the wheel needs: no generator of TPC-H, no Spark, no matplotlib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.support import run
from tidemark.demo import bulk, data
from tidemark.demo import run as halves
from tidemark.demo.rows import make
from tidemark.demo.verify import check_totals
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.files.directory import standard_error_in


def unsupported(*_: object) -> None:
    raise Unsupported("it is missing; install it")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "GENERATOR", "no-generator")
    monkeypatch.setattr(bulk, "check_installed", unsupported)
    monkeypatch.setattr(halves, "restart_timeline", unsupported)


def test_rows_without_the_generator_are_as_the_demo_needs_them(bare: None, tmp_path: Path) -> None:
    orders, lines = (
        data.read(path, columns)
        for path, columns in zip(data.generate(tmp_path, 0.001), (data.ORDERS, data.LINEITEM), strict=True)
    )
    assert orders.num_rows == 1_500 and check_totals(orders, lines) == []
    keys = np.asarray(orders.column("o_orderkey"))
    assert set(keys % 4) == {0, 1, 2, 3} and np.unique(keys).size == keys.size
    assert orders.equals(make(0.001, data.totals)[0].select(orders.column_names)), "the same rows each time"


def test_demo_says_what_it_will_do_and_what_is_left_out(bare: None, tmp_path: Path) -> None:
    """Story: the demo of an installed wheel ended at once, for TPC-H's generator was in an extra."""
    options = ("--scale", 0.001, "--rounds", 1, "--seconds", 0.1, "--bulk-scale", 0.001)
    result = run("demo", "--folder", tmp_path / "demo", *options)
    assert result.exit_code == 0, result.output
    plan, _, done = result.stdout.partition("\n\n")
    assert "its generator is not installed" in plan and "1 min on an idle machine" in plan
    assert "Left out: Spark; the native loader and restore do its work. it is missing; install it" in plan
    assert "left out: a picture of the restart; it is missing" in done
    assert "restored and expected are equal, row by row" in done
    assert done.splitlines()[-1] == "every acknowledged transaction survived every kill"


def test_what_a_process_says_on_standard_error_goes_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Story: Spark's Java printed a screen of warnings into the demo."""
    program = [sys.executable, "-c", "import sys; print('WARN', file=sys.stderr)"]
    with standard_error_in(str(tmp_path / "log")):
        subprocess.run(program, check=True)
    subprocess.run(program, check=True)
    assert (tmp_path / "log").read_text() == "WARN\n" and capfd.readouterr().err == "WARN\n"
