"""The sysfile: two copies, written in turn. It has a lower bound for the end of the log (D5) and the settings with
which the store was created.
"""

from __future__ import annotations

import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_FIELDS

SYSFILE_BYTES = 4_096

SYSFILE = np.dtype(
    [
        *SEAL_FIELDS,
        ("generation", "<u8"),  # the newest intact copy wins
        ("gci", "<u8"),
        ("closed_epoch", "<u8"),  # newest epoch known to be closed and durable
        ("durable_lsn", "<u8"),  # the log was durable up to here: an end before it is damage
        ("durable_sequence", "<u8"),
        ("file_bytes", "<u8"),  # geometry of the log
        ("file_count", "<u8"),
        ("hash_seed", "<i8"),  # seed of the index hashes
        ("next_table_id", "<u8"),
        ("next_lcp_id", "<u8"),
        ("created_us", "<u8"),
        ("reach_lsn", "<u8"),  # no group that was ever written ends past this; 0: unknown (ADR 0007)
        ("filtered_epoch", "<u8"),  # UNDO records of epochs up to this may have been left out; 0: none
        ("undo_file_bytes", "<u8"),  # geometry of the UNDO log
        ("undo_file_count", "<u8"),  # 0: there is no UNDO log yet
        ("undo_void_sequence", "<u8"),  # UNDO groups from this one on are void up to the LSN in the next field
        ("undo_void_lsn", "<u8"),
        ("timeline", "<u8"),  # how often the store went back to an earlier epoch and continued from there
        ("seam_lsn", "<u8"),  # groups from here on follow rows copied from another node; 0: there is no seam
        ("seam_sequence", "<u8"),  # the first of those groups
        ("unmade_count", "<u8"),  # last files of the log that the first lap has not come to; the log lacks them
        ("reserved", "<u8", ((SYSFILE_BYTES - 40 - 21 * 8) // 8,)),
    ]
)

assert SYSFILE.itemsize == SYSFILE_BYTES
