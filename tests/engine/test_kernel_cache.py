"""Where compiled kernels are kept, and what a first run says. Each run is a process of its own, with a small kernel."""

from __future__ import annotations

import hmac
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest

from tests.elsewhere import ROOT, python
from tests.other_user import STRANGER, needs_root

# Kernels are compiled together with those of their set: here each is alone.
ALONE = """
from tidemark.engine.jit.kernel_sets import SETS
SETS.clear()
for name in ("xxh64_words", "xxh3_merge", "first_of"):
    SETS[name] = {f"engine.sealed.checksums_kernels.{name}": 1.0}
"""
PROGRAM = f"""{ALONE}
import numpy as np
from tidemark.engine.jit.registry import REGISTRY
from tidemark.engine.sealed.checksums_kernels import xxh64_words
print(xxh64_words(np.arange(4, dtype=np.int64), 0, 4, 42))
dispatcher, _ = REGISTRY["tidemark.engine.sealed.checksums_kernels.xxh64_words"]
print(sum(dispatcher.stats.cache_hits.values()))
"""
# Kept code is loaded without what compiles.
LOADED = """
from numba.core.runtime import rtsys
from tidemark.engine.sealed import checksums_kernels
print(rtsys._init, "_dispatcher" in vars(checksums_kernels.rotate))
"""


def run(cache: Path, root: Path = ROOT, program: str = PROGRAM) -> tuple[list[str], str]:
    """Output lines and messages of a process that uses one kernel of the installation in `root`."""
    done = python("-c", program, root=root, TIDEMARK_CACHE=cache)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_first_run_says_once_that_it_compiles_and_the_second_takes_the_kept_code(tmp_path: Path) -> None:
    first, message = run(tmp_path)
    again, silence = run(tmp_path)
    begins, ends = message.splitlines()
    assert begins.startswith("compiling 1 kernel for xxh64_words, once: about ")
    assert ends.startswith("1 kernel ready after ") and str(tmp_path) in ends and "`tidemark warmup`" in ends
    assert silence == ""
    assert first[1] == "0"
    assert again == [first[0], "1"]


TOGETHER = """
import sys
import numpy as np
from tidemark.engine.jit import registry
from tidemark.engine.sealed.checksums_kernels import xxh3_merge, xxh64_words
registry.SETS.clear()
names = ("xxh3_merge", "xxh64_words")
registry.SETS["both"] = {f"engine.sealed.checksums_kernels.{name}": 1.0 for name in names}
if sys.argv[1:]:
    def interrupt():
        raise KeyboardInterrupt
    registry.COMPILERS["tidemark.engine.sealed.checksums_kernels.xxh64_words"] = interrupt
try:
    xxh3_merge(np.arange(16, dtype=np.int64), 4)
except KeyboardInterrupt:
    sys.exit()
xxh64_words(np.arange(4, dtype=np.int64), 0, 4, 42)
"""


def test_kernels_that_are_met_together_are_compiled_in_one_wait(tmp_path: Path) -> None:
    begins, ends = run(tmp_path, program=TOGETHER)[1].splitlines()
    assert begins.startswith("compiling 2 kernels for both, once: about ") and ends.startswith("2 kernels ready after ")
    assert run(tmp_path, program=TOGETHER)[1] == ""


