"""Pages of one slice of a commit that the log has: what cannot be had now ends the store, for there is no way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.base.errors import Damaged, InvariantBroken, IoFailed, Retryable, StorageFull

if TYPE_CHECKING:
    from engine.store.store import Store

# A slice that cannot have frames because the disk is full waits for space so many times.
SPACE_ATTEMPTS = 20
SPACE_PAUSE_SECONDS = 0.05


def hold_for_slice(store: Store, pages: list[int]) -> bool:
    """Hold the pages of a slice; False if it should ask again, for others pin the frames: their turn ends.

    Raises: IoFailed, InvariantBroken and any other StoreFailed, and the store is dead.
    """
    for attempt in range(SPACE_ATTEMPTS):
        try:
            store.disk.hold(pages, is_reference=False)
            return True
        except StorageFull as error:
            # Pages lie where space was taken for them: only a file system that copies on write gets here (F44).
            if attempt + 1 == SPACE_ATTEMPTS:
                text = f"{error.message}; a commit cannot write the pages it needs room of, open the store again"
                raise store.fail(IoFailed(text, **error.evidence)) from error
            store.clock.sleep(SPACE_PAUSE_SECONDS)
        except Retryable:
            store.failure.check()
            return False
        except Damaged as error:
            text = f"a commit cannot read a page it must change ({error.message}); reopen the store"
            raise store.fail(InvariantBroken(text)) from error
    return False
