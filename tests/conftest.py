"""Settings every test shares."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.storage import STORAGES, tables_on

# No test depends on timing, hypothesis included; a failure prints the blob that reproduces it.
settings.register_profile(
    "tidemark", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("tidemark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Spark first, then those of the most tests: several processes are given whole files in this
    order, and what takes minutes must not be given last.
    """
    counts = Counter(item.path for item in items)
    with_spark = {item.path for item in items if item.get_closest_marker("spark") is not None}
    first = {path: number for number, path in enumerate(counts)}

    def place(item: pytest.Item) -> tuple[bool, int, int]:
        path: Path = item.path
        return path not in with_spark, -counts[path], first[path]

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Thousands of tests and all they import stay: a full collection of garbage needs a second for them, each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=STORAGES)
def storage(request: Any) -> Iterator[str]:
    """Where the tables of a test have their columns; a module that uses it runs once with each."""
    with tables_on(request.param):
        yield request.param
