"""The data dictionary in LMDB: a cache of definitions from checkpoints and log, for tools that read without a restart
(D15).

LMDB returns flipped bits as valid data and may crash the process on a damaged file. So its file is opened only if its
digest matches our seal, and every value is sealed too. A catalog that does not match is discarded and rebuilt. Nothing
durable depends on it.

Order of writes: data.mdb (LMDB's own sync) → its digest into `catalog.seal` → sync. A crash in between leaves a seal
that does not match, which is the same as no catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import CatalogDamaged, FileMissing, Incompatible, IoFailed, Rejected
from tidemark.engine.schema.catalog_layout import CATALOG_SEAL, CATALOG_VALUE, UNIT_WORDS_MIN
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.checksums_kernels import xxh3_words
from tidemark.engine.sealed.sealed_layout import (
    KIND_CATALOG_SEAL,
    KIND_CATALOG_VALUE,
    header_of,
    is_sealed,
    seal,
    store_of,
    write_seal,
)
from tidemark.engine.sealed.units import sealed_text, text_of
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words

FOLDER = "catalog"
DATA_NAME = f"{FOLDER}/data.mdb"
LOCK_NAME = f"{FOLDER}/lock.mdb"
SEAL_NAME = "catalog.seal"
MAP_BYTES = 1 << 30


class Catalog:
    """The dictionary of one store in a real directory. A caller must hold the store's lock to write."""

    def __init__(self, files: Files, directory: str, store: bytes, incarnation: int) -> None:
        self._files = files
        self._path = f"{directory}/{FOLDER}"
        self._store = store
        self._incarnation = incarnation

    def read(self) -> tuple[int, list[TableDefinition]]:
        """Return (LSN reflected, definitions). Raises: CatalogDamaged on any mismatch; the store works without a
        catalog.
        """
        header = self._checked_seal()
        digest = 0
        found = []
        for value in self._values():
            words = np.frombuffer(value[: len(value) // 8 * 8], dtype=np.int64).copy()
            if not is_sealed(words, KIND_CATALOG_VALUE, words.size) or store_of(words) != self._store:
                raise _damaged("a value of the catalog fails its checksum")
            digest = _extend_digest(digest, words)
            try:
                check_version(words, DATA_NAME)
                found.append(TableDefinition.from_json(text_of(words, CATALOG_VALUE)))
            except (Incompatible, Rejected) as error:
                raise CatalogDamaged(f"a value of the catalog cannot be used: {error}") from error
        if len(found) != int(header["tables"]) or digest != int(header["tables_digest"]):
            raise _damaged("the catalog lacks a table that its seal counts")
        return int(header["lsn"]), found

    def _checked_seal(self) -> Any:
        try:
            words = self._read_words(SEAL_NAME, CATALOG_SEAL.itemsize)
            header = header_of(words, CATALOG_SEAL)
            intact = is_sealed(words, KIND_CATALOG_SEAL, words.size) and store_of(words) == self._store
            # The size first, so that a file that has grown is not read at all.
            matches = (
                intact
                and self._files.size(DATA_NAME) == int(header["file_bytes"])
                and self._file_digest() == (int(header["file_bytes"]), int(header["file_digest"]))
            )
            if matches:
                check_version(words, SEAL_NAME)
        except (FileMissing, Incompatible, Rejected) as error:
            raise CatalogDamaged(f"the catalog is not complete: {error}") from error
        except IoFailed as error:
            if self._files.failure.first is not None:
                raise
            raise CatalogDamaged(f"the catalog cannot be read: {error}") from error
        if not matches:
            raise _damaged("the catalog does not match its seal")
        return header

    def _read_words(self, name: str, size: int) -> Words:
        words = np.zeros(size // 8, dtype=np.int64)
        file = self._files.open(name, False)
        try:
            if self._files.size(file) < size:
                raise _damaged(f"{name} is too short", file=name)
            self._files.pread_into(file, 0, words.data.cast("B"))
        finally:
            self._files.close(file)
        return words

    def _file_digest(self) -> tuple[int, int]:
        size = self._files.size(DATA_NAME)
        words = self._read_words(DATA_NAME, size // 8 * 8)
        return size, xxh3_words(words, 0, words.size)

    def _environment(self, writable: bool) -> Any:
        import lmdb

        return lmdb.open(
            self._path, map_size=MAP_BYTES, readonly=not writable, lock=False, create=writable, max_spare_txns=1
        )

    def _values(self) -> list[bytes]:
        import lmdb

        try:
            with self._environment(False) as environment, environment.begin() as view:
                return [bytes(value) for _, value in view.cursor()]
        except lmdb.Error as error:
            raise _damaged(f"the catalog cannot be read: {error}") from error

    def rewrite(self, lsn: int, definitions: Sequence[TableDefinition]) -> None:
        """Rebuild the catalog from the store's definitions. Until the seal is synced, the disk holds no valid catalog.

        One thread at a time. Raises: CatalogDamaged if LMDB cannot write it, StorageFull, TooManyFiles, Rejected if
        something else is in its place, StoreFailed.
        """
        import lmdb

        for name in (SEAL_NAME, DATA_NAME, LOCK_NAME):
            if self._files.exists(name):
                self._files.unlink(name)
        if not self._files.exists(FOLDER):
            self._files.make_directory(FOLDER)
        self._files.close(self._files.create(DATA_NAME))  # with the mode of the store's files, which LMDB would not set
        digest = 0
        try:
            with self._environment(True) as environment, environment.begin(write=True) as change:
                for definition in sorted(definitions, key=lambda each: each.table_id):
                    words = self._sealed_value(definition)
                    digest = _extend_digest(digest, words)
                    change.put(definition.table_id.to_bytes(8, "big"), words.tobytes())
        except lmdb.Error as error:
            raise CatalogDamaged(f"the catalog cannot be written: {error}; free space or descriptors") from error
        self._write_seal(lsn, len(definitions), digest)

    def _sealed_value(self, definition: TableDefinition) -> Words:
        identity = (self._store, self._incarnation)
        about = (CATALOG_VALUE, KIND_CATALOG_VALUE, identity, UNIT_WORDS_MIN)
        return sealed_text(*about, definition.to_json(), table_id=definition.table_id)

    def _write_seal(self, lsn: int, tables: int, digest: int) -> None:
        words = np.zeros(UNIT_WORDS_MIN, dtype=np.int64)
        header = header_of(words, CATALOG_SEAL)
        write_seal(header, KIND_CATALOG_SEAL, UNIT_WORDS_MIN, self._store, self._incarnation)
        header["lsn"] = lsn
        header["file_bytes"], header["file_digest"] = self._file_digest()
        header["tables"] = tables
        header["tables_digest"] = digest
        seal(words, UNIT_WORDS_MIN)
        file = self._files.create(SEAL_NAME)
        try:
            self._files.pwrite(file, 0, words)
            self._files.fdatasync(file)
        finally:
            self._files.close(file)
        self._files.sync_directory("")


def _damaged(what: str, **evidence: object) -> CatalogDamaged:
    return CatalogDamaged(f"{what}; open the store for writing, which rebuilds it", **evidence)


def _extend_digest(digest: int, words: Words) -> int:
    """Extend the digest of a list of sealed values by the next one; the digest depends on their order."""
    return (digest * 0x9E3779B185EBCA87 + xxh3_words(words, 0, words.size)) % (1 << 64)
