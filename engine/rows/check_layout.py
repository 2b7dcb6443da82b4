"""Findings of the verification of rows in memory."""

from __future__ import annotations

FAULT_PAGE = 1
FAULT_STATE = 2
FAULT_LOCK = 3
FAULT_EPOCH = 4
FAULT_VAR = 5
FAULT_INDEX = 6
FAULT_SEGMENT = 7
FAULT_COUNT = 8
