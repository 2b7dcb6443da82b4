"""Which node group holds a fragment: rows go to fragments (`engine/schema/partition.py`), fragments to node groups, and
a group to nodes that all hold the same (D9).

One node group is built, and holds everything. Code that needs the place of a fragment asks here, so that a second group
changes only the code that creates the map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ONLY_GROUP = 1


@dataclass(frozen=True)
class Placement:
    """Node groups by number, each with its nodes.

    The fragments of a table go round the groups, beginning one past the first of the table before it. So groups hold
    equally many fragments of one table, and of tables with one fragment each. Added fragments move no others.
    """

    groups: Mapping[int, frozenset[int]]

    def group_of(self, table_id: int, fragment: int) -> int:
        """The node group that holds a fragment."""
        numbers = sorted(self.groups)
        return numbers[(table_id + fragment) % len(numbers)]

    def nodes_of(self, table_id: int, fragment: int) -> frozenset[int]:
        """The nodes that hold a fragment while they are alive."""
        return self.groups[self.group_of(table_id, fragment)]

    def to_dict(self, fragments: Iterable[tuple[int, int]]) -> dict[int, dict[str, object]]:
        """For `status()`: the nodes of each group, and how many of these fragments (table, number) it holds."""
        held = [self.group_of(*each) for each in fragments]
        return {
            number: {"nodes": sorted(nodes), "fragments": held.count(number)}
            for number, nodes in sorted(self.groups.items())
        }
