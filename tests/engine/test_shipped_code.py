"""Compiled kernels that came with the installation: used where they fit, and nowhere else (F70)."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.elsewhere import ROOT, python
from tests.engine.test_kernel_cache import PROGRAM, Bomb, run
from tests.other_user import as_stranger, needs_root, open_folder
from tidemark.engine.jit.shipped_code import ShippedCode, fitting
from tools import kernel_wheel

NATIVE = {"features": ()}  # code of these tests is for the processor that runs them


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with the code of one kernel as a wheel has it."""
    root = tmp_path_factory.mktemp("installation")
    shutil.copytree(ROOT / "tidemark", root / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    run(root / "cache", root)
    for name, data in kernel_wheel.shipped(root / "cache", fitting()).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    shutil.rmtree(root / "cache")
    change(root, lambda index: index.update(NATIVE))
    return root


def change(root: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change the index of an installation's code."""
    path = root / kernel_wheel.SHIPPED / "index.json"
    index = json.loads(path.read_text())
    how(index)
    path.write_text(json.dumps(index))


@pytest.fixture
def harmed(installation: Path, tmp_path: Path) -> Path:
    """Another copy of the installation, to be changed."""
    shutil.copytree(installation, tmp_path / "harmed")
    return tmp_path / "harmed"


def test_fitting_code_is_used_without_a_cache(installation: Path, tmp_path: Path) -> None:
    lines, message = run(tmp_path / "none", installation)
    assert lines[1] == "1" and message == ""
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("Python", "cpython-39", "they are for Python cpython-39, not cpython-3"),
        ("system", "riscv64-unknown-linux-gnu", "they are for system riscv64-unknown-linux-gnu, not "),
        ("numba", "0.1.2", "they are for numba 0.1.2, not "),
        ("llvmlite", "0.1.2", "they are for llvmlite 0.1.2, not "),
        ("features", ["avx9"], "this processor lacks avx9"),
    ],
)
def test_code_for_another_place_is_compiled_here(
    harmed: Path, tmp_path: Path, what: str, value: object, says: str
) -> None:
    """An instruction that the processor lacks would end the process."""
    change(harmed, lambda index: index.update({what: value}))
    lines, message = run(tmp_path / "cache", harmed)
    assert lines[1] == "0" and f"compiled kernels came with the installation, but {says}" in message
    assert run(tmp_path / "cache", harmed) == ([lines[0], "1"], "")


HARMED = ("flipped", "cut", "empty", "planted")
INDEXES = {
    "no index": "[]",
    "cut index": "{",
    "index without features": '{"kernels": {}}',
    "index of other kinds": '{"kernels": [], "features": []}',
}


@pytest.mark.parametrize("harm", [*HARMED, *INDEXES, "missing"])
def test_damaged_code_is_not_run(harmed: Path, tmp_path: Path, harm: str) -> None:
    (path,) = (harmed / kernel_wheel.SHIPPED).glob("*.nbc")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    exploded = tmp_path / "exploded"
    if harm == "missing":
        path.unlink()
    elif harm in INDEXES:
        path.with_name("index.json").write_text(INDEXES[harm])
    else:
        planted = pickle.dumps(Bomb(exploded))
        harmed_code = {"flipped": bytes(content), "cut": bytes(content[:-9]), "empty": b"", "planted": planted}
        path.write_bytes(harmed_code[harm])
    lines, message = run(tmp_path / "cache", harmed)
    assert lines[1] == "0" and not exploded.exists() and "compiling 1 kernel" in message
    assert ("install it again" in message) == (harm != "missing")
    assert run(tmp_path / "cache", harmed)[0] == [lines[0], "1"]


