"""Patterns of LIKE: every text matches as the table of `machine.like` says, in time linear in the text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.interpreter.machine import like, parts_of
from tests.shares import few
from tests.store.support import open_memory
from tidemark.engine.base import limits
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs import running as programs_running
from tidemark.engine.programs.patterns import pattern_of, tokens_of
from tidemark.engine.queries.conditions import Condition


def stored(texts: list[Any], kind: Any = tm.Text) -> Any:
    db: Any = open_memory(data_memory="64 MiB", transaction_memory="16 MiB", redo_log="16 MiB")
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("x", kind)], "id", tm.HashPartition(1))
    db["test.t"].insert_many(list(enumerate(texts)))
    return db["test.t"]


def found(table: Any, pattern: Any) -> set[int]:
    return {row.id for row in table.scan(["id"], where=tm.col("x").like(pattern))}


@pytest.mark.parametrize("kind", [tm.Text, tm.VarBinary(200), tm.VarChar(80)], ids=repr)
def test_any_pattern_finds_what_the_table_of_its_parts_finds(kind: Any) -> None:
    r = random.Random(f"patterns of {kind!r}")
    letters = "aab\\%_é"
    texts: list[Any] = ["".join(r.choices(letters, k=r.randint(0, 14))) for _ in range(60)]
    octets = isinstance(kind, type(tm.VarBinary(1)))
    table = stored([each.encode() for each in texts] if octets else texts, kind)
    for _ in range(few(200, 3_000)):
        pattern = "".join(r.choices(letters + "%%__", k=r.randint(0, 9)))
        parts = parts_of(pattern.encode())
        assert found(table, pattern) == {
            number for number, text in enumerate(texts) if like(text.encode(), parts, octets)
        }, pattern


def test_any_literal_of_a_periodic_text_is_found() -> None:
    """The linear search begins when the naive one is slow: in texts that repeat what the literal repeats."""
    r = random.Random("periods")
    texts, literals = [], []
    for _ in range(few(80, 400)):
        period = "".join(r.choices("ab", k=r.randint(1, 7)))
        literals.append((period * 300)[: r.randint(100, 300)] + r.choice(["", "a", "b"]))
        pieces = [(period * 400)[: r.randint(0, 400)], "".join(r.choices("ab", k=2)), r.choice(literals)]
        texts.append("".join(r.choices(pieces, k=5)))
    table = stored(texts)
    for literal in literals:
        assert found(table, f"%{literal}%") == {place for place, text in enumerate(texts) if literal in text}, literal


@pytest.mark.parametrize(
    "pattern",
    ["%" + "a" * 20_000 + "b%", "%" + ("a" * 49 + "_") * 400 + "b", "%" + "ba" * 9_000 + "%", "a%" * 5_000 + "b%"],
    ids=["literal", "wild end", "two letters", "many parts"],
)
def test_steps_of_a_row_are_linear_in_its_text(pattern: str) -> None:
    """Story: a client asked for `x LIKE '%aaa…_…b'`, 20,000 characters, over one Text of a megabyte. At each byte of
    the text the pattern was compared anew: hours, in a call that nothing interrupts. Steps now are some for each byte.
    """
    table = stored(["a" * 1_000_000])
    condition = Condition(table.definition, tm.col("x").like(pattern))
    running = programs_running.Running(condition.program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.engine.queries.program_scans.Running", lambda _: running)
        assert table.scan(["id"], where=tm.col("x").like(pattern)).to_arrow().num_rows == 0
    assert running.work[p.W_MATCHED] < 2_100_000


def test_wildcards_between_letters_have_a_limit_of_steps() -> None:
    """A `_` between letters between two % is searched naively: what that takes is limited, and the row is named."""
    table = stored(["b", "a" * 100_000, "b"])
    hard = "%" + ("a" * 49 + "_") * 200 + "b%"
    with pytest.raises(
        tm.ProgramFailed, match=r"_ between letters takes more than 64 steps for each byte in the row with key 1"
    ) as caught:
        found(table, hard)
    assert caught.value.evidence["key"] == 1
    assert caught.value.evidence["code"] == p.PE_MATCH
    with pytest.raises(tm.ProgramFailed):
        table.delete_where(~tm.col("x").like(hard))
    assert len(table) == 3
    assert found(table, "%a_a%") == {1}
    assert found(table, "%" + "a_" * 30 + "b%") == set(), "short parts never reach the limit"


def test_rows_of_one_call_are_few_when_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is heard between calls, so a call examines a bounded number of bytes, whatever the rows are."""
    sizes = [5, 90_000, 3, 0, 40_000, 70_000, 1, 1]
    table = stored(["x" * size + "y" for size in sizes])
    calls: list[int] = []
    run_batch = programs_running.run_batch

    def counted(entries: Any, offsets: Any, count: int, *rest: Any) -> int:
        calls.append(count)
        return run_batch(entries, offsets, count, *rest)

    monkeypatch.setattr(programs_running, "run_batch", counted)
    where = tm.col("x").like("%xy") | tm.col("x").like("y%")
    whole = {row.id for row in table.scan(["id"], where=where)}
    assert calls == [8]
    monkeypatch.setattr(programs_running, "MATCHED_WORDS_PER_CALL", 20_000)
    calls.clear()
    assert {row.id for row in table.scan(["id"], where=where)} == whole == set(range(8))
    assert sum(calls) == 8
    assert len(calls) >= 4
    assert table.scan(["id"], 3, where=where).count() == 3


@pytest.mark.parametrize(
    ("pattern", "tokens"),
    [
        (b"", []),
        (b"a%%b", [97, p.TOKEN_MANY, 98]),
        (b"%_%_", [p.TOKEN_ANY, p.TOKEN_ANY, p.TOKEN_MANY]),
        (b"\\%\\_\\\\\\a\\", [37, 95, 92, 97, 92]),
        (b"\\\\%", [92, p.TOKEN_MANY]),
        (b"\\\\\\%", [92, 37]),
    ],
)
def test_tokens_of_a_pattern(pattern: bytes, tokens: list[int]) -> None:
    made = tokens_of(pattern)
    assert np.frombuffer(made, np.uint16).tolist() == tokens
    assert tokens_of(pattern_of(made)) == made


def test_patterns_have_a_greatest_length() -> None:
    column = tm.col("x")
    for call in (column.like, column.starts_with):
        with pytest.raises(tm.LimitExceeded, match="8,388,608 bytes, got 8,388,609"):
            call("a" * (limits.PATTERN_BYTES_MAX + 1))
        with pytest.raises(tm.ValueOutOfRange, match="lone surrogate"):
            call("\ud800")
    assert found(stored(["a" * 70_000]), "%" + "a" * 70_000) == {0}
