"""What a power loss may leave on the disk in memory (F16 to F26)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.base.errors import Locked, Rejected
from tidemark.recovery.crash_harness.disks import CRASH_POLICIES, MemoryFiles, Piece

SECTOR = 512


def durable(content: bytes) -> tuple[MemoryFiles, int]:
    """A disk with a durable file `a`."""
    files = MemoryFiles.from_snapshot({"a": content})
    return files, files.open("a", True)


def images(files: MemoryFiles) -> set[tuple[tuple[str, bytes], ...]]:
    """Every disk a power loss can leave, by trying all subsets of pieces."""
    pieces = files.pieces()
    assert len(pieces) <= 12
    found = set()
    for mask in range(1 << len(pieces)):
        kept = {piece for number, piece in enumerate(pieces) if mask >> number & 1}
        found.add(tuple(sorted(files.image(kept.__contains__).snapshot().items())))
    return found


def test_drop_loses_everything_unsynced_and_keep_nothing() -> None:
    files, file = durable(b"o" * 1024)
    files.pwrite(file, 0, b"n" * 2048)
    files.create("b")
    assert files.crash(random.Random(0), "drop").snapshot() == {"a": b"o" * 1024}
    assert files.crash(random.Random(0), "keep").snapshot() == {"a": b"n" * 2048, "b": b""}
    assert files.snapshot() == {"a": b"n" * 2048, "b": b""}


def test_unknown_policy_is_rejected() -> None:
    with pytest.raises(Rejected):
        MemoryFiles().crash(random.Random(0), "sector")  # type: ignore[arg-type]


def test_sync_without_directory_sync_loses_the_file() -> None:
    files = MemoryFiles()
    file = files.create("a")
    files.pwrite(file, 0, b"x")
    files.fdatasync(file)
    assert images(files) == {(), (("a", b"x"),)}
    files.sync_directory("")
    assert images(files) == {(("a", b"x"),)}


def test_directory_sync_without_sync_keeps_an_empty_file() -> None:
    files = MemoryFiles()
    files.pwrite(files.create("a"), 0, b"x")
    files.sync_directory("")
    # Size and data go apart: neither, the size alone (zeros), data without size (gone), both.
    assert images(files) == {(("a", b""),), (("a", b"\0"),), (("a", b"x"),)}


def test_file_in_directory_whose_entry_is_not_durable_is_lost_with_it() -> None:
    files = MemoryFiles()
    files.make_directory("redo")
    file = files.create("redo/a")
    files.fdatasync(file)
    files.sync_directory("redo")
    assert images(files) == {(), (("redo/", b""), ("redo/a", b""))}
    files.sync_directory("")
    assert len(images(files)) == 1


def test_unlink_not_synced_may_come_back() -> None:
    files, _ = durable(b"old")
    files.unlink("a")
    assert images(files) == {(), (("a", b"old"),)}
    files.sync_directory("")
    assert images(files) == {()}


def test_rename_leaves_old_or_new_or_both_but_never_loses_the_file() -> None:
    files = MemoryFiles.from_snapshot({"a": b"old", "b": b"new"})
    files.rename("b", "a")
    old, new = ("a", b"old"), ("a", b"new")
    source = ("b", b"new")
    assert images(files) == {(old, source), (source,), (new, source), (new,)}
    files.sync_directory("")
    assert images(files) == {(new,)}


def test_rename_between_directories_is_one_step_for_either_sync() -> None:
    files = MemoryFiles.from_snapshot({"from/x": b"1", "to/": b""})
    files.rename("from/x", "to/y")
    files.sync_directory("from")
    assert {tuple(name for name, _ in image) for image in images(files)} == {("from/", "to/", "to/y")}
    files = MemoryFiles.from_snapshot({"from/x": b"1", "to/": b""})
    files.rename("from/x", "to/y")
    files.sync_directory("to")
    assert {tuple(name for name, _ in image) for image in images(files)} == {
        ("from/", "from/x", "to/", "to/y"),
        ("from/", "to/", "to/y"),
    }


def test_truncate_is_kept_or_dropped_as_a_whole() -> None:
    files, file = durable(b"x" * 2000)
    files.truncate(file, 700)
    assert {len(image[0][1]) for image in images(files)} == {700, 2000}


def test_write_is_torn_at_sectors_in_any_combination() -> None:
    files, file = durable(b"o" * 4 * SECTOR)
    files.pwrite(file, 0, b"n" * 3 * SECTOR)
    seen = {image[0][1] for image in images(files)}
    assert len(seen) == 8
    assert all(content[3 * SECTOR :] == b"o" * SECTOR for content in seen)
    assert b"n" * SECTOR + b"o" * SECTOR + b"n" * SECTOR + b"o" * SECTOR in seen


def test_unaligned_write_is_cut_where_the_disk_cuts() -> None:
    files, file = durable(bytes(2048))
    files.pwrite(file, 500, b"x" * 600)
    assert [(piece.offset, piece.length) for piece in files.pieces()] == [(500, 12), (512, 512), (1024, 76)]


def test_data_past_a_growth_that_was_lost_is_gone() -> None:
    files, file = durable(b"")
    files.pwrite(file, 600, b"x" * 1000)
    assert files.image(lambda piece: piece.kind == "write").snapshot() == {"a": b""}
    files, file = durable(bytes(700))
    files.pwrite(file, 600, b"x" * 1000)
    assert files.image(lambda piece: piece.kind == "write").snapshot() == {"a": bytes(600) + b"x" * 100}


def test_torn_policy_keeps_prefixes_only() -> None:
    files, file = durable(b"o" * 8 * SECTOR)
    files.pwrite(file, 0, b"n" * 8 * SECTOR)
    kept = set()
    for seed in range(200):
        content = files.crash(random.Random(seed), "torn").snapshot()["a"]
        count = content.count(b"n")
        assert content == b"n" * count + b"o" * (8 * SECTOR - count)
        kept.add(count // SECTOR)
    assert kept == set(range(9))


def test_growth_policy_keeps_sizes_with_zeros_or_garbage_and_no_data() -> None:
    seen = set()
    for seed in range(60):
        files, file = durable(b"")
        files.pwrite(file, 0, b"n" * 2 * SECTOR)
        content = files.crash(random.Random(seed), "growth").snapshot()["a"]
        assert len(content) == 2 * SECTOR
        assert b"n" * SECTOR not in content
        seen.add(content == bytes(2 * SECTOR))
    assert seen == {True, False}


def test_kill_keeps_live_content_and_its_risk() -> None:
    files, file = durable(b"old")
    files.lock()
    files.pwrite(file, 0, b"new")
    after = files.kill()
    after.lock()
    assert after.snapshot()["a"] == b"new"
    assert after.crash(random.Random(0), "drop").snapshot()["a"] == b"old"
    after.fdatasync(after.open("a", True))
    assert after.crash(random.Random(0), "drop").snapshot()["a"] == b"new"
    # The killed process's own view is a thing of the past, not shared.
    assert files.crash(random.Random(0), "drop").snapshot()["a"] == b"old"


def test_unlinked_open_file_is_gone_after_kill() -> None:
    files, file = durable(b"x")
    files.unlink("a")
    assert files.pread(file, 0, 1) == b"x"
    assert files.kill().snapshot() == {}


def test_second_handle_on_one_disk_is_locked() -> None:
    files = MemoryFiles()
    files.lock()
    other = MemoryFiles(files.disk)
    with pytest.raises(Locked):
        other.lock()
    other.unlock()
    with pytest.raises(Locked):
        other.lock()
    files.unlock()
    other.lock()


def test_digest_distinguishes_content_names_and_boundaries() -> None:
    contents = [{}, {"a": b""}, {"a": b"x"}, {"b": b"x"}, {"a": b"", "b": b"x"}, {"a": b"x", "b": b""}, {"a/": b""}]
    assert len({MemoryFiles.from_snapshot(content).digest() for content in contents}) == len(contents)
    files = MemoryFiles.from_snapshot(contents[5])
    assert files.digest() == files.kill().digest() == MemoryFiles.from_snapshot(files.snapshot()).digest()


names = st.sampled_from(["a", "b", "d/a", "d/b"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), names, st.integers(0, 1400), st.integers(1, 1500)),
        st.tuples(st.just("sync"), names),
        st.tuples(st.just("directory"), st.sampled_from(["", "d"])),
        st.tuples(st.just("rename"), names, names),
        st.tuples(st.just("unlink"), names),
        st.tuples(st.just("truncate"), names, st.integers(0, 1500)),
    ),
    max_size=25,
)


def play(files: MemoryFiles, script: list[tuple]) -> None:
    """Run a script of steps; those about files that are not there are skipped."""
    files.make_directory("d")
    files.sync_directory("")
    for number, (kind, name, *rest) in enumerate(script, 1):
        if kind == "directory":
            files.sync_directory(name)
        elif kind == "write":
            file = files.open(name, True) if files.exists(name) else files.create(name)
            files.pwrite(file, rest[0], bytes([number]) * rest[1])
        elif files.exists(name):
            if kind == "sync":
                files.fdatasync(files.open(name, True))
            elif kind == "rename":
                files.rename(name, rest[0])
            elif kind == "unlink":
                files.unlink(name)
            else:
                files.truncate(files.open(name, True), rest[0])


@given(steps, st.sampled_from(CRASH_POLICIES), st.integers(0, 1 << 32))
def test_crash_of_any_script_is_repeatable_and_clean(script: list[tuple], policy: str, seed: int) -> None:
    files = MemoryFiles()
    play(files, script)
    before = files.digest()
    image = files.crash(random.Random(seed), policy)  # type: ignore[arg-type]
    assert files.digest() == before
    assert files.crash(random.Random(seed), policy).digest() == image.digest()  # type: ignore[arg-type]
    # A disk after power loss has nothing at risk: another one leaves it as it is.
    assert image.pieces() == []
    assert image.crash(random.Random(seed), "drop").digest() == image.digest()


@given(steps)
def test_all_pieces_surviving_is_the_live_disk_and_syncing_all_is_no_risk(script: list[tuple]) -> None:
    files = MemoryFiles()
    play(files, script)
    assert files.image(lambda piece: True).snapshot() == files.snapshot()
    for name in files.snapshot():
        if not name.endswith("/"):
            files.fdatasync(files.open(name, True))
    files.sync_directory("")
    files.sync_directory("d")
    assert files.pieces() == []
    assert files.image(lambda piece: False).snapshot() == files.snapshot()


@given(steps, st.integers(0, 1 << 32))
def test_each_byte_after_crash_was_once_written_there(script: list[tuple], seed: int) -> None:
    files = MemoryFiles()
    play(files, script)
    written = [bytes([number]) * 1 for number in range(len(script) + 1)]
    rng = random.Random(seed)
    image = files.image(lambda piece: rng.random() < 0.5)
    for content in image.snapshot().values():
        assert set(content) <= {byte[0] for byte in written}
        assert len(content) <= 2900


@given(steps)
def test_pieces_are_each_asked_about_once(script: list[tuple]) -> None:
    files = MemoryFiles()
    play(files, script)
    asked: list[Piece] = []

    def refuse(piece: Piece) -> bool:
        asked.append(piece)
        return piece.kind in ("link", "unlink")

    files.image(refuse)
    assert len(asked) == len(set(asked))
