"""Trees of expressions that the kernels of changes know, so that a call with other constants needs no Python code.

A tree is learned from a call that the compiler has bound. Its program is that of the call; of each constant it says how
its value is read, and where it goes. Before a tree is kept, kernels bind the very call, and must get the same words.
"""

from __future__ import annotations

import ctypes
import decimal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.limits import DECIMAL_PRECISION_MAX, LOB_BYTES_MAX
from tidemark.engine.jit.objects_kernels import IS_USABLE
from tidemark.engine.memory.arena_layout import MODE_UPDATE
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.kinds import LONG_MAX, read_words
from tidemark.engine.point.trees_kernels import bound_words
from tidemark.engine.programs import lowering
from tidemark.engine.programs.expressions import Arithmetic, Col, Compare, Constant, Expression, Junction, Not, NullTest
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER, WIDE
from tidemark.engine.programs.lowering import Kind
from tidemark.engine.programs.shapes import add_shape

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.programs.expression_programs import Compiled
    from tidemark.engine.programs.lowering import Lowering
    from tidemark.engine.schema.definition import TableDefinition

TREES_MAX = 32  # of a table; kernels look at one after the other
CHANGES_MAX = 32
FULL_CALLS = 10_000  # calls that match no tree, after which a full list begins anew
NO_TREES: Words = np.zeros(1, dtype=np.int64)
_FLOAT_WHOLE = 1 << 53  # integers up to it are floats
_NARROW_DIGITS = 18  # of a number of one word
_TEXT = [u.KEY_TEXT, 0, LOB_BYTES_MAX, 0, 0]
_BYTES = [u.KEY_BYTES, 0, LOB_BYTES_MAX, 0, 0]
_LONG = [u.KEY_INT, 8, -LONG_MAX - 1, LONG_MAX, 0]
_FLOAT = [u.VALUE_FLOAT, 8, -_FLOAT_WHOLE, _FLOAT_WHOLE, 0]
_WORDS_OF_TREES = ("eq", "ne", "lt", "le", "gt", "ge", "+", "-", "*", "/", "//", "%")
_TUPLE_SIZE, _TUPLE_ITEMS = 16, 24  # offsets in a tuple


# --- patterns -------------------------------------------------------------------------------------
class _Node(NamedTuple):
    """What is compared of a class of nodes, by slot."""

    text: str = ""
    words: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


_NODES: dict[type[Expression], _Node] = {
    Col: _Node("name"),
    Compare: _Node("condition", children=("left", "right")),
    Arithmetic: _Node("operator", children=("left", "right")),
    Junction: _Node(words=("is_and",), children=("operands",)),
    Not: _Node(children=("inner",)),
    NullTest: _Node(children=("inner",)),
}


