"""The reference model with its judgements made by the interpreted programs, in the engine's machine, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.conformance.judgements import parameter_words
from tests.conformance.model import ModelSite, model_sites
from tests.conformance.model_applier import orders
from tests.conformance.scenario import SiteCase
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.vm_batch_kernels import run_batch
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.conflict.functions import Check
from tidemark.replication.conflict.programs import program_of

if TYPE_CHECKING:
    from tests.conformance.model import Event, ModelRow
    from tests.conformance.model_applier import OnePass

_programs: dict[tuple[TableDefinition, Check, Any], Any] = {}


def _parameters(run: OnePass, event: Event, row: ModelRow, check: Check, column: Any) -> list[int]:
    if check is Check.AUTHOR:
        return []
    if check is Check.EPOCH:
        return [run.applier.mre.frozen]
    image = event.before if check is Check.EQUAL else event.after
    value = int(parameter_words([(image or {})[column]])[0])
    return [value, *orders(run, event, row)] if check is Check.GREATEST else [value]


def judge_by_program(run: OnePass, event: Event, row: ModelRow, check: Check) -> bool:
    definition, function = run.site.definitions[event.table], run.site.setups[event.table].function
    assert function is not None
    column = function.argument if isinstance(function.argument, str) else None
    bits = 0 if column else function.bits
    key = (definition, check, function.argument)
    if key not in _programs:
        _programs[key] = program_of(check, definition, column, bits)
    program = _programs[key]
    image = RowFormat(definition).encode_row(tuple(row.values[each.name] for each in definition.columns))
    entry = np.concatenate([np.array([0, row.epoch, row.author], dtype=np.int64), image]).astype(np.int64)
    given = np.array(_parameters(run, event, row, check, column), dtype=np.int64)
    out = np.zeros(2, dtype=np.int64)
    planes = np.zeros(p.ROWS_WORDS, dtype=np.int64)
    offsets = np.array([3], dtype=np.int64)
    assert run_batch(entry, offsets, 1, given, program.words, planes, program.new_work(), out) == p.RUN_OK
    assert out[0] in (p.VERDICT_OK, p.VERDICT_REFUSED)
    return bool(out[0] == p.VERDICT_OK)


def program_sites(cases: Mapping[str, SiteCase]) -> Mapping[str, ModelSite]:
    """The adapter."""
    return model_sites(cases, judge_by_program)
