"""Settings every test shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.storage import STORAGES, tables_on

# No test depends on timing, hypothesis included; a failure prints the blob that reproduces it.
settings.register_profile(
    "tidemark", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("tidemark")


@pytest.fixture(scope="module", params=STORAGES)
def storage(request: Any) -> Iterator[str]:
    """Where the tables of a test have their columns; a module that uses it runs once with each."""
    with tables_on(request.param):
        yield request.param