def _offset(kind: type[Expression], name: str) -> int | None:
    """Return where an object of a class has a slot; None if that is not seen."""
    node, mark = object.__new__(kind), object()
    getattr(kind, name).__set__(node, mark)
    words = (ctypes.c_int64 * (kind.__basicsize__ // 8)).from_address(id(node))
    found = [8 * number for number, word in enumerate(words) if word == id(mark)]
    return found[0] if len(found) == 1 else None


def _offsets() -> dict[tuple[type, str], int] | None:
    pair = (object(), object())
    words = (ctypes.c_int64 * 5).from_address(id(pair))
    if list(words[2:]) != [2, *map(id, pair)]:
        return None
    slots: list[tuple[type[Expression], str]] = [(Constant, "value")]
    for kind, node in _NODES.items():
        slots += [(kind, name) for name in (node.text, *node.words, *node.children) if name]
    made: dict[tuple[type, str], int] = {}
    for kind, name in slots:
        at = _offset(kind, name)
        if at is None:
            return None
        made[kind, name] = at
    return made


_OFFSETS = _offsets() if IS_USABLE else None


class _Unknown(Exception):
    """A tree that kernels do not compare."""


class _Pattern:
    """Words of a tree's pattern, its nodes in the order in which they are met."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """texts: the objects of names and operators that live as long as the plan."""
        self.words: list[int] = []
        self.nodes = 0
        self._texts = texts

    def add(self, node: Any) -> None:
        """Raises: _Unknown."""
        assert _OFFSETS is not None
        self.nodes += 1
        kind = type(node)
        if kind is Constant:
            at = _OFFSETS[kind, "value"]
            self.words += [id(kind), at, id(type(node.value)), 0, 0, 0]
            return
        what = _NODES.get(kind)
        if what is None or self.nodes > u.NODES_MAX:
            raise _Unknown
        text = self._texts.get(getattr(node, what.text)) if what.text else ""
        if text is None:
            raise _Unknown
        children = [getattr(node, name) for name in what.children]
        text_at = _OFFSETS[kind, what.text] if what.text else 0
        self.words += [id(kind), 0, len(what.words), text_at, id(text), len(children)]
        for name in what.words:
            self.words += [_OFFSETS[kind, name], id(getattr(node, name))]
        self.words += [_OFFSETS[kind, name] for name in what.children]
        for each in children:
            if type(each) is tuple:
                self._add_items(each)
            else:
                self.add(each)

    def _add_items(self, items: tuple[Any, ...]) -> None:
        self.nodes += len(items)  # their addresses wait at once
        self.words += [id(tuple), 0, 1, 0, 0, len(items), _TUPLE_SIZE, len(items)]
        self.words += [_TUPLE_ITEMS + 8 * number for number in range(len(items))]
        for each in items:
            self.add(each)


# --- constants ------------------------------------------------------------------------------------
def _compared(column: Any) -> list[int]:
    """Return how kernels read a constant that a column is compared with, where its stored form is exact."""
    kind = column.type
    # Constants of padded columns lose the zeros at their end.
    if not kind.object_kind or kind.is_padded or read_words(kind)[0] == u.KEY_UNREAD:
        raise _Unknown
    if kind.value_class == "BYTES":
        return _TEXT if kind.is_text else _BYTES
    return read_words(kind) if kind.is_exact else _FLOAT


def _number(beside: Kind | None, value: Any) -> tuple[Kind, list[int]]:
    """Return the kind of a constant of arithmetic like this one, and how it is read."""
    if type(value) is float:
        return Kind(FLOAT), _FLOAT
    if beside is None or beside.type == FLOAT:
        if type(value) is int:
            return Kind(INTEGER), _LONG
    elif beside.calendar is None:
        if beside.type == WIDE:
            wide = [u.KEY_WIDE_DECIMAL, 16, beside.scale, DECIMAL_PRECISION_MAX, id(decimal.Decimal)]
            return Kind(WIDE, beside.scale), wide
        if type(value) is int and beside.scale == 0:
            return Kind(INTEGER), _LONG
        return Kind(INTEGER, beside.scale), [u.KEY_DECIMAL, 8, beside.scale, _NARROW_DIGITS, id(decimal.Decimal)]
    raise _Unknown


def _read(each: Lowering, value: Any) -> tuple[Any, list[int]]:
    """Return the structure of the constants that kernels read as they do this one, and how. Raises: _Unknown."""
    if each.function is lowering.compared:
        _, column, condition = each.arguments
        return condition, _compared(column)
    if each.function is lowering.number:
        return _number(each.arguments[1], value)
    if each.function is lowering.moment:
        return None, read_words(each.arguments[0])
    raise _Unknown


def _constants(found: Compiled, values: Sequence[Any]) -> list[int]:
    """Return the words of the constants of a program. Raises: _Unknown."""
    words: list[int] = []
    read: list[tuple[int, list[int]]] = []
    for each, structure in zip(found.lowerings, found.structures, strict=True):
        if each.is_list:
            raise _Unknown
        number = each.constants[0]
        wanted, how = _read(each, values[number])
        if wanted != structure:
            raise _Unknown
        read.append((number, how))
    for parameter, place in found.template.places:
        number, how = read[parameter.number]
        size = u.SIZE_OCTETS if parameter.element_bytes else u.SIZE_WIDE if parameter.is_wide else u.SIZE_WORD
        if (size == u.SIZE_OCTETS) != (how in (_TEXT, _BYTES)):
            raise _Unknown
        words += [number, place, size, *how]
    return words


# --- trees ----------------------------------------------------------------------------------------
def _added(known: Words, tree: Sequence[int]) -> Words:
    words = np.concatenate([known, np.array(tree, dtype=np.int64)])
    words[u.T_COUNT] = known[u.T_COUNT] + 1
    return words


def condition_tree(known: Words, names: Sequence[str], where: Expression, read: Sequence[list[int]]) -> Words | None:
    """Return words with the tree of a condition more; None if kernels do not compare it.

    names: of the columns, which live as long as the words. read: how each constant is read.
    """
    pattern = _Pattern(_texts_of(names))
    try:
        if _OFFSETS is None:
            raise _Unknown
        pattern.add(where)
    except _Unknown:
        return None
    constants = [word for number, how in enumerate(read) for word in (number, 0, 0, *how)]
    head = [0] * u.TREE_WORDS
    head[u.T_CONSTANTS] = len(read)
    head[u.T_CONSTANTS_AT] = u.TREE_WORDS + len(pattern.words)
    head[u.T_WORDS] = head[u.T_CONSTANTS_AT] + len(constants)
    return _added(known, [*head, *pattern.words, *constants])


def _texts_of(names: Sequence[str]) -> dict[str, str]:
    return {name: name for name in (*_WORDS_OF_TREES, *names)}


class Trees:
    """The trees that kernels of changes know for one plan. `words` is replaced, never changed."""

    __slots__ = ("_calls", "_definition", "_plan", "_seen", "_texts", "words")

    def __init__(self, definition: TableDefinition, plan: Words, names: Sequence[str]) -> None:
        """plan: words of the plan. names: of the columns, which live as long as it."""
        self.words = NO_TREES
        self._definition = definition
        self._plan = plan
        self._texts = _texts_of(names)
        self._seen: dict[int, Compiled] = {}  # by identity; what is kept here cannot be another one
        self._calls = 0

    def learn(self, mode: int, changes: Any, where: Any, found: Compiled, program: Words) -> None:
        """Keep the tree of a call, if kernels can bind it. changes: a dict with MODE_UPDATE. program: of the call."""
        if id(found) in self._seen:
            return
        if len(self._seen) >= TREES_MAX:
            self._calls += 1
            if self._calls < FULL_CALLS:
                return
            self.words, self._seen, self._calls = NO_TREES, {}, 0
        self._seen[id(found)] = found
        if _OFFSETS is None or found.template.head.size > u.PROGRAM_WORDS:
            return
        try:
            made = self._tree(mode, changes, where, found)
        except _Unknown:
            return
        bound = np.zeros(u.PROGRAM_WORDS, dtype=np.int64)
        size = bound_words(self._plan, _added(NO_TREES, made), mode, changes, where, bound)
        if np.array_equal(bound[:size], program):
            self.words = _added(self.words, made)

    def _tree(self, mode: int, changes: Any, where: Any, found: Compiled) -> list[int]:
        pattern = _Pattern(self._texts)
        values: list[Any] = []
        if where is not None:
            add_shape(where, [], values)
            pattern.add(where)
        if mode == MODE_UPDATE:
            if len(changes) > CHANGES_MAX:
                raise _Unknown
            for name, value in changes.items():
                pattern.words.append(self._definition.position(name))
                if isinstance(value, Expression):
                    add_shape(value, [], values)
                    pattern.add(value)
                else:
                    pattern.words.append(u.T_PLAIN)
        template = found.template
        constants = _constants(found, values)
        head = [0] * u.TREE_WORDS
        constants_at = u.TREE_WORDS + len(pattern.words)
        head[u.T_MODE] = mode
        head[u.T_HAS_WHERE] = int(where is not None)
        head[u.T_CHANGES] = len(changes) if mode == MODE_UPDATE else 0
        head[u.T_CONSTANTS] = len(constants) // u.CONSTANT_WORDS
        head[u.T_CONSTANTS_AT] = constants_at
        head[u.T_PROGRAM_AT] = constants_at + len(constants)
        head[u.T_PROGRAM_WORDS] = template.head.size
        head[u.T_POOL] = template.pool_at
        head[u.T_HAS_OCTETS] = int(any(each.element_bytes for each, _ in template.places))
        made = [*head, *pattern.words, *constants, *template.head.tolist()]
        made[u.T_WORDS] = len(made)
        return made
