"""Injected errors: translation, loops, the latch (F33, F36 to F38, F47 to F49, F51)."""

from __future__ import annotations

import contextlib
import dis
import errno
import inspect
from collections.abc import Callable
from types import CodeType

import pytest

from tidemark.engine.base.errors import FileMissing, IoFailed, ReadOnly, Rejected, StorageFull, SyncFailed, TooManyFiles
from tidemark.engine.base.failure import Failure
from tidemark.engine.files.layer import CheckedFiles
from tidemark.recovery.crash_harness.disks import FaultFiles, MemoryFiles, Rule

PERSONALITIES = ("clean", "reverted", "late")


def exercise(files: CheckedFiles) -> None:
    """Every operation once."""
    files.lock()
    files.make_directory("redo")
    file = files.create("redo/a", 1024)
    files.pwrite(file, 0, b"abcdefgh" * 64)
    files.fdatasync(file)
    files.sync_directory("redo")
    files.truncate(file, 512)
    files.pread(file, 0, 512)
    files.size(file)
    files.close(file)
    files.open("redo/a")
    files.rename("redo/a", "redo/b")
    files.list("redo")
    files.exists("redo/b")
    files.unlink("redo/b")
    files.sync_directory("redo")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_storage_full_and_store_lives_on(code: int) -> None:
    inner = MemoryFiles()
    files = FaultFiles(inner, [Rule("pwrite", nth=2, error=code)])
    file = files.create("a")
    files.pwrite(file, 0, b"one")
    with pytest.raises(StorageFull) as full:
        files.pwrite(file, 3, b"two")
    assert full.value.retryable
    files.pwrite(file, 3, b"two")
    files.fdatasync(file)
    assert inner.snapshot() == {"a": b"onetwo"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_reported_by_sync_is_sync_failed(code: int) -> None:
    files = FaultFiles(MemoryFiles(), [Rule("fdatasync", error=code)])
    file = files.create("a", 10)
    with pytest.raises(SyncFailed):
        files.fdatasync(file)
    with pytest.raises(SyncFailed):
        files.pread(file, 0, 1)


def test_full_disk_while_zero_filling_leaves_no_file() -> None:
    inner = MemoryFiles()
    files = FaultFiles(inner, [Rule("pwrite", nth=3, error=errno.ENOSPC)])
    with pytest.raises(StorageFull):
        files.create("a", 4 << 20)
    assert inner.snapshot() == {}
    files.create("a", 4 << 20)


@pytest.mark.parametrize(
    ("operation", "code", "expected"),
    [
        ("open", errno.EMFILE, TooManyFiles),
        ("open", errno.ENFILE, TooManyFiles),
        ("create", errno.EMFILE, TooManyFiles),
        ("list", errno.EMFILE, TooManyFiles),
        ("lock", errno.ENFILE, TooManyFiles),
        ("sync_directory", errno.EMFILE, TooManyFiles),
        ("open", errno.EACCES, ReadOnly),
        ("create", errno.EROFS, ReadOnly),
        ("make_directory", errno.EACCES, ReadOnly),
        ("lock", errno.EROFS, ReadOnly),
        ("open", errno.ENOENT, FileMissing),
        ("open", errno.ELOOP, Rejected),
        ("create", errno.ENOSPC, StorageFull),
        ("make_directory", errno.ENOSPC, StorageFull),
        ("rename", errno.ENOSPC, StorageFull),
    ],
)
def test_answer_of_the_system_is_translated_and_not_latched(operation: str, code: int, expected: type) -> None:
    files = FaultFiles(MemoryFiles(), [Rule(operation, error=code)])
    with pytest.raises(expected) as answered:
        exercise(files)
    assert type(answered.value) is expected
    assert isinstance(answered.value.__cause__, OSError)
    assert "\n" not in str(answered.value)
    assert files.failure.error is None
    assert len(files.fired) == 1


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("pread", errno.EIO),
        ("pwrite", errno.EIO),
        ("pwrite", errno.EROFS),
        ("pwrite", errno.EACCES),
        ("truncate", errno.EIO),
        ("rename", errno.EROFS),
        ("unlink", errno.EIO),
        ("create", errno.EIO),
        ("open", errno.EIO),
        ("list", errno.EIO),
        ("size", errno.EIO),
        ("lock", errno.EIO),
        ("make_directory", errno.EIO),
    ],
)
def test_failure_of_the_disk_is_latched_with_its_first_cause(operation: str, code: int) -> None:
    files = FaultFiles(MemoryFiles(), [Rule(operation, error=code), Rule("*", nth=1, once=False, error=None)])
    with pytest.raises(IoFailed) as first:
        exercise(files)
    assert first.value.operation == operation
    assert errno.errorcode[code] in str(first.value)
    calls = files.calls
    with pytest.raises(IoFailed) as again:
        files.list()
    assert str(again.value) == str(first.value)
    assert again.value.__cause__ is first.value.__cause__
    assert files.calls == calls


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_failed_file_sync_is_never_repeated_and_kills_the_store(personality: str) -> None:
    inner = MemoryFiles(personality=personality)
    files = FaultFiles(inner, [Rule("fdatasync", "redo/*", nth=2, error=errno.EIO)])
    files.make_directory("redo")
    files.sync_directory("")
    file = files.create("redo/0000.redo", 1024)
    files.sync_directory("redo")
    files.fdatasync(file)
    files.pwrite(file, 0, b"n" * 512)
    if personality == "late":
        # This system reports success and keeps the error: the store can react only after the error is reported.
        files.fdatasync(file)
        files.pwrite(file, 512, b"m" * 512)
    with pytest.raises(SyncFailed) as failed:
        files.fdatasync(file)
    assert failed.value.file == "redo/0000.redo"
    calls = files.calls
    for use in (lambda: files.fdatasync(file), lambda: files.pread(file, 0, 1), lambda: files.sync_directory("")):
        with pytest.raises(SyncFailed):
            use()
    assert files.calls == calls
    files.close_all()
    assert isinstance(files.failure.error, SyncFailed)
    # What the cache shows and what the disk has.
    shown = inner.kill().snapshot()["redo/0000.redo"]
    assert shown[:512] == (bytes(512) if personality == "reverted" else b"n" * 512)
    assert inner.image(lambda piece: True).snapshot()["redo/0000.redo"] == bytes(1024)


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_bytes_rewritten_after_reopen_survive_power_loss(personality: str) -> None:
    # F39: after a failed sync the page cache may show what the disk lacks; only writing it again helps.
    inner = MemoryFiles(personality=personality)
    first = FaultFiles(inner, [Rule("fdatasync", error=errno.EIO)])
    file = first.create("sysfile.0")
    first.sync_directory("")
    first.pwrite(file, 0, b"new!")
    if personality == "late":
        first.fdatasync(file)
    with pytest.raises(SyncFailed):
        first.fdatasync(file)
    second = inner.kill()
    file = second.open("sysfile.0", True)
    second.fdatasync(file)
    assert second.image(lambda piece: True).snapshot()["sysfile.0"] == b""
    second.pwrite(file, 0, b"new!")
    second.fdatasync(file)
    assert second.image(lambda piece: False).snapshot()["sysfile.0"] == b"new!"


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_failed_directory_sync_kills_the_store_before_the_name_is_relied_on(personality: str) -> None:
    inner = MemoryFiles(personality=personality)
    files = FaultFiles(inner, [Rule("sync_directory", "lcp", error=errno.EIO)])
    files.make_directory("lcp")
    files.sync_directory("")
    file = files.create("lcp/1-0-0.data")
    files.fdatasync(file)
    if personality == "late":
        files.sync_directory("lcp")
    with pytest.raises(SyncFailed):
        files.sync_directory("lcp")
    with pytest.raises(SyncFailed):
        files.create("lcp/control-1")
    assert inner.image(lambda piece: True).snapshot() == {"lcp/": b""}
    assert ("lcp/1-0-0.data" in inner.kill().snapshot()) == (personality != "reverted")


