"""The readers, by the kind of bytes they read."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.harness import Reader

ROOMS = ("wire", "binlog", "sql", "stored", "stores", "mysql")
# Readers with planted defects, for the harness's own test; no run of all readers has them.
PLANTED = "planted"


def readers() -> dict[str, Reader]:
    """All readers by name."""
    found = [reader for room in ROOMS for reader in import_module(f"{__name__}.{room}").READERS]
    return {reader.name: reader for reader in found}


def find(name: str) -> Reader:
    """A reader by its name, or a planted one. Raises: KeyError."""
    planted = {reader.name: reader for reader in import_module(f"{__name__}.{PLANTED}").READERS}
    return planted[name] if name in planted else readers()[name]
