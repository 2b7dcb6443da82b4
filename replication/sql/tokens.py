"""SQL text as tokens: words, quoted names, strings, numbers, signs. Comments are dropped; `our_note` finds the comment
that Tidemark adds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tidemark.engine.base.errors import Unsupported

STATEMENT_CHARACTERS_MAX = 1 << 20
OURS = "/* tidemark "

WORD, NAME, STRING, HEX, NUMBER, SIGN, END = "word", "name", "string", "hex", "number", "sign", "end"

# Possessive quantifiers: a pattern that can backtrack would remember each character of a long string.
_PATTERNS = re.compile(
    r"""
    (?P<space>\s+|--[ \t][^\n]*|--\n|\#[^\n]*)
  | (?P<executed>/\*M?!\d{0,6}|\*/)
  | (?P<comment>/\*(?:[^*]++|\*(?!/))*+\*/)
  | (?P<unended>/\*)
  | (?P<hex>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+\b)
  | (?P<word>[A-Za-z_][A-Za-z0-9_$]*)
  | (?P<name>`(?:[^`]++|``)++`)
  | (?P<string>'(?:[^'\\]++|''|\\.)*+'|"(?:[^"\\]++|""|\\.)*+")
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<sign>[(),.;=+\-*/<>!%&|^~:@?\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


class Token(NamedTuple):
    """One token: its kind; its meaning (words in capitals, names and strings without quotes); where it begins."""

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The word or sign; "" for any other token: a quoted name and a string are never keywords."""
        return self.text if self.kind in (WORD, SIGN) else ""


def tokens(sql: str) -> Iterator[Token]:
    """Yield the tokens of a statement, END last. Raises: Unsupported at text that is no token."""
    if len(sql) > STATEMENT_CHARACTERS_MAX:
        raise Unsupported(f"a statement of {len(sql)} characters is longer than {STATEMENT_CHARACTERS_MAX}")
    at = 0
    for found in _PATTERNS.finditer(sql):
        kind = found.lastgroup
        # Stop at a comment without an end: otherwise each of many would be searched to the end of the statement.
        if found.start() != at or kind == "unended":
            break
        # A server executes the contents of a version comment, so they are read here, too.
        if kind == SIGN:
            yield Token(SIGN, found[0], at)
        elif kind not in ("space", "comment", "executed"):
            yield Token(str(kind), _meaning(str(kind), found[0]), at)
        at = found.end()
    if at < len(sql):
        raise Unsupported(f"SQL that is not understood at {sql[at : at + 40]!r}", statement=sql[:200])
    yield Token(END, "", at)


def _meaning(kind: str, text: str) -> str:
    if kind == WORD:
        return text.upper()
    if kind == NAME:
        return text[1:-1].replace("``", "`")
    if kind == HEX:
        return text[2:-1] if text.endswith("'") else text[2:]
    if kind == STRING:
        return re.sub(r"\\(.)|''|\"\"", lambda each: _unescaped(each, text[0]), text[1:-1], flags=re.DOTALL)
    return text


def _unescaped(found: re.Match[str], quote: str) -> str:
    """Return the character for an escape, or for a doubled quote, in a string."""
    if found[1] is not None:
        return _ESCAPES.get(found[1], found[1])
    return quote if found[0] == 2 * quote else found[0]


def our_note(sql: str) -> str | None:
    """Return the text of Tidemark's comment at the end of a statement (see `emit`), None without one."""
    start = sql.rfind(OURS)
    return sql[start + len(OURS) : -3] if start >= 0 and sql.endswith(" */") else None
