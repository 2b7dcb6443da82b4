"""A process that damages a store's catalog in every way and opens it: `python -m tests.recovery.catalog_child DIR`.

LMDB on a broken file can end in a signal, which a test in the same process would not survive to report. Prints one line
of JSON: how many damages were tried, and how many openings succeeded.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.store.support import SMALL
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.schema.catalog import DATA_NAME, SEAL_NAME, Catalog
from tidemark.engine.schema.definition import TableDefinition

BIT_STEP = 211  # a prime, so that every bit of a byte and every place in a page has its turn
OPEN_EVERY = 40


def expected(db: Any) -> list[TableDefinition]:
    """The truth: what the restart found in checkpoints and log."""
    return sorted((db[name].definition for name in db.status()["tables"]), key=lambda each: each.table_id)


def served(directory: Path, identity: tuple[bytes, int]) -> list[TableDefinition] | None:
    """The content of the catalog, None if it reports damage."""
    files = PosixFiles(directory)
    files.read_errors_latch = False
    try:
        return Catalog(files, str(directory), *identity).read()[1]
    except tm.CatalogDamaged:
        return None
    finally:
        files.close_all()


class Check:
    """One store whose catalog is damaged again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damages = self.openings = 0
        with tm.open(directory, **SMALL) as db:
            self.truth = expected(db)
            self.identity = db.parts.opened.identity
        assert served(directory, self.identity) == self.truth

    def damaged(self) -> None:
        """A damaged catalog must be detected."""
        self.damages += 1
        found = served(self.directory, self.identity)
        assert found is None, f"a damaged catalog was served: {found}"

    def reopen(self) -> None:
        """Opening must return the right tables, and repair the catalog."""
        self.openings += 1
        with tm.open(self.directory, **SMALL) as db:
            assert expected(db) == self.truth
            self.identity = db.parts.opened.identity
            assert db["test.account"].get(7) is not None
        assert served(self.directory, self.identity) == self.truth

    def file(self, name: str, rng: random.Random) -> None:
        """Every BIT_STEP-th bit of one file, and the file cut, lengthened, filled, replaced, gone."""
        path = self.directory / name
        for number in range(0, path.stat().st_size * 8, BIT_STEP if name == DATA_NAME else 5):
            content = path.read_bytes()
            changed = bytearray(content)
            changed[number // 8] ^= 1 << number % 8
            path.write_bytes(changed)
            self.damaged()
            if self.damages % OPEN_EVERY == 0 and name == DATA_NAME:
                self.reopen()
            else:
                path.write_bytes(content)
        content = path.read_bytes()
        others = [
            content[:at] for at in (0, 1, 8, 100, 255, 4_095, 4_096, 8_192, len(content) - 1) if at < len(content)
        ]
        others += [content + b"\0", content + bytes(4_096), bytes(len(content)), b"\xff" * len(content)]
        others += [rng.randbytes(len(content)), b"not a database"]
        for other in others:
            path.write_bytes(other)
            self.damaged()
            self.reopen()
        path.unlink()
        self.damaged()
        self.reopen()
        path.unlink()
        path.mkdir()
        self.damaged()
        with tm.open(self.directory, **SMALL) as db:  # it cannot be made anew, which only costs the cache
            assert expected(db) == self.truth
        path.rmdir()
        self.reopen()


def main(directory: Path) -> None:
    """Everything."""
    check = Check(directory)
    rng = random.Random(66)
    for name in (DATA_NAME, SEAL_NAME):
        check.file(name, rng)
    print(json.dumps({"damages": check.damages, "openings": check.openings}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
