"""Wildcards of `mysql.ndb_replication`: `%` stands for any number of characters, `_` for one, a backslash escapes.

The server's manual swaps `%` and `_`, but the server behaves as described here. `?` stands for itself.
"""

from __future__ import annotations

ANY_NUMBER = "%"
ANY_ONE = "_"
ESCAPE = "\\"


def _tokens(pattern: str) -> list[tuple[bool, str]]:
    """Return (is a wildcard, character) for each step; a backslash at the end stands for itself."""
    tokens = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == ESCAPE and at + 1 < len(pattern):
            at += 1
            tokens.append((False, pattern[at]))
        else:
            tokens.append((character in (ANY_NUMBER, ANY_ONE), character))
        at += 1
    return tokens


def matches(pattern: str, name: str) -> bool:
    """Return whether the whole name matches, ignoring case. The time is at most proportional to length of pattern times
    length of name.
    """
    tokens = [(is_wildcard, character.casefold()) for is_wildcard, character in _tokens(pattern)]
    # Each character alone: case folding may lengthen a character, and `_` matches one character of the name.
    text = [character.casefold() for character in name]
    token = at = 0
    retry_token, retry_at = -1, 0  # the token after the last %, and where in the name the match of that % ends
    while at < len(text):
        if token < len(tokens) and tokens[token] == (True, ANY_NUMBER):
            token += 1
            retry_token, retry_at = token, at
        elif token < len(tokens) and (tokens[token] == (True, ANY_ONE) or tokens[token] == (False, text[at])):
            token += 1
            at += 1
        elif retry_token >= 0:
            retry_at += 1
            token, at = retry_token, retry_at
        else:
            return False
    return all(each == (True, ANY_NUMBER) for each in tokens[token:])