@pytest.mark.parametrize("short", [1, 7, 512])
def test_short_transfers_are_completed(short: int) -> None:
    data = bytes(range(256)) * 8
    rules = [Rule("pwrite", once=False, short=short), Rule("pread", once=False, short=short)]
    files = FaultFiles(MemoryFiles(), rules)
    file = files.create("a")
    files.pwrite(file, 3, data)
    assert files.pread(file, 3, len(data)) == data
    assert files.pread(file, 0, 1 << 20) == bytes(3) + data
    assert files.calls > 2 * len(data) // short


@pytest.mark.parametrize("operation", ["pwrite", "pread"])
@pytest.mark.parametrize("idle", [{"short": 0}, {"error": errno.EINTR}, {"error": errno.EAGAIN}], ids=str)
def test_no_progress_once_is_looped_twice_is_io_failed(operation: str, idle: dict[str, int]) -> None:
    inner = MemoryFiles.from_snapshot({"a": bytes(100)})
    once = FaultFiles(inner, [Rule(operation, **idle)])
    file = once.open("a", True)
    once.pwrite(file, 0, b"x" * 100)
    assert once.pread(file, 0, 100) == b"x" * 100
    assert len(once.fired) == 1
    always = FaultFiles(MemoryFiles.from_snapshot({"a": bytes(100)}), [Rule(operation, nth=1, once=False, **idle)])
    file = always.open("a", True)
    with pytest.raises(IoFailed):
        always.pwrite(file, 0, b"x" * 100)
        always.pread(file, 0, 100)
    assert isinstance(always.failure.error, IoFailed)
    assert len(always.fired) == 2


