"""Make a wheel with compiled kernels of a wheel without: `python -m tools.kernel_wheel WHEEL [FOLDER]`.

All kernels are compiled by this Python with the numba that it finds, for processors of the level x86-64-v3, and put
into the wheel with an index (`engine/jit/shipped_code.py`). The new wheel is for this version of Python and this
platform; it is written to FOLDER, or next to the other one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TARGET = "x86-64-v3"
# Of that level, by LLVM's names.
FEATURES = (
    *("cmov", "cx8", "fxsr", "mmx", "sse", "sse2"),
    *("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
    *("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
)
# glibc of numba's own wheels; the code calls functions of numba, of Python and of libm by their names.
PLATFORM = "manylinux_2_28_x86_64"
# Before the code in each file of the cache (engine/jit/kept_code.py).
SEAL_BYTES = 32
SHIPPED = "tidemark/engine/jit/shipped"
FITTING = "import json; from tidemark.engine.jit.shipped_code import fitting; print(json.dumps(fitting()))"


def compiled(content: dict[str, bytes]) -> dict[str, bytes]:
    """Compile all kernels of these files of a wheel; return the files to add."""
    with tempfile.TemporaryDirectory() as folder:
        site, cache = Path(folder, "site"), Path(folder, "cache")
        for name, data in content.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")},
            "PYTHONPATH": str(site),
            "TIDEMARK_CACHE": str(cache),
            "NUMBA_CPU_NAME": TARGET,
            "NUMBA_CPU_FEATURES": "",
        }
        fits: dict[str, str] = json.loads(
            subprocess.check_output([sys.executable, "-c", FITTING], cwd=folder, env=environment)
        )
        subprocess.run([sys.executable, "-m", "tidemark.engine.jit"], cwd=folder, env=environment, check=True)
        return shipped(cache, fits)


def shipped(cache: Path, fits: dict[str, str]) -> dict[str, bytes]:
    """Return the files of the code in a cache, and their index. fits: what `fitting` says where it was compiled."""
    added = {
        f"{SHIPPED}/{path.parent.name}.{path.name.rsplit('.', 2)[0]}.nbc": path.read_bytes()[SEAL_BYTES:]
        for path in sorted(cache.rglob("*.nbc"))
    }
    kernels = {name.rpartition("/")[2]: hashlib.sha256(data).hexdigest() for name, data in added.items()}
    index = {**fits, "target": TARGET, "features": FEATURES, "kernels": kernels}
    return {**added, f"{SHIPPED}/index.json": json.dumps(index, indent=0).encode()}


def write_wheel(content: dict[str, bytes], path: Path) -> None:
    """Write a wheel of these files, its RECORD made anew."""
    (record,) = (name for name in content if name.endswith(".dist-info/RECORD"))
    rows = []
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},,\n" if name == record else f"{name},sha256={digest},{len(data)}\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in {**content, record: "".join(rows).encode()}.items():
            information = zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0))
            information.external_attr = 0o644 << 16
            wheel.writestr(information, data, zipfile.ZIP_DEFLATED, 9)


def main(wheel: Path, folder: Path) -> Path:
    """Make the wheel, return its path."""
    with zipfile.ZipFile(wheel) as file:
        content = {name: file.read(name) for name in file.namelist() if not name.endswith("/")}
    content |= compiled(content)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"{python}-{python}-{PLATFORM}"
    (about,) = (name for name in content if name.endswith(".dist-info/WHEEL"))
    lines = content[about].decode().splitlines()
    kept = [line for line in lines if line.partition(":")[0] not in ("Tag", "Root-Is-Purelib", "")]
    content[about] = "\n".join([*kept, "Root-Is-Purelib: false", f"Tag: {tag}", ""]).encode()
    name, version = wheel.name.split("-")[:2]
    made = folder / f"{name}-{version}-{tag}.whl"
    write_wheel(content, made)
    return made


if __name__ == "__main__":
    given = Path(sys.argv[1])
    sys.stdout.write(f"{main(given, Path(sys.argv[2]) if len(sys.argv) > 2 else given.parent)}\n")
