"""What is held against a run when nothing moves any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replication.simulation.site import SimulatedSite
    from replication.simulation.world import World
from replication.simulation.tables import JOURNAL, MAIN, rows_of


def left_of(site: SimulatedSite) -> Any:
    """Rows of a site, and what it applied."""
    return rows_of(site.db, MAIN), rows_of(site.db, JOURNAL), site.applied


def check_promises(world: World) -> None:
    pass
