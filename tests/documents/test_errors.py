"""Each class of error has its message on one page, as the program raises it today."""

from __future__ import annotations

from pathlib import Path

from tests.documents import mistakes


def test_page_has_the_messages_as_they_are_raised(tmp_path: Path) -> None:
    """All messages can be read in one sitting, so a message that is changed is seen there: run
    `python -m tests.documents.mistakes`, and read what it changed.
    """
    assert mistakes.PAGE.read_text(encoding="utf-8") == mistakes.page(tmp_path)


def test_a_class_without_a_scene_is_an_error() -> None:
    names = {each.__name__ for each in mistakes.classes()}
    assert len(names) > 70 and {"DuplicateKey", "Locked", "PositionLost", "OutcomeUnknown"} <= names
