"""Disks for crash and fault tests: in memory with power loss, failing on plan, recorded, watched for write order.

Each is a `Files`; the wrappers stand on any of them (`FaultFiles(MemoryFiles(), plan)`) and share its failure latch.
"""

from __future__ import annotations

from engine.file_doubles.faults import FaultFiles, Plan, Rule
from engine.file_doubles.memory import CRASH_POLICIES, MemoryFiles
from engine.file_doubles.order import OrderMonitor, OrderViolation
from engine.file_doubles.power_loss import Piece
from engine.file_doubles.trace import Event, TraceFiles

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
