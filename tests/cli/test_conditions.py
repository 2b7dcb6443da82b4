"""--where, --key and --limit: what the words mean, and what is wrong with others."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path

import click
import pytest

import tidemark as tm
from tests.cli.support import SMALL, json_lines, refused, run
from tidemark.cli.conditions import condition_of
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.schema.definition import TableDefinition

col = tm.col
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("name", tm.VarChar(20), nullable=True),
    tm.Column("price", tm.Decimal(10, 2), nullable=True),
    tm.Column("share", tm.Float64, nullable=True),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("at", tm.Timestamp, nullable=True),
    tm.Column("local", tm.DateTime, nullable=True),
    tm.Column("clock", tm.Time, nullable=True),
    tm.Column("is_on", tm.Bool, default=True),
    tm.Column("data", tm.VarBinary(8), nullable=True),
    tm.Column("token", tm.UUID, nullable=True),
    tm.Column("about", tm.JSON, nullable=True),
    tm.Column("state", tm.Enum("open", "shut"), default="open"),
    tm.Column("odd name", tm.Int32, default=0),
    tm.Column("and", tm.Int32, default=0),
]
TABLE = TableDefinition(1, 1, "t", tuple(COLUMNS), ("id",))
TOKEN = uuid.UUID(int=7)
UTC = datetime.UTC


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id = 7", col("id") == 7),
        ("id == -7", col("id") == -7),
        ("7 < id", col("id") > 7),
        ("id <> 7", col("id") != 7),
        ("ID_ is null".replace("ID_", "name"), col("name").is_null()),
        ("name IS NOT NULL", col("name").is_not_null()),
        ("name = 'it''s'", col("name") == "it's"),
        ("name like 'p%'", col("name").like("p%")),
        ("name not like 'p%'", ~col("name").like("p%")),
        ("name in ('a', 'b')", col("name").isin(["a", "b"])),
        ("id not in (1,2)", ~col("id").isin([1, 2])),
        ("id between 1 and 5 and is_on", (col("id").between(1, 5)) & col("is_on")),
        ("not is_on or is_on = false", ~col("is_on") | (col("is_on") == False)),  # noqa: E712
        ("id = 1 or id = 2 and id = 3", (col("id") == 1) | ((col("id") == 2) & (col("id") == 3))),
        ("(id = 1 or id = 2) and id = 3", ((col("id") == 1) | (col("id") == 2)) & (col("id") == 3)),
        ("price > 1.10", col("price") > Decimal("1.10")),
        ("price > '1.10'", col("price") > Decimal("1.10")),
        ("share >= 1e-3", col("share") >= 1e-3),
        ("day = '2026-11-21'", col("day") == datetime.date(2026, 11, 21)),
        ("clock = '22:05'", col("clock") == datetime.time(22, 5)),
        ("local < '2026-11-21 22:05:00'", col("local") < datetime.datetime(2026, 11, 21, 22, 5)),
        ("at < '2026-11-21T22:05:00'", col("at") < datetime.datetime(2026, 11, 21, 22, 5, tzinfo=UTC)),
        ("at < '2026-11-21T22:05:00+00:00'", col("at") < datetime.datetime(2026, 11, 21, 22, 5, tzinfo=UTC)),
        ("data = '00ff'", col("data") == b"\x00\xff"),
        (f"token = '{TOKEN}'", col("token") == TOKEN),
        ("""about = '{"a": [1]}'""", col("about") == {"a": [1]}),
        ("state = 'open'", col("state") == "open"),
        ('"odd name" > 1 and "and" < 2', (col("odd name") > 1) & (col("and") < 2)),
        ('id = "odd name"', col("id") == col("odd name")),
    ],
)
def test_text_means_the_expression(text: str, wanted: Expression) -> None:
    assert repr(condition_of(TABLE, text)) == repr(wanted)


def test_more_than_two_conditions_are_joined() -> None:
    """Story: a third condition after `and` or `or`, and a key of three columns, ended in a TypeError of Python."""
    n = col("id")
    assert repr(condition_of(TABLE, "id > 1 and id < 9 and id <> 5")) == repr((n > 1) & (n < 9) & (n != 5))
    assert repr(condition_of(TABLE, "id = 1 or id = 2 or id = 3")) == repr((n == 1) | (n == 2) | (n == 3))
    table = TableDefinition(1, 1, "t", tuple(COLUMNS), ("id", "odd name", "and"))
    wanted = (n == 1) & (col("odd name") == 2) & (col("and") == 3)
    assert repr(condition_of(table, None, ("1", "2", "3"))) == repr(wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "character 1: needs a number or a text in single quotes, the condition ends"),
        ("id", "character 3: needs a comparison, is null, in, like or between, the condition ends"),
        ("id = ", "character 6: needs a number"),
        ("id = 7 8", "character 8: needs and, or, or the end, got '8'"),
        ("id = 7)", "character 7: needs and, or, or the end, got ')'"),
        ("(id = 7", "character 8: needs ), the condition ends"),
        ("id = 'seven'", "character 6: column id is Int64 and takes a number, got str 'seven'"),
        ("name = 7", "character 8: column name is VarChar(20); put 7 into single quotes"),
        ("name = null", "character 8: no value equals NULL; write `is null`"),
        ("name = 'open", "character 8: the quote is not closed"),
        ("id = 7; drop", "character 7: ';' has no meaning here"),
        ("day = '21.11.2026'", "column day is Date and takes a date such as '2026-11-21'"),
        ("7 = 7", "character 1: a condition compares with a column"),
        ("7 is null", "character 1: a condition begins with a column"),
        ("data = 'xyz'", "takes bytes in hexadecimal"),
        ("is_on = 'maybe'", "takes true or false"),
        ("not " * 80 + "is_on", "it nests deeper than 50"),
        ("(" * 80 + "is_on" + ")" * 80, "it nests deeper than 50"),
        ("__import__('os')", "no column '__import__'"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(text: str, said: str) -> None:
    with pytest.raises((click.UsageError, tm.NoSuchColumn)) as raised:
        condition_of(TABLE, text)
    assert said in str(getattr(raised.value, "message", raised.value))


def test_column_that_is_nearly_right_is_named(store: Path) -> None:
    text = refused("scan", store, "test.account", "--where", "ballance > 2")
    assert "NoSuchColumn" in text and "did you mean balance?" in text


def test_key_where_and_limit_together(store: Path, tmp_path: Path) -> None:
    assert json_lines("scan", store, "test.account", "--key", 3, "--columns", "id") == [{"id": 3}]
    assert json_lines("scan", store, "test.account", "--key", 3, "--where", "balance < 5") == []
    assert len(json_lines("scan", store, "test.account", "--where", "id >= 2", "--limit", 4)) == 4
    result = run("dump", store, "test.account", tmp_path / "few.csv", "--where", "id in (1, 2, 5)", "--columns", "id")
    assert result.exit_code == 0 and sorted((tmp_path / "few.csv").read_text().split()) == ['"id"', "1", "2"]
    assert len(run("dump", store, "test.account", "--limit", 2).stdout.splitlines()) == 3
    wrong = run("scan", store, "test.account", "--key", "1", "--key", "2")
    assert wrong.exit_code == 2 and "once for each column of the primary key (id), got 2" in wrong.stderr
    wrong = run("scan", store, "test.account", "--key", "one")
    assert wrong.exit_code == 2 and "--key: column id is Int64 and takes a number" in wrong.stderr
    wrong = run("scan", store, "test.account", "--where", "id == ")
    assert wrong.exit_code == 2 and "--where, character 7" in wrong.stderr and len(wrong.stderr.splitlines()) == 1


def test_key_of_several_columns(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **SMALL) as db:
        columns = [tm.Column("day", tm.Date), tm.Column("n", tm.Int32)]
        db.create_table("t", columns, ["day", "n"]).insert_many(
            [(datetime.date(2026, 11, day), n) for day in (1, 2) for n in (1, 2)]
        )
    found = json_lines("scan", tmp_path / "store", "t", "--key", "2026-11-02", "--key", "1")
    assert found == [{"day": "2026-11-02", "n": 1}]
