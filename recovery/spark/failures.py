"""What failed in an executor, as the error it was: Spark hands a driver the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engine import errors

_SAID = re.compile(r"^(?:engine\.errors\.)(\w+): (.+)$", re.MULTILINE)


def error_in(text: str) -> errors.Error | None:
    """The last error of the store in the text of a traceback; evidence stays behind. None if there is none."""
    for name, message in reversed(_SAID.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.Error):
            made: errors.Error = kind(message.strip())
            return made
    return None


@contextmanager
def typed_errors() -> Iterator[None]:
    """Within the block, what the store's code raised in an executor is raised as what it was, in one line."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        found = error_in(str(error))
        if found is None:
            raise
        raise found from None
