"""The options that a store was opened with last: an opening that does not name them has them again (ADR 0041).

The file is text (JSON) beside the store's own files. It holds no facts about rows: without it, or with a damaged one,
an opening takes the defaults. It is replaced as a whole, after an opening has succeeded and before a caller has the
store. So after a crash the rows fit into what the file says, and options that could not open the store are never kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Error, SchemaInvalid, StorageFull
from tidemark.engine.base.options import LASTING, Options, parse_size
from tidemark.engine.files.durable_files import write_whole
from tidemark.engine.files.opened import Opened

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

_log = logging.getLogger("tidemark.restart")

NAME = "options.json"
UNNAMED = "options.new"
BYTES_MAX = 64 << 10


def kept_options(files: Files) -> dict[str, Any]:
    """Return the options that the store in a directory keeps; none if the file is missing or invalid."""
    try:
        if not files.exists(NAME):
            return {}
        with Opened(files, files.open(NAME, False)) as file:
            found = json.loads(files.pread(file, 0, min(files.size(file), BYTES_MAX)))
        if not isinstance(found, dict):
            raise ValueError("it is no object of JSON")
        kept = {name: found[name] for name in LASTING if name in found}
        Options.from_keywords(kept)
    except (Error, ValueError, TypeError, RecursionError) as error:
        if files.failure.first is not None:
            raise
        _log.warning("%s is passed over, and the store has the default options: %s", NAME, error)
        return {}
    return kept


def kept_for_reading(files: Files) -> dict[str, Any]:
    """Return the options that a store keeps, for a restart that writes nothing. It holds all changed pages, so its
    `page_buffer` is no smaller than the default.
    """
    kept = kept_options(files)
    size = kept.get("page_buffer", Options.page_buffer)
    if parse_size("page_buffer", size) < parse_size("page_buffer", Options.page_buffer):
        del kept["page_buffer"]
    return kept


def keep_options(files: Files, options: Options, named: Mapping[str, object]) -> None:
    """Keep those of the options that the caller has named, beside those kept before. The caller holds the store's lock.
    Durable on return, unless the disk is full: then a line of the log says so. Raises: StoreFailed.
    """
    before = kept_options(files)
    kept = {**before, **{name: getattr(options, name) for name in LASTING if name in named}}
    if kept == before:
        return
    try:
        if files.exists(UNNAMED):
            files.unlink(UNNAMED)
        write_whole(files, UNNAMED, NAME, json.dumps(kept, indent=2).encode() + b"\n")
    except StorageFull as error:
        _log.warning("the options of this opening are not kept for the next one: %s", error)


def check_lasting(names: Mapping[str, object], others: tuple[str, ...]) -> None:
    """Refuse options that a store does not keep. others: those that it keeps elsewhere. Raises: SchemaInvalid."""
    for name in names:
        if name not in LASTING + others:
            raise SchemaInvalid(
                f"option {name} does not last: it holds while a process has the store open, and each opening gives its"
                f" own; leave it out here, and give it to tm.open or to the command that opens the store",
                option=name,
            )
