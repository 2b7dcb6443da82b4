"""The check before the measurement: each store must give the same answers, and end with the same rows, as dictionaries.

The comparison is tried first. For each kind of operation a fault is planted in a second dictionary: one answer of a
read is wrong, or one write is lost. A comparison that misses one of them ends the program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.compare.competitors import Competitor, Workload
from bench.compare.models import OrderModel, RecordModel, SubscriberModel
from bench.compare.orders import OrderBook
from bench.compare.records import FIELDS, Records
from bench.compare.stores import Durability, Operation, Store
from bench.compare.subscribers import KEY_PARTS, TABLES

Model = RecordModel | SubscriberModel | OrderModel


def _last_values(table: str) -> int:
    return len(TABLES[table]) - KEY_PARTS[table]


def _row(size: int) -> Callable[[Any], Any]:
    """The last values of a row as a tuple: a caller may get its key before them."""
    return lambda row: None if row is None else tuple(row)[-size:]


# How answers of different stores are made comparable; other answers are compared as they are.
FORMS: dict[str, Callable[[Any], Any]] = {
    "read": _row(FIELDS),
    "scan": lambda rows: [tuple(row)[-FIELDS:] for row in rows],
    "get_subscriber_data": _row(_last_values("subscriber")),
    "get_access_data": _row(_last_values("access_info")),
    "account": _row(1),
    "get_new_destination": sorted,  # its order is not specified
}


class Mismatch(Exception):
    """A store and the dictionary disagree."""


def model_of(workload: Workload) -> Model:
    """A dictionary with the rows of a workload."""
    if isinstance(workload.data, OrderBook):
        return OrderModel(workload.data)
    return RecordModel(workload.data) if isinstance(workload.data, Records) else SubscriberModel(workload.data)


def answer(store: Store, operation: Operation) -> Any:
    """The answer of a store in a form that can be compared."""
    name, arguments = operation
    found = getattr(store, name)(*arguments)
    return FORMS[name](found) if name in FORMS else found


def compare(store: Store, model: Model, operations: list[Operation]) -> None:
    """Apply operations to both. Raises: Mismatch at the first answer, or the first row in the end, that differs."""
    for number, operation in enumerate(operations):
        found, wanted = answer(store, operation), answer(model, operation)
        if found != wanted:
            raise Mismatch(f"operation {number}, {operation}: {found!r}, should be {wanted!r}")
    content, rows = store.content(), model.content()
    for key in content.keys() | rows.keys():
        if content.get(key) != rows.get(key):
            raise Mismatch(f"row {key}: {content.get(key)!r}, should be {rows.get(key)!r}")


class Faulty:
    """A dictionary with a planted fault at one operation."""

    def __init__(self, model: Model, fault: int) -> None:
        self._model = model
        self._left = fault

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._model, name)
        if name in ("content", "close"):
            return method
        self._left -= 1
        if self._left != -1:
            return method

        def fail(*arguments: Any) -> Any:
            before = self._model.content()
            found = method(*arguments)
            if self._model.content() != before:
                self._model.rows = before  # the write is lost, but its answer is unchanged
                return found
            return found[:-1]  # an answer that lacks its last row or value

        return fail


def effects(workload: Workload) -> dict[str, int]:
    """Return, for each kind of operation, the last one that changes a row or returns one."""
    model, found = model_of(workload), dict[str, int]()
    for number, operation in enumerate(workload.operations):
        before = model.content()
        if answer(model, operation) not in (None, [], False, True) or model.content() != before:
            found[operation[0]] = number
    return found


def try_comparison(workload: Workload) -> int:
    """Plant each fault; returns how many were found. Raises: RuntimeError if one was not."""
    places = effects(workload)
    missing = {name for name, _ in workload.operations} - places.keys()
    if missing:
        raise RuntimeError(f"{workload.name}: no {', '.join(sorted(missing))} of the check has an effect")
    for name, place in places.items():
        model = model_of(workload)
        faulty: Any = Faulty(copy.deepcopy(model), place)
        try:
            compare(faulty, model, workload.operations)
        except Mismatch:
            continue
        raise RuntimeError(f"{workload.name}: the comparison missed a planted fault of {name}")
    return len(places)


def check(competitor: Competitor, workload: Workload, durability: Durability, folder: Path) -> None:
    """Compare one store with the dictionary. Raises: Mismatch."""
    store = competitor.open(workload, durability, folder)
    try:
        compare(store, model_of(workload), workload.operations)
    except Mismatch as error:
        raise Mismatch(f"{competitor.name}, {workload.name}, {durability.label}: {error}") from None
    finally:
        store.close()
