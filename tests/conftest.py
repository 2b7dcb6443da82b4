"""Settings every test shares."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import durations, shares
from tests.storage import STORAGES, tables_on

# No test depends on timing, hypothesis included; a failure prints the blob that reproduces it.
settings.register_profile(
    "tidemark", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("tidemark")

# Until everything is imported there is no garbage, and the search for it takes a third of the time.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="take enumerations whole, for hours (tests/shares.py)")
    parser.addoption("--note-durations", metavar="FOLDER", help="of each case, for tests/durations.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--whole"):
        os.environ[shares.VARIABLE] = "1"
    worker = getattr(config, "workerinput", None)
    if worker and config.args_source is config.ArgsSource.TESTPATHS:
        number = int(worker["workerid"].removeprefix("gw"))
        config.args[:] = durations.collected_from(Path(__file__).parent, number, worker["workercount"])
    if folder := config.getoption("--note-durations"):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "one")
        config.pluginmanager.register(durations.Noting(Path(folder), worker))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, whole files are distributed in the order of their durations, and tests are marked by
    their duration and needs (tests/durations.py).
    """
    known = durations.read()
    places = durations.order(known)

    def place(item: pytest.Item) -> tuple[float, str]:
        file, _, _ = item.nodeid.partition("::")
        return places.get(file, 1.0), file

    for item in items:
        file, _, test = item.nodeid.partition("::")
        fixtures = getattr(item, "fixturenames", ())
        for mark in durations.marks(known.get(file, {}), test.partition("[")[0], fixtures):
            item.add_marker(mark)
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Thousands of tests and all their imports stay in memory: a full collection of garbage takes a second for them,
    each time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", params=STORAGES)
def storage(request: Any) -> Iterator[str]:
    """Where the tables of a test have their columns; a module that uses it runs once with each."""
    with tables_on(request.param):
        yield request.param


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing but critical messages is logged."""
    caplog.set_level(logging.CRITICAL)
