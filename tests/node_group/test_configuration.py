"""A node group as text, the same at all its nodes."""

from __future__ import annotations

import pytest

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.replication.node_group.configuration import GroupConfiguration, Placement
from tidemark.replication.node_group.view import Member, first_view


def test_group_is_read_as_it_is_written() -> None:
    found = GroupConfiguration.parse(" 1=one:7001, 2=[::1]:7002,arbitrator=10.0.0.3:7003")
    assert found.members == {1: ("one", 7001), 2: ("::1", 7002)} and found.arbitrator == ("10.0.0.3", 7003)
    assert found.peers == {0: ("10.0.0.3", 7003), **found.members}
    assert found.member(2) == Member(2, "[::1]:7002") and found.address_of(0) == ("10.0.0.3", 7003)
    assert found.first_view() == first_view("10.0.0.3:7003")
    assert GroupConfiguration.parse(str(found)) == found
    alone = GroupConfiguration.parse("3=one:1")
    assert alone.peers == {3: ("one", 1)} and alone.first_view() == first_view()
    for number in (0, 4):
        with pytest.raises(SchemaInvalid, match="the group has no"):
            alone.address_of(number)


def test_member_that_the_group_does_not_have_is_named() -> None:
    """Story: `member` of a number that the group lacks raised a KeyError, with the number alone."""
    group = GroupConfiguration.parse("1=one:7001,arbitrator=one:7000")
    for number in (0, 2):
        with pytest.raises(SchemaInvalid, match=f"the group has no node {number}: 1=one:7001"):
            group.member(number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a group must be given as"),
        ("one:1", "a group must be given as"),
        ("1=one", "an address must be host:port"),
        ("1=one:70000", "an address must be host:port"),
        ("1=one:0", "a node needs a port"),
        ("0=one:1", "the number of a (node|member) must be"),
        ("256=one:1", "the number of a (node|member) must be"),
        ("-1=one:1", "not a number of a node"),
        ("1=one:1,1=two:1", "appears twice"),
        ("1=one:1,2=one:1", "have the address .*; give each its own"),
        ("1=one:1,arbitrator=one:1", "have the address .*; give each its own"),
        ("1=one:1,arbitrator=a:1,arbitrator=b:1", "appears twice"),
        ("arbitrator=a:1", "1 to 4 nodes"),
        (",".join(f"{number}=one:{number}" for number in range(1, 6)), "1 to 4 nodes"),
        ("1=" + "x" * 70 + ":1", "ASCII"),
        ("1=öne:1", "ASCII"),
    ],
)
def test_text_that_is_no_group_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(SchemaInvalid, match=said) as caught:
        GroupConfiguration.parse(text)
    assert "\n" not in caught.value.message


def test_fragments_go_round_the_node_groups_and_stay_where_they_are() -> None:
    assert GroupConfiguration.parse("1=a:1,2=b:1").placement.groups == {1: frozenset({1, 2})}
    placement = Placement({1: frozenset({1, 2}), 2: frozenset({3, 4}), 5: frozenset({5})})
    for table in range(1, 7):
        found = [placement.group_of(table, fragment) for fragment in range(9)]
        assert sorted(found) == [1, 1, 1, 2, 2, 2, 5, 5, 5]
        assert found[:4] == [placement.group_of(table, fragment) for fragment in range(4)], "whatever comes after them"
    assert {placement.group_of(table, 0) for table in (1, 2, 3)} == {1, 2, 5}
    assert placement.to_dict([(1, 0), (1, 1), (2, 0)]) == {
        1: {"nodes": [1, 2], "fragments": 0},
        2: {"nodes": [3, 4], "fragments": 1},
        5: {"nodes": [5], "fragments": 2},
    }
