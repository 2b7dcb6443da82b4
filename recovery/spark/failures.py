"""Restores the class of an executor's error: Spark passes a driver only the text of a traceback."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tidemark.engine.base import errors

HOST = "host"
EVIDENCE = "evidence: "  # prefix of the note with the evidence of an error, as JSON
_CLASS = rf"{re.escape(errors.Error.__module__)}\.(\w+)"
_NO_FILES = re.compile(r"Class (\S*FileSystem) not found|(No FileSystem for scheme \"?\w+)")
_SAID = re.compile(rf"^{_CLASS}: (.+)$(?:\n{EVIDENCE}(\{{.*\}})$)?", re.MULTILINE)


def error_in(text: str) -> errors.Error | None:
    """Return the last error of the store in a traceback, with its evidence if a note has it, or what Spark needs for
    a place; None if neither is there.
    """
    for name, message, evidence in reversed(_SAID.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.Error):
            known = _evidence(evidence)
            where = f" (on {known[HOST]})" if HOST in known else ""
            made: errors.Error = kind(message.strip() + where, **known)
            return made
    if found := _NO_FILES.search(text):
        said = f"{found[1]} is missing" if found[1] else found[2]
        return errors.Rejected(
            f"Spark cannot open the place: {said}; add its library to Spark (spark.jars.packages, for s3"
            " org.apache.hadoop:hadoop-aws), or use another place"
        )
    return None


def _evidence(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(name): each for name, each in value.items()}


@contextmanager
def evidence_noted() -> Iterator[None]:
    """Within the block, add evidence and host of an error to it as a note, so that the traceback contains them."""
    try:
        yield
    except errors.Error as error:
        error.add_note(EVIDENCE + json.dumps({**error.evidence, HOST: platform.node()}, default=str))
        raise


@contextmanager
def typed_errors() -> Iterator[None]:
    """Within the block, raise the store's error from an executor's traceback as its own class, with its one-line
    message.

    Raises: that error. Other errors of Spark stay as they are.

    Examples:
        ```python
        import tidemark as tm
        import tidemark.spark as ts

        frame = ts.read(ts.session(), "/backups/shop", "item")
        try:
            with ts.typed_errors():
                rows = frame.count()
        except tm.BackupDamaged as damaged:
            print(damaged.message)
        ```
    """
    from pyspark.errors import PySparkException

    kinds: tuple[type[Exception], ...] = (PySparkException,)
    with suppress(ImportError):  # a client of Spark Connect may lack it
        from py4j.protocol import Py4JJavaError

        kinds += (Py4JJavaError,)
    try:
        yield
    except kinds as error:
        found = error_in(str(error))
        if found is None:
            raise
        raise found from None
