"""Write the calls of the faces from tidemark/calls.py: `python -m tools.make_faces [--check]`.

A class has them after a comment, a line each, up to an empty line. A call that the class defines itself is left out
there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tidemark.calls import Call, Kind, calls_of

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "    # calls: python -m tools.make_faces\n"
CHANGES = (Kind.CHANGE, Kind.BULK)
# By file, class and face: which kinds of calls are made from which others. {} is the name, {unsent} the arguments that
# cannot be sent.
LINES: dict[tuple[str, str, str], dict[tuple[Kind, ...], str]] = {
    ("tidemark/database.py", "Database", "store"): {
        (Kind.SCHEMA,): 'passed(SchemaCalls.{}, "_schema")',
        (Kind.FILES,): 'passed(LoadCalls.{}, "_loads")',
    },
    ("tidemark/session.py", "TransactionReads", "transaction"): {(Kind.QUERY,): "of_table(TableReads.{})"},
    ("tidemark/handles.py", "TableHandle", "table"): {CHANGES: "own_transaction(Transaction.{})"},
    ("tidemark/session.py", "TransactionTable", "transaction table"): {
        (*CHANGES, Kind.LOOKUP): "in_transaction(Transaction.{})"
    },
    ("tidemark/typed_rows.py", "TypedReads", "typed table"): {
        (Kind.QUERY, Kind.PUSHED): 'passed(TableReads.{}, "handle")'
    },
    ("tidemark/session.py", "TypedTransactionTable", "typed transaction table"): {
        CHANGES: 'passed(TransactionTable.{}, "handle")'
    },
    ("tidemark/handles.py", "TypedTable", "typed table"): {(*CHANGES, Kind.PARTS): 'passed(TableHandle.{}, "handle")'},
    ("tidemark/remote/table.py", "RemoteTable", "remote table"): {
        (*CHANGES, Kind.LOOKUP, Kind.PARTS): "forwarded(TableHandle.{})"
    },
    ("tidemark/remote/snapshot.py", "RemoteSnapshotTable", "remote snapshot table"): {
        (Kind.LOOKUP,): "forwarded(SnapshotTable.{})"
    },
    ("tidemark/remote/transaction.py", "RemoteTransaction", "remote transaction"): {
        (Kind.CHANGE, Kind.LOOKUP): "forwarded(Transaction.{})",
        (Kind.BULK,): "batched(Transaction.{})",
    },
    ("tidemark/remote/scan.py", "RemoteScan", "remote scan"): {(Kind.ANSWER,): "forwarded(Scan.{})"},
    ("tidemark/remote/database.py", "RemoteDatabase", "remote store"): {
        (Kind.SCHEMA, Kind.NAMES, Kind.PRIMARY, Kind.NODE): "forwarded(Database.{}{unsent})"
    },
    ("tidemark/aio.py", "_Table", "awaited table"): {(Kind.QUERY,): "Awaited(TableReads.{})"},
    ("tidemark/aio.py", "_Changes", "awaited table"): {(*CHANGES, Kind.PARTS): "Awaited(TableHandle.{})"},
    ("tidemark/aio.py", "_Reads", "awaited table"): {(Kind.LOOKUP,): "Awaited(TableReads.{})"},
    ("tidemark/aio.py", "_Writes", "awaited table"): {CHANGES: "Awaited(TableHandle.{})"},
    ("tidemark/aio.py", "TransactionTable", "awaited transaction table"): {
        (Kind.LOOKUP,): "Awaited(SyncTransactionTable.{})"
    },
    ("tidemark/aio.py", "Transaction", "awaited transaction"): {
        (*CHANGES, Kind.LOOKUP, Kind.QUERY, Kind.END): "Awaited(SyncTransaction.{})"
    },
    ("tidemark/aio.py", "Snapshot", "awaited snapshot"): {(Kind.NAMES,): "Awaited(SyncSnapshot.{})"},
    ("tidemark/aio.py", "Sequence", "awaited sequence"): {(Kind.ANSWER,): "Awaited(SyncSequence.{})"},
    ("tidemark/aio.py", "Scan", "awaited scan"): {(Kind.FORM, Kind.ANSWER): "Awaited(SyncScan.{})"},
    ("tidemark/aio.py", "Database", "awaited store"): {
        (
            *(Kind.SCHEMA, Kind.NAMES, Kind.PARTS, Kind.PRIMARY, Kind.NODE),
            *(Kind.FILES, Kind.REPLICATION, Kind.INNER),
        ): "Awaited(SyncDatabase.{})"
    },
}

# Calls that a base of a class defines.
_OF_ROWS = {"insert", "write", "upsert", "insert_many", "write_many", "upsert_many"}
_OF_KEYS = {"update", "delete", "update_many", "delete_many", "update_where", "delete_where"}
INHERITED = {"TypedTable": _OF_ROWS, "TypedTransactionTable": _OF_ROWS, "_Changes": _OF_ROWS, "_Writes": _OF_KEYS}


def own_names(body: list[ast.stmt], begin: int, end: int) -> set[str]:
    """Return what a class defines outside of the lines from `begin` to `end`."""
    found = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and not begin <= node.lineno <= end:
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def lines(face: str, sources: dict[tuple[Kind, ...], str], own: set[str]) -> Iterator[str]:
    """Yield the line of each call that a face has, does not define, and is made from another one."""
    for call, reason in calls_of(face):
        source = next((text for kinds, text in sources.items() if call.kind in kinds), None)
        if reason is None and source is not None and call.name not in own:
            yield f"    {call.name} = {made(call, source)}\n"


def made(call: Call, source: str) -> str:
    """Return the expression that makes a call."""
    return source.format(call.name, unsent="".join(f', "{name}"' for name in call.unsent))


def rendered(text: str, kind: str, face: str, sources: dict[tuple[Kind, ...], str]) -> str:
    """Return the text of a module with the calls of one class written anew."""
    node = next(each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == kind)
    every = text.splitlines(keepends=True)
    begin = next(number for number in range(node.lineno, len(every)) if every[number] == BEGIN)
    end = next((number for number in range(begin, len(every)) if every[number] == "\n"), len(every))
    own = own_names(node.body, begin + 1, end + 1) | INHERITED.get(kind, set())
    return "".join([*every[: begin + 1], *lines(face, sources, own), *every[end:]])


def main(arguments: list[str]) -> int:
    """Write the calls of all faces, or with `--check` say which modules have others; return 1 then."""
    texts: dict[str, str] = {}
    for (path, kind, face), sources in LINES.items():
        text = texts.get(path) or (ROOT / path).read_text(encoding="utf-8")
        texts[path] = rendered(text, kind, face, sources)
    drifted = [path for path, text in texts.items() if (ROOT / path).read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in drifted:
            sys.stderr.write(f"{path} has other calls than tidemark/calls.py; run `python -m tools.make_faces`\n")
        return int(bool(drifted))
    for path in drifted:
        (ROOT / path).write_text(texts[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
