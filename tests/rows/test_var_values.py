"""Values of a var part replaced in place: the same bytes as decoding it and building it again, or no change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.rows.row_var import build_var_part, put_var_values, split_var_part

VALUES = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=5)


@given(VALUES, st.data(), st.binary(max_size=2).map(lambda piece: piece * 8), st.integers(0, 3))
def test_values_put_in_place_equal_a_part_built_again_or_change_nothing(
    values: list[bytes | None], data: st.DataObject, key: bytes, offset_words: int
) -> None:
    key = key[: len(key) // 8 * 8]
    before = bytes(8 * offset_words) + build_var_part(key, values)
    ordinals = st.integers(0, len(values))
    changed = data.draw(st.dictionaries(ordinals, st.none() | st.binary(max_size=20), min_size=1))
    if data.draw(st.booleans()):
        lengths = {number: len(value) for number, value in enumerate(values) if value is not None}
        changed = {number: bytes([number + 1]) * lengths.get(number, 3) for number in changed}
    part = bytearray(before)
    fits = all(
        number < len(values)
        and value is not None
        and len(values[number] or b"") == len(value)
        and values[number] is not None
        for number, value in changed.items()
    )
    assert put_var_values(part, 8 * offset_words, changed) == fits
    expected = [changed.get(number, value) for number, value in enumerate(values)] if fits else values
    assert part == bytes(8 * offset_words) + build_var_part(key, expected)


@given(st.binary(max_size=64), st.dictionaries(st.integers(0, 9), st.binary(max_size=9), max_size=3))
def test_values_put_into_any_bytes_never_fail_and_never_change_their_length(
    content: bytes, values: dict[int, bytes]
) -> None:
    part = bytearray(content)
    if not put_var_values(part, 0, values):
        assert part == content
    assert len(part) == len(content)


def test_values_of_a_part_whose_lengths_contradict_each_other_are_left_to_its_decoder() -> None:
    part = bytearray(build_var_part(b"", [b"abc", b"defgh"]))
    part[8] = 200  # the first value would end past the part
    assert not put_var_values(part, 0, {1: b"xxxxx"})
    assert not put_var_values(part, 0, {0: b"x" * 200})
    assert split_var_part(memoryview(build_var_part(b"", [b"abc"])), 0).values == [b"abc"]
