"""What MkDocs does here beside `mkdocs.yml`: lists and docstrings are read as this project writes them, the home page
begins as the README does, links that are names of files become titles, and the search puts guides before internals.

Docstrings are taken from the sources. Public names are asked of the modules, which are imported.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# A warning of this logger fails a strict build.
_log = logging.getLogger("mkdocs.hooks.site")

# Modules whose `__all__` must be in docs/reference, each name once.
COMPLETE = ("tidemark", "tidemark.spark")
DIRECTIVE = re.compile(r"^#* ?::: (\S+)$", re.MULTILINE)

# Classes whose objects are returned or raised: their constructors are not for callers.
RETURNED = (
    *("database.Database", "read_only.ReadOnlyDatabase", "remote.database.RemoteDatabase", "handles.TableHandle"),
    *("remote.table.RemoteTable", "remote.transaction.RemoteTransaction", "remote.scan.RemoteScan"),
    *("remote.snapshot.RemoteSnapshot", "remote.snapshot.RemoteSnapshotTable"),
    *("session.Transaction", "scans.Scan", "snapshot.Snapshot", "snapshot.SnapshotTable"),
    *(
        "sites.serving.Serving",
        "sites.mysql_serving.MysqlServing",
        "remote.serving.CallServing",
        "engine.programs.interpreter.Program",
    ),
    "engine.base.errors.Error",
    *("typed_rows.TypedReads", "handles.TypedTable", "typed_rows.TypedSnapshotTable"),
    *("session.TypedTransactionTable", "read_only.ReadOnlySnapshot", "session.TransactionTable"),
    *("aio.TypedTable", "aio.TypedSnapshotTable", "aio.TypedTransactionTable"),
    *("aio.Scan", "aio.Snapshot", "aio.SnapshotTable", "aio.Table", "aio.Transaction", "aio.TransactionTable"),
    "engine.rows.row.Row",
)
# Classes of the engine that are public or a base of a public one: the members that are for callers.
KEPT: dict[str, set[str]] = {
    "engine.txn.transaction.Transaction": {"txid", "commit", "rollback", "savepoint"},
    "engine.access.snapshot.Snapshot": {"close"},
    "engine.txn.views.View": {"close"},
    "engine.types.base.ColumnType": set(),
    "engine.types.decimals.Decimal": {"precision", "scale"},
    "engine.types.enums.Enum": {"__init__"},
    "engine.schema.column.Column": {"name", "type", "nullable", "default", "storage", "has_default", "is_disk"},
    "engine.schema.partition.Partition": {"fragments", "names", "numbers", "number_of"},
    "engine.programs.interpreter.Program": {"instructions", "constants", "columns", "outputs"},
}

# Classes with calls that are made from others (`tidemark/derived.py`), each after those that its calls are made from.
DERIVED = (
    *("session.TransactionReads", "database.Database", "session.Transaction", "handles.TableHandle"),
    *("snapshot.SnapshotTable", "session.TransactionTable"),
    *("typed_rows.TypedReads", "handles.TypedTable", "session.TypedTransactionTable"),
    *("remote.database.RemoteDatabase", "remote.table.RemoteTable", "remote.transaction.RemoteTransaction"),
    *("remote.snapshot.RemoteSnapshot", "remote.snapshot.RemoteSnapshotTable"),
    *("remote.scan.RemoteScan", "aio.Database", "aio.Table", "aio.Transaction", "aio.Scan", "aio.Snapshot"),
    *("aio.SnapshotTable", "aio.TransactionTable", "aio.TypedTable"),
)
ORIGINS = {
    "SchemaCalls": "schema_calls.SchemaCalls",
    "LoadCalls": "load_calls.LoadCalls",
    "Database": "database.Database",
    "TableHandle": "handles.TableHandle",
    "TableReads": "table_reads.TableReads",
    "Transaction": "session.Transaction",
    "Scan": "scans.Scan",
    "Snapshot": "snapshot.Snapshot",
    "SnapshotTable": "snapshot.SnapshotTable",
    "TransactionTable": "session.TransactionTable",
    "TypedReads": "typed_rows.TypedReads",
    "TypedTable": "handles.TypedTable",
}
MADE = re.compile(
    r"(?:own_transaction|in_transaction|of_table|passed|forwarded|batched|Awaited)\((?:Sync)?(\w+)\.\w+(?:, .*)?\)"
)

# A line for Git hosts alone, and what a page of the reference has in its place.
HOST_NOTE = re.compile(r"^\*On a Git host .*\*\n", re.MULTILINE)
EXAMPLES_NOTE = """\
In the examples `tm` is `tidemark`, and `db` is an open store. Its table `item` has the columns `id` (the key), `name`
and `stock`, and the rows `(1, "pen", 10)`, `(2, "cup", 5)` and `(3, "bag", 0)`.
"""
# Pages made of the files at the top of a checkout.
TOP_PAGES = {
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
}
# How much a hit counts in the search, by the beginning of a page's path; a page in none of them counts 1.
BOOSTS = {
    "expected.md": 6.0,
    "start/": 3.0,
    "backup.md": 3.0,
    "compatibility.md": 3.0,
    "guide.md": 2.0,
    "tutorials/": 0.5,
    "adr/": 0.02,
    "findings/": 0.02,
    "internals/": 0.05,
    "format.md": 0.1,
    "faults.md": 0.02,
    "reliability.md": 0.02,
    "tests.md": 0.02,
    "style.md": 0.02,
    "project/": 0.2,
    "errors.md": 0.3,
    "reference/errors.md": 0.3,
    "reference/asyncio.md": 0.2,
    "reference/clients.md": 0.2,
    "ingest.md": 0.3,
}
# A link to a page whose text is the name of its file.
FILE_LINK = re.compile(r"\[`?[\w./-]+\.md`?\]\(([\w./-]+\.md)(#[^)\s]*)?\)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
FENCE = re.compile(r" *(```+|~~~+)")
ITEM = re.compile(r" *([-*+]|\d+[.)]) +(?=\S)")

# What begins a paragraph of its own in a docstring, where a sentence begins.
LABEL = re.compile(r"(?:^|(?<=[.;?] ))(Raises|Durable on return|Durable|Units|Shapes)(:| as)")
# Google's form of sections, which mkdocstrings renders.
SECTION = re.compile(r"(?:Args|Returns|Raises):\n +\S")
SECTION_ITEM = re.compile(r"(^(?:Args|Returns|Raises):\n|^    \w+: )", re.MULTILINE)
# The last section, which stays as it is: mkdocstrings makes code blocks of its `>>>` lines.
EXAMPLES = "\n\nExamples:\n"
CODE = re.compile(r"`([\w.]+)(\([^`]*\))?`")
# Names of classes in prose; a plain word such as Locked is one only where errors are listed.
NAME = re.compile(r"(?<![\w`.\[])[A-Z][a-z]+[A-Z]\w+(?![\w`(])")
NAME_OR_WORD = re.compile(r"(?<![\w`.\[])[A-Z][a-z]\w+(?![\w`(])")
DOCUMENT = re.compile(r"`?docs/([\w/-]+)\.md`?")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages that are made of files at the top of a checkout."""
    for page, source in TOP_PAGES.items():
        text = at_site((ROOT / source).read_text(encoding="utf-8"), "../", "")
        files.append(File.generated(config, page, content=text))
    return files


