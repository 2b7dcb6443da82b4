"""What a mutant changes: one operator, condition, number or statement of one function.

Constants of modules, defaults, decorators, messages of the log, texts and assertions are left as they are: their
mutants say nothing about tests, or a running process cannot take them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "+",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitXor: "|",
}
_LOGS = ("_log.", "log.debug(", "warnings.")


@dataclass(frozen=True)
class Change:
    """One change of a module's source."""

    function: str  # the outermost enclosing function, by its qualified name
    line: int
    start: int  # bytes of the source
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The source of the mutant."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def reported(self, source: bytes) -> str:
        """The line before and after."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        before = " ".join(source[first:last].decode().split())
        after = " ".join((source[first : self.start] + self.text.encode() + source[self.end : last]).decode().split())
        return f"line {self.line}, {self.function}: {before}  =>  {after}"


def changes(source: bytes) -> list[Change]:
    """All of a module, in the order of its lines."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found = set()
    for name, function in _functions(ast.parse(source), ""):
        for node in _bodies(function):
            for replaced, text in _of_node(node, source.decode()):
                start = offsets[replaced.lineno - 1] + replaced.col_offset
                end = offsets[replaced.end_lineno - 1] + replaced.end_col_offset  # type: ignore[operator]
                found.add(Change(name, node.lineno, start, end, text))
    return sorted(found, key=lambda each: (each.start, each.end, each.text))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef):
            yield f"{prefix}{each.name}", each
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")
        elif isinstance(each, (ast.If, ast.Try)):
            yield from _functions(each, prefix)


def _bodies(function: ast.FunctionDef) -> Iterator[ast.expr | ast.stmt]:
    """Every expression and statement of a function's body that is worth changing."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Raise):  # only that it is raised is tested, not its text
            yield node
            continue
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            ahead.extend(node.body if isinstance(node, ast.FunctionDef) else [node.body])
            continue
        if isinstance(node, ast.AnnAssign):
            ahead.extend([node.value] if node.value is not None else [])
            continue
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node
        ahead.extend(ast.iter_child_nodes(node))


def _of_node(node: ast.expr | ast.stmt, source: str) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """(old text, new text) for each change of this node itself."""

    def text(of: ast.AST) -> str:
        return f"({ast.get_source_segment(source, of)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node, f"{text(node.left)} {_COMPARED[type(node.ops[0])]} {text(node.comparators[0])}"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, "(" + word.join(text(each) for each in node.values) + ")"
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATED and not _is_text(node):
        yield node, f"{text(node.left)} {_OPERATED[type(node.op)]} {text(node.right)}"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, text(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, str(not node.value)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if not (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
            yield node.test, f"(not {text(node.test)})"
    elif isinstance(node, ast.Raise):
        yield node, "pass"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not text(node)[1:].startswith(_LOGS):
        yield node, "pass"
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets):
            yield node, "pass"
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield node, "pass"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or isinstance(each, ast.Constant) and isinstance(each.value, (str, bytes))
        for each in (node.left, node.right)
    )
