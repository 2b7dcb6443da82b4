"""Dependencies between the transactions of one epoch: from the last writer of a key to the next, and all transactions
that depend on a marked one.

The kernels run on private memory. There are two open-addressing hash tables, which the caller sizes so that a batch
never fills them: `slots` has for each key 1 + the word offset of its record in `keys`, `names` for each transaction id
1 + its number. Numbers are assigned in order of first appearance; words D_… of the state count the space used.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.sealed.keyed_hash_kernels import headed_hash
from tidemark.replication.conflict import dependencies_layout as W


@helper
def _hash_of_id(id_, state):
    """Return the hash of a transaction id."""
    return headed_hash(id_, state, 0, 0, state[W.D_SEED])


@helper
def _number_of(id_, names, transactions, state):
    """Return the number of a transaction id; at its first appearance, assign one."""
    mask = names.size - 1
    at = _hash_of_id(id_, state) & mask
    while True:
        known = names[at]
        if known == 0:
            break
        if transactions[(known - 1) * W.TRANSACTION_WORDS + W.T_ID] == id_:
            return known - 1
        at = (at + 1) & mask
    number = state[W.D_TRANSACTIONS]
    names[at] = number + 1
    transactions[number * W.TRANSACTION_WORDS + W.T_ID] = id_
    transactions[number * W.TRANSACTION_WORDS + W.T_FIRST] = 0
    transactions[number * W.TRANSACTION_WORDS + W.T_MARK] = 0
    state[W.D_TRANSACTIONS] = number + 1
    return number


@helper
def _is_full(count, names, transactions, state, stack):
    """Whether `count` more transactions might not fit."""
    total = state[W.D_TRANSACTIONS] + count
    return total >= names.size or total * W.TRANSACTION_WORDS > transactions.size or total > stack.size


@helper
def _mark(number, transactions, edges, state, stack):
    """Mark a transaction and all that depend on it; each goes onto the stack once. Return the number of new marks."""
    if transactions[number * W.TRANSACTION_WORDS + W.T_MARK]:
        return 0
    transactions[number * W.TRANSACTION_WORDS + W.T_MARK] = 1
    stack[0] = number
    depth = 1
    marked = 1
    while depth > 0:
        depth -= 1
        edge = transactions[stack[depth] * W.TRANSACTION_WORDS + W.T_FIRST]
        while edge:
            to = edges[(edge - 1) * W.EDGE_WORDS + W.E_TO]
            if transactions[to * W.TRANSACTION_WORDS + W.T_MARK] == 0:
                transactions[to * W.TRANSACTION_WORDS + W.T_MARK] = 1
                stack[depth] = to
                depth += 1
                marked += 1
            edge = edges[(edge - 1) * W.EDGE_WORDS + W.E_NEXT]
    state[W.D_MARKED] += marked
    return marked


@helper
def _key_record(head, hash_, data, start, length, slots, keys, state):
    """Return the word offset of a key's record; a new one has owner -1."""
    mask = slots.size - 1
    at = hash_ & mask
    while True:
        known = slots[at]
        if known == 0:
            break
        record = known - 1
        if keys[record + W.K_HEAD] == head:
            same = 0
            while same < length and keys[record + W.K_DATA + same] == data[start + same]:
                same += 1
            if same == length:
                return record
        at = (at + 1) & mask
    record = state[W.D_KEY_WORDS]
    slots[at] = record + 1
    keys[record + W.K_HEAD] = head
    keys[record + W.K_OWNER] = -1
    for i in range(length):
        keys[record + W.K_DATA + i] = data[start + i]
    state[W.D_KEY_WORDS] = record + W.K_DATA + length
    state[W.D_KEYS] += 1
    return record


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1])",
    nogil=True,
)
def track_keys(ids, tables, data, offsets, names, transactions, slots, keys, edges, state, stack):
    """Track writes in order, each with transaction id, table and key: words [offsets[i], offsets[i + 1]) of `data`.
    Keys of other parts than D_PART of D_PARTS are skipped.

    Return the number of writes, or DEPENDENCY_BROKEN, with nothing tracked, if keys are outside of `data` or a table
    has too little room.
    """
    count = ids.size
    if tables.size < count or offsets.size <= count or _is_full(count, names, transactions, state, stack):
        return W.DEPENDENCY_BROKEN
    words = state[W.D_KEY_WORDS]
    for i in range(count):
        length = offsets[i + 1] - offsets[i]
        if offsets[i] < 0 or length < 0 or offsets[i + 1] > data.size:
            return W.DEPENDENCY_BROKEN
        words += W.K_DATA + length
    if (
        words > keys.size
        or state[W.D_KEYS] + count >= slots.size
        or (state[W.D_EDGES] + count) * W.EDGE_WORDS > edges.size
    ):
        return W.DEPENDENCY_BROKEN
    parts = max(state[W.D_PARTS], 1) - 1
    for i in range(count):
        start = offsets[i]
        length = offsets[i + 1] - start
        head = tables[i] << W.KEY_TABLE_SHIFT | length
        hash_ = headed_hash(head, data, start, length, state[W.D_SEED])
        if (hash_ >> W.PART_SHIFT) & parts != state[W.D_PART]:
            continue
        number = _number_of(ids[i], names, transactions, state)
        record = _key_record(head, hash_, data, start, length, slots, keys, state)
        before = keys[record + W.K_OWNER]
        keys[record + W.K_OWNER] = number
        if before == number or before < 0:
            continue
        first = transactions[before * W.TRANSACTION_WORDS + W.T_FIRST]
        if first == 0 or edges[(first - 1) * W.EDGE_WORDS + W.E_TO] != number:
            edge = state[W.D_EDGES]
            edges[edge * W.EDGE_WORDS + W.E_TO] = number
            edges[edge * W.EDGE_WORDS + W.E_NEXT] = first
            transactions[before * W.TRANSACTION_WORDS + W.T_FIRST] = edge + 1
            state[W.D_EDGES] = edge + 1
        if transactions[before * W.TRANSACTION_WORDS + W.T_MARK]:
            _mark(number, transactions, edges, state, stack)
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def mark_transactions(ids, names, transactions, edges, state, stack):
    """Mark transactions by id, and all that depend on them; ids that were never tracked are marked too. Return the
    number of new marks, or DEPENDENCY_BROKEN if there is too little room.
    """
    if _is_full(ids.size, names, transactions, state, stack):
        return W.DEPENDENCY_BROKEN
    marked = 0
    for i in range(ids.size):
        number = _number_of(ids[i], names, transactions, state)
        marked += _mark(number, transactions, edges, state, stack)
    return marked


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def read_marks(ids, names, transactions, state, out):
    """Set out[i] to 1 for each marked id, else to 0. Return the number of marked ids."""
    mask = names.size - 1
    found = 0
    for i in range(ids.size):
        at = _hash_of_id(ids[i], state) & mask
        out[i] = 0
        while names[at]:
            number = names[at] - 1
            if transactions[number * W.TRANSACTION_WORDS + W.T_ID] == ids[i]:
                out[i] = transactions[number * W.TRANSACTION_WORDS + W.T_MARK]
                break
            at = (at + 1) & mask
        found += out[i]
    return found


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def rehash_dependencies(names, transactions, slots, keys, state):
    """Fill empty hash tables from the records; drop keys of other parts. Return the number of entries."""
    mask = names.size - 1
    for number in range(state[W.D_TRANSACTIONS]):
        at = _hash_of_id(transactions[number * W.TRANSACTION_WORDS + W.T_ID], state) & mask
        while names[at]:
            at = (at + 1) & mask
        names[at] = number + 1
    mask = slots.size - 1
    parts = max(state[W.D_PARTS], 1) - 1
    record = 0
    kept = 0
    state[W.D_KEYS] = 0
    while record < state[W.D_KEY_WORDS]:
        words = W.K_DATA + (keys[record + W.K_HEAD] & W.KEY_LENGTH_MASK)
        hash_ = headed_hash(keys[record + W.K_HEAD], keys, record + W.K_DATA, words - W.K_DATA, state[W.D_SEED])
        if (hash_ >> W.PART_SHIFT) & parts == state[W.D_PART]:
            at = hash_ & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = kept + 1
            for i in range(words):
                keys[kept + i] = keys[record + i]
            kept += words
            state[W.D_KEYS] += 1
        record += words
    state[W.D_KEY_WORDS] = kept
    return state[W.D_TRANSACTIONS] + state[W.D_KEYS]
