"""Programs shown as text."""

from __future__ import annotations

import random

from tests.interpreter.generate import Writer, definition_of
from tidemark.engine.programs.interpreter import Assembler
from tidemark.engine.programs.listing import listing
from tidemark.engine.schema import types as t
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition

TABLE = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("s", t.VarChar(9)), Column("u", t.UInt64)), ("id",))


def test_listing_shows_registers_columns_constants_and_targets() -> None:
    asm = Assembler(TABLE)
    asm.read_pseudo(2, "epoch")
    asm.load_const(1, 7)
    asm.branch_registers("le", 2, 1, "ok")
    asm.branch_column("like", "s", "a%", "ok")
    asm.branch_column("gt", "u", 2**64 - 1, "ok", sql=False)
    asm.exit_refuse(9_999)
    asm.label("ok")
    asm.call("sub")
    asm.exit_ok()
    asm.subroutine("sub")
    asm.ret()
    assert listing(asm.finish()).splitlines() == [
        "    0  read r2 $epoch",
        "    1  load_const16 r1 7",
        "    2  branch_le r2 r1 integer -> 6",
        "    3  branch_column s like b'a%' sql -> 6",
        "    4  branch_column u gt 18446744073709551615 -> 6",
        "    5  exit_refuse 9999",
        "    6: call -> 8",
        "    7  exit_ok",
        "subroutines",
        "    8: return",
    ]


def test_every_random_program_has_a_line_for_each_instruction() -> None:
    for seed in range(20):
        r = random.Random(seed)
        program = Writer(definition_of(r), r, with_loops=False, updates=True).program()
        assert len(listing(program).splitlines()) == len(program.instructions)
