"""Users of this machine, as a check of the owner of a file needs them."""

from __future__ import annotations

import os


def is_own_user(number: int) -> bool:
    """Whether a user may do everything this process may: its own user, or root."""
    return number in (0, os.geteuid())
