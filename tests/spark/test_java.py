"""Which Java Spark is started with, and the message if there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tidemark.recovery.spark import java, session
from tidemark.recovery.spark.failures import error_in

pytest.importorskip("pyspark", reason="Spark is not installed; pip install '.[spark]'")


def made(folder: Path, version: str, said: str = 'openjdk version "{}" 2026-01-01') -> str:
    """A program that claims to be a Java."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'{said.format(version)}\' >&2; else echo "$@"; fi\n'
    )
    program.chmod(0o700)
    return str(program)


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_max", lambda: 23)


def without_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_292", 8), ("25.0.2", 25)])
def test_version_of_a_java_is_read(tmp_path: Path, said: str, version: int) -> None:
    assert java.java_version(made(tmp_path / "a", said)) == version


def test_program_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(made(tmp_path / "a", "x", "no {}")) is None
    assert java.java_version(str(tmp_path / "missing")) is None


@pytest.mark.usefixtures("newest")
def test_java_of_the_machine_is_taken_as_it_is(tmp_path: Path) -> None:
    made(tmp_path / "home", "17.0.1")
    assert java.java_variables({"JAVA_HOME": str(tmp_path / "home")}) == {}
    assert java.java_variables({"java": made(tmp_path / "path", "21")}) == {}


@pytest.mark.usefixtures("newest")
def test_java_on_the_path_is_taken_where_java_home_is_too_old(tmp_path: Path) -> None:
    made(tmp_path / "home", "1.8.0_1")
    known = {"JAVA_HOME": str(tmp_path / "home"), "java": made(tmp_path / "path", "17")}
    home = java.java_variables(known)["JAVA_HOME"]
    assert java.java_version(f"{home}/bin/java") == 17


@pytest.mark.usefixtures("newest")
def test_bundled_java_is_started_without_the_module_it_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = made(tmp_path / "it's", "21")
    monkeypatch.setattr(java, "bundled_java", lambda: bundle)
    home = java.java_variables({"java": made(tmp_path / "old", "11")})["JAVA_HOME"]
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=other", "$HOME"]
    done = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g -cp a b --add-modules=other $HOME\n"


@pytest.mark.usefixtures("newest")
def test_no_java_that_will_do_is_one_error_with_both_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_bundle(monkeypatch)
    with pytest.raises(tm.Unsupported, match=r"and there is none; install Java 17 or 21 .*pip install '.\[java\]'"):
        java.java_variables({})
    with pytest.raises(tm.Unsupported, match=r"Java 17 to 23; .*java is Java 25; "):
        java.java_variables({"java": made(tmp_path / "new", "25.0.1")})


def test_spark_that_is_not_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(tm.Unsupported, match=r"pip install '.\[spark\]'"):
        session.session()


def test_error_of_an_executor_is_found_in_what_spark_says() -> None:
    said = "tidemark.errors.BackupDamaged: 1/2 fails; use it"
    found = error_in(f"Traceback (most recent call last):\n  File x\n{said}\n\nat java")
    assert type(found) is tm.BackupDamaged and found.message == "1/2 fails; use it"
    assert error_in("tidemark.errors.Nothing: x") is None
    assert error_in("ValueError: tidemark.errors.BackupDamaged: no line of its own") is None