def test_interrupted_call_is_repeated_once() -> None:
    files = FaultFiles(MemoryFiles(), [Rule("create", error=errno.EINTR)])
    files.create("a")
    files = FaultFiles(MemoryFiles(), [Rule("create", once=False, error=errno.EINTR)])
    with pytest.raises(IoFailed):
        files.create("a")


def test_close_error_of_synced_file_is_recorded_only(caplog: pytest.LogCaptureFixture) -> None:
    files = FaultFiles(MemoryFiles(), [Rule("close", error=errno.EIO)])
    file = files.create("a", 10)
    files.fdatasync(file)
    files.close(file)
    assert files.failure.error is None
    assert "close of a failed" in caplog.text
    assert not file.is_open


def test_close_error_of_unsynced_file_is_io_failed() -> None:
    files = FaultFiles(MemoryFiles(), [Rule("close", "a", error=errno.EIO)])
    file = files.create("a", 10)
    other = files.create("b", 10)
    with pytest.raises(IoFailed):
        files.close_all()
    assert not file.is_open
    assert not other.is_open
    assert isinstance(files.failure.error, IoFailed)


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_sync_interrupted_by_signal_may_be_called_again() -> None:
    inner = MemoryFiles()
    files = FaultFiles(inner, [Rule("fdatasync", stall=_interrupt)])
    file = files.create("a")
    files.sync_directory("")
    files.pwrite(file, 0, b"group")
    with pytest.raises(KeyboardInterrupt):
        files.fdatasync(file)
    assert files.failure.error is None
    assert file.writes != file.synced
    files.fdatasync(file)
    assert file.writes == file.synced
    assert inner.image(lambda piece: False).snapshot() == {"a": b"group"}


@pytest.mark.parametrize("operation", ["pwrite", "truncate"])
def test_sync_of_another_thread_during_a_write_leaves_the_file_unsynced(operation: str) -> None:
    """Story: a data file grew, and its sync began while a batch of pages was being written to it. The pages counted as
    synced, and the double-write file was written over while only the system had them.
    """
    inner = MemoryFiles()

    def sync_beside() -> None:
        files.fdatasync(file)

    files = FaultFiles(inner, [Rule(operation, nth=1, stall=sync_beside)])
    file = files.create("a")
    files.sync_directory("")
    if operation == "pwrite":
        files.pwrite(file, 0, b"page")
    else:
        files.truncate(file, 4)
    assert len(inner.image(lambda piece: False).snapshot()["a"]) == 0
    assert file.writes != file.synced
    files.fdatasync(file)
    assert file.writes == file.synced
    assert len(inner.image(lambda piece: False).snapshot()["a"]) == 4


def test_error_and_signal_in_one_sync_leave_the_error_latched() -> None:
    files = FaultFiles(MemoryFiles(), [Rule("fdatasync", error=errno.EIO)])
    file = files.create("a", 4)

    class Interrupting(Failure):
        """A signal that arrives with the first call after the error."""

        __slots__ = ()

        def again(self) -> SyncFailed:
            raise KeyboardInterrupt

    files.failure = interrupting = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        files.fdatasync(file)
    assert interrupting.first is not None
    assert interrupting.first[0] is SyncFailed