def test_interrupted_wait_leaves_what_was_compiled(tmp_path: Path) -> None:
    done = python("-c", TOGETHER, "interrupted", TIDEMARK_CACHE=tmp_path)
    assert "1 of 2 kernels ready after " in done.stderr and "the next start compiles the rest" in done.stderr
    begins, ends = run(tmp_path, program=TOGETHER)[1].splitlines()
    assert begins.startswith("compiling 1 kernel for both, once: about ") and ends.startswith("1 kernel ready after ")
    assert not list(tmp_path.rglob("*.new"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A cache with the kernel, and what the process that compiled it said."""
    cache = tmp_path_factory.mktemp("compiled")
    return cache, run(cache)[0]


def test_compiler_is_not_readied_for_kept_code(compiled: tuple[Path, list[str]]) -> None:
    kept, first = compiled
    assert run(kept, program=PROGRAM + LOADED) == ([first[0], "1", "False", "False"], "")


def test_second_installation_takes_the_code_of_the_first(compiled: tuple[Path, list[str]], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tidemark", tmp_path / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    kept, first = compiled
    assert run(kept, tmp_path) == ([first[0], "1"], "")


@pytest.mark.parametrize("harm", ["empty", "cut", "flipped", "garbage"])
def test_damaged_code_is_compiled_again_and_said(compiled: tuple[Path, list[str]], tmp_path: Path, harm: str) -> None:
    """Story: a truncated cache file made every start end in EOFError; machine code with a flipped bit was run (F70)."""
    kept, first = compiled
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.rglob("*xxh64_words*.nbc")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    harmed = {"empty": b"", "cut": content[:-20], "flipped": content, "garbage": b"garbage" * 50}
    path.write_bytes(harmed[harm])
    again, message = run(tmp_path)
    assert again[0] == first[0]
    healed, silence = run(tmp_path)
    assert healed == [first[0], "1"] and silence == ""
    assert again[1] == "0" and "cannot be used" in message


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._place,)


def _sealed(kept: Path) -> bytes:
    return hmac.digest((kept / "kernels" / "key").read_bytes(), b"", "sha256")


@pytest.mark.parametrize("owner", ["own", "other folder", pytest.param("another user", marks=needs_root)])
def test_nothing_is_unpickled_that_this_user_did_not_keep(
    compiled: tuple[Path, list[str]], tmp_path: Path, owner: str
) -> None:
    """Story: the index of a kernel's code was unpickled before anything was compared, and any user can compute the
    digest next to the code. A planted file in the cache was therefore run by the next process, with the effect its
    writer chose.
    """
    kept, first = compiled
    cache, exploded = tmp_path / "cache", tmp_path / "exploded"
    shutil.copytree(kept, cache)
    (path,) = cache.rglob("*xxh64_words*.nbc")
    bomb = pickle.dumps(Bomb(exploded))
    index = path.name.partition("-.py")[0] + f"-.py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    path.with_name(index).write_bytes(bomb)
    path.write_bytes(_sealed(kept) + bomb if owner == "own" else bomb)
    if owner == "another user":
        os.chown(cache / "kernels", STRANGER, STRANGER)
    elif owner == "other folder":
        (cache / "kernels").chmod(0o777)
    again, message = run(cache)
    assert again == [first[0], "0"] and not exploded.exists()
    if owner == "own":
        assert "does not match its seal" in message
        assert run(cache) == ([first[0], "1"], "")
    else:
        # It stays as it is: compiled code is not written next to files of other users.
        assert message.count("cannot be kept") == 1 and path.read_bytes() == bomb


def test_helper_called_with_constants_is_compiled_once() -> None:
    program = (
        "from tidemark.engine.jit.kernel import REGISTRY\n"
        "from tidemark.engine.sealed import checksums_kernels as checksums\n"
        "dispatcher, signature = REGISTRY['tidemark.engine.sealed.checksums_kernels.xxh64_words']\n"
        "dispatcher._compiler.compile(*__import__('numba').core.sigutils.normalize_signature(signature))\n"
        "print(len(checksums.rotate.overloads), len(checksums.round64.overloads))\n"
    )
    done = python("-c", program)
    assert done.stdout.split() == ["1", "1"], done.stderr


FIRST_CALLS = f"""{ALONE}
import threading
import numpy as np
from numba.core.types import abstract
from tidemark.engine.jit.kernel import kernel

def first_of(numbers):
    return numbers[0, 0, 0]

first_of.__module__ = "tidemark.engine.sealed.checksums_kernels"  # kernels are kept by module of the product
first_of = kernel("int64(uint16[:,:,::1])")(first_of)

begun, made, told = threading.Event(), abstract._autoincr, []

def slowly():
    code = made()
    if not begun.is_set():
        begun.set()
        threads[0].join(2)  # the other thread, in the midst of making the type
    return code

def call():
    try:
        told.append(int(first_of(np.ones((1, 1, 1), dtype=np.uint16))))
    except TypeError as error:
        told.append(str(error))

threads = [threading.Thread(target=lambda: (begun.wait(), call())), threading.Thread(target=call)]
abstract._autoincr = slowly
threads[0].start()
threads[1].start()
threads[1].join()
begun.set()
threads[0].join()
call()
print(told)
"""


def test_two_threads_that_first_call_a_kernel_at_once_have_one_type(tmp_path: Path) -> None:
    """Story: numba looks up the code of a type and assigns a new one if there is none, without a lock. Two threads that
    called a kernel for the first time gave the type of its array two codes, and a kernel compiled for one refused
    arrays of the other.
    """
    (tmp_path / "first_calls.py").write_text(FIRST_CALLS)
    done = python(str(tmp_path / "first_calls.py"), TIDEMARK_CACHE=tmp_path / "kept")
    assert done.stdout.split("\n")[0] == "[1, 1, 1]", done.stdout + done.stderr


WITHOUT_ROOM = f"""{ALONE}
import resource
import numpy as np
from tidemark.engine.sealed.checksums_kernels import xxh3_merge, xxh64_words
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
words = np.arange(4, dtype=np.int64)
print(xxh64_words(words, 0, 4, 42), xxh64_words(words, 0, 4, 42))
xxh3_merge(np.arange(16, dtype=np.int64), 4)
"""


def test_kernel_runs_whose_code_cannot_be_kept_and_that_is_said_once(tmp_path: Path) -> None:
    """Story: a task of a restore on a full disk ended in numba's OSError (EFBIG, in another place ENOSPC): it was the
    first to call a kernel, and the file of its compiled code could not be written.
    """
    values, message = run(tmp_path, program=WITHOUT_ROOM)
    assert len(set(values)) == 1 and message.count("cannot be kept") == 1
    assert not list(tmp_path.rglob("*.nbc"))
