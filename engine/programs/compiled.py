"""A cache of compiled expressions: expressions of one shape over one version of a table are compiled once, and each
call binds its own constants.

The key is the tree without the values of its constants, and the definition object. Of one shape there are as many
programs as its constants have structures (`engine/programs/lowering.py`): `col("n") == 2.5` is never true for a column
of integers, and has other code than `col("n") == 2`. A bound program belongs to its caller alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.programs import expression_programs
from tidemark.engine.programs.aggregates import Aggregates
from tidemark.engine.programs.expression_programs import argument
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import with_constants
from tidemark.engine.programs.lowering import lower_all
from tidemark.engine.programs.shapes import add_shape

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.expression_programs import Compiled
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.schema.definition import TableDefinition

KEPT_MAX = 256  # shapes
STRUCTURES_MAX = 8  # of one shape
WORDS_MAX = 1 << 21  # of all kept programs: 16 MiB
NODES_MAX = 200  # larger trees are compiled each time: lookups would be slow, and the cache would need much memory


class _Shape:
    """The programs of one shape, by structure. The first program says how constants are lowered."""

    __slots__ = ("definition", "lowerings", "programs", "words")

    def __init__(self, definition: TableDefinition, first: Compiled) -> None:
        self.definition = definition
        self.lowerings = first.lowerings
        self.programs = {first.structures: first}
        self.words = int(first.program.words.size)


_kept: OrderedDict[tuple[Any, ...], _Shape] = OrderedDict()
_guard = threading.Lock()  # of changes; lookups need none
_words = 0


def kept_programs() -> tuple[int, int, int]:
    """Return (shapes, programs, words of the programs) in the cache."""
    with _guard:
        return len(_kept), sum(len(each.programs) for each in _kept.values()), _words


def _keep(key: tuple[Any, ...], definition: TableDefinition, made: Compiled) -> None:
    global _words
    if made.program.words.size > WORDS_MAX // KEPT_MAX:
        return
    with _guard:
        shape = _kept.get(key)
        if shape is not None and _is_of(shape, definition, made):
            shape.programs[made.structures] = made
            shape.words += int(made.program.words.size)
            _words += int(made.program.words.size)
        else:
            if shape is not None:
                _words -= _kept.pop(key).words
            _kept[key] = shape = _Shape(definition, made)
            _words += shape.words
        while len(_kept) > KEPT_MAX or _words > WORDS_MAX:
            _words -= _kept.popitem(last=False)[1].words


def _is_of(shape: _Shape, definition: TableDefinition, made: Compiled) -> bool:
    """Whether a program may join the others of its shape: it lowers its constants as they do."""
    if shape.definition is not definition or len(shape.programs) >= STRUCTURES_MAX:
        return False
    return shape.lowerings == made.lowerings and made.structures not in shape.programs


def _found(
    definition: TableDefinition, head: Sequence[Any], nodes: Sequence[Any], make: Callable[[], Compiled]
) -> tuple[Compiled, Words]:
    """Return the compiled expression, from the cache if it is there, and the words of its program with the constants of
    these trees. What is no tree is not part of the program. A tree that is too large is not kept.
    """
    parts = 0
    parts_of_key: list[Any] = [id(definition), *head]
    constants: list[Any] = []
    for each in nodes:
        if not isinstance(each, Expression):
            parts_of_key.append(None)
            continue
        parts += each.parts
        if parts > NODES_MAX:
            made = make()
            return made, made.program.words
        add_shape(each, parts_of_key, constants)
    key = tuple(parts_of_key)
    shape = _kept.get(key)
    if shape is not None and shape.definition is definition:
        structures, stored = lower_all(shape.lowerings, constants)
        found = shape.programs.get(structures)
        if found is not None:
            try:
                _kept.move_to_end(key)
            except KeyError:
                pass  # another thread has removed it
            return found, found.template.words_of(stored)
    made = make()
    _keep(key, definition, made)
    return made, made.program.words


def compile_filter(definition: TableDefinition, where: Expression) -> Program:
    """Return the program of `expression_programs.compile_filter`, with the cache. Raises: the same."""
    found, words = bind_filter(definition, where)
    return with_constants(found.program, words)


def bind_filter(definition: TableDefinition, where: Expression) -> tuple[Compiled, Words]:
    """Return what `compile_filter` compiles, and the words of its program with the constants. Raises: the same."""
    return _found(definition, ("filter",), (where,), lambda: expression_programs.compile_filter(definition, where))


def compile_aggregates(
    definition: TableDefinition,
    functions: Sequence[tuple[str, Any]],
    where: Expression | None = None,
    keys: Sequence[Expression] = (),
) -> Aggregates:
    """Return what `expression_programs.compile_aggregates` compiles, with the cache. Raises: the same."""
    head = ("aggregates", len(keys), *(function for function, _ in functions))
    nodes = [where, *keys, *(argument(what) for _, what in functions)]
    found, words = _found(
        definition, head, nodes, lambda: expression_programs.compile_aggregates(definition, functions, where, keys)
    )
    return Aggregates(with_constants(found.program, words), found.outputs)


def compile_update(
    definition: TableDefinition, changes: Mapping[str, Any], where: Expression | None = None
) -> tuple[Program, dict[str, Any]]:
    """Return the program of `expression_programs.compile_update`, with the cache, and the plain changes, which are not
    part of it. Raises: the same.
    """
    found, words = bind_update(definition, changes, where)
    plain = {name: value for name, value in changes.items() if not isinstance(value, Expression)}
    return with_constants(found.program, words), plain


def bind_update(
    definition: TableDefinition, changes: Mapping[str, Any], where: Expression | None
) -> tuple[Compiled, Words]:
    """Return what `compile_update` compiles, and the words of its program with the constants. Raises: the same."""
    nodes = [where, *changes.values()]
    make = lambda: expression_programs.compile_update(definition, changes, where)  # noqa: E731
    return _found(definition, ("update", *changes), nodes, make)
