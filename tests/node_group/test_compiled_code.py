"""What a node does before it takes part: it gets its compiled code, and says how far it is."""

from __future__ import annotations

import logging

import pytest

from tidemark.engine.base.clock import ManualClock
from tidemark.nodes import compiled_code
from tidemark.nodes.compiled_code import PROGRESS_SECONDS, get_code


def test_two_nodes_begin_in_different_halves_and_tell_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Story: two nodes that started on one machine compiled the same kernels at the same time, and were silent."""
    clock, compiled = ManualClock(), list[int]()

    def compiler(number: int) -> None:
        compiled.append(number)
        clock.advance(PROGRESS_SECONDS / 2)

    monkeypatch.setattr(compiled_code, "declared", lambda: tuple((lambda n=n: compiler(n)) for n in range(5)))
    with caplog.at_level(logging.INFO, "tidemark.node"):
        get_code(1, clock)
        assert compiled == [0, 1, 2, 3, 4]
        get_code(2, clock)
    assert compiled[5:] == [2, 3, 4, 0, 1]
    assert [each.getMessage() for each in caplog.records] == [
        f"node {node} has the code of {done} of 5 kernels" for node in (1, 2) for done in (2, 4)
    ]
