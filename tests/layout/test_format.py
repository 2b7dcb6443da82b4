"""The format: documented as it is, unchanged without a new version, and sealed against every flipped bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import SchemaInvalid
from engine.layout import document
from engine.layout.log import GROUP
from engine.layout.notes import NOTES
from engine.layout.sealed import KIND_GROUP, KIND_SYSFILE, header_of, is_sealed, seal, write_seal

ROOT = Path(__file__).resolve().parents[2]


def test_document_says_what_the_layouts_say() -> None:
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    assert document.render(text) == text, "run `python -m engine.layout.document --write`"


def test_format_fingerprint_is_the_golden_one() -> None:
    golden = (ROOT / "tests" / "golden" / "format-fingerprint.txt").read_text(encoding="utf-8").strip()
    assert document.fingerprint() == golden, (
        "the format on disk has changed: raise FORMAT_VERSION, add a line to the versions in docs/format.md,"
        " keep reading the version before, and renew the golden file"
    )


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
