"""The circuits of the kill loop: their sites, the sources of each site, and how conflicts are decided.

Every circuit has the same tables and the same writers; what must hold in the end differs (`judge.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

ACCOUNT = "shop.account"
JOURNAL = "shop.journal"
SCRATCH = "shop.scratch"
SEAT = "shop.seat"
MARK = "shop.mark"
TABLES: Final = (ACCOUNT, JOURNAL, SCRATCH, SEAT, MARK)
KEY_COLUMNS: Final = {ACCOUNT: 1, JOURNAL: 3, SCRATCH: 1, SEAT: 3, MARK: 2}

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
OPTIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "data_memory": "64 MiB",
        "redo_log": "16 MiB",
        "epoch_interval_ms": 20,
        "gcp_interval_ms": 200,
        "checkpoint_interval_ms": 500,
        "log_bin": "binlog",
        "max_binlog_size": "256 KiB",
        "log_updated_only": False,
        "log_update_as_write": False,
        "log_empty_update": True,  # makes a change that is applied twice visible
        "log_apply_status": True,
        "log_transaction_id": True,
        "log_gtids": True,
    }
)


@dataclass(frozen=True)
class SiteRole:
    """One site: its id, those it replicates from, whether it has writers and makes tables of its own, and the conflict
    function of each table there.
    """

    server_id: int
    sources: tuple[int, ...] = ()
    writes: bool = False
    makes_tables: bool = False
    fills_tables: bool = False
    functions: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    options: Mapping[str, Any] = field(default_factory=lambda: OPTIONS)


@dataclass(frozen=True)
class Mode:
    """A circuit. `is_exact`: every site downstream has exactly the changes of the source, in their order, as its binlog
    shows. `keeps_sum`: the sum of money stays. `rejects`: a transaction of a site other than the primary may be
    refused, and is then in an exceptions table. `by_stamp`: every account keeps the change with the greatest stamp.
    """

    name: str
    sites: tuple[SiteRole, ...]
    is_exact: bool = False
    keeps_sum: bool = False
    rejects: bool = False
    by_stamp: bool = False

    def site(self, server_id: int) -> SiteRole:
        """Return the site with an id."""
        return next(each for each in self.sites if each.server_id == server_id)


_LOGS_AGAIN: Final[Mapping[str, Any]] = MappingProxyType({**OPTIONS, "log_replica_updates": True})
_EPOCH_TRANS: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys((ACCOUNT, JOURNAL, SCRATCH, SEAT), "NDB$EPOCH_TRANS()")
)
_MAX: Final[Mapping[str, str]] = MappingProxyType({ACCOUNT: "NDB$MAX(stamp)"})


def _first(sources: tuple[int, ...] = (), **more: Any) -> SiteRole:
    return SiteRole(1, sources, True, True, True, **more)


MODES: Final = {
    mode.name: mode
    for mode in (
        Mode(
            "one_way",
            (_first(), SiteRole(2, (1,), options=_LOGS_AGAIN)),
            is_exact=True,
            keeps_sum=True,
        ),
        Mode(
            "epoch_trans",
            (_first((2,), functions=_EPOCH_TRANS), SiteRole(2, (1,), True, True)),
            keeps_sum=True,
            rejects=True,
        ),
        Mode(
            "max",
            (_first((2,), functions=_MAX), SiteRole(2, (1,), True, True, functions=_MAX)),
            by_stamp=True,
        ),
        Mode(
            "chain",
            (_first(), SiteRole(2, (1,), options=_LOGS_AGAIN), SiteRole(3, (2,), options=_LOGS_AGAIN)),
            is_exact=True,
            keeps_sum=True,
        ),
        Mode(
            "circle",
            (
                _first((3,), functions=_MAX, options=_LOGS_AGAIN),
                SiteRole(2, (1,), True, True, functions=_MAX, options=_LOGS_AGAIN),
                SiteRole(3, (2,), True, True, functions=_MAX, options=_LOGS_AGAIN),
            ),
            by_stamp=True,
        ),
    )
}
