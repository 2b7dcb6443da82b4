"""Defects planted where checks are asked: one changed line each, which the tests of a door must see."""

from __future__ import annotations

from tests.crash.defects import Defect

_TESTS = "tests/checks/test_checks.py"


def _defect(name: str, module: str, old: str, new: str, test: str) -> Defect:
    return Defect(name, f"tidemark.{module}", old, new, f"{_TESTS}::{test}")


CHECK_DEFECTS: tuple[Defect, ...] = (
    _defect(
        "general-path-asks-nothing",
        "engine.access.batch_operations",
        "if checks is not None and not txn.is_decided:",
        "if False:",
        "test_rows_are_refused_as_plain_python_refuses_them",
    ),
    _defect(
        "update-in-place-asks-nothing",
        "engine.access.row_operations",
        "    is_whole = table.checks is not None  # they are asked about the image",
        "    is_whole = False",
        "test_calls_of_one_row_refuse_the_same",
    ),
    _defect(
        "kernels-ask-nothing",
        "engine.point.plan",
        "            self.words[u.U_GENERATION] = -1  # the general path asks them about each image",
        "            pass",
        "test_calls_of_one_row_refuse_the_same",
    ),
    _defect(
        "load-asks-nothing",
        "recovery.load.tasks",
        "if shape.checks is not None:",
        "if False:",
        "test_rows_are_refused_as_plain_python_refuses_them[load",
    ),
    _defect(
        "old-load-is-adopted",
        "recovery.load.adopt",
        "<= set(manifest.job.definition.checks):",
        "<= {*table.newest.definition.checks}:",
        "test_a_load_planned_before_a_check_is_refused",
    ),
    _defect(
        "check-does-not-wait",
        "engine.store.check_build",
        "        self.wait_for_older(table, birth)\n",
        "",
        "test_an_open_transaction_keeps_a_check_from_being_added",
    ),
    _defect(
        "plans-stay",
        "engine.txn.resources",
        "        self.mem[S_INDEX_GENERATION] += 1\n",
        "",
        "test_rows_are_checked_while_a_check_is_being_added",
    ),
)