def at_site(text: str, docs: str, project: str) -> str:
    """Links of a file at the top of a checkout as a page has them. docs: leads from the page to `docs`, project: to
    `project`.
    """
    text = text.replace("](docs/", f"]({docs}")
    for page, source in TOP_PAGES.items():
        text = text.replace(f"]({source})", f"]({project}{page.removeprefix('project/')})")
    return re.sub(r"\[(LICENSE)\]\(LICENSE\)", r"\1", text)


def opening() -> str:
    """What the home page has of the README: all after its title."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2]
    return at_site(text, "", "project/")


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Complete a page: the opening of the home page, titles in links, its weight in the search, indented lists."""
    path = page.file.src_uri
    markdown = HOST_NOTE.sub(lambda _: opening() if path == "README.md" else EXAMPLES_NOTE, markdown)

    def titled(match: re.Match[str]) -> str:
        target = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1])))
        return f"[{title(target.content_string, match[1])}]({match[1]}{match[2] or ''})" if target else match[0]

    boost = next((weight for start, weight in BOOSTS.items() if path.startswith(start)), 1.0)
    page.meta.setdefault("search", {"boost": boost})
    return indented(FILE_LINK.sub(titled, markdown))


def title(text: str, otherwise: str) -> str:
    """The title of a page."""
    found = TITLE.search(text)
    return found[1] if found else otherwise


