"""The kernel that writes a group's header, against a twin made of the layout's fields."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.log.group import SMALL_WORDS, Group, Sealer
from tidemark.engine.log.group_kernels import prepare_group, prepare_large_group
from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_WORDS
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, header_of, is_sealed, seal, write_seal

WORD = st.integers(0, (1 << 63) - 1)
HALF = st.integers(0, (1 << 31) - 1)
SIZES = st.integers(GROUP_WORDS, 2_000) | st.sampled_from([SMALL_WORDS - 1, SMALL_WORDS, SMALL_WORDS + 1, 20_000])


@given(
    store=st.binary(min_size=16, max_size=16),
    incarnation=WORD,
    used=SIZES,
    place=st.tuples(WORD, WORD, HALF, HALF, WORD),
    stamp=st.tuples(WORD, WORD),
    unsynced=HALF,
    is_stamped=st.booleans(),
)
def test_sealed_group_of_any_values_equals_twin(
    store: bytes,
    incarnation: int,
    used: int,
    place: tuple[int, int, int, int, int],
    stamp: tuple[int, int],
    unsynced: int,
    is_stamped: bool,
) -> None:
    check_sealed_group(store, incarnation, used, place, stamp, unsynced, is_stamped)


def check_sealed_group(
    store: bytes,
    incarnation: int,
    used: int,
    place: tuple[int, int, int, int, int],
    stamp: tuple[int, int],
    unsynced: int,
    is_stamped: bool,
) -> None:
    sequence, lsn, lap, transactions, epoch = place
    words = np.random.default_rng(used).integers(-(1 << 62), 1 << 62, used + GROUP_ALIGN_WORDS)
    twin = words.copy()
    group = Group(words, used, transactions)
    group.sequence, group.lsn, group.epoch = sequence, lsn, epoch
    group.stamp = (7, 9) if is_stamped else None
    Sealer(store, incarnation).seal(group, lap, stamp, unsynced)
    wall_us, next_txid = (7, 9) if is_stamped else stamp
    assert group.stamp == (wall_us, next_txid)

    written = -(-used // GROUP_ALIGN_WORDS) * GROUP_ALIGN_WORDS
    twin[:GROUP_WORDS] = 0
    twin[used:written] = 0
    header = header_of(twin, GROUP)
    write_seal(header, KIND_GROUP, written, store, incarnation)
    values = {"sequence": sequence, "lsn": lsn, "lap": lap, "transactions": transactions, "epoch": epoch}
    values |= {"wall_us": wall_us, "next_txid": next_txid, "records_words": used - GROUP_WORDS, "unsynced": unsynced}
    for name, value in values.items():
        header[name] = value
    seal(twin, written)
    assert np.array_equal(words, twin)
    assert is_sealed(words, KIND_GROUP, written)


@pytest.mark.parametrize("prepare", [prepare_group, prepare_large_group], ids=["small", "large"])
@pytest.mark.parametrize(("used", "written"), [(15, 512), (20, 19), (20, 513), (16, 16)])
def test_kernel_trusts_no_length(prepare: object, used: int, written: int) -> None:
    words, head, lanes = np.full(512, 5, np.int64), np.zeros(GROUP_WORDS, np.int64), np.zeros(8, np.int64)
    assert callable(prepare)
    assert prepare(words, head, used, written, 1, 2, 3, 4, 5, 6, 7, 8, lanes) == -1
    assert prepare(words, head[:15], 20, 512, 1, 2, 3, 4, 5, 6, 7, 8, lanes) == -1
