"""Bulk load: rows written into load files by any process, anywhere, and adopted by the store at once (docs/load.md).

Tasks need only a `LoadJob`: `write_fragment`, `write_parts`, `fragments_of`. The process that commits the job calls
`publish` or `abort`.
"""

from tidemark.recovery.load.commit import LoadManifest, abort, publish, read_manifest
from tidemark.recovery.load.job import FragmentReport, LoadJob
from tidemark.recovery.load.tasks import fragments_of, write_fragment, write_parts

__all__ = [
    "FragmentReport",
    "LoadJob",
    "LoadManifest",
    "abort",
    "fragments_of",
    "publish",
    "read_manifest",
    "write_fragment",
    "write_parts",
]