def indented(markdown: str) -> str:
    """Indent what belongs to an item of a list by four for each level, as Python-Markdown wants it. In the pages it is
    indented as far as the item's text, which is enough for Git hosts.
    """
    lines: list[str] = []
    columns: list[int] = []  # of the open items: where their text begins
    fence = ""
    follows_text = is_list = False  # of the line before, and of the first line since the last blank one
    for line in markdown.split("\n"):
        indent = len(line) - len(line.lstrip())
        mark, item = FENCE.match(line), None if fence else ITEM.match(line)
        if item and follows_text and not is_list:
            if columns or item[1] in ("-", "*", "+", "1."):
                lines.append("")  # a list may follow text without a blank line, but not in Python-Markdown
            else:
                item = None
        # What follows text without a blank line continues it, however it is indented.
        if line.strip() and not fence and (item or mark or line.startswith("#") or not follows_text):
            while columns and indent < columns[-1]:
                columns.pop()
        if columns and line.strip():
            line = " " * (4 * len(columns) + max(0, indent - columns[-1])) + line.lstrip()
        if item:
            columns.append(item.end())
        if item or not follows_text:
            is_list = item is not None
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        follows_text = bool(line.strip()) and not mark and not line.startswith("#")
        lines.append(line)
    return "\n".join(lines)


def on_nav(nav: Any, files: Any, **_: Any) -> None:
    """Warn of a public name that no page of the reference has, or that two have."""
    pages = [file for file in files.documentation_pages() if file.src_uri.startswith("reference/")]
    found = [name for page in pages for name in DIRECTIVE.findall(page.content_string)]
    for module in COMPLETE:
        for name in public_names(module):
            if (count := found.count(f"{module}.{name}")) != 1:
                _log.warning("docs/reference has %s.%s %d times; give it one directive", module, name, count)


def public_names(module: str) -> list[str]:
    """The `__all__` of a module."""
    return list(importlib.import_module(module).__all__)


class Docstrings(griffe.Extension):
    """Docstrings of this project as Markdown: arguments in prose become a list, names become links."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Take away what is not for callers, then write the docstrings anew. The sources stay as they are."""
        for path in RETURNED:
            pkg[path].members.pop("__init__", None)
        for path, kept in KEPT.items():
            for name in pkg[path].members.keys() - kept:
                del pkg[path].members[name]
        for path in DERIVED:
            module, _, kind = path.rpartition(".")
            calls = getattr(importlib.import_module(f"tidemark.{module}"), kind)
            for name, member in list(pkg[path].members.items()):
                if member.is_attribute and (found := MADE.match(str(member.value))):
                    member = made_call(pkg[ORIGINS[found[1]]].all_members[name], getattr(calls, name), pkg.docstring)
                    pkg[path].set_member(name, member)
                elif member.is_function and not member.has_docstring and name[0] != "_":
                    member.docstring = docstring_of(getattr(calls, name), member, pkg.docstring)
        public = {name: pkg[name] for name in public_names("tidemark")}
        names = {item.canonical_path: name for name, item in public.items()}
        links = {name: f"tidemark.{name}" for name in public}
        for name, item in public.items():
            if item.is_class:
                names |= {base.canonical_path: name for base in item.mro() if base.canonical_path not in names}
                links |= {
                    f"{name}.{member}": f"tidemark.{name}.{member}"
                    for member, found in item.all_members.items()
                    if not member.startswith("_") and found.has_docstring
                }
        self._rewrite(pkg, names, links)

    def _rewrite(self, scope: griffe.Object | griffe.Alias, names: dict[str, str], links: dict[str, str]) -> None:
        for item in scope.members.values():
            if item.is_alias:
                continue
            if item.docstring:
                known = arguments_of(item)
                text, section, examples = item.docstring.value.partition(EXAMPLES)
                text = with_paragraphs(text, known)
                owner = names.get((item if item.is_class else scope).canonical_path, "")
                item.docstring.value = with_links(text, owner, known | {item.name}, links) + section + examples
            if item.is_module or item.is_class:
                self._rewrite(item, names, links)


