"""Settings of a table: wildcards, match quality, images by binlog_type, the grammar of functions, set-up."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.images import Images
from tests.conformance.judgements import read_epoch
from tidemark.engine import types as t
from tidemark.engine.base.errors import SchemaInvalid, ValueOutOfRange
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.settings.binlog_type import binlog_type
from tidemark.replication.settings.conflict_function import (
    FUNCTIONS,
    Role,
    bits_needed,
    parse,
    saturated_from,
    sizing_warning,
)
from tidemark.replication.settings.match import ReplicationRow, find_row, matches, quality_of, row_of
from tidemark.replication.settings.options import settings
from tidemark.replication.settings.setup import (
    SiteSettings,
    check_channels,
    check_exceptions,
    check_pair,
    exceptions_of,
    is_exceptions_name,
    set_up,
)

SITE = SiteSettings(1, Role.PRIMARY)


def as_regex(pattern: str) -> str:
    pieces, at = [], 0
    while at < len(pattern):
        if pattern[at] == "\\" and at + 1 < len(pattern):
            at += 1
            pieces.append(re.escape(pattern[at]))
        else:
            pieces.append({"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return "".join(pieces)


@given(st.text("ab%_\\?A", max_size=8), st.text("abA%_\\?\n", max_size=10))
def test_pattern_equals_a_regular_expression(pattern: str, name: str) -> None:
    expected = re.fullmatch(as_regex(pattern), name, re.IGNORECASE | re.DOTALL) is not None
    assert matches(pattern, name) == expected


def test_pattern_of_many_wildcards_takes_no_exponential_time() -> None:
    assert not matches("%a" * 30, "a" * 29 + "b" * 400)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("t?", "t1", False),
        ("t?", "t?", True),
        ("t_", "t", False),
        ("t\\_", "t_", True),
        ("t\\_", "t1", False),
        ("%", "", True),
        ("t\\", "t\\", True),
    ],
)
def test_question_mark_and_escapes_are_literal(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) == expected


def test_quality_climbs_from_one_to_eight() -> None:
    ladder = [
        ("%", "%", 0),
        ("%", "%", 1),
        ("%", "t1", 0),
        ("%", "t1", 1),
        ("test", "%", 0),
        ("test", "%", 1),
        ("test", "t1", 0),
        ("test", "t1", 1),
    ]
    found = [quality_of(ReplicationRow(*row), "test", "t1", 1) for row in ladder]
    assert found == [1, 2, 3, 4, 5, 6, 7, 8]
    assert quality_of(ReplicationRow("test", "t1", 2), "test", "t1", 1) == -1
    assert quality_of(ReplicationRow("TEST", "T1", 1), "test", "t1", 1) == 8, "letter case does not count"


@pytest.mark.parametrize(("text", "bits"), [("+7", 7), ("-0", 0), ("010", 8), ("0x1F", 31), ("00", 0), ("31", 31)])
def test_bits_are_read_as_the_server_reads_numbers(text: str, bits: int) -> None:
    assert parse(f"NDB$EPOCH_TRANS({text})").bits == bits


def test_stored_row_becomes_a_setting_though_its_names_are_bytes() -> None:
    values = {"db": b"test", "table_name": "tä".encode(), "server_id": 1, "binlog_type": None}
    assert row_of(values) == ReplicationRow("test", "tä", 1)
    found = row_of(values | {"conflict_fn": b"NDB$OLD(X)", "table_name": b"\xff", "binlog_type": 7})
    assert (found.conflict_fn, found.binlog_type) == ("NDB$OLD(X)", 7)
    assert quality_of(found, "test", "tä", 1) == -1


def test_site_settings_follow_the_options() -> None:
    values = settings({"server_id": 4, "conflict_role": "PRIMARY", "log_update_as_write": False})
    site = SiteSettings.from_options(values, 1_000, 50)
    assert site == SiteSettings(4, Role.PRIMARY, log_update_as_write=False, gcp_interval_ms=1_000, epoch_interval_ms=50)
    assert set_up(TABLE, ReplicationRow("test", "t1"), site).binlog.is_update


def test_tie_below_the_best_level_does_not_matter_and_one_at_it_names_the_rows() -> None:
    tied = [ReplicationRow("test", "t%"), ReplicationRow("test", "%1")]
    found = find_row([*tied, ReplicationRow("test", "t1")], "test", "t1", 1)
    assert found.row is not None and found.warning is None
    found = find_row(tied, "test", "t1", 1)
    assert found.row is None and found.warning is not None
    assert "test.%1:0, test.t%:0" in found.warning.text


COLUMNS, KEY = ("a", "b", "c", "d"), ("c", "a")


@pytest.mark.parametrize(
    ("number", "event", "before", "after", "deleted"),
    [
        (2, "WRITE_ROW", None, ("a", "b", "c"), ("a", "c")),
        (3, "WRITE_ROW", None, COLUMNS, COLUMNS),
        (4, "UPDATE_ROW", ("a", "b", "c"), ("a", "b", "c"), ("a", "c")),
        (6, "UPDATE_ROW", ("a", "b", "c"), ("a", "b", "c"), ("a", "c")),
        (7, "UPDATE_ROW", COLUMNS, COLUMNS, COLUMNS),
        (8, "UPDATE_ROW", ("a", "c"), ("b",), ("a", "c")),
        (9, "UPDATE_ROW", ("a", "c"), COLUMNS, ("a", "c")),
    ],
)
def test_images_of_each_binlog_type(number: int, event: str, before: object, after: object, deleted: object) -> None:
    how, remark = binlog_type(number)
    assert remark is None
    images = Images(how)
    assert images.update(COLUMNS, KEY, ["b"]) == (event, before, after)
    assert images.delete(COLUMNS, KEY) == ("DELETE_ROW", deleted, None)
    assert images.insert(COLUMNS, KEY) == ("WRITE_ROW", None, COLUMNS)


def test_binlog_type_without_number_follows_the_options() -> None:
    assert binlog_type(0) == binlog_type(None) == (binlog_type(2)[0], None)
    assert binlog_type(0, updated_only=False)[0] == binlog_type(3)[0]
    assert binlog_type(0, update_as_write=False)[0] == binlog_type(6)[0]
    assert binlog_type(None, False, False)[0] == binlog_type(7)[0]
    assert binlog_type(0, True, False, True)[0] == binlog_type(8)[0]
    assert not binlog_type(1)[0].is_logged
    how, remark = binlog_type(5)
    assert how == binlog_type(0)[0] and remark is not None and remark.rule == "unknown binlog_type"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", ", unknown conflict resolution function at ''"),
        ("NDB$MAX X", "NDB$MAX X, missing '(' at 'X'"),
        ("NDB$MAX(X Y)", "NDB$MAX(X Y), missing ')' at 'Y)'"),
        ("NDB$MAX(X", "NDB$MAX(X, missing ')' at ''"),
        (" NDB$OLD( )", " NDB$OLD( ), missing function argument at ')'"),
        ("NDB$EPOCH(x)", "NDB$EPOCH(x), extra Gci bits are no number at ')'"),
        ("NDB$EPOCH(08)", "NDB$EPOCH(08), extra Gci bits are no number at ')'"),
        ("NDB$EPOCH(-0x1)", "NDB$EPOCH(-0x1), Too many extra Gci bits at ')'"),
        ("NDB$EPOCH(" + "9" * 5000 + ")", "NDB$EPOCH(" + "9" * 5000 + "), Too many extra Gci bits at ')'"),
        ("NDB$EPOCH(0x20)", "NDB$EPOCH(0x20), Too many extra Gci bits at ')'"),
        ("NDB$EPOCHS()", "NDB$EPOCHS(), missing '(' at 'S()'"),
    ],
)
def test_error_of_grammar_is_reported_in_the_servers_words(spec: str, message: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse(spec)
    assert caught.value.message == message
    assert caught.value.evidence["errno"] == 1626


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.name)
def test_every_name_is_found_though_others_begin_alike(function: object) -> None:
    argument = "col" if function.argument == "column" else "0x1f"  # type: ignore[attr-defined]
    parsed = parse(f" {function.name} ( {argument} ) ")  # type: ignore[attr-defined]
    assert parsed.definition == function
    assert parsed.argument == ("col" if argument == "col" else 31)
    with pytest.raises(SchemaInvalid):
        _ = parsed.bits if argument == "col" else parsed.column


def test_bits_default_to_six_and_follow_from_the_intervals() -> None:
    assert parse("NDB$EPOCH()").bits == 6 and parse("NDB$EPOCH(0)").bits == 0
    assert [bits_needed(2_000, 100), bits_needed(2_000, 2_000), bits_needed(100, 10), bits_needed(3_200, 100)] == [
        5,
        0,
        4,
        5,
    ]
    assert sizing_warning(5, 2_000, 100) is None
    few, none = sizing_warning(4, 2_000, 100), sizing_warning(0, 2_000, 100)
    assert few is not None and few.rule == "too few extra Gci bits"
    assert none is not None and none.rule == "low epoch resolution"


@given(st.integers(0, 2**63 - 1), st.integers(0, 31))
def test_epoch_reads_back_as_if_few_bits_had_been_stored(epoch: int, bits: int) -> None:
    kept = min(epoch & 0xFFFFFFFF, 2**bits - 1)
    expected = (epoch >> 32 << 32) + (0xFFFFFFFF if kept == 2**bits - 1 else kept)
    assert read_epoch(epoch, bits) == expected >= epoch, "saturation errs towards newer"
    with pytest.raises(ValueOutOfRange):
        saturated_from(32)


TABLE = TableDefinition(0, 1, "test.t1", (Column("a", t.Int32), Column("X", t.UInt32)), ("a",))
BLOBS = TableDefinition(0, 1, "test.t2", (Column("a", t.Int32), Column("b", t.Text)), ("a",))
EXCEPTIONS = TableDefinition(
    0,
    1,
    "test.t1$EX",
    (Column("s", t.UInt32), Column("m", t.UInt32), Column("e", t.UInt64), Column("n", t.UInt32), Column("a", t.Int32)),
    ("s", "m", "e", "n"),
)


def rules(findings: tuple[object, ...]) -> list[str]:
    return [each.rule for each in findings]  # type: ignore[attr-defined]


def row(function: str | None, number: int = 7) -> ReplicationRow:
    return ReplicationRow("test", "%", 0, number, function)


def test_set_up_gives_the_place_of_the_resolve_column_and_says_what_is_missing() -> None:
    setup = set_up(TABLE, row("NDB$MAX(X)"), SITE)
    assert (setup.resolve_position, setup.faults, setup.remarks) == (1, (), ())
    assert rules(set_up(TABLE, row("NDB$OLD(X)"), SITE).remarks) == ["no exceptions table"]
    setup = set_up(TABLE, row("NDB$OLD(X)"), SITE, EXCEPTIONS)
    assert setup.remarks == () and setup.exceptions is not None
    assert set_up(TABLE, None, SITE).function is None


def test_set_up_refuses_and_remarks_by_function() -> None:
    assert rules(set_up(BLOBS, row("NDB$EPOCH()"), SITE).faults) == ["table has blob columns"]
    assert set_up(BLOBS, row("NDB$MAX(a)"), SITE).faults[0].text == "Column 'a' has wrong datatype"
    assert rules(set_up(TABLE, row("NDB$EPOCH2()", 3), SITE).faults) == ["configured to log updates as writes"]
    assert set_up(TABLE, row("NDB$EPOCH2()", 8), SITE).faults == ()
    assert "minimal images" in rules(set_up(TABLE, row("NDB$EPOCH()", 9), SITE).remarks)
    assert "minimal images" not in rules(set_up(TABLE, row("NDB$EPOCH2()", 9), SITE).remarks)
    v1 = SiteSettings(1, Role.PRIMARY, use_v1_row_events=True)
    assert rules(set_up(TABLE, row("NDB$EPOCH_TRANS()"), v1).faults) == ["version 1 row events"]
    assert set_up(TABLE, row("NDB$EPOCH()"), v1).faults == ()
    for number in (2, 3, 6, 8, 9):
        faults = set_up(TABLE, row("TM$GREATEST(X)", number), SITE).faults
        assert rules(faults) == ["needs updates with full images"]
    assert set_up(TABLE, row("TM$GREATEST(X)", 7), SITE).faults == ()
    assert "no conflict role" in rules(set_up(TABLE, row("NDB$EPOCH2()"), SiteSettings(1)).remarks)
    low = SiteSettings(1, Role.PRIMARY, gcp_interval_ms=20_000)
    assert "too few extra Gci bits" in rules(set_up(TABLE, row("NDB$EPOCH()"), low).remarks)
    fault = set_up(TABLE, row("NDB$X(X)"), SITE).faults[0]
    assert (fault.errno, fault.column) == (1626, "conflict_fn")
    assert fault.text.endswith("NDB$X(X), unknown conflict resolution function at 'NDB$X(X)'")


def test_bad_exceptions_table_leaves_the_function_active() -> None:
    bad = TableDefinition(0, 1, "test.t1$EX", EXCEPTIONS.columns[:4], ("s",))
    setup = set_up(TABLE, row("NDB$OLD(X)"), SITE, bad)
    assert setup.function is not None and setup.exceptions is None
    assert rules(setup.remarks) == ["wrong definition (initial 4 columns)", "no exceptions table"]


def test_exceptions_table_is_found_by_either_suffix_and_gets_no_function() -> None:
    assert is_exceptions_name("t$EX") and is_exceptions_name("t$ex") and not is_exceptions_name("$EX")
    setup = set_up(EXCEPTIONS, row("NDB$EPOCH()"), SITE)
    assert setup.function is None and rules(setup.remarks) == ["exceptions table"]
    lower = TableDefinition(0, 1, "test.t1$ex", EXCEPTIONS.columns, ("s", "m", "e", "n"))
    assert exceptions_of("test.t1", {"test.t1$ex": lower}) is lower
    assert exceptions_of("test.t1", {"test.t2$EX": lower}) is None


def test_pair_with_two_primaries_is_refused_naming_both_rows() -> None:
    one, other = ReplicationRow("test", "t1", 1, 7, "NDB$EPOCH()"), ReplicationRow("%", "t1", 0, 7, "NDB$EPOCH_TRANS()")
    found = check_pair("test.t1", [one], 1, [other], 3)
    assert found is not None and "test.t1:1" in found.text and "%.t1:0" in found.text
    assert check_pair("test.t1", [one], 1, [], 3) is None
    both = [ReplicationRow("test", "t1", 0, 7, "NDB$EPOCH2()")]
    assert check_pair("test.t1", both, 1, both, 3) is None
    by_value = [ReplicationRow("test", "t1", 0, 7, "NDB$MAX(X)")]
    assert check_pair("test.t1", by_value, 1, by_value, 3) is None


def test_function_of_epochs_is_refused_on_several_channels() -> None:
    by_epoch, by_value = (set_up(TABLE, row(each), SITE) for each in ("NDB$EPOCH()", "NDB$MAX(X)"))
    found = check_channels("test.t1", by_epoch, ["b", "a"])
    assert found is not None and "channels a, b" in found.text
    assert check_channels("test.t1", by_epoch, ["a"]) is None
    assert check_channels("test.t1", by_value, ["a", "b"]) is None


def test_exceptions_table_made_after_its_table_is_checked_at_once_and_says_when_it_counts() -> None:
    assert rules(tuple(check_exceptions(EXCEPTIONS, TABLE))) == ["takes effect at the next set-up"]
    assert check_exceptions(EXCEPTIONS, None) == []
    bad = TableDefinition(0, 1, "test.t1$EX", EXCEPTIONS.columns[:4], ("s",))
    assert rules(tuple(check_exceptions(bad, TABLE)))[0] == "wrong definition (initial 4 columns)"
