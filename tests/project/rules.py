"""The rules of the house as functions over sources: each yields one line per violation.

A `Source` is one module, parsed once. `tests/project/test_layers.py` runs the rules over the tree and proves with
planted violations that each of them fires. Tables at the top name every place that is allowed what others are not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Floors from the ground up: a floor imports itself and what stands before it here.
FLOORS = ("tidemark.engine", "tidemark.recovery", "tidemark.replication", "tidemark")
# Folders of the repository that are packages of `tidemark`, by links in its folder.
LINKED = ("engine", "recovery", "replication")

# Rooms of the engine, each importing itself and what stands before it here, for types too.
ROOMS = (
    *(
        "base",
        "jit",
        "files",
        "sealed",
        "memory",
        "types",
        "schema",
        "rows",
        "log",
        "programs",
        "index",
        "disk",
        "table",
        "txn",
    ),
    *("access", "queries", "applied", "point", "store"),
)
# Kernels reach the words of a layout through one letter, the same in all of them (docs/architecture.md). W is what
# one module of kernels has for itself.
LETTERS = {
    "tidemark.engine.memory.arena_layout": "A",
    "tidemark.replication.binlog.rows_layout": "B",
    "tidemark.engine.disk.cache_layout": "C",
    "tidemark.engine.disk.disk_layout": "D",
    "tidemark.engine.rows.lcp_layout": "E",
    "tidemark.engine.log.load_layout": "F",
    "tidemark.engine.log.row_changes_layout": "G",
    "tidemark.engine.schema.partitions_layout": "H",
    "tidemark.engine.rows.columns_layout": "K",
    "tidemark.engine.log.redo_layout": "L",
    "tidemark.engine.store.node_copy_layout": "M",
    "tidemark.engine.log.load_arena_layout": "N",
    "tidemark.engine.store.group_apply_layout": "O",
    "tidemark.engine.programs.program_layout": "P",
    "tidemark.engine.queries.program_scan_layout": "Q",
    "tidemark.engine.schema.row_layout": "R",
    "tidemark.engine.log.spool_layout": "T",
    "tidemark.engine.txn.versions_layout": "V",
    "tidemark.engine.point.plan_layout": "U",
    "tidemark.engine.index.index_layout": "X",
    "tidemark.engine.txn.delete_log_layout": "Y",
    "tidemark.engine.disk.matrix_layout": "Z",
    "tidemark.recovery.backup.entries_layout": "I",
    "tidemark.recovery.backup.restore_layout": "J",
    "tidemark.engine.store.disk_replay_layout": "W",
    "tidemark.recovery.verification.disk_rows_check_layout": "W",
    "tidemark.engine.rows.check_layout": "W",
    "tidemark.engine.rows.values_layout": "W",
    "tidemark.replication.applier.key_sets_layout": "W",
    "tidemark.replication.conflict.dependencies_layout": "W",
    "tidemark.replication.ingest.result_rows_layout": "W",
}
# Modules of kernels and of layouts: compiled code is made of these alone, and its cache is kept by their sources.
COMPILED = ("_kernels", "_layout", "limits")

# Advice, printed by `make check`: whether a reader finds one story in one place is judged by reading.
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
MODULE_LINES_MIN = 60
LINE_CHARACTERS_MAX = 120

# The places that may catch everything, as "module:function": entries of threads and of the command line, and what fails
# the store.
BROAD_EXCEPT_PLACES: frozenset[str] = frozenset(
    {
        "tidemark.recovery.system_restart.load:guarded",
        "tidemark.engine.jit.code_cache:load_overload",
        "tidemark.engine.log.redo:_agree",
        "tidemark.engine.store.schema_log:log",
        # A tracer of the user's: its error would look like one of the operation.
        "tidemark.engine.base.watch:note",
        # Bytes of a stranger, and defects of ours: the port stays open.
        "tidemark.replication.wire.admission:_advance",
        "tidemark.replication.wire.admission:_admit",
        # Errors of libraries of object stores, which share no base; they reach the caller with a class of ours.
        "tidemark.recovery.places.names:answered",
    }
)

# Names of modules (or of things in them) and the only modules that may use them: packages with a trailing dot, ends of
# names with a star before.
HOMES: dict[str, tuple[str, ...]] = {
    "fcntl": ("tidemark.engine.files.directory",),
    "io.open": ("tidemark.engine.files.directory",),
    "codecs.open": ("tidemark.engine.files.directory",),
    "tempfile": ("tidemark.engine.files.directory",),
    # The main job and the command line read and write the user's own files; the store's go through engine/files.
    "shutil": ("tidemark.engine.files.directory", "tidemark.demo."),
    "glob": ("tidemark.engine.files.directory",),
    "pathlib.Path": ("tidemark.engine.files.directory", "tidemark.demo.", "tidemark.cli.", "tidemark.report"),
    "pathlib.PosixPath": ("tidemark.engine.files.directory",),
    "numpy.memmap": (),
    "numpy.load": (),
    "numpy.save": (),
    "numpy.savez": (),
    "numpy.fromfile": (),
    # Anonymous memory for the arena; `check_anonymous_memory` refuses files even there (D1, RD8 of F71).
    "mmap": ("tidemark.engine.memory.arena",),
    "time": ("tidemark.engine.base.clock",),
    # The crash harness draws its faults from a printed seed.
    "random": ("tidemark.engine.base.clock", "tidemark.recovery.crash_harness."),
    "secrets": ("tidemark.engine.base.clock",),
    **{f"uuid.uuid{version}": ("tidemark.engine.base.clock",) for version in range(1, 9)},
    # The main job draws its work from a printed seed.
    "numpy.random": ("tidemark.engine.base.clock", "tidemark.demo."),
    "datetime.datetime.now": ("tidemark.engine.base.clock",),
    "datetime.datetime.utcnow": ("tidemark.engine.base.clock",),
    "datetime.datetime.today": ("tidemark.engine.base.clock",),
    "datetime.date.today": ("tidemark.engine.base.clock",),
    "numba": ("tidemark.engine.jit.", "*_kernels"),
    "lmdb": ("tidemark.engine.schema.catalog",),
    "pyspark": ("tidemark.recovery.spark.",),
    "py4j": ("tidemark.recovery.spark.",),
    "socket": (
        *("tidemark.replication.wire.wire", "tidemark.replication.wire.server", "tidemark.replication.wire.admission"),
        *("tidemark.request_port", "tidemark.control_socket", "tidemark.monitoring.port"),
    ),
    "socketserver": (),
    "ssl": ("tidemark.replication.wire.wire", "tidemark.replication.wire.admission"),
    # Sockets of their own: the MySQL server that is taken in.
    "pymysql": ("tidemark.replication.ingest.client",),
    "pymysqlreplication": ("tidemark.replication.ingest.client",),
    "asyncio": ("tidemark.aio",),
    "pickle": (),
    "cPickle": (),
    "dill": (),
    "cloudpickle": (),
    "shelve": (),
    "marshal": (),
    "joblib": (),
    "pandas.read_pickle": (),
    "pyarrow.PyExtensionType": (),
    "runpy": (),
    # Modules by their names: of this tree, and the program a command line of the harness names.
    "importlib.import_module": (
        *("tidemark.engine.jit.registry", "tidemark.recovery.crash_harness.", "tidemark", "tidemark.cli.commands"),
    ),
    # Its pipes unpickle: from processes that this one has forked, and from no others.
    "multiprocessing": ("tidemark.engine.jit.__main__", "tidemark.recovery.crash_harness."),
    "concurrent.futures.ProcessPoolExecutor": (),
    "tests": (),
    "bench": (),
}

# Of a store's files, and of those of the user alone.
DISK_DOORS = frozenset(
    {
        *("tidemark.engine.files.directory", "tidemark.engine.files.synced_write_kernels"),
        *("tidemark.engine.files.private_files", "tidemark.engine.jit.kept_code"),
    }
)
# What of `os` touches no file: allowed everywhere, or in the named places only.
OS_ANYWHERE = frozenset(
    "PathLike fspath fsdecode fsencode sep cpu_count sched_getaffinity getpid register_at_fork"
    " path.join path.abspath path.basename path.dirname path.split path.splitext path.normpath path.isabs"
    " path.commonpath".split()
)
# Private names of the standard library: threads that take turns stand in for CPython's own.
PRIVATE_PLACES: dict[str, frozenset[str]] = {
    # Makes the messages of what it cannot cause: two machines, a full disk, a defect of the program.
    "tests.documents.mistakes": frozenset(
        (
            "_ask _challenge _check_undone _damage _damaged _ask_outcome _gap _late _lost _pack _redo_overloaded "
            "_refuse_in_child _too_large _unknown _unproved _wait_for_copies"
        ).split()
    ),
    # pymysql has no public call that asks for a dump.
    "bench.dump_cost": frozenset({"_execute_command", "_sock"}),
    "tests.simulation.threads.turn_taking": frozenset({"_started", "_PySimpleQueue"}),
    "tests.simulation.threads.turns": frozenset({"_current_frames"}),
}
OS_PLACES: dict[str, frozenset[str]] = {
    "tidemark.engine.base.clock": frozenset({"urandom"}),
    "tidemark.engine.base.users": frozenset({"geteuid"}),
    # What wakes a loop is a descriptor of no file.
    "tidemark.replication.wire.wire": frozenset(
        {"eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC", "close"}
    ),
    # Whether kernels are called through the door.
    "tidemark.engine.jit.kernel": frozenset({"environ"}),
    # Which Java and which Python Spark starts is said in the environment, and nowhere else.
    "tidemark.recovery.spark.java": frozenset({"environ"}),
    "tidemark.recovery.spark.session": frozenset({"environ"}),
    # The password of a MySQL server; command lines are visible to every user of the machine.
    "tidemark.cli.mysql_commands": frozenset({"environ"}),
}

# Names of what unpickles, whatever they are reached through.
UNPICKLING = frozenset({"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "Unpickler", "read_pickle"})
# Compiled code out of the user's own cache, as numba keeps it.
UNPICKLING_PLACES = ("tidemark.engine.jit.code_cache",)

BUILTINS_NOWHERE = ("eval", "exec", "compile", "__import__")

# Heavy imports are made inside functions, so that `import tidemark` stays quick; but for modules whose classes are
# built on theirs, which only Spark imports, or a call that needs them.
LAZY_EXCEPT = {
    "pyarrow": ("tidemark.pushdown.dataset",),
    "pyspark": (
        "tidemark.recovery.spark.source",
        "tidemark.recovery.spark.stream",
        "tidemark.recovery.spark.daemon",
    ),
}
LAZY_MODULES = ("pyarrow", "pandas", "polars", "matplotlib", "duckdb", "tqdm", "pyspark", "pymysql")

# Names of the public face in which *checkpoint* stands alone.
CHECKPOINT_NAMES = frozenset(
    {
        "checkpoint",
        "checkpoint_memory",
        "checkpoint_memory_bytes",
        "checkpoint_interval_ms",
        "checkpoint_log_share",
        "CheckpointMemoryExhausted",
    }
)

# Spelled in halves, so that this file passes its own rule.
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")


@dataclass(frozen=True)
class Source:
    """One module: its dotted name and its text."""

    module: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed module."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its nodes."""
        return list(ast.walk(self.tree))

    def drop_nodes(self) -> None:
        """Forget the nodes: millions of them slow every collection of garbage."""
        for name in ("tree", "nodes", "typing_only"):
            vars(self).pop(name, None)

    @cached_property
    def typing_only(self) -> frozenset[int]:
        """Ids of the nodes under `if TYPE_CHECKING:`, which never run."""
        return frozenset(
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            for statement in node.body
            for inner in ast.walk(statement)
        )

    @cached_property
    def imports(self) -> list[tuple[ast.stmt, str, str]]:
        """Every runtime import as (statement, full dotted name of what is imported, name it is bound to)."""
        found: list[tuple[ast.stmt, str, str]] = []
        for node in self.nodes:
            if id(node) in self.typing_only:
                continue
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.append((node, alias.name, alias.asname or alias.name.split(".")[0]))
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                found.extend((node, f"{base}.{alias.name}", alias.asname or alias.name) for alias in node.names)
        return found

    @cached_property
    def every_import(self) -> list[tuple[int, str]]:
        """(line, full dotted name) of every import, those for type checkers too."""
        found: list[tuple[int, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.extend((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.extend((node.lineno, f"{self._absolute(node)}.{alias.name}") for alias in node.names)
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        up = node.level - 1 if self.is_package else node.level
        parts = parts[: len(parts) - up]
        return ".".join(parts + ([node.module] if node.module else []))

    @cached_property
    def used(self) -> list[tuple[int, str]]:
        """(line, full dotted name) of everything imported or reached through an import, longest chain only."""
        bound: dict[str, str] = {}
        out: list[tuple[int, str]] = []
        for node, name, alias in self.imports:
            is_plain = isinstance(node, ast.Import) and alias == name.split(".")[0]
            bound[alias] = alias if is_plain else name
            out.append((node.lineno, name))
        inner: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and id(node) not in inner and id(node) not in self.typing_only:
                chain: list[str] = []
                at: ast.expr = node
                while isinstance(at, ast.Attribute):
                    inner.add(id(at))
                    chain.append(at.attr)
                    at = at.value
                if isinstance(at, ast.Name) and at.id in bound:
                    out.append((node.lineno, ".".join([bound[at.id], *reversed(chain)])))
        return out


def floor_of(name: str) -> str:
    """The floor a module or a name in one is of; "" for other packages."""
    return next((floor for floor in FLOORS if _within(name, floor)), "")


def read_tree(root: Path, folders: Iterable[str]) -> list[Source]:
    """Every Python module below `folders` of the repository `root`, sorted by name."""
    sources = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            parts = ("tidemark", *parts) if folder in LINKED else parts
            name = ".".join(parts[:-1] if is_package else parts)
            sources.append(Source(name, path.read_text(encoding="utf-8"), is_package))
    return sources


def _is_home(module: str, homes: tuple[str, ...]) -> bool:
    return any(
        module == home.rstrip(".")
        or (home.endswith(".") and module.startswith(home))
        or (home.startswith("*") and module.endswith(home[1:]))
        for home in homes
    )


def _within(name: str, rule: str) -> bool:
    return name == rule or name.startswith(rule + ".")


def check_floors(source: Source) -> Iterator[str]:
    """A floor imports only itself and the floors below."""
    above = FLOORS[FLOORS.index(floor_of(source.module)) + 1 :]
    for line, name in source.every_import:
        if floor_of(name) in above:
            yield f"{source.module}:{line} imports {name}, a floor above"


def check_one_name(source: Source) -> Iterator[str]:
    """A floor is imported as a package of `tidemark`; by its folder it would be a second module of the same source."""
    for line, name in source.every_import:
        if name.split(".")[0] in LINKED:
            yield f"{source.module}:{line} imports {name}; import tidemark.{name}"


def check_rooms(source: Source) -> Iterator[str]:
    """A room of the engine imports itself and the rooms before it."""
    parts = source.module.split(".")
    if parts[:2] != ["tidemark", "engine"] or len(parts) < 3:
        return
    allowed = ROOMS[: ROOMS.index(parts[2]) + 1]
    for line, name in source.every_import:
        other = name.split(".")
        if other[:2] == parts[:2] and len(other) > 2 and other[2] not in allowed:
            yield f"{source.module}:{line} imports {name}, of a room after its own"


def check_compiled(source: Source) -> Iterator[str]:
    """Kernels and layouts are made of kernels and layouts: nothing else is in the digest their code is kept by."""
    if not source.module.endswith(COMPILED):
        return
    for line, name in source.every_import:
        is_compiled = any(each.endswith(COMPILED) for each in name.split(".")[-2:])
        if floor_of(name) and not is_compiled and not name.startswith("tidemark.engine.jit.kernel."):
            yield f"{source.module}:{line} imports {name}, whose source is in no digest"


@cache
def _inlined(module: str) -> frozenset[str]:
    """The helpers of a module of kernels: they have no machine code of their own."""
    found = set()
    for node in ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "helper" for each in node.decorator_list):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("helper("):
            found.update(ast.unparse(each) for each in node.targets)
    return frozenset(found)


def check_kernel_calls(source: Source) -> Iterator[str]:
    """A kernel is called by its floor alone. Kernels of a floor above import helpers and constants: these are compiled
    into the kernel that uses them.
    """
    floor = floor_of(source.module)
    if floor == "tidemark.engine":
        return
    is_kernels = source.module.endswith("_kernels")
    for line, name in source.every_import:
        module, _, what = (name, "", "") if name.endswith("_kernels") else name.rpartition(".")
        if not module.endswith("_kernels") or not floor_of(module):
            continue
        if is_kernels:
            is_allowed = floor_of(module) == floor or what.isupper() or what in _inlined(module)
        else:
            is_allowed = floor_of(module) == floor
        if not is_allowed:
            yield f"{source.module}:{line} imports {name}; call the Python of its room"


def check_letters(source: Source) -> Iterator[str]:
    """Kernels reach a layout through its letter."""
    if not source.module.endswith("_kernels"):
        return
    for node, name, alias in source.imports:
        layout = name if name.endswith("_layout") else name.rpartition(".")[0]
        if layout.endswith("_layout") and (name, alias) != (layout, LETTERS.get(layout)):
            yield f"{source.module}:{node.lineno} imports {name}; take {layout} as {LETTERS.get(layout, '?')}"


def check_cycles(sources: list[Source]) -> Iterator[str]:
    """No module reaches itself through imports, lazy ones and those for type checkers included."""
    known = {source.module for source in sources}
    edges: dict[str, set[str]] = {}
    for source in sources:
        targets = {name if name in known else name.rpartition(".")[0] for _, name in source.every_import}
        edges[source.module] = (targets & known) - {source.module}
    state: dict[str, int] = {}

    def visit(module: str, path: list[str]) -> Iterator[str]:
        state[module] = 1
        for target in sorted(edges[module]):
            if state.get(target) == 1:
                yield "import cycle: " + " -> ".join([*path[path.index(target) :], target])
            elif target not in state:
                yield from visit(target, [*path, target])
        state[module] = 2

    for module in sorted(edges):
        if module not in state:
            yield from visit(module, [module])


def check_homes(source: Source) -> Iterator[str]:
    """What has one home is used nowhere else."""
    for line, name in source.used:
        for rule, homes in HOMES.items():
            if _within(name, rule) and not _is_home(source.module, homes):
                yield f"{source.module}:{line} uses {name}; its place is {', '.join(homes) or 'nowhere'}"


def check_os(source: Source) -> Iterator[str]:
    """`os` outside the door to the disk: only what touches no file."""
    if source.module in DISK_DOORS:
        return
    allowed = OS_ANYWHERE | OS_PLACES.get(source.module, frozenset())
    for line, name in source.used:
        rest = name.removeprefix("os.") if name.startswith("os.") else None
        if rest is not None and rest != "path" and not any(_within(rest, entry) for entry in allowed):
            yield f"{source.module}:{line} uses {name}; files are reached through tidemark.engine.files.directory"


def _bound_at_top(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def check_builtins(source: Source) -> Iterator[str]:
    """`open` is called only by the modules that own access to the disk; code is never made at run time."""
    own = _bound_at_top(source.tree)
    for node in source.nodes:
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)) or node.id in own:
            continue
        if node.id in BUILTINS_NOWHERE:
            yield f"{source.module}:{node.lineno} uses {node.id}"
        elif node.id == "open" and source.module not in DISK_DOORS:
            yield f"{source.module}:{node.lineno} uses open; files are reached through tidemark.engine.files.directory"


def check_unpickling(source: Source) -> Iterator[str]:
    """Nothing unpickles through another module's import of it, nor asks a library to (F107)."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in UNPICKLING and source.module not in UNPICKLING_PLACES:
            yield f"{source.module}:{node.lineno} reaches {ast.unparse(node)}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"{source.module}:{node.value.lineno} gives allow_pickle"


def check_anonymous_memory(source: Source) -> Iterator[str]:
    """A mapping is of anonymous memory, never of a file."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("mmap.mmap", "mmap"):
            if not node.args or ast.unparse(node.args[0]) != "-1":
                yield f"{source.module}:{node.lineno} maps a file"


def check_lazy_imports(source: Source) -> Iterator[str]:
    """Heavy modules are imported inside functions."""
    inside = {
        id(inner)
        for node in source.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    for node, name, _ in source.imports:
        top = name.split(".")[0]
        if id(node) not in inside and top in LAZY_MODULES and source.module not in LAZY_EXCEPT.get(top, ()):
            yield f"{source.module}:{node.lineno} imports {name} at start-up; import it where it is used"


def check_sizes(source: Source) -> Iterator[str]:
    """Lines within their bound."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > LINE_CHARACTERS_MAX:
            yield f"{source.module}:{number} has {len(line)} characters; at most {LINE_CHARACTERS_MAX}"


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def advise_functions(source: Source) -> Iterator[str]:
    """Functions that are long, their docstrings not counted."""
    for node in functions(source):
        first = node.body[0]
        is_documented = ast.get_docstring(node, clean=False) is not None
        docstring_lines = (first.end_lineno or 0) - first.lineno + 1 if is_documented else 0
        size = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines
        if size > FUNCTION_LINES_MAX:
            yield f"{source.module}:{node.lineno} {node.name} has {size} lines"


def advise_modules(source: Source) -> Iterator[str]:
    """Modules that are long or short."""
    size = len(source.text.splitlines())
    if size > MODULE_LINES_MAX or (size < MODULE_LINES_MIN and not source.is_package):
        yield f"{source.module} has {size} lines"


def check_unfinished(source: Source) -> Iterator[str]:
    """No marks of unfinished work."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line) or "raise NotImpl" + "emented" in line:
            yield f"{source.module}:{number} is unfinished: {line.strip()[:70]}"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in kinds)


def check_broad_except(source: Source) -> Iterator[str]:
    """Nothing catches everything, unless it always raises it again or stands in a named place."""
    named = {
        id(inner)
        for node in functions(source)
        if f"{source.module}:{node.name}" in BROAD_EXCEPT_PLACES
        for inner in ast.walk(node)
    }
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node) and id(node) not in named:
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield f"{source.module}:{node.lineno} catches everything"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("suppress", "contextlib.suppress"):
            if any(ast.unparse(argument) in ("Exception", "BaseException") for argument in node.args):
                yield f"{source.module}:{node.lineno} suppresses everything"


# What Python hands to kernels of tables, fragments and indexes are handles (engine/memory/handles_kernels.py).
HANDLE_NAMES = frozenset({"table", "fragment", "tree", "index"})
HANDLE_ARRAYS = frozenset({"tables", "fragments", "targets", "handles"})
# Arrays of these names that hold numbers of tables, as "module:function".
NUMBER_ARRAYS = frozenset(
    {"tidemark.engine.txn.spool_kernels:has_updates", "tidemark.replication.conflict.dependencies_kernels:track_keys"}
)


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) == "kernel" for each in node.decorator_list)


