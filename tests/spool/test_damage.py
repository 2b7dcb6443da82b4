"""A spool file that the log refers to is whole, or the store is not opened, and no file is changed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.spool.support import NAME, found, insert_spooled, low_store, open_low, rows, spool_names
from tidemark.engine.log.spool_files import FOLDER
from tidemark.engine.sealed.sealed_layout import seal
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


def spooled_store() -> tuple[MemoryFiles, dict[int, Any], str]:
    files = MemoryFiles()
    db = low_store(files)
    state = insert_spooled(db)
    db.close()
    return files.kill(), state, f"{FOLDER}/{spool_names(files.kill())[0]}"


def put(files: MemoryFiles, name: str, offset: int, content: bytes) -> None:
    file = files.open(name, True)
    files.pwrite(file, offset, content)
    files.close(file)


def refused(files: MemoryFiles, name: str) -> tm.SpoolDamaged:
    """The store is not opened, says why, and has not been changed; `check` says it too."""
    before = files.snapshot()
    with pytest.raises(tm.SpoolDamaged) as caught:
        open_low(opened := files.kill())
    assert caught.value.evidence["file"] == name
    after = opened.snapshot()
    assert {key: value for key, value in after.items() if key != "LOCK"} == {
        key: value for key, value in before.items() if key != "LOCK"
    }
    return caught.value


def test_missing_file_is_damage() -> None:
    files, _, name = spooled_store()
    files.unlink(name)
    assert "cannot be opened" in refused(files, name).message


def test_file_cut_short_is_damage() -> None:
    files, _, name = spooled_store()
    file = files.open(name, True)
    files.truncate(file, files.size(file) - 1)
    assert "too short" in refused(files, name).message


def test_any_flipped_bit_is_damage() -> None:
    files, _, name = spooled_store()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    content = files.snapshot()[name]
    for _ in range(60):
        at = rng.randrange(len(content))
        broken = files.kill()
        put(broken, name, at, bytes([content[at] ^ 1 << rng.randrange(8)]))
        error = refused(broken, name)
        offset = error.evidence["offset"]
        assert isinstance(offset, int) and offset <= at < offset + 65_536


def test_blocks_exchanged_or_of_another_file_are_damage() -> None:
    """Intact blocks in a wrong place: the seal names the file and place they belong to."""
    files, _, name = spooled_store()
    content = files.snapshot()[name]
    size = int.from_bytes(content[12:16], "little") * 8
    put(files, name, 0, content[size : 2 * size])
    put(files, name, size, content[:size])
    refused(files, name)

    files = MemoryFiles()
    db = low_store(files)
    insert_spooled(db)
    insert_spooled(db, 5_000)
    db.close()
    one, other = (f"{FOLDER}/{leaf}" for leaf in spool_names(files.kill()))
    files = files.kill()
    put(files, one, 0, files.snapshot()[other])
    refused(files, one)


def test_block_as_it_was_before_it_was_written_again_is_damage() -> None:
    """A lost write on a disk that had reported the sync as done: seals are right, the digest is not."""
    files, _, name = spooled_store()
    content = files.snapshot()[name]
    size = int.from_bytes(content[12:16], "little")
    words = np.frombuffer(content[: size * 8], dtype=np.int64).copy()
    words[size - 1] ^= 1  # padding, or a value that is not read
    seal(words, size)
    put(files, name, 0, words.tobytes())
    assert "differs from its description in the log" in refused(files, name).message


def test_what_is_past_the_blocks_does_not_matter() -> None:
    files, state, name = spooled_store()
    put(files, name, len(files.snapshot()[name]), b"left of a savepoint" * 300)
    assert found(open_low(files)) == state


def test_check_finds_damage_of_a_store_in_use_and_of_one_that_is_closed() -> None:
    files = MemoryFiles()
    db = low_store(files)
    insert_spooled(db)
    name = f"{FOLDER}/{spool_names(files)[0]}"
    assert db.check()["problems"] == []
    put(files, name, 100, b"x")
    assert [problem for problem in db.check()["problems"] if name in problem]


def test_damage_under_an_open_transaction_ends_it_and_nothing_else() -> None:
    files = MemoryFiles()
    db = low_store(files)
    state = insert_spooled(db)
    txn = db.transaction()
    txn.update_where(NAME, {"balance": tm.col("balance") + 1})
    name = f"{FOLDER}/{spool_names(files)[-1]}"
    put(files, name, 300, b"broken")
    with pytest.raises(tm.SpoolDamaged) as caught:
        list(txn.scan(NAME))
    assert caught.value.evidence["file"] == name and caught.value.evidence["txid"] == txn.txid
    assert txn.is_ended
    assert found(db) == state
    insert_spooled(db, 5_000)
    assert found(open_low(files.kill())) == {**state, **{row[0]: row for row in rows(5_000)}}
