"""Room in the UNDO buffer: a commit in one call needs what it has reserved, and no more."""

from __future__ import annotations

import tidemark as tm
from tests.store.support import open_memory

UPDATES = 1_200


def test_updates_that_fill_the_undo_buffer_to_its_last_words_commit() -> None:
    """A store with pages of 16 KiB stopped with InvariantBroken in an ordinary update: a commit began with the room it
    had reserved for its small pieces, and then asked for the room of a whole page. Each update commits.
    """
    db = open_memory(page_buffer="1 MiB", redo_log="16 MiB")
    db.create_tablespace("main", size="2 MiB", page_size="16 KiB", extent="128 KiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("d", tm.Binary(200), storage="disk")]
    table = db.create_table("t", columns, "id")
    table.insert_many([{"id": key, "d": b""} for key in range(50)])
    for number in range(UPDATES):  # the sizes meet every remainder of the buffer
        table.update(number % 50, {"d": bytes([number % 256]) * 200})
    assert table[49].d == bytes([(UPDATES - 1) % 256]) * 200
    db.close()
