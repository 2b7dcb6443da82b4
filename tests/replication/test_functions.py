"""The decision table against a second formulation of it, and the programs against plain Python."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.judgements import image_order, is_in_conflict, outcomes, parameter_words
from tidemark.engine import types as t
from tidemark.engine.base.errors import Rejected, SchemaInvalid
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.conflict.functions import (
    APPLIED,
    FAILURES,
    Check,
    Failure,
    Kind,
    Operation,
    decide,
    rows_with,
    unhandled,
)
from tidemark.replication.conflict.programs import REFUSED_CODE, program_of
from tidemark.replication.settings.conflict_function import BY_NAME, FUNCTIONS, Role
from tidemark.replication.settings.exceptions_table import Cause

VALUES = [0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
EPOCHS = [0, 4 << 32, 5 << 32 | 3, 5 << 32 | 62, 5 << 32 | 63, 5 << 32 | 200, 5 << 32 | 0xFFFFFFFF, 6 << 32]
FLAGS = ("is_counted", "is_refreshed", "is_logged", "is_delete_delete", "is_discard", "marks")
ROLES = [Role.SECONDARY, Role.PRIMARY, Role.PASS]


def table(kind: Any) -> TableDefinition:
    return TableDefinition(
        1, 1, "t", (Column("id", t.Int64), Column("name", t.VarChar(9)), Column("X", kind, nullable=True)), ("id",)
    )


class Rows:
    """Random entries of a table, with epochs and authors."""

    def __init__(self, kind: Any, seed: int, count: int) -> None:
        self.r = random.Random(seed)
        self.count = count
        self.values = [self.r.choice([None, *(each for each in VALUES if each <= kind.maximum)]) for _ in range(count)]
        self.epochs = [self.r.choice(EPOCHS) for _ in range(count)]
        self.authors = [self.r.randint(0, 2) for _ in range(count)]
        row_format = RowFormat(table(kind))
        pieces, self.offsets = [], np.zeros(count, dtype=np.int64)
        at = 0
        for n in range(count):
            image = row_format.encode_row((n, "x" * (n % 9), self.values[n]))
            pieces += [np.array([n, self.epochs[n], self.authors[n]], dtype=np.int64), image]
            self.offsets[n] = at + 3
            at += 3 + len(image)
        self.entries = np.concatenate(pieces).astype(np.int64)

    def accepted(self, program: Any, *parameters: Any) -> list[bool]:
        given = np.concatenate([np.zeros(0, dtype=np.int64), *parameters]).astype(np.int64)
        out = np.zeros(2 * self.count, dtype=np.int64)
        planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
        status = run_batch(
            self.entries, self.offsets, self.count, given, program.words, planes, program.new_work(), out
        )
        assert status == p.RUN_OK
        verdicts, codes = out[: self.count], out[self.count :]
        assert codes[verdicts == p.VERDICT_REFUSED].tolist() == [REFUSED_CODE] * int(
            (verdicts == p.VERDICT_REFUSED).sum()
        )
        assert set(verdicts.tolist()) <= {p.VERDICT_OK, p.VERDICT_REFUSED}
        return (verdicts == p.VERDICT_OK).tolist()


@pytest.mark.parametrize("kind", [t.UInt32, t.UInt64], ids=repr)
@given(st.integers(0, 2**32))
def test_programs_of_values_compare_without_sign_and_take_null_for_zero(kind: Any, seed: int) -> None:
    """In NDB, values of 2**63 and above lost against every smaller one."""
    rows = Rows(kind, seed, 40)
    given_values = [rows.r.choice([each for each in VALUES if each <= kind.maximum]) for _ in range(rows.count)]
    pairs = [(new, old or 0) for new, old in zip(given_values, rows.values, strict=True)]
    words = parameter_words(given_values)
    definition = table(kind)
    assert rows.accepted(program_of(Check.EQUAL, definition, "X"), words) == [new == old for new, old in pairs]
    assert rows.accepted(program_of(Check.GREATER, definition, "X"), words) == [new > old for new, old in pairs]
    images = np.array([rows.r.randint(-1, 1) for _ in pairs], dtype=np.int64)
    sites = np.array([rows.r.randint(-1, 1) for _ in pairs], dtype=np.int64)
    expected = [
        new > old or (new == old and (image > 0 or (image == 0 and site >= 0)))
        for (new, old), image, site in zip(pairs, images.tolist(), sites.tolist(), strict=True)
    ]
    assert rows.accepted(program_of(Check.GREATEST, definition, "X"), words, images, sites) == expected


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 5, 6, 31]))
def test_program_of_epochs_reads_through_few_bits_and_spares_what_replicas_wrote(seed: int, bits: int) -> None:
    rows = Rows(t.UInt32, seed, 40)
    mre = rows.r.choice([*EPOCHS, 2**63 + 5])
    parameter = np.full(rows.count, parameter_words([mre])[0])
    found = rows.accepted(program_of(Check.EPOCH, table(t.UInt32), bits=bits), parameter)
    assert found == [
        not is_in_conflict(author, epoch, mre, bits) for author, epoch in zip(rows.authors, rows.epochs, strict=True)
    ]
    assert rows.accepted(program_of(Check.AUTHOR, table(t.UInt32))) == [author != 0 for author in rows.authors]


def test_programs_take_as_many_parameters_as_they_say() -> None:
    parameters = {Check.EQUAL: 1, Check.GREATER: 1, Check.EPOCH: 1, Check.AUTHOR: 0, Check.GREATEST: 3}
    for check, count in parameters.items():
        program = program_of(check, table(t.UInt32), "X", 6)
        assert program.words[p.H_PARAMETERS] == count
        assert program.is_forward, "batches run as vectors"
    assert program_of(Check.NONE, table(t.UInt32)) is None
    with pytest.raises(SchemaInvalid):
        program_of(Check.EQUAL, table(t.Int32), "X")


def row_outcome(name: str, kind: Kind, is_there: bool, is_fine: bool) -> str:
    """Return "apply" or the cause for a function of values: the table of rules, formulated row by row."""
    upserts = name in ("NDB$MAX_INS", "NDB$MAX_DEL_WIN_INS", "TM$GREATEST")
    deletes = name in ("NDB$MAX_DELETE_WIN", "NDB$MAX_DEL_WIN_INS", "TM$GREATEST")
    if kind is Kind.WRITE:
        if not is_there:
            return "apply"
        return ("apply" if is_fine else "DATA_IN_CONFLICT") if upserts else "ROW_ALREADY_EXISTS"
    if not is_there:
        return "ROW_DOES_NOT_EXIST"
    return "apply" if is_fine or (kind is Kind.DELETE and deletes) else "DATA_IN_CONFLICT"


def outcome(name: str, role: Role, is_reflected: bool, kind: Kind, is_there: bool, is_fine: bool) -> tuple[str, Any]:
    """Return the outcome of the decision for a row that exists or not, and that the program would accept or not."""
    decision = decide(BY_NAME.get(name), role, is_reflected, kind)
    failure = None
    if not is_there and decision.operation in (Operation.UPDATE, Operation.DELETE):
        failure = Failure.MISSING
    elif is_there and decision.operation is Operation.INSERT:
        failure = Failure.EXISTS
    elif is_there and decision.check is not Check.NONE and not is_fine:
        failure = Failure.REFUSED
    if failure is None:
        return "apply", None
    handling = decision.failures[failure]
    return (handling.cause.name if handling.cause else "ignore"), handling


KINDS = [Kind.WRITE, Kind.UPDATE, Kind.DELETE]


@pytest.mark.parametrize("function", [each for each in FUNCTIONS if not each.is_epoch], ids=lambda each: each.name)
def test_functions_of_values_reject_without_telling_the_source(function: Any) -> None:
    for kind, is_there, is_fine in product(KINDS, [False, True], [False, True]):
        found, handling = outcome(function.name, Role.NONE, False, kind, is_there, is_fine)
        assert found == row_outcome(function.name, kind, is_there, is_fine), (kind, is_there, is_fine)
        if handling is not None:
            assert (handling.is_counted, handling.is_logged, handling.is_refreshed) == (True, True, False)
            assert not handling.marks and not handling.is_delete_delete


@pytest.mark.parametrize("function", [each for each in FUNCTIONS if each.is_epoch], ids=lambda each: each.name)
def test_functions_of_epochs_realign_all_but_deletes_of_missing_rows(function: Any) -> None:
    for kind, is_there, is_fine in product([*KINDS, Kind.READ], [False, True], [False, True]):
        found, handling = outcome(function.name, Role.PRIMARY, False, kind, is_there, is_fine)
        if handling is None:
            assert (is_there and is_fine and kind is not Kind.WRITE) or (kind is Kind.WRITE and not is_there)
            assert decide(function, Role.PRIMARY, False, kind).reflects == function.has_roles
            continue
        is_gone_twice = kind is Kind.DELETE and not is_there
        assert handling.is_counted and handling.is_logged
        assert handling.is_delete_delete == is_gone_twice and handling.is_refreshed != is_gone_twice
        rejects = function.is_transactional and (not is_gone_twice or function.name == "NDB$EPOCH2_TRANS")
        assert handling.marks == rejects
        again = decide(function, Role.PRIMARY, False, kind).failures[Failure.REFRESHED]
        assert (again.cause, again.is_refreshed, again.is_counted) == (Cause.DATA_IN_CONFLICT, False, True)


@pytest.mark.parametrize("name", ["NDB$EPOCH2", "NDB$EPOCH2_TRANS"])
def test_secondary_discards_reflected_changes_of_rows_it_wrote_and_takes_all_others(name: str) -> None:
    for kind, is_there, is_own in product([*KINDS, Kind.READ], [False, True], [False, True]):
        found, handling = outcome(name, Role.SECONDARY, False, kind, is_there, not is_own)
        assert found == ("ignore" if kind is Kind.DELETE and not is_there else "apply")
        found, handling = outcome(name, Role.SECONDARY, True, kind, is_there, not is_own)
        wins = (not is_there) if kind is Kind.WRITE else is_there and not is_own
        assert (handling is None) == wins
        if handling is not None:
            assert handling.is_discard and not (handling.is_counted or handling.is_logged or handling.is_refreshed)


def test_roles_none_and_pass_stop_and_apply_plainly() -> None:
    function = BY_NAME["NDB$EPOCH2"]
    with pytest.raises(Rejected, match="role"):
        decide(function, Role.NONE, False, Kind.WRITE)
    for kind in Kind:
        assert decide(function, Role.PASS, True, kind) == decide(None, Role.NONE, False, kind)
    assert decide(None, Role.NONE, False, Kind.WRITE).operation is Operation.UPSERT
    assert decide(None, Role.NONE, False, Kind.UPDATE).failures[Failure.MISSING].cause is None
    assert decide(BY_NAME["NDB$EPOCH"], Role.NONE, False, Kind.DELETE).check is Check.EPOCH


@given(st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.binary(max_size=2)), min_size=3, max_size=3))
def test_order_of_images_is_total_and_equal_on_both_sites(rows: list[Any]) -> None:
    """Without a total order two sites with equal stamps could each keep what the other site discarded."""
    a, b, c = rows
    assert image_order(a, b) == -image_order(b, a)
    assert (image_order(a, b) == 0) == (a == b)
    if image_order(a, b) <= 0 and image_order(b, c) <= 0:
        assert image_order(a, c) <= 0


@given(
    st.sampled_from([*FUNCTIONS, None]),
    st.sampled_from(ROLES),
    st.booleans(),
    st.sampled_from(list(Kind)),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12),
)
def test_batch_comes_out_as_its_rows_one_by_one(
    function: Any, role: Role, is_reflected: bool, kind: Kind, rows: list[tuple[bool, bool, bool]]
) -> None:
    decision = decide(function, role, is_reflected, kind)
    found, accepted, refreshed = (np.array([row[each] for row in rows], dtype=bool) for each in range(3))
    codes = outcomes(decision, found, accepted, refreshed)
    counts: dict[str, int] = {}
    for (is_there, is_fine, is_refreshed), code in zip(rows, codes.tolist(), strict=True):
        if is_refreshed:
            assert FAILURES[code] is Failure.REFRESHED
        else:
            reported, handling = outcome(function.name if function else "", role, is_reflected, kind, is_there, is_fine)
            assert (code == APPLIED) == (reported == "apply")
            assert code == APPLIED or decision.failures[FAILURES[code]] == handling
        handling = decision.failures.get(FAILURES.get(code))
        for flag in FLAGS:
            counts[flag] = counts.get(flag, 0) + (handling is not None and getattr(handling, flag))
    if rows:
        assert {flag: int(rows_with(decision, codes, flag).sum()) for flag in FLAGS} == counts
    is_known = Failure.REFRESHED in decision.failures
    assert unhandled(decision, codes).tolist() == [row[2] and not is_known for row in rows]
