"""Which node group holds a fragment: rows are divided into fragments (`engine/schema/partition.py`), fragments among
node groups, and all nodes of a node group hold the same rows (D9).

So far there is one node group, which holds everything. Code that needs the place of a fragment asks here, so that a
second group changes only the code that creates the map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ONLY_GROUP = 1


@dataclass(frozen=True)
class Placement:
    """Node groups by number, each with its nodes.

    Fragments of a table are given to the groups in turn, and each table starts one group after the table before it. So
    the fragments of one table are spread evenly, and so are tables with one fragment each. Added fragments move no
    others.
    """

    groups: Mapping[int, frozenset[int]]

    def group_of(self, table_id: int, fragment: int) -> int:
        """Return the number of the node group that holds a fragment."""
        numbers = sorted(self.groups)
        return numbers[(table_id + fragment) % len(numbers)]

    def to_dict(self, fragments: Iterable[tuple[int, int]]) -> dict[int, dict[str, object]]:
        """Return the nodes of each group, and how many of these fragments (table, number) it holds, for `status()`."""
        held = [self.group_of(*each) for each in fragments]
        return {
            number: {"nodes": sorted(nodes), "fragments": held.count(number)}
            for number, nodes in sorted(self.groups.items())
        }
