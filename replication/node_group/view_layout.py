"""The record of a node or of the arbitrator on disk, in two equal copies: its view, and its votes for the next view."""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

VIEW_BYTES = 4_096
VIEW_MEMBERS = 4
VIEW_ADDRESS_BYTES = 64

_FIXED_WORDS = 5 + 15 + 2 * (VIEW_MEMBERS + VIEW_MEMBERS * VIEW_ADDRESS_BYTES // 8) + VIEW_ADDRESS_BYTES // 8

VIEW = np.dtype(
    [
        *SEAL_FIELDS,
        ("generation", "<u8"),  # the newer intact copy wins
        ("node", "<u8"),  # 0: the arbitrator
        ("number", "<u8"),
        ("primary", "<u8"),
        ("count", "<u8"),
        ("is_member", "<u8"),
        ("epoch", "<u8"),
        ("joins", "<u8"),
        ("promised_round", "<u8"),
        ("promised_node", "<u8"),
        ("accepted_round", "<u8"),
        ("accepted_node", "<u8"),
        ("accepted_primary", "<u8"),
        ("accepted_count", "<u8"),
        ("members", "<u8", (VIEW_MEMBERS,)),
        ("accepted_members", "<u8", (VIEW_MEMBERS,)),
        ("addresses", "u1", (VIEW_MEMBERS * VIEW_ADDRESS_BYTES,)),
        ("accepted_addresses", "u1", (VIEW_MEMBERS * VIEW_ADDRESS_BYTES,)),
        ("arbitrator", "u1", (VIEW_ADDRESS_BYTES,)),
        ("sequence", "<u8"),  # of `epoch`: its last group
        ("reserved", "<u8", (VIEW_BYTES // 8 - _FIXED_WORDS,)),
    ]
)

assert VIEW.itemsize == VIEW_BYTES
