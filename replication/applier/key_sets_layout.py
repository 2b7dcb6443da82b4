"""Words of a set of keys of several tables. Main memory only."""

from __future__ import annotations

# --- state ------------------------------------------------------------------------------------------
KS_KEYS = 0
KS_WORDS = 1  # words of `data` in use
KS_SEED = 2  # seed of the hash
KEY_SET_STATE_WORDS = 3

# --- a key: its head, then its words -----------------------------------------------------------------
KS_TABLE_SHIFT = 32  # head: table << 32 | words of the key
KS_LENGTH_MASK = (1 << KS_TABLE_SHIFT) - 1
KS_HEAD_WORDS = 1

KEY_SET_BROKEN = -1  # sizes that contradict each other

assert KS_SEED + 1 == KEY_SET_STATE_WORDS
