"""Expressions matched with the trees that a plan knows, and the constants of a matched one put into its program.

A pattern says of each node which class it has, which words must be equal, and where its children are; so a tree is
compared without a call of Python. What matches no pattern, and a constant that cannot be read, is left to the general
path, which binds it, or refuses it.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import (
    TYPE_OFFSET,
    address,
    bytes_size,
    clear_error,
    copy_bytes,
    copy_text,
    dict_next,
    is_bytes,
    is_dict,
    is_none,
    is_same_text,
    is_text,
    object_kernel,
    object_of,
    text_size,
    word_at,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.images_kernels import NOT_KNOWN, column_named, is_known
from tidemark.engine.point.keys_kernels import NOT_READ, is_number, key_words, number_of, octets_of
from tidemark.engine.programs import program_layout as P

NOT_MATCHED = -1


@helper
def is_text_at(place, wanted):
    """Whether a place has a text. wanted: address of a text; names in programs are mostly this object."""
    found = word_at(place)
    if found == wanted:
        return True
    return found != 0 and is_text(object_of(found)) != 0 and is_same_text(object_of(found), object_of(wanted)) != 0


@helper
def is_node(trees, at, node):
    """Whether an object is as a node of a pattern says; its children are not looked at."""
    if node == 0 or word_at(node + TYPE_OFFSET) != trees[at + U.N_CLASS]:
        return False
    text = trees[at + U.N_TEXT]
    if text != 0 and not is_text_at(node + text, trees[at + U.N_IS]):
        return False
    if trees[at + U.N_VALUE] != 0:
        return True
    for i in range(trees[at + U.N_WANTED]):
        pair = at + U.NODE_WORDS + 2 * i
        if word_at(node + trees[pair]) != trees[pair + 1]:
            return False
    return True


@helper
def match(trees, at, tree, ahead, found, count):
    """Compare a tree with the pattern at trees[at:]. Return (offset after the pattern, how many constants there are),
    NOT_MATCHED if they differ.

    tree: its address. ahead: words for addresses of nodes. found: gets the addresses of the values of its constants,
    after `count` others.
    """
    ahead[0] = tree
    height = 1
    while height > 0:
        height -= 1
        node = ahead[height]
        if not is_node(trees, at, node):
            return NOT_MATCHED, count
        value = trees[at + U.N_VALUE]
        if value != 0:
            held = word_at(node + value)
            if held == 0 or word_at(held + TYPE_OFFSET) != trees[at + U.N_WANTED]:
                return NOT_MATCHED, count
            found[count] = held
            count += 1
            at += U.NODE_WORDS
            continue
        children = at + U.NODE_WORDS + 2 * trees[at + U.N_WANTED]
        more = trees[at + U.N_CHILDREN]
        for i in range(more):
            ahead[height + more - 1 - i] = word_at(node + trees[children + i])
        height += more
        at = children + more
    return at, count


@helper
def match_changes(plan, trees, at, changes, count, ahead, found, constants, pairs):
    """Compare a dict of changes with those of a tree, from trees[at:] on. Write the plain ones as `read_changes` does;
    return their number, NOT_KNOWN if the changes differ.
    """
    plain = 0
    place, name, value = dict_next(changes, 0)
    while place >= 0:
        number = column_named(plan, name) if count > 0 else NOT_KNOWN
        if number < 0 or number != trees[at]:
            return NOT_KNOWN
        count -= 1
        if trees[at + 1] == U.T_PLAIN:
            column = plan[U.U_VALUES] + number * U.VALUE_WORDS
            if plan[column + U.V_CHANGE] == U.CHANGE_NEVER or is_known(plan, column, value) == 0:
                return NOT_KNOWN
            pairs[2 * plain] = column
            pairs[2 * plain + 1] = address(value)
            plain += 1
            at += 2
        else:
            at, constants = match(trees, at + 1, address(value), ahead, found, constants)
            if at == NOT_MATCHED:
                return NOT_KNOWN
        place, name, value = dict_next(changes, place)
    return plain if count == 0 else NOT_KNOWN


@helper
def put_octets_after(trees, entry, value, words, size):
    """Append a text or bytes to a program of `size` words; return its new size, 0 if it was not read."""
    if trees[entry + U.C_READ + U.KC_KIND] == U.KEY_TEXT:
        length = text_size(value) if is_text(value) else -1
        if length < 0:
            clear_error()
            return 0
    else:
        length = bytes_size(value) if is_bytes(value) else -1
    more = 1 + ((length + 7) >> 3)
    if length < 0 or size + more > words.size:
        return 0
    words[size + more - 1] = 0
    words[size] = length
    if trees[entry + U.C_READ + U.KC_KIND] == U.KEY_TEXT:
        copy_text(value, length, words, (size + 1) << 3)
    else:
        copy_bytes(value, length, words, (size + 1) << 3)
    return size + more


@helper
def bind(trees, tree, found, words):
    """Write the program of a tree with these constants; return its words, 0 if one was not read."""
    size = trees[tree + U.T_PROGRAM_WORDS]
    program = tree + trees[tree + U.T_PROGRAM_AT]
    for i in range(size):
        words[i] = trees[program + i]
    pool = trees[tree + U.T_POOL]
    for i in range(trees[tree + U.T_CONSTANTS]):
        entry = tree + trees[tree + U.T_CONSTANTS_AT] + i * U.CONSTANT_WORDS
        value = object_of(found[trees[entry + U.C_NUMBER]])
        place = trees[entry + U.C_PLACE]
        kind = trees[entry + U.C_SIZE]
        if kind == U.SIZE_OCTETS:
            words[place] = size - pool
            size = put_octets_after(trees, entry, value, words, size)
            if size == 0:
                return 0
            continue
        is_read, low, high = number_of(trees, entry + U.C_READ, value)
        if is_read == 0:
            return 0
        words[place] = low
        if kind == U.SIZE_WIDE:
            words[place + 1] = high
    if trees[tree + U.T_HAS_OCTETS]:
        words[P.H_WORDS] = size
        words[P.H_CONSTANTS] = size - pool
    return size


@helper
def bind_tree(plan, trees, mode, changes, where, ahead, found, pairs, words):
    """Find the tree that a condition and changes have, and write its program. Return (how many changes are plain, words
    of the program); NOT_KNOWN for the general path.
    """
    has_where = 0 if is_none(where) else 1
    if mode == A.MODE_UPDATE and is_dict(changes) == 0:
        return NOT_KNOWN, 0
    tree = U.T_FIRST
    for _ in range(trees[U.T_COUNT]):
        if trees[tree + U.T_MODE] == mode and trees[tree + U.T_HAS_WHERE] == has_where:
            at = tree + U.TREE_WORDS
            constants = 0
            if has_where:
                at, constants = match(trees, at, address(where), ahead, found, constants)
            if at != NOT_MATCHED:
                plain = 0
                if mode == A.MODE_UPDATE:
                    count = trees[tree + U.T_CHANGES]
                    plain = match_changes(plan, trees, at, changes, count, ahead, found, constants, pairs)
                if plain != NOT_KNOWN:
                    size = bind(trees, tree, found, words)
                    if size > 0:
                        return plain, size
        tree += trees[tree + U.T_WORDS]
    return NOT_KNOWN, 0


@helper
def are_read(trees, tree, found, words):
    for i in range(trees[tree + U.T_CONSTANTS]):
        entry = tree + trees[tree + U.T_CONSTANTS_AT] + i * U.CONSTANT_WORDS
        value = object_of(found[trees[entry + U.C_NUMBER]])
        read = entry + U.C_READ
        if is_number(trees[read + U.KC_KIND]):
            is_read, _, _ = number_of(trees, read, value)
            if is_read == 0:
                return False
        elif octets_of(trees, read, value, words, 0) == NOT_READ:
            return False
    return True


@object_kernel("int64(int64[::1], object_)")
def known_tree(trees, where):
    """Return the number of the tree that a condition has, with constants that its columns can have; NOT_MATCHED."""
    ahead = key_words()
    found = key_words()
    tree = U.T_FIRST
    for number in range(trees[U.T_COUNT]):
        at, _ = match(trees, tree + U.TREE_WORDS, address(where), ahead, found, 0)
        if at != NOT_MATCHED and are_read(trees, tree, found, ahead):
            return number
        tree += trees[tree + U.T_WORDS]
    return NOT_MATCHED


@object_kernel("int64(int64[::1], int64[::1], int64, object_, object_, int64[::1])")
def bound_words(plan, trees, mode, changes, where, words):
    """Write the program of a condition and changes; return its words, 0 for the general path."""
    ahead = key_words()
    found = key_words()
    pairs = key_words()
    plain, size = bind_tree(plan, trees, mode, changes, where, ahead, found, pairs, words)
    return size if plain != NOT_KNOWN else 0
