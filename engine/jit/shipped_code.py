"""Compiled code that came with the installation: of one Python, one numba, and processors that have certain features.

A wheel for a platform has it in the folder `shipped` next to this module (`python -m tools.kernel_wheel`); a checkout
and the wheel for any platform have none. It is trusted as the modules next to it are: a process that can write one can
write the others. So it has no seal. It is used only if it fits (F70):

- Python, its ABI and the system are those it was compiled for, and this processor has every feature its instructions
  need: otherwise an instruction could end the process;
- the name of each file has the digest of the kernel's sources, of numba's version and of llvmlite's;
- the SHA-256 of each file, before it is unpickled, is that of the index.

What does not fit is compiled here, as if there were none.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import sys
from typing import Any

import llvmlite
import llvmlite.binding
import numba

from tidemark.engine.jit.kept_code import SUFFIX

_log = logging.getLogger("tidemark.kernels")

FOLDER = "shipped"
INDEX = "index.json"


def fitting() -> dict[str, str]:
    """Return what code must be compiled for to run in this process, besides the features of the processor."""
    return {
        "Python": f"{sys.implementation.cache_tag}{sys.abiflags}",
        "system": llvmlite.binding.get_process_triple(),
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
    }


class ShippedCode:
    """The code in one folder."""

    def __init__(self, place: str) -> None:
        self._place = place

    def read(self, folder: str, stem: str) -> bytes | None:
        """Return the code of a kernel by the folder and the start of its name in the cache; None if none is usable."""
        leaf = _leaf(folder, stem)
        if leaf not in self._kernels:
            return None
        try:
            code = _content(os.path.join(self._place, leaf))
        except OSError as error:
            _log.warning("compiled code of the installation cannot be read: %s", error)
            return None
        if hashlib.sha256(code).hexdigest() != self._kernels[leaf]:
            _log.warning("compiled code of the installation is damaged: %s; install it again", leaf)
            return None
        return code

    def exists(self, folder: str, stem: str) -> bool:
        """Whether there is fitting code of a kernel; its digest is not checked."""
        return _leaf(folder, stem) in self._kernels

    @property
    def count(self) -> int:
        """How many kernels have fitting code."""
        return len(self._kernels)

    @functools.cached_property
    def target(self) -> str:
        """The kind of processor that the code is for; "" if the installation has none."""
        return str(self._index.get("target", ""))

    @functools.cached_property
    def misfit(self) -> str:
        """Why the code of the installation is not used; "" if it is, or if there is none."""
        if not self._index:
            return ""
        for what, here in fitting().items():
            if (there := self._index.get(what)) != here:
                return f"they are for {what} {there}, not {here}"
        has = llvmlite.binding.get_host_cpu_features()
        lacking = [each for each in self._index["features"] if not has.get(each)]
        return f"this processor lacks {', '.join(lacking)}" if lacking else ""

    @functools.cached_property
    def _kernels(self) -> dict[str, str]:
        return {} if self.misfit else self._index.get("kernels", {})

    @functools.cached_property
    def _index(self) -> dict[str, Any]:
        try:
            found: Any = json.loads(_content(os.path.join(self._place, INDEX)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            _log.warning("the index of the installation's compiled code cannot be read (%s); install it again", error)
            return {}
        is_index = isinstance(found, dict) and isinstance(found.get("kernels"), dict)
        if not is_index or not isinstance(found.get("features"), list):
            _log.warning("the index of the installation's compiled code is damaged; install it again")
            return {}
        return dict(found)


def _leaf(folder: str, stem: str) -> str:
    return f"{folder}.{stem}{SUFFIX}"


def _content(path: str) -> bytes:
    return bytes(_loader.get_data(path))


_spec = importlib.util.find_spec("tidemark.engine.jit")
assert _spec is not None and _spec.origin is not None
_loader: Any = _spec.loader
SHIPPED = ShippedCode(os.path.join(os.path.dirname(_spec.origin), FOLDER))
