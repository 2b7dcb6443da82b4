"""The format: documented as it is, unchanged without a new version, and sealed against every flipped bit."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.log import redo_layout as redo
from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.rows import lcp_layout as lcp
from tidemark.engine.sealed import FORMAT_FINGERPRINT
from tidemark.engine.sealed import sealed_layout as sealed
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, KIND_SYSFILE, header_of, is_sealed, seal, write_seal
from tools import format_document as document
from tools.format_notes import NOTES

ROOT = Path(__file__).resolve().parents[2]


def test_document_says_what_the_layouts_say() -> None:
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    assert document.render(text) == text, "run `python -m tools.format_document --write`"


def test_layouts_have_the_fingerprint_of_the_format() -> None:
    assert document.fingerprint() == FORMAT_FINGERPRINT, (
        "the format on disk has changed: raise FORMAT_VERSION, add a line to the versions in docs/format.md,"
        " keep reading the version before, and renew FORMAT_FINGERPRINT"
    )


CONSTANTS = [
    ("tidemark.engine.log.redo_layout", "KIND_NOOP"),
    ("tidemark.engine.log.redo_layout", "FLAG_VAR_KEPT"),
    ("tidemark.engine.log.redo_layout", "WORDS_SHIFT"),
    ("tidemark.engine.log.redo_layout", "FRAGMENT_SHIFT"),
    ("tidemark.engine.log.redo_layout", "COUNT_MASK"),
    ("tidemark.engine.log.redo_layout", "AUTHOR_SHIFT"),
    ("tidemark.engine.log.redo_layout", "TRANSACTION_WORDS"),
    ("tidemark.engine.rows.lcp_layout", "ENTRY_TABLE_SHIFT"),
    ("tidemark.engine.rows.lcp_layout", "ENTRY_FRAGMENT_MASK"),
    ("tidemark.engine.rows.lcp_layout", "COPIES_FRAGMENT"),
    ("tidemark.engine.rows.lcp_layout", "BLOCK_HEADER_WORDS"),
    ("tidemark.engine.log.group_layout", "GROUP_ALIGN_BYTES"),
    ("tidemark.engine.schema.row_layout", "VAR_KEY_WORDS_SHIFT"),
    ("tidemark.engine.schema.row_layout", "VAR_NULL_BIT"),
    ("tidemark.engine.sealed.sealed_layout", "KIND_GROUP"),
    ("tidemark.engine.sealed.sealed_layout", "FORMAT_VERSION"),
    ("tidemark.recovery.system_restart.sysfile_layout", "SYSFILE_BYTES"),
]


@pytest.mark.parametrize(("module", "name"), CONSTANTS)
def test_any_changed_constant_of_a_layout_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    # Bits inside words were listed by hand: moving a shift changed the bytes of every log and not the fingerprint.
    before = document.fingerprint()
    target = importlib.import_module(module)
    monkeypatch.setattr(target, name, getattr(target, name) + 1)
    assert document.fingerprint() != before


def test_moved_bits_change_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| 2 | 47–58 | fragment |" in document.bit_table("row entry")
    monkeypatch.setattr(lcp, "ENTRY_FRAGMENT_SHIFT", 48)
    assert "| 2 | 48–59 | fragment |" in document.bit_table("row entry")
    monkeypatch.setattr(redo, "KIND_NOOP", 77)
    monkeypatch.setattr(redo, "KIND_MAX", 77)
    assert "| 77 | NOOP |" in document.record_kinds()


def test_versions_still_read_are_no_part_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    before = document.fingerprint()
    monkeypatch.setattr(sealed, "FORMAT_VERSION_OLDEST", 0)
    assert document.fingerprint() == before


def test_words_that_explain_a_field_are_no_part_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    # Story: a rewording in the table of a var part, "behind this word" to "after this word", was reported as a change
    # of the format: in the tables of bits the fingerprint covered the meaning too.
    before = document.fingerprint()
    monkeypatch.setitem(NOTES["sysfile"], "gci", "other words")
    assert document.fingerprint() == before
    fields = document.bit_fields()
    reworded = {name: [(word, bits, f"other {text}") for word, bits, text in rows] for name, rows in fields.items()}
    monkeypatch.setattr(document, "bit_fields", lambda: reworded)
    assert document.fingerprint() == before
    reworded["var part"][0] = (1, *reworded["var part"][0][1:])
    assert document.fingerprint() != before


def test_field_without_a_note_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NOTES["sysfile"], "gci")
    with pytest.raises(SchemaInvalid):
        document.structure_table("sysfile")


def sealed_unit() -> np.ndarray:
    words = np.arange(512, dtype=np.int64)
    header = header_of(words, GROUP)
    write_seal(header, KIND_GROUP, 512, b"0123456789abcdef", 7)
    seal(words, 512)
    return words


def test_sealed_unit_is_accepted_as_its_kind_only() -> None:
    words = sealed_unit()
    assert is_sealed(words, KIND_GROUP, 512)
    assert not is_sealed(words, KIND_SYSFILE, 512)
    assert not is_sealed(words, KIND_GROUP, 511), "it must end inside what was read"


def test_every_flipped_bit_of_the_header_and_a_sample_of_the_body_is_found() -> None:
    words = sealed_unit()
    places = [*range(16 * 64), *range(16 * 64, 512 * 64, 97)]
    for place in places:
        words[place // 64] ^= np.int64(np.uint64(1 << (place % 64)).astype(np.int64))
        assert not is_sealed(words, KIND_GROUP, 512), f"bit {place}"
        words[place // 64] ^= np.int64(np.uint64(1 << (place % 64)).astype(np.int64))
    assert is_sealed(words, KIND_GROUP, 512)
