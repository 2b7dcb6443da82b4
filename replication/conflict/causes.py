"""Names and numbers of conflicts, as in exceptions tables."""

from __future__ import annotations

from enum import IntEnum

REFUSED_CODE = 9999  # a program of a conflict function refused the row
INVALID_TRANSACTION = 0xFFFF_FFFF_FFFF_FFFF


class OperationType(IntEnum):
    """NDB$OP_TYPE: the operation in conflict."""

    WRITE_ROW = 1
    UPDATE_ROW = 2
    DELETE_ROW = 3
    REFRESH_ROW = 4
    READ_ROW = 5


class Cause(IntEnum):
    """NDB$CFT_CAUSE. NDB up to 8.0 stores each of the first two in place of the other; here they are right."""

    ROW_DOES_NOT_EXIST = 1
    ROW_ALREADY_EXISTS = 2
    DATA_IN_CONFLICT = 3
    TRANS_IN_CONFLICT = 4
