"""Secret files as every command reads them: their modes, and which end of line is dropped."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import run
from tests.other_user import STRANGER, as_stranger, needs_root, open_folder, write_secret
from tidemark.cli import channel_commands, mysql_commands
from tidemark.engine.files.private_files import SECRET_BYTES_MAX, check_secret_file

SECRET = b"sixteen bytes or more"


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"word", b"word"),
        (b"word\n", b"word"),
        (b"word\r\n", b"word"),
        (b"word\n\n", b"word\n"),
        (b"word\r", b"word\r"),
        (b"word\r\r\n", b"word\r"),
        (b"\nword\n", b"\nword"),
        (b" two\nlines \n", b" two\nlines "),
        (b"\n\n", b"\n"),
        (b"\xff\x00\n", b"\xff\x00"),
        (b"k" * SECRET_BYTES_MAX, b"k" * SECRET_BYTES_MAX),
    ],
)
def test_one_end_of_line_is_left_out_and_no_other_byte(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """Story: all LF and CR at the end of a secret were dropped, so random bytes with such an end became another secret
    than the one that the program at the other side had read. A password file was cut after its first line, by a rule
    for text that also ends lines at form feeds.
    """
    assert tm.read_secret(write_secret(tmp_path / "secret", content)) == secret


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"k" * (SECRET_BYTES_MAX + 1)])
def test_file_that_holds_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(tm.Rejected, match="is empty|bytes, too many for a secret"):
        tm.read_secret(write_secret(tmp_path / "secret", content))


def test_pipe_is_read_to_its_end_and_a_directory_or_nothing_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    writing = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(SECRET + b"\n",))
    writing.start()
    assert tm.read_secret(str(tmp_path / "pipe")) == SECRET
    writing.join()
    with pytest.raises(tm.Rejected, match="cannot be read as a secret"):
        tm.read_secret(tmp_path)
    with pytest.raises(tm.FileMissing, match="there is no file"):
        tm.read_secret(tmp_path / "none")


def test_file_that_other_code_reads_is_missing_only_if_it_does_not_exist(tmp_path: Path) -> None:
    """Story: a key in a directory that this user may not enter was reported as missing."""
    key = write_secret(tmp_path / "key", SECRET)
    with pytest.raises(tm.FileMissing, match="there is no file .*none; check the path"):
        check_secret_file(tmp_path / "none")
    with pytest.raises(tm.Rejected, match="key/x cannot be read: Not a directory; check the path"):
        check_secret_file(key / "x")
    if os.geteuid():
        key.parent.chmod(0)
        with pytest.raises(tm.Rejected, match="cannot be read: Permission denied; check the path and its permissions"):
            check_secret_file(key)
        key.parent.chmod(0o700)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o620, 0o660, 0o644, 0o604, 0o602, 0o606, 0o666, 0o711, 0o777])
def test_secret_any_user_may_read_or_write_is_refused_and_one_of_the_group_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """Story: no code checked modes, but any user can read the file that `head … > secret` makes."""
    path = write_secret(tmp_path / "secret", SECRET)
    path.chmod(mode)
    for look in (tm.read_secret, check_secret_file):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tidemark.files"):
            if mode & 0o006:
                with pytest.raises(tm.Rejected, match="chmod 600"):
                    look(path)
            else:
                look(path)
        assert ("its group may read or write it" in caplog.text) is (mode & 0o066 in (0o020, 0o040, 0o060))


@needs_root
def test_secret_of_another_user_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_secret(tmp_path / "secret", SECRET)
    os.chown(path, STRANGER, STRANGER)
    assert tm.read_secret(path) == SECRET
    assert f"user {STRANGER}" in caplog.text


@needs_root
def test_another_user_cannot_read_the_secret() -> None:
    with open_folder() as folder:
        path = write_secret(folder / "secret", SECRET)
        assert as_stranger(path.read_bytes) == "PermissionError"


# --- every command reads them this way ------------------------------------------------------------
FILES = {
    "serve": ("serve store --server-id 1", "--secret-file"),
    "replicate": ("replicate 127.0.0.1:1 store --server-id 2", "--secret-file"),
    "mysql": ("replicate mysql://root@127.0.0.1:1/ store", "--password-file"),
    "node": ("node store --node 1 --group 1=127.0.0.1:1", "--secret-file"),
    "channel": ("node store --node 1 --group 1=127.0.0.1:1 --source h:1 --secret-file own", "--source-secret-file"),
    "arbitrator": ("arbitrator store --group 1=a:1,arbitrator=b:2 --new-group", "--secret-file"),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Return what commands pass on; they end before they use it."""
    found: list[Any] = []

    def stop(*places: Any, **given: Any) -> Any:
        found.extend([*places, given.get("secret"), (given.get("channel") or {}).get("secret")])
        raise tm.Rejected("seen")

    monkeypatch.chdir(tmp_path)
    write_secret(Path("own"), b"own secret of the node\n")
    monkeypatch.setattr(channel_commands.tm, "serve", stop)
    monkeypatch.setattr(channel_commands.tm, "Channel", stop, raising=False)
    monkeypatch.setattr(mysql_commands, "parse_address", stop)
    monkeypatch.setattr(tm, "NodeGroup", stop)
    monkeypatch.setattr(tm, "Arbitrator", stop)
    tm.open("store", data_memory="16 MiB", redo_log="1 MiB", background=False).close()
    return found


@pytest.mark.parametrize("command", FILES)
def test_every_command_reads_its_secret_so(seen: list[Any], command: str) -> None:
    line, option = FILES[command]
    path = write_secret(Path("secret"), SECRET + b"\n\n")
    arguments = [*line.split(), option, "secret"]
    if command != "arbitrator":
        arguments += ["--data-memory", "16 MiB"]
    result = run(*arguments)
    wanted = SECRET + b"\n"
    assert "seen" in result.output and (wanted in seen or wanted.decode() in seen), result.output
    path.chmod(0o604)
    result = run(*arguments)
    assert result.exit_code == 1 and "any user may read or write secret" in result.output, result.output


def test_password_that_is_no_text_is_refused(seen: list[Any]) -> None:
    write_secret(Path("secret"), b"\xff\n")
    result = run("replicate", "mysql://root@h/", "store", "--password-file", "secret")
    assert result.exit_code == 2 and "is not UTF-8" in result.output


TLS = "--tls-cert certificate --tls-ca certificate"


@pytest.mark.parametrize(
    "line",
    [
        f"serve store --server-id 1 --secret-file own {TLS} --tls-key key",
        f"replicate 127.0.0.1:1 store --server-id 2 --secret-file own {TLS} --tls-key key",
        "replicate 127.0.0.1:1 store --server-id 2 --secret-file own --tls-cert key",
        f"replicate mysql://root@h/ store {TLS} --tls-key key",
        "replicate mysql://root@h/ store --tls-cert key",
        f"node store --node 1 --group 1=127.0.0.1:1 --secret-file own {TLS} --tls-key key",
        f"arbitrator store --group 1=a:1,arbitrator=b:2 --new-group --secret-file own {TLS} --tls-key key",
    ],
)
def test_key_of_a_certificate_is_judged_like_a_secret(seen: list[Any], line: str) -> None:
    Path("certificate").write_text("no certificate")
    Path("certificate").chmod(0o644)
    Path("key").write_text("no key")
    Path("key").chmod(0o604)
    result = run(*line.split())
    assert result.exit_code == 1 and "any user may read or write key" in result.output, result.output
    Path("key").chmod(0o600)
    assert "any user" not in run(*line.split()).output
