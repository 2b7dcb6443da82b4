"""Load files: insert records that a job writes outside the store, and that a record of the log adopts by name.

The process that has the rows writes a file once; after its rename it never changes (docs/load.md). Its description is
in the manifest of its job, and from the adoption on in the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FOLDER = "load"
SUFFIX = ".load"
JOB_DIGITS = 16
_NAME = re.compile(r"([0-9a-f]{16})-(\d{1,10})-(\d{1,5})-(\d{1,19})-(\d{1,19})-([0-9a-f]{8})\.load")


@dataclass(frozen=True)
class LoadFile:
    """One load file and its description."""

    job: int
    table_id: int
    fragment: int
    part: int
    attempt: int
    tag: int  # random, so that no two attempts write the same name
    rows: int
    pages: int  # logical pages of its rows, numbered from 0
    blocks: int
    records_words: int
    size_bytes: int
    digest: int

    @property
    def leaf(self) -> str:
        """Its name in the directory of the job."""
        place = f"{self.table_id}-{self.fragment}-{self.part}-{self.attempt}"
        return f"{job_name(self.job)}-{place}-{self.tag:08x}{SUFFIX}"

    @property
    def name(self) -> str:
        """Its name in a store."""
        return f"{FOLDER}/{self.leaf}"


def job_name(job: int) -> str:
    """Return the prefix of the names of all files of a job."""
    return f"{job:0{JOB_DIGITS}x}"


def is_job_name(leaf: str) -> bool:
    """Whether this is the name of a job: also of the folder in which its rows wait to be written into load files."""
    return re.fullmatch(rf"[0-9a-f]{{{JOB_DIGITS}}}", leaf) is not None


def is_load_leaf(leaf: str) -> bool:
    """Whether a name in the folder is a valid name of a load file."""
    return _NAME.fullmatch(leaf) is not None
