"""Disks for crash and fault tests: in memory with power loss, failing by plan, recorded, checked for write order.

Each is a `Files`. The wrappers go around any other (`FaultFiles(MemoryFiles(), plan)`) and share its failure latch.
"""

from __future__ import annotations

from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor, OrderViolation
from tidemark.recovery.crash_harness.disks.power_loss import Piece
from tidemark.recovery.crash_harness.disks.trace import Event, TraceFiles

__all__ = [
    "CRASH_POLICIES",
    "Event",
    "FaultFiles",
    "MemoryFiles",
    "OrderMonitor",
    "OrderViolation",
    "Piece",
    "Plan",
    "Rule",
    "TraceFiles",
]
