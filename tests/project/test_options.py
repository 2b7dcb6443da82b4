"""Options are valid from the moment they are made."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.options import OptionKeywords, Options, format_size, parse_size


def test_defaults_are_those_of_the_documentation() -> None:
    options = Options()
    assert options.data_memory_bytes == 1 << 30
    assert options.redo_log_bytes == options.transaction_memory_bytes == 256 << 20
    assert (options.durability, options.epoch_interval_ms, options.gcp_interval_ms) == ("commit", 100, 2_000)
    assert options.lock_timeout_ms == 5_000
    assert (options.create, options.background) == (True, True)
    assert (options.undo_log_bytes, options.undo_filter) == (128 << 20, True)


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [(1 << 26, 1 << 26), ("64 MiB", 1 << 26), ("64MiB", 1 << 26), ("67108864 B", 1 << 26), ("1 TiB", 1 << 40)],
)
def test_size_in_any_spelling_is_read_exactly(value: int | str, size_bytes: int) -> None:
    assert parse_size("data_memory", value) == size_bytes
    assert Options(data_memory=value) == Options(data_memory=size_bytes)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "64",
        "64 MB",
        "64 mib",
        "64  MiB",
        " 64 MiB",
        "64 MiB\n",
        "-1 GiB",
        "1.5 GiB",
        "1e9 B",
        "٣ MiB",
        "9" * 20 + " B",
    ]
    + [True, None, 64.0, b"64 MiB", -5, 0, 1 << 47, "64 B"],
)
def test_size_of_nonsense_is_refused_with_the_name_of_the_option(value: object) -> None:
    with pytest.raises(SchemaInvalid, match="option data_memory is .*; give") as caught:
        Options(data_memory=value)  # type: ignore[arg-type]
    assert caught.value.option == "data_memory"


@given(st.integers(min_value=0, max_value=1 << 62))
def test_size_formatted_and_parsed_is_the_same(size_bytes: int) -> None:
    assert parse_size("redo_log", format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redo_log", "1023 KiB"),
        ("checkpoint_memory", 1),
        ("transaction_memory", 1),
        ("durability", "disk"),
        ("durability", None),
        ("epoch_interval_ms", 0),
        ("epoch_interval_ms", 100.0),
        ("epoch_interval_ms", True),
        ("gcp_interval_ms", 10**9),
        ("gcp_interval_ms", 99),
        ("lock_timeout_ms", -1),
        ("create", 1),
        ("background", None),
        ("checkpoint_interval_ms", -1),
        ("checkpoint_log_share", 0),
        ("checkpoint_log_share", 0.5),
        ("checkpoint_log_share", float("nan")),
        ("checkpoint_log_share", "0.2"),
        ("undo_log", "1023 KiB"),
        ("undo_filter", 1),
        ("archive", 7),
        ("archive_interval_ms", 99),
        ("expiry_interval_ms", -1),
        ("expiry_interval_ms", 1.5),
        ("expiry_interval_ms", "1 min"),
        ("autoincrement_step", 0),
        ("autoincrement_step", 65_536),
        ("autoincrement_offset", 0),
        ("autoincrement_offset", 2),
    ],
)
def test_value_out_of_range_is_refused_in_one_line(name: str, value: object) -> None:
    with pytest.raises(SchemaInvalid, match=f"^option {name} is [^\n]*; [^\n]*give [^\n]*$") as caught:
        Options.from_keywords({name: value})
    assert caught.value.option == name


@pytest.mark.parametrize(
    ("name", "near"), [("data_memroy", "data_memory"), ("durabilty", "durability"), ("timeout_ms", "lock_timeout_ms")]
)
def test_unknown_keyword_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(SchemaInvalid, match=f"no option '{name}'; did you mean {near}\\?$"):
        Options.from_keywords({name: 1})


def test_unknown_keyword_unlike_any_lists_all() -> None:
    with pytest.raises(SchemaInvalid, match="the options are data_memory, redo_log"):
        Options.from_keywords({"qqq": 1})


def test_derived_bytes_are_no_keyword() -> None:
    with pytest.raises(SchemaInvalid, match="did you mean data_memory"):
        Options.from_keywords({"data_memory_bytes": 1})


def test_options_of_later_rooms_are_not_accepted() -> None:
    for name in ("server_id", "binlog"):
        with pytest.raises(SchemaInvalid, match=f"no option '{name}'"):
            Options.from_keywords({name: "64 MiB"})


def test_keywords_for_signatures_are_the_fields() -> None:
    assert list(OptionKeywords.__annotations__) == [one.name for one in fields(Options) if one.init]
    assert {
        name: kind if isinstance(kind, str) else kind.__forward_arg__
        for name, kind in OptionKeywords.__annotations__.items()
    } == {one.name: one.type for one in fields(Options) if one.init}


def test_options_are_frozen_and_replaced_with_checks() -> None:
    options = Options(redo_log="8 MiB")
    with pytest.raises(FrozenInstanceError):
        options.redo_log = "16 MiB"  # type: ignore[misc]
    assert replace(options, redo_log="16 MiB").redo_log_bytes == 16 << 20
    with pytest.raises(SchemaInvalid):
        replace(options, lock_timeout_ms=-1)
