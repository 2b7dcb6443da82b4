"""The checker of histories sees each anomaly in a short history that has it, and none in one that has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.blackbox.anomalies import ABORTED, APPEND, COMMITTED, READ, UNKNOWN, Recorded, check


def made(client: int, operations: Sequence[Any], outcome: str = COMMITTED, begin: float = 0.0) -> Recorded:
    return Recorded(client, list(operations), outcome, begin, begin + 0.5)


def snapshot(client: int, operations: Sequence[Any], begin: float) -> Recorded:
    return Recorded(client, list(operations), COMMITTED, begin, begin + 2, is_snapshot=True)


W1 = made(1, [(APPEND, "x", 1), (APPEND, "y", 2)])
W2 = made(2, [(APPEND, "x", 3), (APPEND, "y", 4)], begin=1)
FINAL = {"x": (1, 3), "y": (2, 4)}
HISTORIES: dict[str, tuple[list[Recorded], dict[Any, tuple[Any, ...]]]] = {
    "lost write": ([W1, W2], {"x": (1, 3), "y": (2,)}),
    "resurrected write": ([W1, made(2, [(APPEND, "x", 3)], ABORTED)], {"x": (1, 3), "y": (2,)}),
    "written twice": ([W1], {"x": (1, 1), "y": (2,)}),
    "half a commit": ([made(1, [(APPEND, "x", 1), (APPEND, "y", 2)], UNKNOWN)], {"x": (1,)}),
    "G0": ([W1, W2], {"x": (1, 3), "y": (4, 2)}),
    "G1a": ([made(1, [(APPEND, "x", 1)], ABORTED), made(2, [(READ, "x", (1,))])], {}),
    "G1b": (
        [made(1, [(APPEND, "x", 1), (APPEND, "x", 2)]), made(2, [(READ, "x", (1,))])],
        {"x": (1, 2)},
    ),
    "G1c": (
        [made(1, [(APPEND, "x", 1), (READ, "y", (2,))]), made(2, [(APPEND, "y", 2), (READ, "x", (1,))])],
        {"x": (1,), "y": (2,)},
    ),
    "OTV": ([W1, W2, made(3, [(READ, "x", (1, 3)), (READ, "y", (2,))], begin=1.2)], FINAL),
    "non-monotonic read": (
        [W1, W2, made(3, [(READ, "x", (1, 3))], begin=1.1), made(3, [(READ, "x", (1,))], begin=1.3)],
        FINAL,
    ),
    "read, then gone": (
        [W1, made(2, [(READ, "x", (1, 9))]), made(3, [(APPEND, "x", 9)], UNKNOWN)],
        {"x": (1,), "y": (2,)},
    ),
    "order": ([W1, W2, made(3, [(READ, "x", (3,))], begin=1.1)], FINAL),
    "own writes": ([W1, made(2, [(APPEND, "x", 3), (READ, "x", (1,))])], {"x": (1, 3), "y": (2,)}),
    "G-single": (
        [
            W1,
            made(2, [(APPEND, "y", 4), (READ, "x", (1, 3))], begin=2),
            made(4, [(APPEND, "x", 3)], begin=1),
            snapshot(3, [(READ, "x", (1,)), (READ, "y", (2, 4))], begin=0.6),
        ],
        FINAL,
    ),
    "stale read": ([W1, made(3, [(READ, "x", ())], begin=1)], {"x": (1,), "y": (2,)}),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_anomaly_is_seen(name: str) -> None:
    history, final = HISTORIES[name]
    assert name in {each.name for each in check(history, final)}


def test_sound_history_has_none() -> None:
    reader = made(3, [(READ, "x", (1, 3)), (READ, "y", (2, 4))], begin=2)
    early = made(4, [(READ, "x", (1,)), (READ, "y", (2,)), (APPEND, "z", 5), (READ, "z", (5,))], begin=0.6)
    lost = made(5, [(APPEND, "x", 6), (APPEND, "y", 7)], UNKNOWN)
    rolled_back = made(6, [(READ, "x", (1,)), (APPEND, "x", 8), (READ, "x", (1, 8))], ABORTED, begin=0.7)
    fixed = snapshot(7, [(READ, "x", (1,)), (APPEND, "w", 9), (READ, "w", (9,)), (READ, "y", (2,))], begin=0.7)
    assert check([W1, W2, reader, early, lost, rolled_back, fixed], {**FINAL, "z": (5,), "w": (9,)}) == []