def check_handles(source: Source) -> Iterator[str]:
    """A kernel compares the identity of each table, fragment and index it takes before it does anything with it."""
    if not source.module.endswith("_kernels"):
        return
    for node in functions(source):
        where = f"{source.module}:{node.lineno} {node.name}"
        compared = {
            id(inner)
            for each in ast.walk(node)
            if (isinstance(each, ast.Call) and ast.unparse(each.func) == "descriptor_of")
            or (isinstance(each, ast.Compare) and ast.unparse(each.comparators[0]) == "0")
            for inner in ast.walk(each)
        }
        names = [argument.arg for argument in node.args.args]
        if _is_kernel(node) and names[:1] == ["mem"]:
            for name in HANDLE_NAMES.intersection(names):
                uses = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
                first = min((each for each in uses if isinstance(each.ctx, ast.Load)), key=_place, default=None)
                if first is None or id(first) not in compared:
                    yield f"{where} takes {name} and does not begin with descriptor_of(mem, {name})"
        if f"{source.module}:{node.name}" in NUMBER_ARRAYS:
            continue
        for each in ast.walk(node):
            is_element = isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load)
            if is_element and ast.unparse(each.value) in HANDLE_ARRAYS and id(each) not in compared:
                yield f"{where} uses {ast.unparse(each)} without descriptor_of"


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _defined_names(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def check_checkpoint_names(source: Source) -> Iterator[str]:
    """*Checkpoint* never stands alone: a name says local or global."""
    own = [(1, source.module.split(".")[-1])]
    for line, name in [*own, *_defined_names(source)]:
        flat = name.replace("_", "").lower()
        if name not in CHECKPOINT_NAMES and re.search(r"(?<!local)(?<!global)checkpoint", flat):
            yield f"{source.module}:{line} {name}: say local_checkpoint, global_checkpoint, lcp or gcp"


def check_sleep(source: Source) -> Iterator[str]:
    """A test waits for what it needs, never for time to pass."""
    for line, name in source.used:
        if name == "time.sleep":
            yield f"{source.module}:{line} sleeps"


# Private names that are no room's: of named tuples, of notebooks, of the standard library, of libraries a test watches.
PRIVATE_OF_OTHERS = frozenset(
    {"_asdict", "_fields", "_make", "_replace", "_repr_html_", "_exit", "_preflight", "_autoincr", "_is_event_valid"}
)


def _is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None and name not in PRIVATE_OF_OTHERS


def check_private(source: Source) -> Iterator[str]:
    """A test holds, observes and fails what a room offers by a public name; private names are of the room alone."""
    for node in source.nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            own = own or (isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            names = [str(node.args[1].value)] if called in ("setattr", "getattr", "delattr", "hasattr") else []
        for name in names:
            if _is_private(name) and name not in PRIVATE_PLACES.get(source.module, ()):
                yield f"{source.module}:{node.lineno} reaches for {name}"


def check_citations(source: Source, known: frozenset[str]) -> Iterator[str]:
    """Decisions (D5) and faults (F17) cited in comments and docstrings stand in the documents."""
    for number, line in enumerate(source.text.splitlines(), 1):
        for cited in re.findall(r"\b(?:D\d{1,2}|F\d{2,3})\b", line):
            if cited not in known:
                yield f"{source.module}:{number} cites {cited}, which no document knows"


def check_map(modules: Iterable[str], architecture: str) -> Iterator[str]:
    """Every room, a package or module right under its floor, is named on the map."""
    paths = (module.removeprefix("tidemark.") if floor_of(module) != "tidemark" else module for module in modules)
    rooms = {tuple(path.split(".")[:2]) for path in paths if "." in path}
    for floor, room in sorted(rooms):
        if not room.startswith("_") and not re.search(rf"\b{floor}/{room}(?:\.py|/|\b)", architecture):
            yield f"docs/architecture.md does not mention {floor}/{room}"


PHRASES = [
    (re.compile(pattern, re.IGNORECASE), better)
    for pattern, better in (
        re.split(r" {2,}", line.strip(), maxsplit=1)
        for line in Path(__file__).with_name("phrases.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
]
# What no reader reads as prose: code, and what is filled in.
NOT_PROSE = re.compile(r"`[^`]*`|\{[^}]*\}|\([\w/.-]+\.(?:md|svg)\)")


def check_phrases(source: Source) -> Iterator[str]:
    """Comments, docstrings and messages have no phrase of phrases.txt."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            yield from _phrases(source.module, token.start[0], token.string)


def check_document_phrases(document: Path, root: Path) -> Iterator[str]:
    """Documents have none outside of code."""
    text = re.sub(
        r"^ *```.*?^ *```", lambda found: re.sub(r".", "", found[0]), document.read_text("utf-8"), flags=re.M | re.S
    )
    yield from _phrases(str(document.relative_to(root)), 1, text)


def _phrases(where: str, first: int, text: str) -> Iterator[str]:
    for number, line in enumerate(NOT_PROSE.sub("", text).splitlines(), first):
        for pattern, better in PHRASES:
            if found := pattern.search(line):
                yield f"{where}:{number} says {found[0]!r}; write: {better}"


def check_links(document: Path, root: Path) -> Iterator[str]:
    """Relative links of a document lead somewhere."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        if "://" not in target and not (document.parent / target).exists():
            yield f"{document.relative_to(root)} links to {target}, which is not there"


def check_navigation(site: str, pages: Iterable[str]) -> Iterator[str]:
    """Every page of `docs/` is in the navigation of the site, which does not build otherwise."""
    named = set(re.findall(r"[\w/.-]+\.md\b", site))
    yield from (f"mkdocs.yml does not name {page}" for page in pages if page not in named)


PACKAGE_RULES = (
    check_floors,
    check_one_name,
    check_rooms,
    check_compiled,
    check_kernel_calls,
    check_letters,
    check_homes,
    check_os,
    check_builtins,
    check_unpickling,
    check_anonymous_memory,
    check_lazy_imports,
    check_sizes,
    check_unfinished,
    check_broad_except,
    check_handles,
    check_checkpoint_names,
    check_phrases,
)
TEST_RULES = (check_one_name, check_sizes, check_unfinished, check_broad_except, check_sleep, check_private)
