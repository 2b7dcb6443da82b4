"""What installs an extra of Tidemark, from a checkout or a wheel: on the public index its name is another project's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.engine.base.errors import Unsupported


def advice(extra: str) -> str:
    """Return the command lines that install Tidemark with an extra, from its checkout and from its wheel."""
    return (
        f"""run pip install '.[{extra}]' in its checkout, or pip install "$(ls dist/*.whl)[{extra}]" beside its wheel"""
    )


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Import the library of an extra inside. what: begins the message, as in "metrics need prometheus-client".

    Raises: Unsupported, with what installs it, if a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unsupported(f"{what}; {advice(extra)}") from error