# Where CPython looks at pending signals and thread switches.
CHECKPOINTS = frozenset(
    {"CALL", "PRECALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME", "YIELD_VALUE", "SEND"}
    | {name for name in dis.opname if name.startswith("POP_JUMP_BACKWARD")}
)


def interruptible_handlers(code: CodeType) -> tuple[int, list[str]]:
    """How many handlers latch a failure, and the opcodes before the store at which a signal could come in."""
    handlers, found, pending, is_inside = 0, [], [], False
    for instruction in dis.get_instructions(code):
        if instruction.opname == "PUSH_EXC_INFO":
            is_inside, pending = True, []
        elif is_inside and instruction.opname == "STORE_ATTR" and instruction.argval == "first":
            handlers, is_inside = handlers + 1, False
            found += pending
        elif is_inside and instruction.opname in CHECKPOINTS:
            pending.append(f"{code.co_name}: {instruction.opname} at {instruction.offset}")
    return handlers, found


LATCHING: list[Callable[..., object]] = [
    method
    for method in vars(CheckedFiles).values()
    if inspect.isfunction(method) and interruptible_handlers(method.__code__)[0]
]


def test_methods_that_latch_are_found() -> None:
    assert {"fdatasync", "sync_directory", "close"} < {method.__name__ for method in LATCHING} and len(LATCHING) >= 6


@pytest.mark.parametrize("method", LATCHING, ids=lambda method: method.__name__)
def test_latch_has_no_interruptible_opcode_between_error_and_store(method: Callable[..., object]) -> None:
    assert interruptible_handlers(method.__code__) == (1, [])


def test_interruptible_handler_is_found_by_the_check_above() -> None:
    def careless(failure: Failure) -> None:
        try:
            print()
        except OSError as cause:
            failure.first = (IoFailed, str(cause), "", cause)

    handlers, found = interruptible_handlers(careless.__code__)
    assert handlers == 1
    assert found


def test_plan_prints_and_replays() -> None:
    plan = [Rule("pwrite", "redo/*", nth=2, error=errno.EIO), Rule("pread", flip=9, once=False)]
    assert repr(plan[0]) == "Rule('pwrite', 'redo/*', nth=2, once=True, error=errno.EIO)"
    assert eval(repr(plan), {"Rule": Rule, "errno": errno}) == plan
    seen = []
    for _ in range(2):
        files = FaultFiles(MemoryFiles(), plan)
        with pytest.raises(IoFailed):
            exercise(files)
        seen.append((files.calls, files.fired))
    assert seen[0] == seen[1]
    assert [(fired.operation, fired.name) for fired in seen[0][1]] == [("pwrite", "redo/a")]


def test_rule_for_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="not an operation"):
        Rule("fsync")


def test_flip_inverts_exactly_one_bit_read() -> None:
    inner = MemoryFiles.from_snapshot({"a": bytes(16)})
    files = FaultFiles(inner, [Rule("pread", nth=2, flip=8 * 5 + 3)])
    file = files.open("a")
    assert files.pread(file, 0, 16) == bytes(16)
    assert files.pread(file, 0, 16) == bytes(5) + b"\x08" + bytes(10)
    assert files.pread(file, 0, 16) == bytes(16)
    assert inner.snapshot() == {"a": bytes(16)}


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES])
def test_every_call_failing_in_turn_gives_a_catalogued_class(once: bool, code: int) -> None:
    untouched = FaultFiles(MemoryFiles())
    exercise(untouched)
    for nth in range(1, untouched.calls + 1):
        files = FaultFiles(MemoryFiles(), [Rule("*", nth=nth, once=once, error=code)])
        try:
            exercise(files)
        except (IoFailed, SyncFailed) as error:
            assert files.failure.error is not None
            assert str(files.failure.error) == str(error)
        except (StorageFull, TooManyFiles, ReadOnly):
            assert files.failure.error is None
        with contextlib.suppress(IoFailed):
            # With `once=False` the close of an unsynced file fails too.
            files.close_all()
        assert files.fired[0].call == nth
        assert files.failure.error is not None