def docstring_of(call: Any, parent: Any, like: Any) -> griffe.Docstring:
    """The docstring that a call has in Python. like: one that was read from the sources, and says how it is parsed."""
    text = inspect.getdoc(call) or ""
    return griffe.Docstring(text, parent=parent, parser=like.parser, parser_options=like.parser_options)


def made_call(origin: griffe.Object | griffe.Alias, call: Any, like: Any) -> griffe.Object | griffe.Alias:
    """Return a call that is made from another one: it has the parameters and the docstring that it has in Python."""
    made = copy.copy(origin.final_target if origin.is_alias else origin)
    known = {each.name: each for each in made.parameters}
    table = griffe.Parameter("table", annotation="str", kind=griffe.ParameterKind.positional_only)
    made.parameters = griffe.Parameters(*[known.get(name, table) for name in inspect.signature(call).parameters])
    made.docstring = docstring_of(call, made, like)
    return made


def arguments_of(item: griffe.Object | griffe.Alias) -> set[str]:
    """Names of what a function takes; of a class, what its constructor takes, or its fields."""
    if item.is_class:
        made = item.members.get("__init__")
        return arguments_of(made) if made is not None and made.is_function else set(item.members)
    return {each.name.lstrip("*") for each in item.parameters} - {"self"} if item.is_function else set()


def with_paragraphs(text: str, arguments: set[str]) -> str:
    """Return a docstring with arguments as a list, and separate paragraphs for durability and errors. Sections stay."""
    name = "|".join(map(re.escape, sorted(arguments))) or "(?!)"
    argument = re.compile(rf"(?:^|\n|(?<=[.;] ))((?:{name})(?:, (?:{name}))*):\s")
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        if SECTION.match(paragraph):
            out.append(paragraph)
            continue
        head, *pairs = argument.split(re.sub(r"\n(?= )", "", paragraph))
        items = []
        rest = ""
        for given, what in zip(pairs[::2], pairs[1::2], strict=True):
            what, _, rest = labelled(what).partition("\n\n")
            items.append(f"- {', '.join(f'`{each}`' for each in given.split(', '))}: {what}")
            if rest:
                out += [labelled(head), "\n".join(items), rest]
                head, items = "", []
        out += [labelled(head), "\n".join(items)]
    return "\n\n".join(each.strip() for each in out if each.strip())


def labelled(text: str) -> str:
    """Each label begins a paragraph."""
    return LABEL.sub(r"\n\n**\1**\2", re.sub(r"\s+", " ", text)).strip()


def with_links(text: str, owner: str, local: set[str], links: Mapping[str, str]) -> str:
    """Names of the API as links to it, names of documents as links to these."""

    def of_code(match: re.Match[str]) -> str:
        path = re.sub(r"^(?:tidemark|tm)\.", "", match[1])
        path = re.sub(r"^db\.", "Database.", path)
        target = links.get(path)
        if target is None and owner and path not in local:
            target = links.get(f"{owner}.{path}")
        return f"[{match[0]}][{target}]" if target and path not in local else match[0]

    def of_word(match: re.Match[str]) -> str:
        target = links.get(match[0])
        return f"[`{match[0]}`][{target}]" if target and match[0] not in local else match[0]

    def of_document(match: re.Match[str]) -> str:
        source = ROOT / "docs" / f"{match[1]}.md"
        return f"[{title(source.read_text(encoding='utf-8'), match[1])}](../{match[1]}.md)"

    paragraphs = text.split("\n\n")

    def linked(text: str, name: re.Pattern[str]) -> str:
        parts = re.split(r"(`[^`]*`)", text)
        parts[::2] = [name.sub(of_word, part) for part in parts[::2]]
        parts[1::2] = [CODE.sub(of_code, part) for part in parts[1::2]]
        return DOCUMENT.sub(of_document, "".join(parts))

    for at, paragraph in enumerate(paragraphs):
        if SECTION.match(paragraph):
            pieces = SECTION_ITEM.split(paragraph)  # the parser of sections needs the names as they are
            pieces[::2] = [linked(piece, NAME) for piece in pieces[::2]]
            paragraphs[at] = "".join(pieces)
        else:
            paragraphs[at] = linked(paragraph, NAME_OR_WORD if paragraph.startswith("**Raises**") else NAME)
    return "\n\n".join(paragraphs)