def test_code_that_cannot_be_loaded_is_compiled_once(harmed: Path, tmp_path: Path) -> None:
    """Story: code with the right digest that this numba could not load, as of another build of the same version, was
    compiled again at every start: the code that the first start had kept was not looked at.
    """
    (path,) = (harmed / kernel_wheel.SHIPPED).glob("*.nbc")
    path.write_bytes(b"garbage" * 50)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change(harmed, lambda index: index.update({"kernels": {path.name: digest}}))
    lines, message = run(tmp_path / "cache", harmed)
    assert lines[1] == "0" and "compiling 1 kernel" in message and "of the installation, cannot be used" in message
    again, message = run(tmp_path / "cache", harmed)
    assert again == [lines[0], "1"] and "compiling" not in message and "of the installation, cannot be used" in message


def test_interpreter_without_an_environment_uses_it(installation: Path, tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(installation)!r})\n{PROGRAM}"
    done = python("-I", "-c", program, root=tmp_path, TIDEMARK_CACHE=tmp_path / "none")
    assert done.stdout.split()[1] == "1" and done.stderr == "" and not (tmp_path / "none").exists()


@needs_root
def test_another_user_reads_what_only_root_can_write(installation: Path) -> None:
    """As with the packages of a system: no folder or file is this user's, and none is writable."""
    (path,) = (installation / kernel_wheel.SHIPPED).glob("*.nbc")
    folder, _, stem = path.name.removesuffix(".nbc").partition(".")
    with open_folder() as place:
        shutil.copytree(path.parent, place / "shipped")
        for each in (place / "shipped").iterdir():
            each.chmod(0o444)
        (place / "shipped").chmod(0o555)
        code = ShippedCode(str(place / "shipped"))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()

        def read() -> str:
            found = code.read(folder, stem)
            return hashlib.sha256(found or b"").hexdigest()

        assert as_stranger(read) == digest
        assert as_stranger(lambda: (place / "shipped" / path.name).write_bytes(b"")) == "PermissionError"


def test_changed_source_is_compiled(harmed: Path, tmp_path: Path) -> None:
    path = harmed / "tidemark" / "engine" / "sealed" / "checksums_kernels.py"
    path.write_text(path.read_text() + "\n# changed\n")
    lines, message = run(tmp_path / "cache", harmed)
    assert lines[1] == "0" and message.startswith("compiling 1 kernel for ")


def test_program_says_what_the_installation_has(installation: Path) -> None:
    says = "from tidemark.engine.jit.shipped_code import SHIPPED as s; print(s.count, s.target, repr(s.misfit))"
    done = python("-c", says, root=installation)
    assert done.stdout.split() == ["1", kernel_wheel.TARGET, "''"], done.stderr


def test_wheel_has_all_files_in_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = "Wheel-Version: 1.0\nGenerator: any\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"tidemark/x.py": "x = 1\n", "tidemark-1.dist-info/WHEEL": about, "tidemark-1.dist-info/RECORD": ""}
    with zipfile.ZipFile(tmp_path / "tidemark-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    code = {f"{kernel_wheel.SHIPPED}/a.nbc": b"code"}
    monkeypatch.setattr(kernel_wheel, "compiled", lambda content: code)
    made = kernel_wheel.main(tmp_path / "tidemark-1-py3-none-any.whl", tmp_path)
    tag = made.name.removeprefix("tidemark-1-").removesuffix(".whl")
    assert tag.startswith("cp3") and tag.endswith(kernel_wheel.PLATFORM)
    with zipfile.ZipFile(made) as wheel:
        content = {name: wheel.read(name) for name in wheel.namelist()}
    assert content.keys() == {*files, *code}
    assert content["tidemark-1.dist-info/WHEEL"].decode().splitlines() == [
        *("Wheel-Version: 1.0", "Generator: any", "Root-Is-Purelib: false", f"Tag: {tag}")
    ]
    record = [line.split(",") for line in content["tidemark-1.dist-info/RECORD"].decode().splitlines()]
    assert [name for name, *_ in record] == list(content)
    for name, digest, size in record:
        if digest:
            found = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).decode().rstrip("=")
            assert digest == f"sha256={found}" and int(size) == len(content[name])
